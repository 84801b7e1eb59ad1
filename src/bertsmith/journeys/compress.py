"""A smaller model from a trained one, without training: layers, heads, pieces, bits; each step is scored.

Some layers are left out; the heads that matter least, as measured on dev, are cut out (Michel et al. 2019); pieces that
a text never needs leave the table; weights are stored in bf16 or 8 bits. Every step but the last loses something that a
little fine-tuning, or a teacher, brings back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from bertsmith.data.reading.documents import readable_files
from bertsmith.data.reading.opening import opening_lines
from bertsmith.data.reading.text import read_text
from bertsmith.errors import ConfigError
from bertsmith.files import claim_folder, working_in, write_json
from bertsmith.finetune.datasets import DataSource, ReadingOptions, local_sources, name_of
from bertsmith.finetune.metrics import in_digits
from bertsmith.finetune.reading import tell_files
from bertsmith.finetune.tasks import save_task, task_of_model
from bertsmith.finetune.tasks.task import Task
from bertsmith.hub import model_folder
from bertsmith.inference.embed import copy_sentence_files, length_limit
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.linear import WORDS_FILE
from bertsmith.inference.task_file import read_task_file
from bertsmith.kernels.layers import best_device, on_device
from bertsmith.kernels.matmul import has_int8_kernels
from bertsmith.model import (
    ModelConfig,
    PretrainedModel,
    cut_vocabulary,
    keep_layers,
    layers_written,
    load_any,
    prune_heads,
)
from bertsmith.model.folder import StoredAs, fingerprint_weights
from bertsmith.model.surgery import head_importance
from bertsmith.reporting.progress import say
from bertsmith.seeding import generator
from bertsmith.settings import Checked, Result, built, divided, option
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer

MEASURED = 512
"""Dev examples on which the importance of heads is measured."""


@dataclass(frozen=True)
class CompressionOptions(Checked):
    """What is left out of a model."""

    layers: str = option("", help="Keep these layers, counted from 0, such as 0,2,4.")
    heads: float = option(0.0, min=0.0, max=0.95, help="Share of the attention heads to cut; needs --dev to choose.")
    vocabulary: tuple[str, ...] = option((), help="Text file; pieces that it never uses are removed.")
    int8: bool = option(False, help="Store matrices in 8 bits; only bertsmith reads such a folder.")
    bf16: bool = option(False, help="Store weights in bf16, which transformers reads too.")

    def _check_together(self) -> None:
        if self.int8 and self.bf16:
            raise ConfigError("--int8 and --bf16 both say how weights are stored; leave one out")
        if not (self.layers or self.heads or self.vocabulary or self.int8 or self.bf16):
            raise ConfigError("nothing to do: give --layers, --heads, --vocabulary, --int8 or --bf16")

    @property
    def stored(self) -> StoredAs:
        """How the weights are stored."""
        return "int8" if self.int8 else "bf16" if self.bf16 else "float32"


@dataclass(frozen=True)
class CompressionRow:
    """A model after a step: megabytes (10^6 bytes) on disk, dev examples a second, score on dev; None without dev."""

    step: str
    parameters: int
    megabytes: float
    per_second: float | None
    score: float | None


def compress(
    model: str | Path,
    out: str | Path,
    *,
    dev: DataSource | None = None,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[list[CompressionRow]]:
    """Makes a trained model smaller without training: fewer layers, heads and pieces, weights in fewer bits.

    Examples:
        >>> import bertsmith
        >>> smaller = bertsmith.compress("run/model", "smaller", bf16=True)
        >>> smaller.metrics["megabytes"] < smaller.details[0].megabytes
        True

    Args:
        model: a model folder, fine-tuned or not, or `org/name` on the Hub.
        out: the folder of the smaller model.
        dev: a labelled file or its URL, or rows in memory, as in `finetune`; each step is scored on it.
        console: shows what was read, and a table of the steps; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith compress`, with underscores: `layers`, `heads`, `int8` and so on.

    Returns:
        `metrics`: of the smaller model `score` and `per_second` where there is a `dev`, `parameters`, and `megabytes`
        (10^6 bytes); `details`: the model as it was, then after each step.

    Raises:
        BertsmithError: a setting or a file is unusable, or there is nothing to do; nothing is written then.
    """
    chosen, how = divided(settings, CompressionOptions, ReadingOptions, command="compress")
    options, reading, folder = built(CompressionOptions, chosen), built(ReadingOptions, how), Path(out)
    if options.heads and dev is None:
        raise ConfigError("--heads: give --dev, on which it is measured which heads matter")
    with on_device(device), working_in(folder):
        rows = _compressed(model_folder(str(model)), folder, options, dev, reading, console)
    # 最后一步就是成品；没有 dev 文件便没有分数和速度，不能拿零充数
    last = {name: getattr(rows[-1], name) for name in ("score", "parameters", "megabytes", "per_second")}
    metrics = {name: float(value) for name, value in last.items() if value is not None}
    return Result(folder, metrics, folder, None, rows)


def _compressed(
    source: Path,
    out: Path,
    options: CompressionOptions,
    dev: DataSource | None,
    reading: ReadingOptions,
    console: Console | None,
) -> list[CompressionRow]:
    # 阈值、温度是按编码器与词之和定的：去掉词，它们就不作数了
    if (source / WORDS_FILE).exists():
        raise ConfigError(f"{source}: its answer counts {WORDS_FILE} too; name a folder without, such as one in parts/")
    judged = str(dev) if isinstance(dev, (str, Path)) else None if dev is None else name_of(dev)
    whole: dict[str, Any] = {"weights": fingerprint_weights(source), "options": asdict(options), "dev": judged}
    # 先认领再测量：有内容的文件夹，不等几分钟才拒绝
    claim_folder(out, "compress.json", whole)
    files = readable_files(options.vocabulary, reading.encoding) if options.vocabulary else []
    for line in opening_lines(options.vocabulary, files, reading.encoding) if files and console else ():
        say(line, console)
    work = _Work(source, dev, reading, console)
    if options.layers:
        keep_layers(work.model, layers_written(options.layers))
        work.measure(f"layers {options.layers}")
    if options.heads:
        work.prune(options.heads)
    if files:
        work.cut(files, reading.encoding)
    work.save(out, options.stored)
    if options.stored != "float32":
        work.model = work.loaded(out)
        work.measure(f"stored in {options.stored}", options.stored)
    # 请求与结果分开写：同一条命令再来一次，请求仍与文件夹里的相同
    write_json(out / "steps.json", [asdict(row) for row in work.rows])
    if console is not None:
        _show(console, work, out)
    return work.rows


class _Work:
    def __init__(self, source: Path, dev: DataSource | None, reading: ReadingOptions, console: Console | None) -> None:
        self.source = source
        self.task: Task[Any, Any] | None = None
        self.max_length, self.examples = 0, list[Any]()
        self.tokenizer: Tokenizer = load_tokenizer(source)
        if dev is not None or read_task_file(source):
            self.task, self.max_length = task_of_model(source)
            name, reader = self.task.name, self.task.spec.reader
            with local_sources({} if dev is None else {"dev": dev}) as local:
                read = {part: reader.read(one, reading, task=name, name=part) for part, one in local.items()}
                self.examples = read.get("dev", [])
                if console is not None:
                    limit = InferenceConfig(max_length=self.max_length).length_for(ModelConfig.load(source))
                    reads: dict[str, Any] = {"tokenizer": self.tokenizer, "limit": limit}
                    tell_files(name, local, read, reading, console=console, **reads)
        self.model = self.loaded(source)
        self.rows: list[CompressionRow] = []
        self.measure("as it was")

    def loaded(self, folder: Path) -> PretrainedModel:
        model = self.task.load(folder) if self.task is not None else load_any(folder)
        return model.to(best_device()).eval()

    def measure(self, step: str, precision: StoredAs = "float32") -> None:
        """Adds a row: size, and with a dev file score and rate."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        megabytes = _bytes(self.model, precision) / 1e6
        rate = score = None
        if self.examples:
            assert self.task is not None
            # 存成 8 位的模型在 CPU 上也用 8 位算：量的是人们将要用的样子
            device = best_device()
            in_8_bits = precision == "int8" and device.type == "cpu" and has_int8_kernels()
            runs: Any = "int8" if in_8_bits else "float32"
            inference = InferenceConfig(device, runs, self.max_length)
            self.task.predict(self.model, self.tokenizer, self.examples[:32], inference)
            begun = time.perf_counter()
            found = self.task.predict(self.model, self.tokenizer, self.examples, inference)
            rate = len(self.examples) / (time.perf_counter() - begun)
            score = self.task.selection_score(self.task.metrics(self.examples, found))
        self.rows.append(CompressionRow(step, count, megabytes, rate, score))

    def prune(self, share: float) -> None:
        """Cuts the heads that matter least on dev, and leaves one in every layer."""
        task = self.task
        assert task is not None
        inference = InferenceConfig(best_device(), "float32", self.max_length)
        encoded = task.encode(self.tokenizer, self.examples[:MEASURED], inference.length_for(self.model.config))
        batches = task.batches(encoded, min(32, len(encoded)), generator(0, "compress/heads"))
        device = best_device()
        importance = head_importance(
            self.model,
            (task.batch([encoded[number] for number in numbers]).to(device) for numbers in batches),
            lambda model, batch: task.objective(model, batch).loss,
        )
        config = self.model.config
        blocks: list[Any] = list(self.model.backbone.encoder.blocks)
        # 共享权重的几层是同一个模块：它的头只在其中第一层排一次，剪就在每一层都剪
        first = [blocks.index(block) for block in blocks]
        left = {layer: config.heads_left(layer) for layer in first}
        ranked = sorted(
            (value, layer, head)
            for layer, heads in left.items()
            for head, value in zip(heads, importance[layer], strict=True)
        )
        wanted, cut = round(share * len(ranked)), {layer: set[int]() for layer in left}
        for _, layer, head in ranked:
            # 每层至少留一个头：没有头的层无法计算
            if sum(map(len, cut.values())) < wanted and len(cut[layer]) + 1 < len(left[layer]):
                cut[layer].add(head)
        prune_heads(self.model, {layer: cut[one] for layer, one in enumerate(first) if cut[one]})
        self.measure(f"{sum(map(len, cut.values()))} of {len(ranked)} heads cut")

    def cut(self, text: Sequence[Path], encoding: str) -> None:
        """Cuts the pieces that a text never needs."""
        if not isinstance(self.tokenizer, WordPieceTokenizer):
            raise ConfigError("--vocabulary needs a WordPiece vocabulary; this one spells in another way: leave it out")
        used: set[int] = set()
        lines = read_text(text, encoding)
        while batch := list(islice(lines, 10_000)):
            used.update(np.unique(self.tokenizer.encode_flat(batch).ids).tolist())
        before = len(self.tokenizer)
        self.tokenizer = cut_vocabulary(self.model, self.tokenizer, used)
        self.measure(f"{len(self.tokenizer):,} of {before:,} pieces")

    def save(self, out: Path, stored: StoredAs) -> None:
        self.model.save_pretrained(out, weights=stored)
        self.tokenizer.save(out, model_max_length=length_limit(self.source, self.model.config))
        copy_sentence_files(self.source, out)
        if read_task_file(self.source) and self.task is not None:
            save_task(self.task, out, self.max_length)
            self.task.add_files(out, self.model.config, self.max_length)


def _bytes(model: PretrainedModel, stored: StoredAs) -> int:
    whole = 2 if stored == "bf16" else 4
    # 8 位：矩阵每数一字节，每行另有一个 4 字节的尺度；向量照旧
    return sum(
        one.numel() + 4 * len(one) if stored == "int8" and one.dim() == 2 else whole * one.numel()
        for one in model.parameters()
    )


def _show(console: Console, work: _Work, out: Path) -> None:
    table = Table("step", *(Column(one, justify="right") for one in ("parameters", "MB", "examples/s", "score")))
    for row in work.rows:
        rate = "" if row.per_second is None else f"{row.per_second:,.0f}"
        score = "" if row.score is None else in_digits(row.score)
        table.add_row(row.step, f"{row.parameters / 1e6:.2f} M", f"{row.megabytes:,.1f}", rate, score)
    console.print(table)
    console.print(f"model: {escape(str(out))}", soft_wrap=True)
    if work.model.config.pruned_heads:
        console.print("transformers 5 builds no models with pruned heads; bertsmith and ONNX (`export onnx`) do")
