"""The tasks that a study scores its models on: a TOML file with a table for each, or a folder of the field's sets.

[sentiment]
task = "classify"           # as in `bertsmith finetune`
train = "sst2/train.tsv"    # beside the TOML file, or absolute
dev = "sst2/dev.tsv"        # chooses the epoch; without one, rows of train are held out for dev, and for test
test = "sst2/test.tsv"      # scored; dev is where there is none
examples = 2000             # of the training file, the first; all where it is left out
epochs = 3                  # and any other setting of `bertsmith finetune`: learning_rate, label_column …
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError, ConfigError, InputError
from bertsmith.files import make_folder, parse_json, write_text
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.splits import held_out
from bertsmith.finetune.tasks import task_named
from bertsmith.finetune.tasks.task import Task
from bertsmith.journeys.village import bundled_world
from bertsmith.settings import built, from_table, settings_of
from bertsmith.tinyworld import draw_tagged_sentences
from bertsmith.tokenizer import Tokenizer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = ("train", "dev", "test")
VILLAGE = """\
[sentiment]
task = "classify"
train = "reviews-train.tsv"
dev = "reviews-dev.tsv"
test = "reviews-test.tsv"
epochs = 10

[entities]
task = "tag"
train = "tags-train.conll"
dev = "tags-dev.conll"
test = "tags-test.conll"
epochs = 10
"""
FIELD: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "SST-2": ("sst2/train.*", {"task": "classify"}),
    "STS-B": ("stsb/train.*", {"task": "embed", "text_column": 0, "pair_column": 1, "label_column": 2}),
    "UD": ("ud_ewt/train.*", {"task": "tag"}),
    "WNUT-17": ("wnut17/train.*", {"task": "tag", "alternatives": ","}),
    "XQuAD": ("xquad/xquad.en.*", {"task": "answer"}),
    "ChnSentiCorp": ("chnsenticorp/train.*", {"task": "classify", "text_column": "text_a", "label_column": "label"}),
}
"""The field's sets: what the training file of each is called, and how it is read."""
FEW_TEXTS = 100
TAGGED = {"train": 200, "dev": 100, "test": 500}
"""Sentences of the village with their entities."""


@dataclass(frozen=True)
class StudyTask:
    """A task, such as `classify`, with the paths of `train` and perhaps `dev` and `test`; 0 examples are all."""

    name: str
    kind: str
    files: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    examples: int = 0

    def read(self, features: Mapping[str, Any] | None = None) -> tuple[Task[Any, Any], dict[str, list[Any]]]:
        """Returns the task, or `features` with these options in the place of tagging, and the examples of its files."""
        kind = task_named("features" if features else self.kind)
        reading = built(ReadingOptions, self.reading)
        found = {
            name: list(kind.spec.reader.read(path, reading, task=kind.spec.name)) for name, path in self.files.items()
        }
        if self.examples:
            found["train"] = found["train"][: self.examples]
        task = kind.of(found["train"], **(features or self.options))
        if "dev" not in found:
            # 种子固定：各个模型、各次训练留出同样的行，分数才能相比
            whole, parts = found["train"], held_out(task, found["train"], 0, with_test="test" not in found)
            found |= {name: [whole[number] for number in numbers] for name, numbers in parts.items()}
        return task, found

    def is_foreign(self, tokenizer: Tokenizer) -> bool:
        """Whether a vocabulary cannot spell most of the task, such as an English one a Chinese text."""
        task, found = self.read()
        texts = [text for example in found["dev"][:FEW_TEXTS] for text in task.texts_of(example)]
        known = [piece != tokenizer.unk_token_id for ids in tokenizer.encode_batch(texts) for piece in ids]
        return 2 * sum(known) < len(known)

    def tuning(self, hidden_size: int, family: str, seed: int) -> FineTuningSettings:
        """Returns how it is learned by a model of some width and family."""
        spec = task_named(self.kind).spec
        rate = spec.usual_rate(None, hidden_size=hidden_size, family=family)
        usual = {"learning_rate": rate, "batch_size": spec.batch_size}
        return built(FineTuningSettings, {**usual, **self.settings, "seed": seed})

    def describe(self) -> dict[str, Any]:
        """Returns what another run of the study must share, for JSON; with the sizes of the files."""
        return {**asdict(self), "sizes": {name: Path(path).stat().st_size for name, path in self.files.items()}}


def read_tasks(path: Path) -> list[StudyTask]:
    """Reads a TOML file of tasks."""
    try:
        tables = parse_json(path, tomllib.loads)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no usable TOML file of tasks ({error})") from None
    if not tables:
        raise InputError(f"{path}: names no task; write a table such as [sentiment]")
    return _tasks_of(tables, path, path.parent)


def field_tasks(folder: Path) -> tuple[list[StudyTask], str]:
    """Reads those of the field's sets that are in a folder; says in a line which are not, and why."""
    tables, gone = {}, []
    for name, (train, table) in FIELD.items():
        patterns = {part: train if part == "train" else f"{Path(train).parent}/{part}.*" for part in FILES}
        files = {part: str(min(found).resolve()) for part in FILES if (found := list(folder.glob(patterns[part])))}
        if "train" not in files and "dev" in files:
            # UD 常常只有 dev 和 test：就从 dev 里学，再从中留出一部分
            files["train"] = files.pop("dev")
        if "train" in files:
            tables[name] = {**table, **files}
        else:
            gone.append(f"{name} ({train} is not there)")
    if not tables:
        raise InputError(f"{folder}: holds none of the sets: {', '.join(gone)}")
    return _tasks_of(tables, folder, folder), f"left out: {', '.join(gone)}" if gone else ""


def _tasks_of(tables: Mapping[str, Any], path: Path, folder: Path) -> list[StudyTask]:
    """Makes the tasks, and reads each of their files once, so that no run begins that cannot end."""
    tasks = []
    for name, table in tables.items():
        try:
            task = _task_of(name, table, folder)
            task.read()
        except BertsmithError as error:
            raise InputError(f"{path}: [{name}]: {error}") from None
        tasks.append(task)
    return tasks


def _task_of(name: str, table: Any, folder: Path) -> StudyTask:
    if not isinstance(table, dict) or not isinstance(table.get("task"), str):
        raise ConfigError('write a table with task = "classify" and train')
    needed = [file for file in FILES if file == "train" or file in table]
    missing = [file for file in needed if not isinstance(table.get(file), str)]
    if missing:
        raise ConfigError(f"{missing[0]} is missing; give the name of a file")
    kind = task_named(table["task"])
    files = {file: str((folder / table[file]).resolve()) for file in FILES if file in table}
    examples = table.get("examples", 0)
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 0:
        raise ConfigError(f"examples {examples!r}: give a whole number, or leave it out for all")
    rest = {key: value for key, value in table.items() if key not in (*FILES, "task", "examples")}
    found: dict[str, dict[str, Any]] = {}
    # 每个键属于哪一组由声明它的 dataclass 决定：没有第二份名单
    parts = {"settings": FineTuningSettings, "reading": ReadingOptions, "options": kind.spec.options}
    for part, declared in parts.items():
        known = {setting.name for setting in settings_of(declared)} - {"seed"}
        found[part] = from_table(declared, {key: rest.pop(key) for key in list(rest) if key in known})
    if rest:
        raise ConfigError(
            f"{next(iter(rest))} is no setting of fine-tuning, of reading, or of the task {table['task']}"
        )
    task = StudyTask(name, table["task"], files, **found, examples=examples)
    task.tuning(256, "bert", 0)
    return task


def village_tasks(folder: Path, *, seed: int) -> Path:
    """Writes the village's stories, reviews and tagged sentences, and returns the file that names its tasks."""
    make_folder(folder)
    bundled_world(folder, seed=seed)
    for split, count in TAGGED.items():
        path = folder / f"tags-{split}.conll"
        if not path.exists():
            sentences = draw_tagged_sentences(seed, count, split=split)
            blocks = ("".join(f"{word} {tag}\n" for word, tag in zip(s.words, s.tags, strict=True)) for s in sentences)
            write_text(path, "\n".join(blocks))
    write_text(folder / "tasks.toml", VILLAGE)
    return folder / "tasks.toml"
