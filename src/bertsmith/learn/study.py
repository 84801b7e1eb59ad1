"""The model that the lessons compute with: the reader's own folder, or the trained village model of the package.

A folder that lacks a head, such as a sentence encoder, gets a fresh one, and that is said on the screen.
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
from bertsmith.model import BertForPreTraining, ModelConfig
from bertsmith.model.folder import stored_heads
from bertsmith.seeding import torch_seed
from bertsmith.tinyworld import trained_model
from bertsmith.tokenizer import Tokenizer, load_tokenizer

HEADS = {"masked_lm": Text("masked-LM head", "MLM 头"), "next_sentence": Text("next-sentence head", "NSP 头")}
"""Our name of a head → its name for people."""


@dataclass(frozen=True)
class Study:
    """A pre-training model with its tokenizer.

    Attributes:
        model: in evaluation mode.
        tokenizer: the model's.
        folder: where it came from; None for one that was made in memory.
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
