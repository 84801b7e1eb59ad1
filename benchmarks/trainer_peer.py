"""The peers of `finetune.py`: the Trainer of `transformers` under the same recipe, scored by the same code as ours.

It has a module of its own, so that the process which measures ours does not carry `transformers` in its memory.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from bertsmith.finetune.settings import runs_in
from bertsmith.finetune.tasks import task_named
from bertsmith.finetune.tasks.task import EncodedExample
from bertsmith.inference.engine import InferenceConfig
from bertsmith.tokenizer import WordPieceTokenizer

if TYPE_CHECKING:
    from finetune import Setting, Split


class EpochClock(transformers.TrainerCallback):  # type: ignore[misc]
    """Adds up the seconds of the Trainer's epochs, each from its first batch to its last step."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Starts the clock."""
        self.begun = time.perf_counter()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Stops it."""
        # Trainer 在这之后才保存这一轮的权重：我们的秒数也不含保存
        self.seconds += time.perf_counter() - self.begun


def train_and_score(setting: Setting, split: Split, seed: int, precision: str, *, grouped: bool) -> dict[str, Any]:
    """Fine-tunes with the Trainer, and scores the epoch that does best on dev.

    Args:
        setting: the task and its recipe.
        split: its examples.
        seed: of head, dropout and order.
        precision: `float32` or `bf16`.
        grouped: whether batches hold sequences of like lengths.
    """
    transformers.logging.set_verbosity_error()
    task = task_named(setting.task).of(split.train)
    tokenizer = WordPieceTokenizer.load(setting.model)
    units = task.encode(tokenizer, split.train, setting.max_length)
    torch.manual_seed(seed)
    names = {"id2label": dict(enumerate(task.labels))} if hasattr(task, "labels") else {}
    model = getattr(transformers, setting.peer).from_pretrained(setting.model, **names)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=setting.epochs,
            per_device_train_batch_size=setting.batch_size,
            learning_rate=setting.learning_rate,
            weight_decay=0.01,
            warmup_steps=round(0.1 * setting.epochs * -(-len(units) // setting.batch_size)),
            bf16=precision == "bf16",
            use_cpu=True,
            seed=seed,
            # accelerate 按「种子加轮数」打乱：种子相邻的两次运行会共用次序，就不是独立的了
            data_seed=1000 * seed,
            train_sampling_strategy="group_by_length" if grouped else "random",
            save_strategy="epoch",
            save_only_model=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        clock = EpochClock()
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=[features(unit) for unit in units],
            data_collator=partial(padded, keep_full_mask=not grouped),
            callbacks=[clock],
        )
        trainer.train()
        inference = InferenceConfig("cpu", runs_in(precision), setting.max_length)
        scored = []
        for epoch, saved in enumerate(sorted(Path(folder).glob("checkpoint-*"), key=_step), start=1):
            predictions = task.predict(task.load(saved), tokenizer, split.dev, inference)
            tuned = task.with_best_threshold(split.dev, predictions)
            scored.append((tuned.metrics(split.dev, predictions)[task.metric], -epoch, tuned, saved))
        _, epoch, tuned, saved = max(scored, key=lambda row: row[:2])
        figures = tuned.metrics(split.test, tuned.predict(tuned.load(saved), tokenizer, split.test, inference))
        shutil.rmtree(folder)
        Path(folder).mkdir()
    return {"seconds": clock.seconds, "epoch": -epoch, "score": figures[setting.figure]}


def features(example: EncodedExample) -> dict[str, Any]:
    """Returns an example as the Trainer's model takes it."""
    row: dict[str, Any] = {"input_ids": example.input_ids[0], "token_type_ids": example.token_type_ids[0]}
    if isinstance(example.label, tuple):
        row["start_positions"], row["end_positions"] = example.label
    else:
        row["labels"] = example.label
    return row


def padded(rows: Sequence[dict[str, Any]], *, keep_full_mask: bool) -> dict[str, torch.Tensor]:
    """Lays rows out as rectangles, each as wide as the longest row of the batch: dynamic padding.

    Args:
        rows: the examples of a batch.
        keep_full_mask: whether a batch without padding has a mask, too.
    """
    width = max(len(row["input_ids"]) for row in rows)
    batch: dict[str, Any] = {
        "attention_mask": [[1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in rows]
    }
    for name in rows[0]:
        values = [row[name] for row in rows]
        fill = -100 if name == "labels" else 0
        is_ragged = isinstance(values[0], list)
        batch[name] = [value + [fill] * (width - len(value)) for value in values] if is_ragged else values
    if not keep_full_mask and all(len(row["input_ids"]) == width for row in rows):
        # 没有填充就不给掩码：注意力可以走更快的内核
        del batch["attention_mask"]
    return {name: torch.tensor(values) for name, values in batch.items()}


def _step(folder: Path) -> int:
    return int(folder.name.split("-")[1])
