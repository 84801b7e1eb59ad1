"""Learning to turn one text into another, from pairs or from plain text (Vaswani et al. 2017; Raffel et al. 2020).

From plain text the decoder learns T5's denoising (§3.1.4): spans of the text are cut out, a sentinel stands in place of
each, and what is written are the spans, each behind its sentinel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.data.reading.lines import numbered_lines
from bertsmith.data.stream.stream import StreamPosition
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.files import claim_folder, locked, make_folder, read_json, write_json
from bertsmith.model import BertConfig
from bertsmith.model.folder import read_modules, write_modules
from bertsmith.objectives import LossOutput
from bertsmith.seeding import generator, torch_seed
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from bertsmith_school.neighbours.encoder_decoder import EncoderDecoder
from bertsmith_school.neighbours.runs import cross_entropy, train_to_the_end

SENTINELS, HIDDEN_SHARE, SPAN_LENGTH = 20, 0.15, 3.0
"""Of denoising: most spans of a text, the share of pieces that is cut out, and the mean length of a span."""

TENSOR_FILE, SHAPE = "seq2seq.safetensors", "shape.json"

Example = tuple[list[int], list[int]]
"""Ids of what is read and of what is written."""


@dataclass(frozen=True)
class Seq2SeqOptions(Checked):
    """The shape, and how it learns."""

    panel: ClassVar[str] = "Network and training"

    layers: int = option(2, min=1, help="Blocks of the encoder, and of the decoder.")
    size: int = option(128, min=32, help="Width of the states, a multiple of 32.")
    vocab_size: int = option(8192, min=1, help="Maximum size of the vocabulary learned from the texts.")
    max_length: int = option(64, min=4, help="Maximum pieces of a text.")
    epochs: int = option(5, min=1, help="Passes over the examples.")
    batch_size: int = option(16, min=1, help="Examples in a step.")
    learning_rate: float = option(1e-3, above=0, help="Peak learning rate.")
    dropout: float = option(0.0, min=0.0, max=0.9, help="Dropout in training.")
    seed: int = option(0, help="Random seed.")

    def _check_together(self) -> None:
        if self.size % 32:
            raise ConfigError(f"size {self.size} must be a multiple of 32, the width of a head")


@dataclass(frozen=True)
class Seq2SeqBatch:
    """N examples: ids before each place [N, S], the begin first, and the true ones [N, S]; -100 behind the end."""

    source: RaggedBatch
    written: Tensor
    labels: Tensor

    @classmethod
    def of(cls, examples: Sequence[Example], begin: int, end: int) -> Seq2SeqBatch:
        """Puts examples together."""
        length = 1 + max(len(target) for _, target in examples)
        written, labels = torch.full((len(examples), length), end), torch.full((len(examples), length), -100)
        for row, (_, target) in enumerate(examples):
            written[row, : len(target) + 1] = torch.tensor([begin, *target])
            labels[row, : len(target) + 1] = torch.tensor([*target, end])
        return cls(RaggedBatch.from_sequences([source for source, _ in examples]), written, labels)

    def to(self, device: torch.device | str) -> Seq2SeqBatch:
        """Returns the same batch on another device."""
        return Seq2SeqBatch(self.source.to(device), self.written.to(device), self.labels.to(device))


def teacher_forcing_loss(model: EncoderDecoder, batch: Seq2SeqBatch) -> LossOutput:
    """Returns the mean of -log p of every written piece, given the true ones before it, in nats."""
    logits = model(batch.source, batch.written).flatten(0, 1)
    loss, hits = cross_entropy(logits, batch.labels.flatten())
    count = int((batch.labels >= 0).sum())
    return LossOutput(loss / count, {"loss": (float(loss.detach()), count), "accuracy": (float(hits.detach()), count)})


class ExampleStream:
    """Batches of examples in an order that seed and epoch decide; `example` makes the one of a number, in an epoch."""

    def __init__(
        self, count: int, example: Callable[[int, int], Example], ends: tuple[int, int], options: Seq2SeqOptions
    ) -> None:
        """Begins at the first batch; `ends` are the ids that begin and end what is written."""
        self.count, self.example, self.ends, self.options = count, example, ends, options
        self.position = StreamPosition()

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch; the last may be smaller."""
        return -(-self.count // self.options.batch_size)

    def __next__(self) -> Seq2SeqBatch:
        epoch, step = self.position.epoch, self.position.offset
        order = generator(self.options.seed, "seq2seq/order", epoch).permutation(self.count)
        chosen = order[step * self.options.batch_size :][: self.options.batch_size]
        last = step + 1 == self.steps_per_epoch
        self.position = StreamPosition(epoch + last, 0, 0 if last else step + 1)
        return Seq2SeqBatch.of([self.example(int(number), epoch) for number in chosen], *self.ends)


def read_text_pairs(path: Path) -> list[tuple[str, str]]:
    """Reads lines of two texts with a tab between."""
    pairs = []
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2 or not all(cells):
            raise InputError(f"{path}: line {number} has {len(cells)} cells; give two texts with a tab between")
        pairs.append((cells[0], cells[1]))
    if not pairs:
        raise InputError(f"{path}: holds no pairs")
    return pairs


def denoised(ids: Sequence[int], sentinels: Sequence[int], rng: np.random.Generator) -> Example:
    """Cuts spans out of at least 2 ids: what is left is read, the spans are written (Raffel et al. 2020, §3.1.4)."""
    hidden = min(max(1, round(HIDDEN_SHARE * len(ids))), len(ids) - 1)
    spans = min(max(1, round(hidden / SPAN_LENGTH)), len(sentinels), hidden, len(ids) - hidden)
    # 把遮掉的和留下的各随机分成同样多的段，再交错排：段与段不会相邻
    gone, kept = (
        np.diff([0, *np.sort(rng.choice(np.arange(1, count), spans - 1, replace=False)), count]).tolist()
        for count in (hidden, len(ids) - hidden)
    )
    source: list[int] = []
    target: list[int] = []
    place = 0
    for sentinel, before, cut in zip(sentinels, kept, gone, strict=False):
        source += [*ids[place : place + before], sentinel]
        target += [sentinel, *ids[place + before : place + before + cut]]
        place += before + cut
    return source, target


class Rewriter:
    """A trained model with its vocabulary."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, max_length: int) -> None:
        self.model, self.tokenizer, self.max_length = model.eval(), tokenizer, max_length

    def __call__(self, text: str, *, beam: int = 4, length_penalty: float = 1.0) -> str:
        """Writes what belongs to a text; `InputError` for one that is empty or too long."""
        if beam < 1:
            raise InputError(f"beam {beam} must be at least 1")
        ids = self.tokenizer.encode(text)
        if not 0 < len(ids) <= self.max_length:
            why = "has no pieces" if not ids else f"has {len(ids)} pieces, the model reads {self.max_length}"
            raise InputError(f"{text[:60]!r} {why}")
        source = RaggedBatch.from_sequences([self.tokenizer.template.wrap(ids)])
        ends = {"begin": self.tokenizer.cls_token_id, "end": self.tokenizer.sep_token_id}
        found = self.model.search(source, **ends, most=self.max_length + 1, beam=beam, length_penalty=length_penalty)
        return self.tokenizer.decode(found)

    def exact(self, pairs: Sequence[tuple[str, str]]) -> float:
        """Returns the share of pairs whose second text it writes piece by piece."""
        same = [self.tokenizer.encode(self(source)) == self.tokenizer.encode(target) for source, target in pairs]
        return float(np.mean(same))

    @classmethod
    def load(cls, run: str | Path) -> Rewriter:
        """Reads a finished run; `CheckpointError` for one that is not there, or damaged."""
        run = Path(run)
        options = read_json(
            run / SHAPE, Seq2SeqOptions, CheckpointError, "train it again with bertsmith compare seq2seq"
        )
        tokenizer = load_tokenizer(run / "tokenizer")
        model = _model_of(options, tokenizer)
        read_modules(run / TENSOR_FILE, {"seq2seq": model})
        return cls(model, tokenizer, options.max_length)


def learn_to_rewrite(
    run: str | Path,
    texts: Sequence[tuple[str, str]] | Sequence[str],
    options: Seq2SeqOptions,
    *,
    console: Console | None = None,
) -> Rewriter:
    """Trains a model into a folder that `Rewriter.load` reads, or resumes where the same call was stopped.

    Texts are pairs of what is read and written, or single, for denoising; those over `max_length` pieces are left out.
    """
    run, console = Path(run), console or Console(quiet=True)
    pairs = [(text, "") if isinstance(text, str) else text for text in texts]
    denoises = bool(texts) and isinstance(texts[0], str)
    # 句子不在磁盘上：用它们的摘要认出文件夹是不是同一批句子的
    content = torch_seed(0, "\n".join("\t".join(pair) for pair in pairs))
    with locked(make_folder(run)):
        claim_folder(run, "seq2seq.json", {"texts": content, "denoises": denoises, **asdict(options)})
        if (run / TENSOR_FILE).exists():
            return Rewriter.load(run)
        tokenizer = WordPieceTokenizer.train(
            (text for pair in pairs for text in pair if text), vocab_size=options.vocab_size, num_unused=SENTINELS
        )
        tokenizer.save(run / "tokenizer")
        write_json(run / SHAPE, options)
        torch.manual_seed(torch_seed(options.seed, "neighbours/initial weights"))
        model = _model_of(options, tokenizer)
        stream = _stream_of(pairs, tokenizer, options, denoises=denoises)
        settings = TrainerSettings(options.epochs * stream.steps_per_epoch, options.learning_rate, epsilon=1e-8)
        trainer = BertTrainer(model, teacher_forcing_loss, settings, seed=options.seed)
        train_to_the_end(run, trainer, stream, "denoising" if denoises else "rewriting", console)
        write_modules(run / TENSOR_FILE, {"seq2seq": model})
    return Rewriter(model, tokenizer, options.max_length)


def _model_of(options: Seq2SeqOptions, tokenizer: Tokenizer) -> EncoderDecoder:
    return EncoderDecoder(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=options.size,
            num_hidden_layers=options.layers,
            num_attention_heads=options.size // 32,
            intermediate_size=4 * options.size,
            hidden_dropout_prob=options.dropout,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=options.max_length + 2 + SENTINELS,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _stream_of(
    pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, options: Seq2SeqOptions, *, denoises: bool
) -> ExampleStream:
    encoded = [(tokenizer.encode(source), tokenizer.encode(target)) for source, target in pairs]
    least = 2 if denoises else 1
    fitting = [
        (source, target)
        for source, target in encoded
        if least <= len(source) <= options.max_length and (denoises or 0 < len(target) <= options.max_length)
    ]
    if not fitting:
        raise InputError(f"no text has {least} to {options.max_length} pieces; raise --max-length")
    sentinels = [tokenizer.vocab.index(f"[unused{number}]") for number in range(SENTINELS)]

    def example(number: int, epoch: int) -> Example:
        source, target = fitting[number]
        if denoises:
            # 每一轮重新挖空：同一句话不会只学一种填法
            rng = generator(options.seed, "seq2seq/spans", epoch, number)
            source, target = denoised(source, sentinels, rng)
        return tokenizer.template.wrap(source), target

    ends = tokenizer.cls_token_id, tokenizer.sep_token_id
    return ExampleStream(len(fitting), example, ends, options)
