"""Further pre-training on the texts of a task, before its labels are learned (Gururangan et al. 2020, "TAPT").

A model that has read the task's own words, without their labels, starts fine-tuning closer to them; the smaller the
model's first text was, the more this is worth. The run is one of pre-training like any other, in the folder `further`
of the fine-tuning run, so it resumes where it was stopped: `corpus-…/`, named by a checksum of the texts, holds their
token shards, `model/` the model that fine-tuning starts from. A run that was begun on other texts is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console

from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.corpus.manifest import MANIFEST
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.documents import readable_files
from bertsmith.data.reading.sentences import split_sentences
from bertsmith.data.reading.text import Document, read_documents
from bertsmith.errors import ConfigError
from bertsmith.files import checksum_of
from bertsmith.hub import model_folder
from bertsmith.model import ModelConfig
from bertsmith.objectives.pretraining import objective_named
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.choosing import native_settings, recipe_to_continue
from bertsmith.train.pretraining import pretrain

FURTHER = "further"


@dataclass(frozen=True)
class FurtherOptions(Checked):
    """Whether the task's texts are read before its labels are learned."""

    panel: ClassVar[str] = "Further pre-training first"

    adapt: float = option(0.0, min=0.05, help="Minutes of further pre-training on the training file's texts.")
    adapt_text: tuple[str, ...] = option((), help="More text of that kind, without labels: a file or folder.")

    def _check_together(self) -> None:
        if self.adapt_text and not self.adapt:
            raise ConfigError("--adapt-text: say with --adapt for how many minutes it is read")


def pretrain_further(
    model: str | Path,
    examples: Sequence[Any],
    run: Path,
    options: FurtherOptions,
    *,
    encoding: str = "auto",
    seed: int = 0,
    console: Console | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Continues pre-training a model on the texts of labelled examples, and returns its folder."""
    folder = run / FURTHER
    tokenizer = load_tokenizer(model_folder(model))
    more = readable_files(options.adapt_text, encoding) if options.adapt_text else []
    # 语料按所读的文本命名：同一个目录换了文本，不会读到从前的语料
    read = [*(example.texts for example in examples), *((str(file), file.stat().st_size) for file in more)]
    place = folder / f"corpus-{checksum_of({'read': read})}"
    if (place / MANIFEST).exists():
        corpus = TokenCorpus(place, tokenizer)
    else:
        corpus = build_from_documents(_documents(examples, more, encoding), tokenizer, place)
    # 任务的文本互不相干，没有“下一句”可学：带句对的目标换成只填空
    own = ModelConfig.load(model).family.objective
    recipe = recipe_to_continue(
        model,
        objective=own if objective_named(own).needs.pairs == "none" else "mlm",
        minutes=options.adapt,
        **native_settings(device, folder),
        seed=seed,
    )
    pretrain(folder, corpus, tokenizer, recipe, console=console, device=device)
    return folder / "model"


def _documents(examples: Iterable[Any], more: Sequence[Path], encoding: str) -> Iterator[Document]:
    for number, example in enumerate(examples):
        for text in example.texts:
            if sentences := tuple(split_sentences(text)):
                yield Document(f"example {number}", sentences)
    if more:
        yield from read_documents(more, encoding=encoding)
