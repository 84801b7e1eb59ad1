"""`bertsmith.learn_vocabulary` and `bertsmith.build_corpus`: what `bertsmith vocab` and `bertsmith corpus` do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.data.corpus.build import Progress as CorpusProgress
from bertsmith.data.corpus.build import build_corpus as build_shards
from bertsmith.data.corpus.manifest import HELDOUT, TRAIN
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.corpus.vocabulary import VocabularyOptions
from bertsmith.data.corpus.vocabulary import learn_vocabulary as learn_from_files
from bertsmith.options import built, divided
from bertsmith.parallel import Engine
from bertsmith.result import Result
from bertsmith.tokenizer import Tokenizer, load_tokenizer
from bertsmith.tokenizer.learn import Progress as VocabularyProgress

Texts = str | Path | Sequence[str | Path]
"""A file, folder, pattern or URL of text, or several."""


def learn_vocabulary(
    text: Texts,
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
        text: files, folders, patterns and URLs of text, JSON Lines and Parquet.
        out: the folder for the tokenizer; the same call may run again there, another may not.
        workers: processes that count; None for all cores.
        on_progress: told the stage, what is done, and about how much there is.
        **settings: the options of `bertsmith vocab`, with underscores, such as `vocab_size` and `kind`.

    Returns:
        `metrics`: `pieces`, and the number of `files`; `details`: the tokenizer.

    Raises:
        ConfigError: a setting is unknown or impossible.
        InputError: a file cannot be read, or nothing can be learned from the text.
        RunFolderError: `out` holds a model, or a tokenizer of other text or settings.
    """
    (chosen,) = divided(settings, VocabularyOptions, command="vocab")
    folder = Path(out)
    tokenizer, files = learn_from_files(
        _several(text), folder, built(VocabularyOptions, chosen), workers=workers, on_progress=on_progress
    )
    return Result(folder, {"pieces": tokenizer.vocab_size, "files": files}, None, None, tokenizer)


def build_corpus(
    text: Texts,
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
        text: as in `learn_vocabulary`.
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
        InputError: an input is missing, damaged or malformed, or there are fewer than three documents.
        RunFolderError: the folder holds a corpus made with other settings, is in use, or cannot be written.
        CheckpointError: a shard of a finished corpus is damaged.
    """
    (chosen,) = divided(settings, CorpusOptions, command="corpus")
    options, folder = built(CorpusOptions, chosen), Path(out)
    cutter = load_tokenizer(tokenizer) if isinstance(tokenizer, (str, Path)) else tokenizer
    made = build_shards(
        _several(text), cutter, folder, options, engine=engine, workers=workers, on_progress=on_progress
    )
    found = json.loads((folder / "statistics.json").read_text(encoding="utf-8"))
    metrics = {
        f"{before}{name}": float(getattr(made.counts[split], name))
        for split, before in ((TRAIN, ""), (HELDOUT, "heldout_"))
        for name in ("documents", "sentences", "tokens")
    }
    metrics |= {name: found[name] for name in ("pieces_per_word", "unknown_rate")}
    metrics |= {f"{kind}_duplicates": found["duplicates"][kind] for kind in ("exact", "near")}
    metrics["unigram_entropy"] = made.unigram_entropy
    return Result(folder, metrics, None, folder / "statistics.png", made)


def _several(text: Texts) -> Sequence[str | Path]:
    return [text] if isinstance(text, (str, Path)) else text
