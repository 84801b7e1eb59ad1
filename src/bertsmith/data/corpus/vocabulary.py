"""A vocabulary from files of text: what `bertsmith vocab` does.

It reads what a corpus is built from, but only lines, not documents or sentences: where a text is cut makes no
difference to its words. The folder says in `vocabulary.json` what its vocabulary was learned from, so that the same
command may run again and another one cannot replace it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.cores import available_cores
from bertsmith.data.reading.finding import find_sources
from bertsmith.data.reading.records import read_all_lines
from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import write_text
from bertsmith.options import option, to_table
from bertsmith.tokenizer import Tokenizer, TokenizerKind, learn_tokenizer
from bertsmith.tokenizer.kinds import SpecialLayout
from bertsmith.tokenizer.learn import Progress, VocabularySettings

_REQUEST = "vocabulary.json"


@dataclass(frozen=True)
class VocabularyOptions:
    """How a vocabulary is learned from files."""

    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    cased: bool = option(False, help="Keep capitals and accents.")
    encoding: str = option("auto", help="Encoding of text files: auto, or a codec such as iso-8859-1.")
    text_field: str = option("text", help="JSON field or Parquet column that holds the text.")
    kind: TokenizerKind = option("wordpiece", help="Kind of pieces: BERT's, RoBERTa's byte pairs, or ALBERT's.")
    special_layout: SpecialLayout | None = option(
        None,
        help="Special tokens: \\[CLS] A \\[SEP] B \\[SEP], or <s> A </s></s> B </s>.",
        shown_default="roberta for bpe, else bert",
    )


def learn_vocabulary(
    text: Sequence[str | Path],
    out: Path,
    options: VocabularyOptions,
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> tuple[Tokenizer, int]:
    """Learns a vocabulary from files and writes a tokenizer folder.

    Args:
        text: files, folders, patterns and URLs.
        out: the folder.
        options: what to learn, and how to read.
        workers: processes that count; None for all cores.
        on_progress: told the stage ("counting" in characters, "merging" in pieces), what is done, and about how much
            there is.

    Returns:
        The tokenizer, and how many files it was learned from.

    Raises:
        InputError: a file cannot be read, or nothing can be learned from the text.
        RunFolderError: `out` holds a model, or a tokenizer of other text or settings.
    """
    sources = find_sources(text)
    # 要读的文本正好在词表的位置上：学完就会盖掉它
    if any(Path(source.name).resolve() == (out / "vocab.txt").resolve() for source in sources):
        raise InputError(f"{out / 'vocab.txt'}: this text is where the vocabulary would go; choose another --out")
    sizes = [source.text_size for source in sources]
    names = [[source.name, size] for source, size in zip(sources, sizes, strict=True)]
    request = {"text": names, **to_table(options)}
    if options.kind == "wordpiece":
        # 早先的文件夹没有记这两项：同一条命令照样能在那里重跑
        request = {name: value for name, value in request.items() if name not in ("kind", "special_layout")}
    _require_free(out, request)
    # 字节数与字符数只在 ASCII 文本里相等，压缩文件的倍数也只是估计；用来显示进度已经够了
    expected = int(sum(sizes))

    def tell(stage: str, done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(stage, done, total or max(expected, done + 1))

    tokenizer = learn_tokenizer(
        read_all_lines(sources, encoding=options.encoding, field=options.text_field),
        kind=options.kind,
        special_layout=options.special_layout,
        lowercase=not options.cased,
        workers=workers or available_cores(),
        on_progress=tell,
        **asdict(options.vocabulary),
    )
    # 先记下词表从哪里来：同一条命令可以重跑，别的命令不能盖掉它
    write_text(out / _REQUEST, json.dumps(request, indent=1, ensure_ascii=False) + "\n")
    tokenizer.save(out)
    return tokenizer, len(sources)


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
