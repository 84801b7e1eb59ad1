"""The model that the lessons compute with: the reader's own folder, or a small one made on the spot.

A made one has fresh weights: it shows how the arithmetic goes, not what a trained model knows, and says so. So does a
folder that lacks a head, such as a sentence encoder: the head is then fresh, and named on the screen.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bertsmith.batch import FULL, AttentionMask, RaggedBatch
from bertsmith.errors import InputError
from bertsmith.inference.checks import require_fit
from bertsmith.learn.lesson import Language, Text
from bertsmith.model import BertConfig, BertForPreTraining, ModelConfig
from bertsmith.model.folder import stored_heads
from bertsmith.seeding import torch_seed
from bertsmith.tinyworld import draw_captions, draw_stories, render
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer

HEADS = {"masked_lm": Text("masked-LM head", "MLM 头"), "next_sentence": Text("next-sentence head", "NSP 头")}
"""Our name of a head → its name for people."""


@dataclass(frozen=True)
class Study:
    """A pre-training model with its tokenizer.

    Attributes:
        model: in evaluation mode.
        tokenizer: the model's.
        folder: where it came from; None for the one made on the spot.
        fresh: names for people of the parts that have fresh weights; empty for a model that is made whole.
    """

    model: BertForPreTraining
    tokenizer: Tokenizer
    folder: Path | None = None
    fresh: tuple[Text, ...] = ()

    @classmethod
    def load(cls, folder: str | Path) -> Study:
        """Loads a model folder of any architecture and family; a family without a pair head gets none.

        Raises:
            CheckpointError: the folder is no model folder, or damaged.
            InputError: it has no tokenizer, or one that does not fit.
        """
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
    @functools.lru_cache(maxsize=4)
    def small(cls, seed: int = 0) -> Study:
        """Makes a model of two layers with fresh weights, over the words of the bundled village."""
        stories = [render(sentence) for story in draw_stories(seed, 150) for sentence in story.sentences]
        texts = stories + [render(caption) for caption in draw_captions(seed, 150)]
        tokenizer = WordPieceTokenizer.train(texts, vocab_size=600)
        # 初始方差取大一些：否则注意力几乎是均匀的，每一步的数字看不出差别
        config = BertConfig.named(
            "2/128", vocab_size=tokenizer.vocab_size, max_position_embeddings=64, initializer_range=0.1
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "learn/model"))
            return cls(BertForPreTraining(config).eval(), tokenizer)

    def note(self, language: Language) -> str:
        """Says which model this is and what of it is untrained."""
        config = self.model.config
        shape = f"{config.num_hidden_layers}/{config.hidden_size}"
        if self.folder is None:
            return Text(
                f"Computed on a small model made on the spot ({shape}, fresh weights): it shows the arithmetic, not"
                " knowledge. Give --model DIR for a trained one.",
                f"用当场建的小模型（{shape}，未经训练的权重）算出：看的是算法，不是知识。"
                "用 --model DIR 换成训练好的模型。",
            )(language)
        fresh = ", ".join(part(language) for part in self.fresh)
        said = Text(f"Computed on {self.folder} ({shape}).", f"用 {self.folder}（{shape}）算出。")(language)
        untrained = Text(
            f" The folder lacks its {fresh}: fresh weights there.", f"文件夹里没有 {fresh}：这部分未经训练。"
        )
        return said + (untrained(language) if fresh else "")

    def encode(self, text: str, pair: str | None = None) -> tuple[list[int], list[int]]:
        """Turns one text or two into ids and segments, special tokens included.

        Raises:
            InputError: a text has no words, all is longer than the model reads, or the model knows no pairs.
        """
        for given in (text, pair):
            if given is not None and not self.tokenizer.encode(given):
                raise InputError(f"there are no words in {given[:40]!r}; write a sentence")
        encoded = self.tokenizer(text, pair) if pair is not None else self.tokenizer(text)
        ids, segments = list(encoded["input_ids"]), list(encoded["token_type_ids"])
        if pair is not None and not self.model.config.reads_pairs:
            raise InputError("the model knows a single segment, and this takes a pair; name a model that knows two")
        longest = self.model.config.position_limit
        if len(ids) > longest:
            raise InputError(f"{text[:40]!r} makes {len(ids)} pieces; this model reads {longest}, write a shorter one")
        return ids, segments

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Returns the pieces of ids."""
        return tuple(self.tokenizer.vocab[index] for index in ids)

    @torch.inference_mode()
    def states(self, sequences: Sequence[Sequence[int]], *, mask: AttentionMask = FULL) -> list[Tensor]:
        """Returns the last layer's states [S_n, H] of every sequence."""
        batch = RaggedBatch.from_sequences(sequences)
        return list(self.model.backbone(batch, mask=mask).hidden_states.split(batch.lengths))
