"""What a reader of labelled files is, and all that a user can say about how a file is read.

A task refers to one `Reader`. The columns that a reader looks for are declared with it (`columns.Column`), and what
can be said on the command line is declared in `ReadingOptions`; an option that a reader has no use for is refused, not
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

from bertsmith.data.reading.sources import local_copy
from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets.rows import DataSource, table_of
from bertsmith.finetune.datasets.tables import Table
from bertsmith.options import option

ExampleT = TypeVar("ExampleT")
ColumnName = str | int
"""A header name, or a number counted from 0."""


def column_name(typed: str) -> ColumnName:
    """Returns what was typed for a column; a whole number is its number."""
    return int(typed) if re.fullmatch(r"-?[0-9]+", typed) else typed


@dataclass(frozen=True)
class ReadingOptions:
    """How a labelled file is read; None means that the reader finds out, or takes the usual.

    Attributes:
        text_column: name or number of the column with the text, the query or the context.
        pair_column: that of the second text, of the text that is ranked, or of what begins every choice.
        label_column: that of the label, the labels, the number or the right choice.
        negative_column: that of the text, or of the list of texts, that does not answer a query.
        choice_columns: those of the choices in order, or the one that holds lists of them.
        header: whether the first row of a TSV or CSV is names.
        separator: stands between two labels of a cell.
        word_column: number of the column with the word, of CoNLL files; negative counts from the end. Of tables with a
            sentence a row, the name of the column with the list of words.
        tag_column: number of the column with the tag; or `upos`, `xpos` or `feats` of CoNLL-U; or the name of the
            column with the list of tags.
        alternatives: separates tags of annotators who did not agree; the first is taken.
        faults: `refuse` or `skip` questions whose answer is not where the file says.
        encoding: `auto` or a codec's name; Parquet has its own.
    """

    panel: ClassVar[str] = "How the files are read"

    text_column: ColumnName | None = option(
        None, help="Name or number (from 0) of the column with the text, query or context.", parse=column_name
    )
    pair_column: ColumnName | None = option(
        None, help="Column of the second text; choose: of the question before the choices.", parse=column_name
    )
    label_column: ColumnName | None = option(None, help="Column of the label.", parse=column_name)
    negative_column: ColumnName | None = option(
        None, help="embed: column of texts that do not answer the query.", parse=column_name
    )
    choice_columns: tuple[ColumnName, ...] | None = option(
        None, name="choice_column", help="choose: column of a choice; once for each.", parse_each=column_name
    )
    header: bool | None = option(None, help="Whether the first row is a header; default: if it has known names.")
    separator: str | None = option(None, help="multilabel: separator of the labels in a cell; default: a comma.")
    word_column: ColumnName | None = option(
        None,
        help="tag: column of the words: a number, or a name in JSON Lines and Parquet.",
        parse=column_name,
    )
    tag_column: ColumnName | None = option(
        None,
        help="tag: column of the tags, as above; in CoNLL-U upos, xpos or feats.",
        parse=column_name,
    )
    alternatives: str | None = option(None, help="tag: separator of alternative tags; the first one counts.")
    faults: Literal["refuse", "skip"] | None = option(
        None, help="answer: refuse or skip answers that are not at their stated position."
    )
    encoding: str = option("auto", help="Encoding of the files: auto, or a codec such as gb18030.")

    def __post_init__(self) -> None:
        """Checks what no file can make right."""
        # 空串切不开标签，而 str.split 到读文件时才会报错
        if self.separator == "":
            raise ConfigError("the separator between labels cannot be empty; pass ',' or '|'")


@dataclass(frozen=True)
class Reader(Generic[ExampleT]):
    """Reads the labelled files of a task.

    Attributes:
        holds: what its files hold, for messages.
        options: the fields of `ReadingOptions` that it knows, besides the encoding.
        parse: reads a file.
        parse_table: reads a table in memory.
    """

    holds: str
    options: tuple[str, ...]
    parse: Callable[[Path, ReadingOptions], list[ExampleT]]
    parse_table: Callable[[Table, ReadingOptions], list[ExampleT]]

    def read(
        self, source: DataSource, options: ReadingOptions | None = None, *, task: str = "", name: str = "rows"
    ) -> list[ExampleT]:
        """Reads a labelled file, or rows in memory.

        Args:
            source: the file or its URL, plain or packed (`.gz`, `.zst`); or a data frame, a `datasets.Dataset` or a
                list of dictionaries.
            options: how it is read.
            task: whose files these are, for messages.
            name: stands in messages for the file, where there is none.

        Raises:
            ConfigError: an option is given that such files have no use for.
            InputError: the file is missing, empty, damaged, binary or in another encoding; it does not hold what it
                should. The message names file and line, or the row.
        """
        options = options or ReadingOptions()
        # 用不上的选项要拒绝而不是忽略：写它的人以为它起了作用
        for one in fields(options):
            if one.name not in (*self.options, "encoding") and getattr(options, one.name) is not None:
                raise ConfigError(f"{flag_of(one.name)} is not for the files of {task or self.holds}; leave it out")
        if isinstance(source, (str, Path)):
            with local_copy(source) as file:
                return self.parse(file, options)
        if options.encoding != "auto":
            raise ConfigError(f"--encoding is for files, and {name} is a table in memory; leave it out")
        return self.parse_table(table_of(source, name), options)


def flag_of(name: str) -> str:
    """Returns how a field of `ReadingOptions` is called on the command line."""
    return "--choice-column" if name == "choice_columns" else "--" + name.replace("_", "-")
