"""Counts the files of `src` whose functions run on two ways: `make trace` prints them in the order of their first call.

- from the command `pretrain` to the loss of its first step
- from the command `evaluate`, given a labelled row, to its score
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from bertsmith.cli import main
from bertsmith.files import write_text
from bertsmith.train.trainer import BertTrainer

ROOT = Path(__file__).parents[1] / "src"
TEXT = "".join(f"The man eats {n} bread. The woman reads the book.\n\n" for n in "abcdefghijklmnopqrstuvwxyz")


class Arrived(BaseException):
    """Ends a command where its way ends."""


def files_of(words: str, end: tuple[type, str] | None = None) -> list[str]:
    """Runs a command until a method returns, by default to its end; returns the files, the first called first."""
    found: dict[str, None] = {}
    arrived = end is None

    def note(frame: FrameType, event: str, _: Any) -> None:
        # 装饰器生成的 __init__ 之类没有文件；模块顶层只是被导入，不算被调用
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)) and frame.f_code.co_name not in ("<module>", "__getattr__"):
            found.setdefault(str(Path(path).relative_to(ROOT)))

    try:
        with stopped_at(end):
            threading.setprofile(note)
            sys.setprofile(note)
            run(words)
    except Arrived:
        arrived = True
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # 没走到终点的一条路，数出来的文件没有意义
    if not arrived:
        raise SystemExit(f"bertsmith {words}: ended before its way did")
    return list(found)


def run(words: str) -> None:
    """Runs a command; one that fails ends the program."""
    try:
        main(words.split())
    except SystemExit as ended:
        if ended.code:
            raise


@contextmanager
def stopped_at(end: tuple[type, str] | None) -> Iterator[None]:
    """Raises `Arrived` when a method of a class has returned."""
    if end is None:
        yield
        return
    owner, name = end
    method = getattr(owner, name)

    def arrive(*given: Any, **more: Any) -> None:
        method(*given, **more)
        raise Arrived

    setattr(owner, name, arrive)
    try:
        yield
    finally:
        setattr(owner, name, method)


def show(title: str, files: list[str]) -> None:
    """Prints the files of a way, each with the number of its first call."""
    print(f"\n{title}: {len(files)} files")
    for number, name in enumerate(files, 1):
        print(f"{number:3}  {name}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_text(place / "text.txt", TEXT)
        write_text(place / "rows.tsv", "text\tlabel\n" + "the man\tgood\na book\tbad\n" * 8)
        common = f"--corpus {place}/corpus --tokenizer {place}/vocab --size 1/64"
        for words in (
            f"vocab {place}/text.txt --vocab-size 80 --out {place}/vocab",
            f"corpus {place}/text.txt --tokenizer {place}/vocab --workers 1 --out {place}/corpus",
            f"pretrain {common} --steps 2 --out {place}/first",
            f"finetune classify --model {place}/first/model --train {place}/rows.tsv --dev {place}/rows.tsv --epochs 1"
            f" --out {place}/tuned",
        ):
            run(words)
        to_loss = files_of(f"pretrain {common} --steps 2 --out {place}/run", (BertTrainer, "train_batch"))
        show("from `pretrain` to the loss", to_loss)
        show(
            "from a labelled row to its score",
            files_of(f"evaluate --model {place}/tuned/model --file {place}/rows.tsv"),
        )
