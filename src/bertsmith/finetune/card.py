"""The model card: `README.md` of a fine-tuned model folder, in the form the field's hubs read.

It says only what the run knows for certain. The license is left to whoever publishes the model: it depends on the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsmith.finetune.datasets import shown_path
from bertsmith.finetune.metrics import in_words
from bertsmith.finetune.reading import FilesRead
from bertsmith.finetune.run import FineTuningResult
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.task import WINDOWS_LIMIT, Evaluation, Task
from bertsmith.finetune.trials import SearchResult
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import ModelConfig
from bertsmith.reporting.page import environment
from bertsmith.tokenizer import load_tokenizer


@dataclass(frozen=True)
class DataFile:
    """A labelled file: what it is called, and how many examples it holds."""

    name: str
    examples: int


_HUB_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "micro_f1": "f1",
    "f1": "f1",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "exact_match": "exact_match",
    "precision": "precision",
    "recall": "recall",
    "mrr": "mrr",
}
"""Our figures → the names the hub has for them; figures it has no name for are left out of the front matter."""


_USES = {"train": "learned from", "dev": "chose the epoch", "test": "scored once, after everything was chosen"}


def model_card(
    result: FineTuningResult,
    task: Task[Any, Any],
    settings: FineTuningSettings,
    *,
    model_folder: str | Path,
    base: str,
    files: Mapping[str, DataFile],
    adapter: str | Path | None = None,
    searched: SearchResult | None = None,
    read: FilesRead | None = None,
) -> str:
    """Returns the text of the card: Markdown with YAML front matter."""
    config, tokenizer = ModelConfig.load(model_folder), load_tokenizer(model_folder)
    described = task.describe()
    evaluations = result.evaluations
    return (
        environment(__package__)
        .get_template("card.md")
        .render(
            adapter=adapter is not None,
            base=shown_path(base),
            by_label=_by_label(evaluations),
            by_label_head=["label", *(f"{column}, {name}" for name in evaluations for column in ("F1", "examples"))],
            code=_code,
            config=config,
            data=[
                [part, _code(files[part].name), f"{files[part].examples:,}", _USES[part]]
                for part in ("train", *evaluations)
            ],
            evaluations=evaluations,
            examples=f"{files['train'].examples:,}",
            hub_metrics=_hub_metrics(result),
            labels=[_code(str(label)) for label in described.get("labels", ())],
            length=InferenceConfig(max_length=settings.max_length).length_for(config),
            lowercase=tokenizer.lowercase,
            paired=bool(described.get("paired")),
            read=[] if read is None else [[part, _code(line)] for part, line in read.lines],
            remarks=[f"{name}: {said}." for name, one in evaluations.items() for said in one.remarks],
            recipe=[[name, _code(str(value))] for name, value in asdict(settings).items()],
            result=result,
            scores=_scores(evaluations),
            searched=searched,
            seeds=None if searched is None else next((s.seeds for s in searched.dev_spread.values()), None),
            settings=settings,
            folds=_folds(searched),
            spreads=_spreads(searched),
            task=task.name,
            text=task.spec.card,
            threshold=f"{described['threshold']:g}" if "threshold" in described else None,
            title=_plain(shown_path(Path(adapter or model_folder).resolve().parent.name)),
            windows_limit=WINDOWS_LIMIT,
        )
    )


def _scores(evaluations: Mapping[str, Evaluation]) -> list[list[str]]:
    """Returns a row for each figure; a file of another kind than dev may lack some and have others."""
    found = list(evaluations.values())
    return [
        [name, *(in_words(one.metrics[name], one.intervals.get(name)) if name in one.metrics else "–" for one in found)]
        for name in dict.fromkeys(name for one in found for name in one.metrics)
    ]


def _hub_metrics(result: FineTuningResult) -> list[str]:
    names = [_HUB_METRICS.get("f1" if name.startswith("f1_") else name) for name in result.dev.metrics]
    return [name for name in dict.fromkeys(names) if name is not None]


def _spreads(searched: SearchResult | None) -> list[str]:
    """Returns how the metric that decides moves over seeds, on dev and on test, where there were several."""
    if searched is None:
        return []
    return [
        f"{searched.metric} {spread[searched.metric].mean:.3f} ± {spread[searched.metric].deviation:.3f} on {part}"
        for part, spread in (("dev", searched.dev_spread), ("test", searched.test_spread))
        if spread
    ]


def _folds(searched: SearchResult | None) -> str:
    if searched is None or not searched.fold_spread:
        return ""
    spread = searched.fold_spread[searched.metric]
    return f"{searched.metric} {spread.mean:.3f} ± {spread.deviation:.3f} over {spread.seeds} folds"


def _by_label(evaluations: Mapping[str, Evaluation]) -> list[list[str]]:
    """Returns a row for each label: its F1 and number of examples in each file; none for a task without labels."""
    rows = []
    for name in dict.fromkeys(name for evaluation in evaluations.values() for name in evaluation.classes):
        row = [_code(name)]
        for evaluation in evaluations.values():
            scores = evaluation.classes.get(name)
            row += ["–", "0"] if scores is None else [f"{scores.f1:.3f}", f"{scores.support:,}"]
        rows.append(row)
    return rows


def _code(text: str) -> str:
    """Returns a text as a code span, whatever is in it."""
    text = _plain(text)
    # 文本里有反引号时要用更长的围栏，否则代码段会提前结束
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def _plain(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1] if not text.isprintable() else text
