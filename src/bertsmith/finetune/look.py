"""`bertsmith.look`: what would be understood of a file or folder, before anything is learned from it.

It reads with the readers of `finetune` and of `corpus`, with `--faults skip`; whatever they warn of is in the report.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.data.corpus.plan import CorpusOptions, InputChunk, read_chunk
from bertsmith.data.reading.documents import readable_sources
from bertsmith.data.reading.opening import BETWEEN, encodings_of, endings_of
from bertsmith.data.reading.sources import Span, few_names
from bertsmith.data.reading.tables import (
    NUMBER,
    TABLE_KINDS,
    columns_in_a_line,
    described,
    ending_of,
    is_workbook,
    kind_of,
    open_table,
)
from bertsmith.data.reading.text import corpus_documents
from bertsmith.errors import BertsmithError, ConfigError, InputError
from bertsmith.finetune.datasets import (
    DataSource,
    Reader,
    ReadingOptions,
    by_name,
    local_sources,
    name_of,
    table_of,
)
from bertsmith.finetune.datasets.columns import ColumnsFound, parts_of
from bertsmith.finetune.datasets.inputs import names_all
from bertsmith.finetune.datasets.related import JUDGEMENTS
from bertsmith.finetune.datasets.tagged import WORD_LINES
from bertsmith.finetune.languages import WITHOUT_SPACES, languages_in, scripts_in
from bertsmith.finetune.tasks import task_named
from bertsmith.finetune.tasks.task import WINDOWS_LIMIT, fingerprint_of, fingerprints
from bertsmith.model import ModelConfig
from bertsmith.settings import built, divided
from bertsmith.tokenizer import Tokenizer, load_tokenizer

_TASKS = ("choose", "rank", "classify", "multilabel", "regress", "embed")
"""Tasks whose files are tables; the first that can read a file is the one it is most likely for."""
_BY_NAME = ("choose", "rank")
_LINES = ("classify", "multilabel", "regress", "embed")


@dataclass(frozen=True)
class Lengths:
    """How long texts are: `half` is the median, `most` the 95th percentile; `cut` are longer than a model's `limit`.

    The `unit` is `pieces` of a model, else `words`, or `characters` where words have no spaces between them. Texts that
    the task reads together count as one; with `windows` it reads all of a long one, in several windows. `prompted` are
    texts before which there may be a prompt, which is not counted.
    """

    unit: str
    half: int
    most: int
    longest: int
    limit: int | None = None
    cut: int = 0
    windows: bool = False
    prompted: bool = False


@dataclass(frozen=True)
class Overlap:
    """How many of the `rows` of a part, `dev` or `test`, have texts that stand in another `file` as well."""

    part: str
    file: str
    shared: int
    rows: int


@dataclass(frozen=True)
class Look:
    """What was understood of a file or folder.

    Attributes:
        form: what kind of file it is, with separator and encoding; of several files, how many have which encoding;
            empty where it cannot be told.
        task: whose reader read it; empty where it was read as text without labels.
        columns: name → the part of an example that it is; empty for one that is not read.
        labels: label or tag → how often it occurs, the most frequent first.
        scores: least, middle and greatest; empty where labels are no numbers.
        repeated: rows whose texts stood before.
        contradictions: different texts that have several labels.
        scripts: script → its share of the letters, the largest first.
        languages: code of a language → its share of the characters, the largest first.
        shared: what `dev` shares with this file, and `test` with both.
        kinds: ending → number of files, of a folder.
        notes: what was left out, guessed or repaired, a sentence each.
    """

    name: str
    form: str
    task: str
    columns: dict[str, str]
    rows: int
    labels: dict[str, int]
    scores: tuple[float, ...]
    lengths: Lengths
    repeated: int
    contradictions: int
    scripts: dict[str, float]
    languages: dict[str, float] = field(default_factory=dict)
    shared: tuple[Overlap, ...] = ()
    kinds: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def first_line(self) -> str:
        """What it is and how much of it there is."""
        what = f"{self.rows:,} rows for {self.task}" if self.task else f"{self.rows:,} documents"
        return f"{self.name}: {'; '.join(filter(None, (self.form, what)))}"

    @property
    def column_line(self) -> str:
        """Which columns are read as what, and which are not read; empty where there are none."""
        return columns_in_a_line(self.columns)

    @property
    def label_line(self) -> str:
        """The labels with their counts, or the range of the numbers; empty where there are none."""
        if self.scores:
            low, middle, high = (f"{score:g}" for score in self.scores)
            return f"numbers: from {low} to {high}, half up to {middle}"
        counted = [f"{label} {count:,}" for label, count in self.labels.items()]
        return f"{len(counted):,} labels: {few_names(counted)}" if counted else ""

    @property
    def label_line_to_learn(self) -> str:
        """The same of a file to learn from, and the labels that it has too few of."""
        once = [label for label, count in self.labels.items() if count == 1]
        return self.label_line + (f"; once, which is too few to learn: {few_names(once)}" if once else "")

    @property
    def length_line(self) -> str:
        """How long the texts are, and how many the model would cut."""
        found = self.lengths
        told = f"{found.unit}: half up to {found.half:,}, 95 % up to {found.most:,}, the longest {found.longest:,}"
        if found.limit is None:
            return told
        told_so = "are read in windows" if found.windows else "would be cut"
        cut = f"{'about ' if found.prompted else ''}{found.cut:,}"
        return f"{told}; {cut} are longer than the model reads ({found.limit:,}), and {told_so}"

    @property
    def repeated_lines(self) -> list[str]:
        """How many rows are duplicates; no line where none is."""
        several = f"; {self.contradictions:,} texts have several labels" if self.contradictions else ""
        what = "rows" if self.task else "documents"
        return [f"repeated: {self.repeated:,} {what} are duplicates{several}"] if self.repeated else []

    def opening(self, part: str) -> list[str]:
        """Returns the first lines of a command that reads it as `part`, such as `train`: what was understood of it."""
        labels = self.label_line_to_learn if part == "train" else self.label_line
        lengths = self.length_line if self.lengths.cut else ""
        return [*filter(None, (self.first_line, self.column_line, labels, lengths)), *self.repeated_lines]

    def lines(self) -> Iterator[str]:
        """Yields the report, a line each."""
        yield self.first_line
        if self.kinds:
            yield "files: " + few_names([f"{count:,} {kind}" for kind, count in self.kinds.items()])
        yield from filter(None, (self.column_line, self.label_line_to_learn, self.length_line))
        yield from self.repeated_lines
        for what, shares in (("scripts", self.scripts), ("languages", self.languages)):
            if shares:
                yield f"{what}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        for one in self.shared:
            yield f"{one.part}: {one.shared:,} of its {one.rows:,} rows stand in {one.file} as well"
        yield from self.notes


def look(
    source: DataSource,
    *,
    task: str | None = None,
    model: str | Path | None = None,
    dev: DataSource | None = None,
    test: DataSource | None = None,
    **reading: Any,
) -> Look:
    """Reads a file or folder as `finetune` or `corpus` would, and says what was understood.

    Examples:
        >>> import bertsmith
        >>> rows = [{"text": "a warm story", "label": "good"}, {"text": "a dull story", "label": "bad"}] * 2
        >>> found = bertsmith.look(rows)
        >>> found.task, found.labels, found.repeated
        ('classify', {'good': 2, 'bad': 2}, 2)

    Args:
        source: a labelled file, its URL, or rows in memory, as for `finetune`; or a file or folder of text.
        task: by which it is read; None for the first that can read it, `text` for text without labels.
        model: a model folder, or a name on the Hub: lengths are counted in its pieces, and compared with its limit.
        dev: another file of the task, as is `test`; what one of them shares with another is counted.
        **reading: how the rows are read: `text_column`, `label_column` and so on, as in `finetune`.

    Raises:
        ConfigError: an option is unknown or not for this task.
        InputError: it cannot be read at all; the message names the place.
    """
    (given,) = divided(reading, ReadingOptions, command="look")
    options = built(ReadingOptions, {"faults": "skip", **given})
    tokenizer = None if model is None else load_tokenizer(model)
    files = {"train": source} | {part: one for part, one in (("dev", dev), ("test", test)) if one is not None}
    with warnings.catch_warnings(record=True) as caught, local_sources(files) as others:
        warnings.simplefilter("always")
        source = others.pop("train")
        name, examples = read_likely(source, task, options)
        if name is None:
            if others:
                raise ConfigError(f"{name_of(source)}: is text without labels; leave --{next(iter(others))} out")
            limit = None if model is None else ModelConfig.load(model).position_limit
            try:
                found = _look_at_text(source, options, tokenizer, limit)
            except InputError as error:
                raise InputError(str(error).replace(*_TEXT_OPTION)) from None
        else:
            texts = [" ".join(example.texts) for example in examples]
            limit = None if model is None else task_named(name).length_limit(model)
            found = _with_languages(look_at(name, source, examples, options, tokenizer, limit), texts)
        of_source = len(caught)
        known, shared = [(name_of(source), fingerprints(examples))], list[Overlap]()
        for split, other in others.items():
            read = task_named(found.task).spec.reader.read(other, options, task=found.task, name=split)
            keys = list(map(fingerprint_of, read))
            shared += [Overlap(split, file, sum(key in there for key in keys), len(read)) for file, there in known]
            known.append((name_of(other), fingerprints(read)))
        told = dict.fromkeys((*notes_of(caught[:of_source]), *notes_of(caught[of_source:], columns_shown=False)))
        said = (one.replace(*_TEXT_OPTION) for one in (*found.notes, *told))
        notes = tuple(by_name(one, [source, *others.values()]) for one in said)
    return replace(found, shared=tuple(shared), notes=notes)


_TEXT_OPTION = ("--text-field", "--text-column")
"""The option that the readers of text advise, and what `look` calls it."""


def notes_of(caught: Iterable[warnings.WarningMessage], *, columns_shown: bool = True) -> list[str]:
    """Returns what readers warned of; where all columns of a file are shown, those that were found are not named."""
    said = [one.message for one in caught if one.category in (UserWarning, ColumnsFound)]
    return [one.note if columns_shown and isinstance(one, ColumnsFound) else str(one) for one in said]


def read_likely(source: DataSource, task: str | None, options: ReadingOptions) -> tuple[str | None, list[Any]]:
    """Reads a source with the reader of a task, by default of the likeliest one; None for text without labels.

    Raises InputError where it cannot be read at all; the message names the place.
    """
    if task == "text":
        return None, []
    if task is None and isinstance(source, (str, Path)) and ending_of(Path(source)) in WORD_LINES:
        task = "tag"
    if task is not None:
        return task, task_named(task).spec.reader.read(source, options, task=task)
    first_error = None
    for name in _likely_tasks(source, options):
        try:
            # 读不成的几次猜测说了什么，与这个文件无关
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                # 散文偶尔也像一行一词：有一行不像，就不是
                how = replace(options, faults=None) if name == "tag" else options
                examples = task_named(name).spec.reader.read(source, how, task=name)
        except (InputError, ConfigError) as error:
            # 这样的列名只有选择题才有：读不成的是某一行，不是认错了任务
            if name == "choose":
                raise
            first_error = error if name == "classify" else first_error
            continue
        # 每个查询只有一段文本：没有次序可言，是成对的文本
        if name == "rank" and len({example.query for example in examples}) > len(examples) / 2:
            continue
        # 一个标签也没有的，不是多标签，是标签列空着
        if first_error and name == "multilabel" and not any(example.labels for example in examples):
            raise first_error
        labels = [getattr(example, "label", "") for example in examples] if name == "classify" else []
        # 标签全是数，有小数或不同的很多：那是分数，不是类别的编号
        if labels and all(map(NUMBER.fullmatch, labels)) and _are_scores(labels):
            name = "regress"
            examples = task_named(name).spec.reader.read(source, options, task=name)
        for one in said:
            warnings.warn(one.message, stacklevel=3)
        return name, examples
    if isinstance(source, (str, Path)) and (not first_error or _holds_text(Path(source), options)):
        return None, []
    raise first_error or InputError(f"{name_of(source)}: holds no labelled rows; say what it is with --task")


def _are_scores(numbers: Sequence[str]) -> bool:
    different = {float(number) for number in numbers}
    return len(different) > max(20, len(numbers) // 2) or not all(number.is_integer() for number in different)


def _likely_tasks(source: DataSource, options: ReadingOptions) -> Sequence[str]:
    """Returns the tasks that a source can be for, the likeliest first."""
    kind = "rows"
    if isinstance(source, (str, Path)):
        path = Path(source)
        if path.is_dir():
            return ("embed",) if os.path.isdir(path / JUDGEMENTS) else ()
        if not path.is_file():
            return ("classify",)
        if ending_of(path) not in (*TABLE_KINDS, ".tsv"):
            with path.open("rb") as file:
                start = file.read(1 << 16).replace(b"\r", b"")
            # 没有制表符的文件不是表；空行之间每行列数相同的，是带标注的词
            return (*(("tag",) if b"\n\n" in start else ()), *(_LINES if b"\t" in start else ()))
        kind = kind_of(path)
        try:
            first = open_table(path, kind, options.encoding, options.sheet).first
        except InputError:
            # 哪里不对，读的时候会说；SQuAD 的一整个文档可以是一行，比一条记录长得多
            first = ()
    else:
        first = table_of(source, "rows").first
    # 没有表头的三列也能当作排序来读：这两种任务要列名都在才算
    # 列多于两列的向量数据也是：否则任何表的头两列都能当作一对
    asked = (*_BY_NAME, *(("embed",) if len(first) > 2 else ()))
    layouts = {name: task_named(name).spec.reader.inputs.layouts for name in _TASKS}
    named = [
        name for name in _TASKS if name not in asked or any(names_all(one, first, options) for one in layouts[name])
    ]
    return (*(("answer", "tag") if kind in ("jsonl", "parquet", "rows") else ()), *named)


def _holds_text(path: Path, options: ReadingOptions) -> bool:
    """Tells whether a file can be text of a corpus: a table with a column of that name, or no table."""
    if ending_of(path) not in TABLE_KINDS:
        return True
    table, column = open_table(path, kind_of(path), options.encoding, options.sheet), _text_column(options)
    table.add_nested([column])
    return column in table.first


def _text_column(options: ReadingOptions) -> str:
    """Returns the column of a table of text without labels, as `corpus` takes it."""
    return "text" if options.text_column is None else str(options.text_column)


def look_at(
    task: str,
    source: DataSource,
    examples: Sequence[Any],
    options: ReadingOptions,
    tokenizer: Tokenizer | None = None,
    limit: int | None = None,
) -> Look:
    """Says what examples of a task are that were read from a source."""
    kind = task_named(task)
    form, columns = _form_of(source, examples, kind.spec.reader, options)
    sequences = [texts for example in examples for texts in kind.sequences_of(example)]
    told = _lengths(sequences, tokenizer, limit)
    labels, scores, by_text = Counter[str](), list[float](), defaultdict[Any, list[str]](list)
    for example in examples:
        own = _labels_of(example)
        if isinstance(own, float):
            scores.append(own)
        else:
            labels.update(own)
        # BEIR 的段落不靠文本相认：不算重复
        if example.known_by:
            by_text[fingerprint_of(example)].append(repr(own))
    return Look(
        name_of(source),
        form,
        task,
        columns,
        len(examples),
        dict(labels.most_common()),
        tuple(sorted(scores)[at] for at in (0, (len(scores) - 1) // 2, -1)) if scores else (),
        replace(told, windows=kind.spec.card.limit == WINDOWS_LIMIT, prompted=kind.obeys_folder),
        sum(map(len, by_text.values())) - len(by_text),
        sum(len(set(own)) > 1 for own in by_text.values()),
        scripts_in(text for example in examples for text in example.texts),
    )


def _labels_of(example: Any) -> list[str] | float:
    for name in ("score", "relevance"):
        if hasattr(example, name):
            return float(getattr(example, name))
    own = getattr(example, "label", None)
    return [str(own)] if own is not None else list(getattr(example, "labels", getattr(example, "tags", ())))


def _form_of(
    source: DataSource, examples: Sequence[Any], reader: Reader[Any], options: ReadingOptions
) -> tuple[str, dict[str, str]]:
    if not isinstance(source, (str, Path)):
        return f"{type(source).__name__} of rows", {}
    path = Path(source)
    if path.is_dir():
        files = dict.fromkeys(example.place.partition(": ")[0] for example in examples)
        return f"folder, {encodings_of((file for file in files if Path(file).is_file()), options.encoding)}", {}
    if not reader.is_table(path, options):
        return f"{reader.inputs.other_form}, {encodings_of([str(path)], options.encoding)}", {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = open_table(path, kind_of(path), options.encoding, options.sheet)
            layout = reader.layout(table)
            if layout is None:
                return table.form, {}
            parts = parts_of(table, layout, options)
            return described(table, parts, has_header=table.has_header)
    except BertsmithError:
        # 读的人已经读成了：这里说不出它的样子，也不能拒绝它
        return "", {}


def _look_at_text(source: DataSource, options: ReadingOptions, tokenizer: Tokenizer | None, limit: int | None) -> Look:
    assert isinstance(source, (str, Path))
    sources, skipped = readable_sources([source], options.encoding)
    if _is_classes(Path(source)):
        skipped = "; ".join(filter(None, (skipped, "its folders may be classes: --task classify reads them as such")))
    rule, why = corpus_documents([one.name for one in sources], encoding=options.encoding)
    column = _text_column(options)
    reading = CorpusOptions(documents=rule, encoding=options.encoding, text_field=column, sheet=options.sheet)
    documents, decoded, notes = [], list[str](), list(filter(None, (skipped, why)))
    for one in sources:
        # 一个文件读不了，其余的照样要看
        try:
            documents += list(read_chunk(InputChunk(0, (Span(one.name, encoding=options.encoding),), 0), reading))
            decoded += [one.name] * (one.kind not in ("document", "parquet") and not is_workbook(one.name))
        except InputError as error:
            notes.append(str(error))
    if not documents:
        raise InputError("; ".join(notes) or f"{source}: no text found; name files that hold text")
    texts = [" ".join(document.sentences) for document in documents]
    sentences = sum(len(document.sentences) for document in documents)
    said = f"{sentences:,} sentences in documents ({BETWEEN[rule]})"
    found = Look(
        name_of(source),
        ", ".join(filter(None, ("text", encodings_of(decoded, options.encoding), said))),
        "",
        {},
        len(documents),
        {},
        (),
        _lengths([(text,) for text in texts], tokenizer, limit),
        len(texts) - len(set(texts)),
        0,
        scripts_in(texts),
        kinds=endings_of(sources),
        notes=tuple(notes),
    )
    return _with_languages(found, texts)


def _is_classes(path: Path) -> bool:
    """Tells whether a folder holds two folders or more, of files alone, and nothing else."""
    inside = [one for one in path.iterdir() if not one.name.startswith(".")] if path.is_dir() else []
    return len(inside) > 1 and all(one.is_dir() and all(each.is_file() for each in one.iterdir()) for one in inside)


def _with_languages(found: Look, texts: Sequence[str]) -> Look:
    """Adds the languages; where py3langid is not installed, how to get them."""
    try:
        return replace(found, languages=languages_in(texts))
    except ModuleNotFoundError:
        return replace(found, notes=(*found.notes, "languages: pip install 'bertsmith[documents]' tells them"))


def _lengths(texts: Sequence[tuple[str, ...]], tokenizer: Tokenizer | None, limit: int | None) -> Lengths:
    """Measures texts that are read together, with the special tokens around them where a model reads them."""
    flat = [text for one in texts for text in one]
    if tokenizer is not None:
        sizes, unit = np.diff(tokenizer.encode_flat(flat).bounds).tolist(), "pieces"
    else:
        # 中文、日文、泰文的词之间没有空格：数字符
        spaced = next(iter(scripts_in(flat)), "") not in WITHOUT_SPACES
        sizes, unit = [len(text.split()) if spaced else len(text) for text in flat], "words" if spaced else "characters"
    rest = iter(sizes)
    special = [tokenizer.template.size(pair=pair) if tokenizer else 0 for pair in (False, True)]
    lengths = sorted(sum(next(rest) for _ in one) + special[len(one) == 2] for one in texts)
    half, most = (lengths[int(share * (len(lengths) - 1))] for share in (0.5, 0.95))
    cut = sum(length > limit for length in lengths) if limit is not None else 0
    return Lengths(unit, half, most, lengths[-1], limit, cut)
