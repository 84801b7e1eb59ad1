"""Fine-tuning a classifier of texts or pairs of texts (Devlin et al. 2019, §4.1 and appendix A.3).

All parameters are trained, with one new linear layer over `[CLS]`; two to four epochs, a small rate, and the weights
that did best on the development file are the ones that are saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.files import claim_folder, write_text
from bertsmith.finetune.metrics import accuracy, f1_scores, macro_f1
from bertsmith.finetune.readers import LabelledText, labels_of
from bertsmith.inference.engine import Engine
from bertsmith.inference.pipelines import require_fit
from bertsmith.model import BertConfig, BertForSequenceClassification
from bertsmith.model.layers import best_compute_dtype
from bertsmith.objectives import ClassificationBatch, ClassificationObjective
from bertsmith.objectives.measure import Measure
from bertsmith.seeding import generator, torch_seed
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.monitor import MetricsLog, StepProgress
from bertsmith.train.trainer import BertTrainer, TrainerSettings


@dataclass(frozen=True)
class FineTuningSettings:
    """The paper's recipe (appendix A.3) as defaults.

    Attributes:
        epochs: passes over the training file; 2 to 4 in the paper.
        batch_size: texts in a step; 16 or 32 in the paper.
        learning_rate: its peak; 2e-5 to 5e-5 suit base and large, small models take more.
        warmup_share: share of the steps with a rising rate.
        max_length: most ids in a text or pair, special tokens included; 0 takes what the model reads.
        seed: of the new layer, the order and dropout.
        from_random: start from random weights instead of the folder's, to see what pre-training bought.
    """

    epochs: int = 3
    batch_size: int = 16
    learning_rate: float = 5e-5
    warmup_share: float = 0.1
    max_length: int = 0
    seed: int = 0
    from_random: bool = False

    def __post_init__(self) -> None:
        """Checks the ranges that `TrainerSettings` does not."""
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigError("epochs and batch size must be at least 1")
        if self.max_length < 0:
            raise ConfigError(f"max length {self.max_length} cannot be negative")


@dataclass(frozen=True)
class ClassificationScores:
    """How a classifier does on a file: accuracy, macro F1, F1 per class, and the number of texts."""

    accuracy: float
    macro_f1: float
    f1: dict[str, float]
    texts: int


def fine_tune_classifier(
    model_folder: str | Path,
    train: Sequence[LabelledText],
    dev: Sequence[LabelledText],
    run: str | Path,
    settings: FineTuningSettings,
    *,
    console: Console | None = None,
    device: torch.device | str = "cpu",
) -> ClassificationScores:
    """Trains a classifier and keeps the weights that did best on `dev`.

    Args:
        model_folder: a model folder with its tokenizer.
        train: labelled texts; their labels are the classes.
        dev: labelled texts to choose the best epoch by.
        run: written: `model/` (a model folder), `metrics.jsonl`, `result.json`.
        settings: the recipe.
        console: shows progress; silent when None.
        device: where the model lives.

    Returns:
        The scores of the kept weights on `dev`.

    Raises:
        InputError: a file is empty, one has pairs and the other has not, a label of `dev` does not occur in `train`,
            or there is one class only.
        RunFolderError: the folder holds something else or a result with other settings, or cannot be written.
    """
    run = Path(run)
    _require_same_form(train, dev)
    request = {
        "model": _checksum_of_model(Path(model_folder)),
        "settings": asdict(settings),
        "train": _fingerprint(train),
        "dev": _fingerprint(dev),
    }
    claim_folder(run, "finetune.json", request)
    finished = _finished_scores(run)
    if finished is not None:
        return finished
    labels = labels_of(train)
    numbers = {label: index for index, label in enumerate(labels)}
    for example in dev:
        if example.label not in numbers:
            raise InputError(f"dev label {example.label!r} does not occur in the training file ({', '.join(labels)})")
    tokenizer = WordPieceTokenizer.load(model_folder)
    require_fit(tokenizer, BertConfig.load(model_folder), model_folder)
    model = _starting_model(model_folder, labels, settings)
    max_length = min(settings.max_length or 10**9, model.config.max_position_embeddings)
    features = _encode(tokenizer, train, numbers, max_length)
    steps_per_epoch = -(-len(train) // settings.batch_size)
    trainer = BertTrainer(
        model,
        ClassificationObjective(),
        TrainerSettings(
            total_steps=steps_per_epoch * settings.epochs,
            learning_rate=settings.learning_rate,
            warmup_share=settings.warmup_share,
            seed=settings.seed,
        ),
        device=device,
    )
    model.set_compute_dtype(best_compute_dtype(device))
    log = MetricsLog(run / "metrics.jsonl")
    best: ClassificationScores | None = None
    shown = console or Console(quiet=True)
    with StepProgress(shown, "fine-tuning", total_steps=trainer.settings.total_steps) as progress:
        for epoch in range(settings.epochs):
            batches = _epoch_batches(features, settings, epoch)
            averages = trainer.train_epoch(batches, after_step=_shows(progress, trainer, best))
            scores = score_classifier(model, tokenizer, dev, labels, max_length=max_length, device=device)
            log.append({"kind": "train", "epoch": epoch + 1, "step": trainer.step, **averages})
            log.append({"kind": "dev", "epoch": epoch + 1, "step": trainer.step, **asdict(scores)})
            # 只保留开发集上最好的一轮：小数据上最后一轮往往不是最好的
            if best is None or scores.accuracy > best.accuracy:
                best = scores
                model.save_pretrained(run / "model")
                tokenizer.save(run / "model")
    assert best is not None
    write_text(run / "result.json", json.dumps(asdict(best), indent=1) + "\n")
    return best


def score_classifier(
    model: BertForSequenceClassification,
    tokenizer: WordPieceTokenizer,
    examples: Sequence[LabelledText],
    labels: Sequence[str],
    *,
    max_length: int,
    device: torch.device | str = "cpu",
) -> ClassificationScores:
    """Scores a classifier on labelled texts.

    Args:
        model: the classifier.
        tokenizer: the model's.
        examples: every label is one of `labels`.
        labels: class names in the model's order.
        max_length: longer texts are cut.
        device: where the model lives.
    """
    numbers = {label: index for index, label in enumerate(labels)}
    features = _encode(tokenizer, examples, numbers, max_length)
    logits = Engine(model, device=device).run(
        features.input_ids, features.token_type_ids, lambda model, batch: model(batch)
    )
    predictions = logits.argmax(-1).tolist()
    f1 = f1_scores(features.labels, predictions, len(labels))
    return ClassificationScores(
        accuracy=accuracy(features.labels, predictions),
        macro_f1=macro_f1(features.labels, predictions, len(labels)),
        f1=dict(zip(labels, f1, strict=True)),
        texts=len(examples),
    )


@dataclass(frozen=True)
class _Features:
    """Encoded examples: ids, segments and class numbers."""

    input_ids: list[list[int]]
    token_type_ids: list[list[int]]
    labels: list[int]


def _encode(
    tokenizer: WordPieceTokenizer, examples: Sequence[LabelledText], numbers: dict[str, int], max_length: int
) -> _Features:
    pairs = None if examples[0].pair is None else [example.pair or "" for example in examples]
    encoded = tokenizer([example.text for example in examples], pairs, max_length=max_length)
    labels = [numbers[example.label] for example in examples]
    return _Features(encoded["input_ids"], encoded["token_type_ids"], labels)


def _epoch_batches(features: _Features, settings: FineTuningSettings, epoch: int) -> Iterator[ClassificationBatch]:
    order = generator(settings.seed, "finetune/order", epoch).permutation(len(features.labels))
    for start in range(0, len(order), settings.batch_size):
        chosen = order[start : start + settings.batch_size].tolist()
        yield ClassificationBatch(
            tokens=RaggedBatch.from_sequences(
                [features.input_ids[index] for index in chosen], [features.token_type_ids[index] for index in chosen]
            ),
            labels=torch.tensor([features.labels[index] for index in chosen]),
        )


def _starting_model(
    folder: str | Path, labels: Sequence[str], settings: FineTuningSettings
) -> BertForSequenceClassification:
    torch.manual_seed(torch_seed(settings.seed, "finetune/new weights"))
    # 文件夹原先可能是回归或多标签模型：新的头是单选分类
    changes: dict[str, Any] = {"id2label": dict(enumerate(labels)), "problem_type": None}
    if settings.from_random:
        return BertForSequenceClassification(BertConfig.load(folder).changed(**changes))
    return BertForSequenceClassification.from_pretrained(folder, new_heads=True, **changes)


def _shows(
    progress: StepProgress, trainer: BertTrainer[Any], best: ClassificationScores | None
) -> Callable[[Measure], None]:
    def show(measure: Measure) -> None:
        figures = {"loss": f"{float(measure.loss.detach()):.3f}"}
        if best is not None:
            figures["best dev acc"] = f"{best.accuracy:.3f}"
        progress.update(trainer.step, figures)

    return show


def _fingerprint(examples: Sequence[LabelledText]) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        digest.update(repr((example.text, example.pair, example.label)).encode("utf-8", "surrogatepass"))
    return {"examples": len(examples), "digest": digest.hexdigest()}


def _checksum_of_model(folder: Path) -> str:
    path = folder / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{folder}: no model.safetensors; name a model folder with --model")
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _require_same_form(train: Sequence[LabelledText], dev: Sequence[LabelledText]) -> None:
    if not train or not dev:
        raise InputError("the training file and the dev file must hold at least one example each")
    if (train[0].pair is None) != (dev[0].pair is None):
        raise InputError("one of the training file and the dev file has pairs of texts, the other has single texts")


def _finished_scores(run: Path) -> ClassificationScores | None:
    """Returns the scores of a run that is done already; an unfinished one starts over."""
    path = run / "result.json"
    if not path.exists():
        return None
    try:
        return ClassificationScores(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{path}: damaged ({error}); remove it or choose another --out") from None
