"""`bertsmith finetune` and `bertsmith evaluate`: from a labelled file to a model for one task, and its scores."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bertsmith.finetune.datasets.reader import ReadingOptions
    from bertsmith.finetune.tasks.task import Evaluation


class TaskName(str, Enum):
    """The shapes of fine-tuning."""

    classify = "classify"
    multilabel = "multilabel"
    regress = "regress"
    tag = "tag"
    answer = "answer"
    choose = "choose"
    rank = "rank"
    features = "features"


class AdapterName(str, Enum):
    """Kinds of adapters."""

    bottleneck = "bottleneck"
    lora = "lora"


class CheckpointingName(str, Enum):
    """What the backward pass computes again."""

    auto = "auto"
    none = "none"
    attention = "attention"
    blocks = "blocks"


class SearchName(str, Enum):
    """Grids of settings."""

    paper = "paper"


TextColumn = Annotated[
    str | None, typer.Option(help="Name or number (from 0) of the column with the text, query or context.")
]
PairColumn = Annotated[
    str | None, typer.Option(help="That of the second text; choose: of the question before every choice.")
]
LabelColumn = Annotated[str | None, typer.Option(help="That of the label.")]
ChoiceColumn = Annotated[list[str] | None, typer.Option(help="choose: that of a choice; once for each.")]
Header = Annotated[bool | None, typer.Option(help="Whether the first row is names; default: if it has known ones.")]
Separator = Annotated[str | None, typer.Option(help="multilabel: between the labels of a cell; default: a comma.")]
WordColumn = Annotated[int | None, typer.Option(help="tag: number of the column with the word; default 0.")]
TagColumn = Annotated[
    str | None, typer.Option(help="tag: number of the column with the tag; of CoNLL-U upos, xpos or feats.")
]
Alternatives = Annotated[str | None, typer.Option(help="tag: separates tags of which the first counts.")]
Faults = Annotated[str | None, typer.Option(help="answer: refuse or skip answers that are not where the file says.")]
Encoding = Annotated[str, typer.Option(help="Of the files: auto, or a codec such as gb18030.")]


def finetune(
    task: Annotated[TaskName, typer.Argument(help="What is learned.")],
    model: Annotated[Path, typer.Option(help="Model folder to start from.")],
    train: Annotated[Path, typer.Option(help="Labelled file: TSV, CSV, JSONL, Parquet, CoNLL, CoNLL-U or SQuAD.")],
    dev: Annotated[Path, typer.Option(help="The same, to choose the best epoch by.")],
    out: Annotated[Path, typer.Option(help="Run folder; the model goes to OUT/model. The same command goes on.")],
    test: Annotated[Path | None, typer.Option(help="The same, scored with the weights that dev chose.")] = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    choice_column: ChoiceColumn = None,
    header: Header = None,
    separator: Separator = None,
    word_column: WordColumn = None,
    tag_column: TagColumn = None,
    alternatives: Alternatives = None,
    faults: Faults = None,
    encoding: Encoding = "auto",
    balanced: Annotated[
        bool | None, typer.Option("--balanced", help="classify: weigh rare classes up in the loss.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="classify: what dev chooses by: accuracy, macro_f1, matthews, f1 (two classes).")
    ] = None,
    scoring: Annotated[str | None, typer.Option(help="answer: squad, or cmrc for Chinese.")] = None,
    stride: Annotated[int | None, typer.Option(min=0, help="answer: pieces that neighbouring windows share.")] = None,
    max_answer_tokens: Annotated[int | None, typer.Option(min=1, help="answer: longest answer, in pieces.")] = None,
    layers: Annotated[str | None, typer.Option(help="features: layers of the frozen encoder to read.")] = None,
    top: Annotated[str | None, typer.Option(help="features: bilstm or linear.")] = None,
    top_size: Annotated[int | None, typer.Option(min=1, help="features: width of the BiLSTM; default 768.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training file; default: 3.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Examples in a step; default: 16.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak; default: 5e-5, with adapters and features 1e-3. Tiny and mini models: about 3e-4."),
    ] = None,
    warmup_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of steps with a rising rate.")] = 0.1,
    weight_decay: Annotated[float, typer.Option(min=0.0, help="Decay of matrices.")] = 0.01,
    layer_decay: Annotated[
        float, typer.Option(help="Each layer learns at the rate of the one above times this.")
    ] = 1.0,
    freeze_layers: Annotated[int, typer.Option(min=0, help="Keep so many lowest layers as they are.")] = 0,
    dropout: Annotated[float | None, typer.Option(min=0.0, max=0.9, help="Instead of the model's.")] = None,
    patience: Annotated[int, typer.Option(min=0, help="Stop after so many epochs without gain; 0: never.")] = 0,
    max_length: Annotated[int, typer.Option(min=0, help="Most pieces of a sequence; 0: what the model reads.")] = 0,
    precision: Annotated[str, typer.Option(help="auto, bf16 or float32.")] = "auto",
    gradient_checkpointing: Annotated[
        CheckpointingName,
        typer.Option(help="Less memory for more work; auto: attention (a little of both) with an adapter, else none."),
    ] = CheckpointingName.auto,
    adapter: Annotated[
        AdapterName | None, typer.Option(help="Train a small adapter and the head over a frozen encoder.")
    ] = None,
    adapter_size: Annotated[int, typer.Option(min=0, help="Its width or rank; 0: 64 or 8.")] = 0,
    search: Annotated[
        SearchName | None,
        typer.Option(
            help="paper: 18 runs; batches of 16 and 32, 2 to 4 epochs, 1, 0.6 and 0.4 of the rate; the best is kept."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs from so many seeds: mean, deviation; the best is kept.")] = 1,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="classify and tag: score simpler models as well, for the report.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Fine-tune a model on labelled files; interrupted, the same command goes on."""
    from rich.console import Console

    from bertsmith.errors import ConfigError
    from bertsmith.finetune.job import Job, run_job
    from bertsmith.finetune.settings import FineTuningSettings, usual_rate
    from bertsmith.kernels.layers import best_device
    from bertsmith.train.stopping import TrainingStopped

    for option, given in (("--epochs", epochs), ("--batch-size", batch_size)):
        if search is not None and given is not None:
            raise ConfigError(f"{option} {given}: --search tries several by itself; leave one of the two out")
    if learning_rate is None:
        learning_rate = usual_rate(task.value, adapter.value if adapter else "")
    settings = FineTuningSettings(
        epochs=epochs or FineTuningSettings.epochs,
        batch_size=batch_size or FineTuningSettings.batch_size,
        learning_rate=learning_rate,
        warmup_share=warmup_share,
        weight_decay=weight_decay,
        layer_decay=layer_decay,
        freeze_layers=freeze_layers,
        dropout=dropout,
        patience=patience,
        max_length=max_length,
        precision=precision,  # type: ignore[arg-type]
        gradient_checkpointing=gradient_checkpointing.value,
        adapter="" if adapter is None else adapter.value,
        adapter_size=adapter_size,
        seed=seed,
    )
    reading = _reading_options(
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        choice_columns=choice_column,
        header=header,
        separator=separator,
        word_column=word_column,
        tag_column=tag_column,
        alternatives=alternatives,
        faults=faults,
        encoding=encoding,
    )
    job = Job(
        task.value,
        model,
        train,
        dev,
        out,
        settings,
        test=test,
        reading=reading,
        options={
            "balanced": balanced,
            "metric": metric,
            "scoring": scoring,
            "stride": stride,
            "max_answer_tokens": max_answer_tokens,
            "layers": layers,
            "top": top,
            "top_size": top_size,
        },
        grid=None if search is None else search.value,
        seeds=seeds,
        baselines=baselines,
    )
    try:
        result = run_job(job, console=Console(), device=best_device())
    except TrainingStopped as stopped:
        # 被叫停不是错误：进度已存盘，同一条命令接着跑，退出码是 0
        print(stopped)
        return
    print(_line("dev", result.dev))
    if result.test is not None:
        print(_line("test", result.test))
    kept = " and ".join(str(out / name) for name in ("model", "adapter") if (out / name).is_dir())
    print(f"best epoch {result.epoch}; kept in {kept}; report in {out / 'report.html'}")


def evaluate(
    model: Annotated[Path, typer.Option(help="Folder that `bertsmith finetune` wrote.")],
    file: Annotated[Path, typer.Option("--file", help="Labelled file, as in fine-tuning.")],
    adapter: Annotated[Path | None, typer.Option(help="Folder of an adapter over that model.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for all details.")] = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    choice_column: ChoiceColumn = None,
    header: Header = None,
    separator: Separator = None,
    word_column: WordColumn = None,
    tag_column: TagColumn = None,
    alternatives: Alternatives = None,
    faults: Faults = None,
    encoding: Encoding = "auto",
    precision: Annotated[str, typer.Option(help="auto, bf16 or float32.")] = "auto",
) -> None:
    """Score a fine-tuned model on a labelled file."""
    import json

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bertsmith.files import require_other_file, write_text
    from bertsmith.finetune.evaluate import evaluate_folder

    options = _reading_options(
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        choice_columns=choice_column,
        header=header,
        separator=separator,
        word_column=word_column,
        tag_column=tag_column,
        alternatives=alternatives,
        faults=faults,
        encoding=encoding,
    )
    if out is not None:
        require_other_file(out, file)
    found = evaluate_folder(model, file, options, adapter=adapter, precision=precision)
    print(_line(str(file), found))
    if out is not None:
        write_text(out, json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n")
    if found.classes:
        table = Table()
        for heading in ("label", "precision", "recall", "F1", "examples"):
            table.add_column(heading, justify="left" if heading == "label" else "right")
        for label, row in found.classes.items():
            # 标签是用户写的：方括号不是排版标记
            table.add_row(Text(label), f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.f1:.3f}", str(row.support))
        Console().print(table)
    if out is not None:
        print(f"all details in {out}")


def _reading_options(
    *, choice_columns: list[str] | None, word_column: int | None, header: bool | None, **texts: str | None
) -> ReadingOptions:
    """Turns what was typed into options; a column that is a whole number is one."""
    from bertsmith.finetune.datasets.reader import ReadingOptions, column_name

    columns = {
        name: column_name(value) if name.endswith("_column") and value is not None else value
        for name, value in texts.items()
    }
    choices = None if choice_columns is None else tuple(map(column_name, choice_columns))
    return ReadingOptions(choice_columns=choices, word_column=word_column, header=header, **columns)  # type: ignore[arg-type]


def _line(name: str, found: Evaluation) -> str:
    """Returns the figures in one line, with their intervals."""
    from bertsmith.finetune.metrics.classification import in_digits

    figures = []
    for figure, value in found.figures.items():
        interval = found.intervals.get(figure)
        bounds = f" ({in_digits(interval.low)}-{in_digits(interval.high)})" if interval else ""
        figures.append(f"{figure} {in_digits(value)}{bounds}")
    return f"{name}: {', '.join(figures)}"
