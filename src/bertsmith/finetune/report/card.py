"""The model card: `README.md` of a fine-tuned model folder, in the form the field's hubs read.

It says what the model is, on what and how it was trained, how well it does, and what it cannot do: only what the run
knows for certain. The licence is left to whoever publishes the model; it depends on the data.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import ConfigError
from bertsmith.finetune.report.run_report import in_words
from bertsmith.finetune.run import FineTuningResult
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.spec import WINDOWS_LIMIT, CardText
from bertsmith.finetune.tasks.task import Evaluation, Task
from bertsmith.finetune.trials import SearchResult
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import BertConfig
from bertsmith.tokenizer import WordPieceTokenizer


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
) -> str:
    """Returns the text of the card.

    Args:
        result: of the run.
        task: what was learned, with its thresholds.
        settings: the recipe.
        model_folder: the model that the card is for, or the backbone of the adapter that it is for; its configuration
            and tokenizer are read.
        base: what the model was trained from, as the reader should see it.
        files: `train`, `dev`, and `test` where there was one.
        adapter: the folder of the adapter that the card is for; None for a whole model.
        searched: the search that the run was the best of; None for a single run.

    Returns:
        Markdown with YAML front matter.

    Raises:
        ConfigError: there is no card for this task, or a file is not named.
        CheckpointError: the folder holds no model with a tokenizer.
    """
    missing = {"train", "dev", *([] if result.test is None else ["test"])} - files.keys()
    if missing:
        raise ConfigError(f"the card needs the name of the {sorted(missing)[0]} file")
    config, tokenizer = BertConfig.load(model_folder), WordPieceTokenizer.load(model_folder)
    kind, described = task.spec.card, task.describe()
    sections = [
        _front_matter(kind, result, "transformers" if adapter is None else "bertsmith"),
        f"# {_plain(Path(adapter or model_folder).resolve().parent.name)}",
        _summary(kind, config, settings, base, described),
        *(_use(task.name, kind, paired=bool(described.get("paired"))) if adapter is None else _use_adapter(base)),
        *_data(files, result),
        *_scores(result, searched),
        *_labels(described, result),
        *_recipe(settings, result, base, searched),
        *_limits(kind, config, tokenizer, settings, files, result),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(kind: CardText, result: FineTuningResult, library: str) -> str:
    """Returns the YAML; strings are written as JSON, which YAML reads."""
    names = [_HUB_METRICS.get("f1" if name.startswith("f1_") else name) for name in result.dev.metrics]
    metrics = [f"- {name}" for name in dict.fromkeys(names) if name is not None]
    # 不写 license 与 language：运行并不知道它们，由发布者填写
    lines = [f"library_name: {library}", f"pipeline_tag: {kind.hub_task}", "tags:", "- bert", "- bertsmith"]
    return "\n".join(["---", *lines, *(["metrics:", *metrics] if metrics else []), "---"])


def _summary(
    kind: CardText, config: BertConfig, settings: FineTuningSettings, base: str, described: Mapping[str, Any]
) -> str:
    shape = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    what = kind.does.replace("a text", "a pair of texts") if described.get("paired") else kind.does
    start = (
        f"trained from random weights in the shape of {_code(base)}"
        if settings.from_random
        else f"fine-tuned from {_code(base)}"
    )
    return f"This model {what}. It is a BERT encoder ({shape}), {start} with bertsmith."


def _use_adapter(backbone: str) -> list[str]:
    return [
        "## Use",
        f"`FOLDER` is the folder this file is in, an adapter over {_code(backbone)}, which is `BACKBONE` here:\n\n"
        "```bash\nbertsmith predict --model BACKBONE --adapter FOLDER --file new.txt\n```",
    ]


def _use(name: str, kind: CardText, *, paired: bool) -> list[str]:
    ours = f'from bertsmith import load_pipeline\n\nload_pipeline("{name}", "FOLDER"){kind.ours[paired]}'
    return [
        "## Use",
        f"`FOLDER` is the folder this file is in.\n\n```python\n{ours}\n```",
        f"The folder is in the field's own format:\n\n```python\n{kind.theirs[paired]}\n```",
    ]


def _data(files: Mapping[str, DataFile], result: FineTuningResult) -> list[str]:
    used = {"train": "learned from", "dev": "chose the epoch", "test": "scored once, after everything was chosen"}
    parts = ["train", "dev", *([] if result.test is None else ["test"])]
    rows = [[part, _code(files[part].name), f"{files[part].examples:,}", used[part]] for part in parts]
    return ["## Data", _table(["", "file", "examples", "used for"], rows)]


def _scores(result: FineTuningResult, searched: SearchResult | None) -> list[str]:
    parts = _parts(result)
    rows = [
        [name, *(in_words(evaluation.metrics[name], evaluation.intervals.get(name)) for evaluation in parts.values())]
        for name in result.dev.metrics
    ]
    note = "In brackets: 95 % bootstrap intervals, how far the figure would move on another file of the same size."
    spreads = {} if searched is None else {"dev": searched.dev_spread, "test": searched.test_spread}
    moved = [
        f"{searched.metric} {spread[searched.metric].mean:.3f} ± {spread[searched.metric].deviation:.3f} on {part}"
        for part, spread in spreads.items()
        if searched is not None and spread
    ]
    seeds = [s.seeds for spread in spreads.values() for s in spread.values()][:1]
    over = [f"Over {seeds[0]} seeds (mean ± standard deviation): {', '.join(moved)}."] if seeds else []
    return ["## Scores", _table(["", *parts], rows), note, *over]


def _labels(described: Mapping[str, Any], result: FineTuningResult) -> list[str]:
    """Returns the label set, and how well each label is found; nothing for a task without labels."""
    sections = []
    if described.get("labels"):
        sections.append(", ".join(_code(str(label)) for label in described["labels"]))
    if "threshold" in described:
        sections.append(f"A label is given where its probability is above {described['threshold']:g}.")
    parts = _parts(result)
    names = list(dict.fromkeys(name for evaluation in parts.values() for name in evaluation.classes))
    if names:
        head = ["label", *(f"{column}, {part}" for part in parts for column in ("F1", "examples"))]
        rows = [
            [_code(name), *(cell for evaluation in parts.values() for cell in _found(evaluation, name))]
            for name in names
        ]
        sections.append(_table(head, rows))
    return ["## Labels", *sections] if sections else []


def _found(evaluation: Evaluation, name: str) -> list[str]:
    scores = evaluation.classes.get(name)
    return ["–", "0"] if scores is None else [f"{scores.f1:.3f}", f"{scores.support:,}"]


def _recipe(
    settings: FineTuningSettings, result: FineTuningResult, base: str, searched: SearchResult | None
) -> list[str]:
    rows = [[name, _code(str(value))] for name, value in asdict(settings).items()]
    kept = f"Started from {_code(base)}; epoch {result.epoch} was the best on dev and is what is here."
    # 多次运行取最好的一次：开发集分数因此偏高，读者必须知道挑过多少次
    among = [] if searched is None else [f"It is the best on dev of {len(searched.rows)} runs."]
    return ["## Recipe", " ".join([kept, *among]), _table(["setting", "value"], rows)]


def _limits(
    kind: CardText,
    config: BertConfig,
    tokenizer: WordPieceTokenizer,
    settings: FineTuningSettings,
    files: Mapping[str, DataFile],
    result: FineTuningResult,
) -> list[str]:
    length = InferenceConfig(max_length=settings.max_length).length_for(config)
    case = (
        "Upper and lower case are the same to it."
        if tokenizer.lowercase
        else "It tells upper from lower case; text that is all in capitals is unlike what it learned from."
    )
    cut = "" if kind.limit is WINDOWS_LIMIT else "; the end of a longer text is cut off"
    chosen = (
        "There was no test file. Dev chose the epoch, so the dev figures are somewhat too good."
        if result.test is None
        else "Dev chose the epoch, so the dev figures are somewhat too good; the test figures are not."
    )
    lines = [
        f"It was trained on {files['train'].examples:,} examples of one file; on text of another kind the scores above"
        " say little.",
        f"It reads {length} word pieces at a time, special ones included{cut}.",
        f"Of its {tokenizer.vocab_size:,} word pieces {_scripts(tokenizer)}; what is in none of them becomes `[UNK]`.",
        case,
        kind.limit,
        chosen,
        "What it learned from its files it repeats, their errors and prejudices included; nobody looked for these.",
        "The licence is for whoever publishes the model to state; it depends on the data and the starting point.",
    ]
    return ["## Limits", "\n".join(f"- {line}" for line in lines)]


def _scripts(tokenizer: WordPieceTokenizer) -> str:
    """Says in which scripts the vocabulary is: `78 % are Latin, 12 % CJK`."""
    counts: Counter[str] = Counter()
    for piece in tokenizer.vocab:
        letters = [character for character in piece.removeprefix("##") if character.isalpha()]
        if letters and not (piece.startswith("[") and piece.endswith("]")):
            # Unicode 字符名的第一个词就是它的文字系统：LATIN SMALL LETTER A、CJK UNIFIED IDEOGRAPH-4E00
            script = unicodedata.name(letters[0], "other").split()[0]
            counts[script if script == "CJK" else script.capitalize()] += 1
    shares = [(name, 100 * count / tokenizer.vocab_size) for name, count in counts.most_common(3)]
    named = [f"{share:.0f} % are {name}" for name, share in shares if share >= 1]
    return ", ".join(named) or "none is a letter of any script"


def _parts(result: FineTuningResult) -> dict[str, Evaluation]:
    return {"dev": result.dev} | ({} if result.test is None else {"test": result.test})


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    """Returns a text as a code span, whatever is in it."""
    text = _plain(text)
    # 文本里有反引号时要用更长的围栏，否则代码段会提前结束
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def _plain(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1] if not text.isprintable() else text
