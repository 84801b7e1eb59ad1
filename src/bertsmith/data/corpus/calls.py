"""`bertsmith.learn_vocabulary` and `bertsmith.build_corpus`: what `bertsmith vocab` and `bertsmith corpus` do."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from bertsmith.data.corpus.build import Progress as CorpusProgress
from bertsmith.data.corpus.build import build_corpus as build_shards
from bertsmith.data.corpus.commit import read_statistics
from bertsmith.data.corpus.manifest import HELDOUT, TRAIN
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.corpus.vocabulary import VocabularyOptions
from bertsmith.data.corpus.vocabulary import learn_vocabulary as learn_from_files
from bertsmith.data.reading.rows import FileNames, Rows, file_names, texts_in
from bertsmith.errors import InputError
from bertsmith.files import atomic_path
from bertsmith.options import built, divided
from bertsmith.parallel import Engine
from bertsmith.result import Result
from bertsmith.tokenizer import Tokenizer, load_tokenizer
from bertsmith.tokenizer.learn import Progress as VocabularyProgress


def learn_vocabulary(
    text: FileNames | Rows,
    out: str | Path,
    *,
    workers: int | None = None,
    on_progress: VocabularyProgress | None = None,
    **settings: Any,
) -> Result[Tokenizer]:
    """Learns a vocabulary from text: WordPiece, byte-level BPE or Unigram.

    Examples:
        >>> import bertsmith
        >>> vocabulary = bertsmith.learn_vocabulary("texts", "vocabulary", vocab_size=500)
        >>> vocabulary.metrics["files"], vocabulary.details.vocab_size <= 500
        (3, True)

    Args:
        text: files, folders, patterns and URLs of text, JSON Lines and Parquet; or a data frame, a `datasets.Dataset`
            or a list of dictionaries, each row with a document in the column `text` (or `text_field`).
        out: the folder for the tokenizer; the same call may run again there, another may not.
        workers: processes that count; None for all cores.
        on_progress: told the stage, what is done, and about how much there is.
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
    with _files(text, folder, options.text_field) as files:
        tokenizer, count = learn_from_files(files, folder, options, workers=workers, on_progress=on_progress)
    return Result(folder, {"pieces": tokenizer.vocab_size, "files": count}, None, None, tokenizer)


def build_corpus(
    text: FileNames | Rows,
    tokenizer: str | Path | Tokenizer,
    out: str | Path,
    *,
    engine: Engine = "local",
    workers: int | None = None,
    on_progress: CorpusProgress | None = None,
    **settings: Any,
) -> Result[TokenCorpus]:
    """Turns text into token shards for pre-training; goes on where an earlier call was broken off.

    Examples:
        >>> import bertsmith
        >>> corpus = bertsmith.build_corpus("texts", "vocabulary", "corpus", documents="blank-line")
        >>> corpus.metrics["documents"] > 0
        True

    Args:
        text: as in `learn_vocabulary`; a row is a document.
        tokenizer: its folder, `vocab.txt`, or itself.
        out: the folder for the shards.
        engine: `local` or `ray`.
        workers: processes; None for all cores.
        on_progress: told how many bytes are done, how many there are, and how many ids were made.
        **settings: the options of `bertsmith corpus`, with underscores, such as `heldout` and `near_duplicates`.

    Returns:
        `metrics`: documents, sentences and tokens to train on and held out, and the statistics of the text; `report`: a
        picture of them; `details`: the corpus.

    Raises:
        ConfigError: a setting is unknown or impossible.
        InputError: a file or a row is missing, damaged or malformed, or there are fewer than three documents.
        RunFolderError: the folder holds a corpus made with other settings, is in use, or cannot be written.
        CheckpointError: a shard of a finished corpus is damaged.
    """
    (chosen,) = divided(settings, CorpusOptions, command="corpus")
    options, folder = built(CorpusOptions, chosen), Path(out)
    cutter = load_tokenizer(tokenizer) if isinstance(tokenizer, (str, Path)) else tokenizer
    with _files(text, folder, options.text_field) as files:
        made = build_shards(files, cutter, folder, options, engine=engine, workers=workers, on_progress=on_progress)
    found = read_statistics(folder)
    metrics = {
        f"{before}{name}": float(getattr(made.counts[split], name))
        for split, before in ((TRAIN, ""), (HELDOUT, "heldout_"))
        for name in ("documents", "sentences", "tokens")
    }
    metrics |= {name: found[name] for name in ("pieces_per_word", "unknown_rate")}
    metrics |= {f"{kind}_duplicates": found["duplicates"][kind] for kind in ("exact", "near")}
    metrics["unigram_entropy"] = made.unigram_entropy
    return Result(folder, metrics, None, folder / "statistics.png", made)


@contextmanager
def _files(text: FileNames | Rows, folder: Path, column: str) -> Iterator[Sequence[str | Path]]:
    """Yields the files that were named; or one of JSON Lines in `folder`, to which rows are written for the block.

    A file lets several processes read the rows, and a killed call go on.

    Raises:
        InputError: a row is not usable, or none holds text.
        RunFolderError: the folder cannot be written.
    """
    names = file_names(text)
    if names is not None:
        yield names
        return
    digest = hashlib.sha256()
    with atomic_path(folder / ".rows.jsonl") as temporary, temporary.open("wb") as sink:
        for one in texts_in(cast(Rows, text), column, "text"):
            line = json.dumps({column: one}).encode() + b"\n"
            digest.update(line)
            sink.write(line)
        if not sink.tell():
            raise InputError(f"text: no row holds text in the column {column!r}; name another with text_field")
    # 名字说明内容，时间不说明什么：被杀后再来，同样的行就是同一份请求，别的行一定不是
    file = (folder / ".rows.jsonl").replace(folder / f"rows-{digest.hexdigest()[:16]}.jsonl")
    os.utime(file, (0, 0))
    try:
        yield [file]
    finally:
        file.unlink(missing_ok=True)
