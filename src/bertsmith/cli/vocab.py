"""`bertsmith vocab`: from files of text to a vocabulary.

It reads what `bertsmith corpus` reads, but only lines, not documents or sentences: where a text is cut makes no
difference to its words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertsmith.errors import InputError, RunFolderError

_REQUEST = "vocabulary.json"
"""Says what a tokenizer was learned from, in its folder."""


def vocab(
    text: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs or URLs of .txt, .jsonl (plain, .gz, .zst) or .parquet."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for vocab.txt and the tokenizer's settings.")],
    size: Annotated[int, typer.Option(min=1, help="Most word pieces.")] = 30522,
    min_frequency: Annotated[int, typer.Option(min=1, help="Do not merge pairs seen less often.")] = 2,
    limit_alphabet: Annotated[
        int | None, typer.Option(min=1, help="Keep only this many characters, the most frequent.")
    ] = None,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    unused: Annotated[int, typer.Option(min=0, help="Reserve this many places: \\[unused0] and so on.")] = 0,
    token: Annotated[
        list[str] | None, typer.Option(help="A token that is always one piece, such as <url>; may be repeated.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that count; all cores if left out.")] = None,
    encoding: Annotated[str, typer.Option(help="auto, or a codec such as iso-8859-1; of text files.")] = "auto",
    text_field: Annotated[str, typer.Option(help="JSON field or Parquet column that holds the text.")] = "text",
) -> None:
    """Learn a WordPiece vocabulary from text."""
    from rich.console import Console

    from bertsmith.cores import available_cores
    from bertsmith.data.corpus.plan import find_sources, read_all_text, text_size
    from bertsmith.files import write_text
    from bertsmith.progress import LiveProgress
    from bertsmith.tokenizer import WordPieceTokenizer

    sources = find_sources(text)
    # 要读的文本正好在词表的位置上：学完就会盖掉它
    if any(Path(source.name).resolve() == (out / "vocab.txt").resolve() for source in sources):
        raise InputError(f"{out / 'vocab.txt'}: this text is where the vocabulary would go; choose another --out")
    sizes = [text_size(source) for source in sources]
    request = {
        "text": [[source.name, length] for source, length in zip(sources, sizes, strict=True)],
        "size": size,
        "cased": cased,
        "min_frequency": min_frequency,
        "limit_alphabet": limit_alphabet,
        "unused": unused,
        "tokens": token or [],
        "encoding": encoding,
        "text_field": text_field,
    }
    _require_free(out, request)
    # 字节数与字符数只在 ASCII 文本里相等，压缩文件的倍数也只是估计；用来显示进度已经够了
    expected = int(sum(sizes))
    with LiveProgress(Console(stderr=True)) as progress:

        def show(stage: str, done: int, total: int) -> None:
            rate = progress.rate(stage, done) / 1e6
            figures = f"{done:,} pieces" if total else f"{done / 1e6:,.0f} million characters, {rate:.1f} a second"
            progress.update(stage, done, total or max(expected, done + 1), figures)

        tokenizer = WordPieceTokenizer.train(
            read_all_text(sources, encoding=encoding, field=text_field),
            vocab_size=size,
            lowercase=not cased,
            min_frequency=min_frequency,
            limit_alphabet=limit_alphabet,
            num_unused=unused,
            user_tokens=token or (),
            workers=workers or available_cores(),
            on_progress=show,
        )
    # 先记下词表从哪里来：同一条命令可以重跑，别的命令不能盖掉它
    write_text(out / _REQUEST, json.dumps(request, indent=1, ensure_ascii=False) + "\n")
    tokenizer.save(out)
    print(f"{tokenizer.vocab_size:,} pieces from {len(sources)} file(s) in {out}")


def _require_free(out: Path, request: dict[str, Any]) -> None:
    """Makes sure that a folder holds no model, and no tokenizer but the one of this very request."""
    held = next((name for name in ("config.json", "tokenizer.json", "vocab.txt") if (out / name).exists()), None)
    if held is None:
        return
    try:
        same = json.loads((out / _REQUEST).read_text(encoding="utf-8")) == request
    except (OSError, ValueError):
        same = False
    if held == "config.json" or not same:
        raise RunFolderError(f"{out}: holds a model, or a vocabulary of other text or settings; choose another --out")
