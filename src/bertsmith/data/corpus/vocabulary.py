"""A vocabulary from files of text: what `bertsmith vocab` does.

It reads what a corpus is built from, but only lines, not documents or sentences: where a text is cut makes no
difference to its words. The folder says in `vocabulary.json` what its vocabulary was learned from, so that the same
command may run again and another one cannot replace it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.data.reading.documents import readable_sources
from bertsmith.data.reading.opening import opening_lines
from bertsmith.data.reading.records import FileNames, Rows, files_of, read_all_lines
from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import json_text, parse_json, require_utf8_names, write_text
from bertsmith.parallel import available_cores
from bertsmith.settings import Checked, Result, built, divided, option, to_table
from bertsmith.tokenizer import Tokenizer, TokenizerKind, learn_tokenizer
from bertsmith.tokenizer.learn import Note, Progress, VocabularySettings

_REQUEST = "vocabulary.json"


@dataclass(frozen=True)
class VocabularyOptions(Checked):
    """How a vocabulary is learned from files."""

    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    cased: bool = option(False, help="Keep capitals and accents.")
    encoding: str = option("auto", help="Encoding of text files: auto, or a codec such as iso-8859-1.")
    text_field: str = option("text", help="Field or column that holds the text: of JSON, Parquet and tables.")
    sheet: str | None = option(None, help="Name of the sheet of a spreadsheet; default: the first.")
    kind: TokenizerKind = option("wordpiece", help="Kind of pieces: BERT's, RoBERTa's byte pairs, or ALBERT's.")


def learn_vocabulary(
    text: FileNames | Rows,
    out: str | Path,
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
    on_note: Note | None = None,
    **settings: Any,
) -> Result[Tokenizer]:
    """Learns a vocabulary from text: WordPiece, byte-level BPE or Unigram.

    Examples:
        >>> import bertsmith
        >>> vocabulary = bertsmith.learn_vocabulary("texts", "vocabulary", vocab_size=500)
        >>> vocabulary.metrics["files"], vocabulary.details.vocab_size <= 500
        (3, True)

    Args:
        text: files, folders, patterns and URLs of text, JSON, Parquet, CSV and spreadsheets; or a data frame, a data
            set of `datasets` or a list of dictionaries, each with a document in the column `text` (or `text_field`).
        out: the folder for the tokenizer; the same call may run again there, another may not.
        workers: processes that count; None for all cores.
        on_progress: told the stage, what is done, and about how much there is.
        on_note: told what was understood of the text, as by `build_corpus`, and what may not be expected.
        **settings: the options of `bertsmith vocab`, with underscores, such as `vocab_size` and `kind`.

    Returns:
        `metrics`: `pieces`, and the number of `files`, 1 for rows; `details`: the tokenizer.

    Raises:
        ConfigError: a setting is unknown or impossible.
        InputError: a file or a row cannot be read, or nothing can be learned from the text.
        RunFolderError: `out` holds a model, or a tokenizer of other text or settings.
    """
    (chosen,) = divided(settings, VocabularyOptions, command="vocab")
    options, folder = built(VocabularyOptions, chosen), Path(out)
    with files_of(text, folder, options.text_field) as files:
        sources, note = readable_sources(files, options.encoding)
        # 要读的文本正好在词表的位置上：学完就会盖掉它
        place = folder / "vocab.txt"
        if any(Path(source.name).resolve() == place.resolve() for source in sources):
            raise InputError(f"{place}: this text is where the vocabulary would go; choose another --out")
        request = {"text": [[source.name, source.text_size] for source in sources], **to_table(options)}
        if options.kind == "wordpiece":
            # 早先的文件夹没有记这一项：同一条命令照样能在那里重跑
            del request["kind"]
        _require_free(folder, request)
        if on_note is not None:
            opening = opening_lines(files, sources, options.encoding, field=options.text_field, sheet=options.sheet)
            for line in filter(None, (*opening, note)):
                on_note(line)
        # 字节数与字符数只在 ASCII 文本里相等，压缩文件的倍数也只是估计；用来显示进度已经够了
        expected = int(sum(source.text_size for source in sources))

        def tell(stage: str, done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(stage, done, total or max(expected, done + 1))

        tokenizer = learn_tokenizer(
            read_all_lines(sources, encoding=options.encoding, field=options.text_field, sheet=options.sheet),
            kind=options.kind,
            lowercase=not options.cased,
            workers=workers or available_cores(),
            on_progress=tell,
            on_note=on_note,
            **asdict(options.vocabulary),
        )
        # 先记下词表从哪里来：同一条命令可以重跑，别的命令不能盖掉它
        write_text(folder / _REQUEST, json_text(request))
        tokenizer.save(folder)
    return Result(folder, {"pieces": tokenizer.vocab_size, "files": len(sources)}, None, None, tokenizer)


def _require_free(out: Path, request: dict[str, Any]) -> None:
    """Makes sure that a folder can be written, and holds no model, and no tokenizer but that of this very request."""
    require_utf8_names(out)
    held = next((name for name in ("config.json", "tokenizer.json", "vocab.txt") if (out / name).exists()), None)
    if held is None:
        return
    try:
        same = parse_json(out / _REQUEST) == request
    except (OSError, ValueError):
        same = False
    if held == "config.json" or not same:
        raise RunFolderError(f"{out}: holds a model, or a vocabulary of other text or settings; choose another --out")
