"""The model that the lessons compute with, and the sentences that they start from where the reader gives none.

The model is the reader's own folder, or the trained village model; a head that a folder lacks is fresh, and that is
said on the screen. Sentences are such as the vocabulary can write: English or Chinese. One that knows neither (of a
trade, of genes) gets the English ones word for word in pieces of its own: they say nothing, but what they have in
common and where they differ stays as it was, and that is what the computations look at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from bertsmith.batch import FULL, AttentionMask, RaggedBatch
from bertsmith.errors import InputError
from bertsmith.inference.pipeline import require_fit
from bertsmith.model import BertForPreTraining, ModelConfig, NextSentenceHead
from bertsmith.model.folder import stored_heads
from bertsmith.seeding import torch_seed
from bertsmith.tinyworld import trained_model
from bertsmith.tokenizer import Tokenizer, load_tokenizer
from bertsmith_school.learn.lesson import Language, Text

HEADS = {"masked_lm": Text("masked-LM head", "MLM 头"), "next_sentence": Text("next-sentence head", "NSP 头")}
"""Our name of a head → its name for people."""


@dataclass(frozen=True)
class Study:
    """A pre-training model with its tokenizer, its folder if it has one, and the names of parts with fresh weights."""

    model: BertForPreTraining
    tokenizer: Tokenizer
    folder: Path | None = None
    fresh: tuple[Text, ...] = ()

    @classmethod
    def load(cls, folder: str | Path) -> Study:
        """Loads a model folder of any architecture and family; a family without a pair head gets none."""
        held, family = stored_heads(folder), ModelConfig.load(folder).family
        # 多数后继者没有“下一句”：缺的头若是这个家族本来就没有的，就不补
        missing = [name for name in HEADS if name not in held and name in family.heads]
        tokenizer = load_tokenizer(folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(0, "learn/heads"))
            model = BertForPreTraining.from_pretrained(
                folder, new_heads=tuple(missing), pair_head="next_sentence" in family.heads
            ).eval()
        require_fit(tokenizer, model.config)
        fresh = [HEADS[name] for name in missing]
        if model.load_report and any(name.startswith("backbone.pooler") for name in model.load_report.fresh):
            fresh.append(Text("pooler", "pooler"))
        return cls(model, tokenizer, Path(folder), tuple(fresh))

    @classmethod
    @functools.cache
    def village(cls) -> Study:
        """Loads the trained village model that comes with the package."""
        return cls.load(trained_model())

    def note(self, language: Language) -> str:
        """Says which model this is and what of it is untrained."""
        config = self.model.config
        shape = f"{config.num_hidden_layers}/{config.hidden_size}"
        if self.folder == trained_model():
            return Text(
                f"Computed on the village model that comes with bertsmith ({shape}): it was trained on stories of a"
                " small village and knows nothing else. Give --model DIR for your own.",
                f"用 bertsmith 自带的小村庄模型（{shape}）算出：它只读过一个小村庄的故事，别的都不知道。"
                "用 --model DIR 换成自己的模型。",
            )(language)
        fresh = ", ".join(part(language) for part in self.fresh)
        name = self.folder or Text("a model in memory", "内存中的模型")(language)
        said = Text(f"Computed on {name} ({shape}).", f"用 {name}（{shape}）算出。")(language)
        untrained = Text(
            f" The folder lacks its {fresh}: fresh weights there.", f"文件夹里没有 {fresh}：这部分未经训练。"
        )
        return said + (untrained(language) if fresh else "")

    def encode(self, text: str, pair: str | None = None, *, most: int | None = None) -> tuple[list[int], list[int]]:
        """Turns one text or two into ids and segments, special tokens included, or says why it cannot.

        They are `most` at most, where a computation takes fewer than the model.
        """
        for given in (text, pair):
            if given is not None and not self.tokenizer.encode(given):
                raise InputError(f"there are no words in {given[:40]!r}; write a sentence")
        encoded = self.tokenizer(text, pair) if pair is not None else self.tokenizer(text)
        ids, segments = list(encoded["input_ids"]), list(encoded["token_type_ids"])
        if pair is not None and not self.model.config.reads_pairs:
            raise InputError("the model knows a single segment, and this takes a pair; name a model that knows two")
        most = min(most or len(ids), self.model.config.position_limit)
        if len(ids) > most:
            raise InputError(f"{text[:40]!r} makes {len(ids)} pieces; write a shorter one, of {most} at most")
        return ids, segments

    def places_of(self, word: str, text: str, ids: Sequence[int]) -> list[int]:
        """Returns where a word begins among the ids of its text."""
        found = places_of(self.tokenizer.encode(word), ids)
        if not found:
            raise InputError(f"the word {word[:40]!r} is not in {text[:40]!r}; name a word of the sentence")
        return found

    def require_place(self, place: int, ids: Sequence[int], what: str = "sentence") -> None:
        """Makes sure that there is a token at a place, counted from 0."""
        if place >= len(ids):
            raise InputError(f"place {place}: the {what} has the tokens 0 to {len(ids) - 1}")

    def require_next_sentence(self) -> None:
        """Makes sure that the model's family learned the next-sentence task."""
        # ALBERT 的头问的是两句的顺序，不是随机与否：同样的数，意思不同
        if self.model.family.heads.get("next_sentence") is not NextSentenceHead:
            raise InputError(f"{self.model.family.name} was not trained to tell the next sentence; take a BERT")

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Returns the pieces of ids."""
        return tuple(self.tokenizer.vocab[index] for index in ids)

    @torch.inference_mode()
    def states(self, sequences: Sequence[Sequence[int]], *, mask: AttentionMask = FULL) -> list[Tensor]:
        """Returns the last layer's states [S_n, H] of every sequence."""
        batch = RaggedBatch.from_sequences(sequences)
        return list(self.model.backbone(batch, mask=mask).hidden_states.split(batch.lengths))


def places_of(word: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Returns where a word of one piece or several begins in a sequence."""
    return [n for n in range(len(ids)) if word and list(ids[n : n + len(word)]) == word]


Sentences = Mapping[str, str]
"""The texts of a computation by the names of its inputs."""

Ids = Mapping[str, list[int]]
"""The same texts as ids."""

Suits = Callable[[Ids], bool]
"""Whether texts are such as a computation takes."""

LONG = 4
"""Letters from which on a piece is likely to be a word and no part of one."""


def starting_sentences(
    tokenizer: Tokenizer, options: Sequence[Sentences], suits: Suits | None = None
) -> dict[str, str]:
    """Chooses of the same sentences in several languages those that a vocabulary writes in the fewest pieces.

    They suit the computation and have no unknown piece; else the first are returned in pieces of the vocabulary.
    """
    best, fewest = None, 0
    for sentences in options:
        ids = {name: tokenizer.encode(text) for name, text in sentences.items()}
        size = sum(map(len, ids.values()))
        known = all(each and tokenizer.unk_token_id not in each for each in ids.values())
        fits = known and (suits is None or suits(ids))
        # 词表里虽有字母、却要一个个拼出来的英文不算合适：能用更少词片写成的优先
        if fits and (best is None or size < fewest):
            best, fewest = sentences, size
    return dict(best) if best is not None else _in_own_pieces(tokenizer, options[0])


def _in_own_pieces(tokenizer: Tokenizer, sentences: Sentences) -> dict[str, str]:
    words = list(dict.fromkeys(word for text in sentences.values() for word in text.split()))
    pieces = list(islice(_whole_pieces(tokenizer), len(words)))
    if not pieces:
        return dict(sentences)
    # 一个词对一个词片：哪里相同、哪里不同都保留；词片不够时轮流用，相邻的两个词仍然不同
    replaced = {word: pieces[number % len(pieces)] for number, word in enumerate(words)}
    return {name: " ".join(replaced[word] for word in text.split()) for name, text in sentences.items()}


def _whole_pieces(tokenizer: Tokenizer) -> Iterator[str]:
    """Yields the pieces that are words by themselves: of letters first, of several before single ones."""
    # 词表大致按频率排列；同样长的保持原来的次序，得到的就是常见的词
    ordered = sorted(tokenizer.vocab, key=lambda piece: (not piece.isalpha(), -min(len(piece), LONG)))
    for piece in ordered:
        index = tokenizer.piece_to_id[piece]
        if index not in tokenizer.special_ids and tokenizer.encode(piece) == [index]:
            yield piece
