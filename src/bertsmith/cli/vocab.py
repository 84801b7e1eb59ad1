"""`bertsmith vocab`: from text files to a vocabulary.

Only lines are read here, not documents or sentences: where a text is cut makes no difference to its words.
"""

from __future__ import annotations

import os
import time
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import TaskID


def vocab(
    text: Annotated[list[str], typer.Argument(help="Files, folders or globs of .txt or .txt.gz.")],
    out: Annotated[Path, typer.Option(help="Folder for vocab.txt and the tokenizer's settings.")],
    size: Annotated[int, typer.Option(min=1, help="Most word pieces.")] = 30522,
    min_frequency: Annotated[int, typer.Option(min=1, help="Do not merge pairs seen less often.")] = 2,
    limit_alphabet: Annotated[
        int | None, typer.Option(min=1, help="Keep only this many characters, the most frequent.")
    ] = None,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    unused: Annotated[int, typer.Option(min=0, help="Reserve this many [unusedN] places.")] = 0,
    token: Annotated[
        list[str] | None, typer.Option(help="A token that is always one piece, such as <url>; may be repeated.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that count; all cores if left out.")] = None,
    encoding: Annotated[str, typer.Option(help="auto, or a codec such as iso-8859-1.")] = "auto",
) -> None:
    """Learn a WordPiece vocabulary from text."""
    from bertsmith.data.decoding import read_lines
    from bertsmith.data.text import find_text_files
    from bertsmith.tokenizer import WordPieceTokenizer

    files = find_text_files(text)
    with _LearningProgress(total_chars=sum(file.stat().st_size for file in files)) as progress:
        tokenizer = WordPieceTokenizer.train(
            chain.from_iterable(read_lines(file, encoding) for file in files),
            vocab_size=size,
            lowercase=not cased,
            min_frequency=min_frequency,
            limit_alphabet=limit_alphabet,
            num_unused=unused,
            user_tokens=token or (),
            workers=workers or os.cpu_count() or 1,
            on_progress=progress.update,
        )
    tokenizer.save(out)
    print(f"{tokenizer.vocab_size:,} pieces from {len(files)} file(s) in {out}")


class _LearningProgress:
    """A bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, total_chars: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._total_chars = total_chars
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:.0f} %  {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, tuple[TaskID, float]] = {}

    def __enter__(self) -> _LearningProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """Shows how far a stage is: characters counted, or pieces learned."""
        now = time.monotonic()
        if stage not in self._tasks:
            # 字节数与字符数只在 ASCII 文本里相等，用来估计进度已经够了
            task = self._bar.add_task(stage, total=total or self._total_chars, figures="")
            self._tasks[stage] = (task, now)
        task, started = self._tasks[stage]
        rate = done / max(now - started, 1e-9)
        figures = f"{done:,} pieces" if total else f"{done / 1e6:,.0f} million characters, {rate / 1e6:.1f} a second"
        self._bar.update(task, completed=done, figures=figures)
        if not self._console.is_terminal and now - self._last_line >= 10:
            self._last_line = now
            self._console.print(f"{stage}: {figures}", highlight=False)
