"""From files to a corpus: planned in units, tokenized in parallel, finished in one pass, resumable at any moment.

Notable:
- a unit's parts depend on the unit alone and finishing goes through them in order, so the result is the same to the
  byte on one worker, on three, on a cluster, and after any number of kills
- finished units lie in `.parts` in the corpus folder; the same command takes them over and makes the rest
- memory is that of one shard per worker, whatever the size of the corpus or of a file
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertsmith.data.corpus.chart import draw_statistics
from bertsmith.data.corpus.commit import PARTS, SHARD_NAME, Dropping, apply_commit, finish
from bertsmith.data.corpus.duplicates import NearDuplicates
from bertsmith.data.corpus.manifest import MANIFEST, different_keys, require_same_settings
from bertsmith.data.corpus.partial_shards import ShardSettings, read_parts, unit_tokens, write_unit
from bertsmith.data.corpus.plan import WorkUnit, find_sources, plan_units, read_unit
from bertsmith.data.corpus.shards import SHARD_TOKENS, TokenCorpus
from bertsmith.data.corpus.words import word_cutter
from bertsmith.data.reading.sources import Source, Span, is_url
from bertsmith.data.reading.text import DocumentRule, no_text_error, resolve_documents
from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.files import atomic_path, locked, make_folder, write_text
from bertsmith.parallel import Engine, parallel_map
from bertsmith.tokenizer import WordPieceTokenizer

_PLAN = "plan.json"
_STATISTICS, _PICTURE = "statistics.json", "statistics.png"
_LOCK_PATIENCE = 5.0  # seconds; the workers of a killed build need a moment to notice

Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class CorpusOptions:
    """What a corpus is made of, and how.

    Attributes:
        documents: what separates the documents of text files, see `resolve_documents`.
        encoding: `auto` or a codec, of text files.
        text_field: field of JSON lines and column of Parquet files that holds the text.
        heldout_share: share of the documents that is held out, in (0, 1).
        shard_tokens: ids per shard.
        keep_duplicates: documents with the same ids stay.
        near_duplicates: documents as similar as this to an earlier one are dropped; in (0, 1], None for none.
        words: how the words of Chinese are found, so that whole words can be masked; None does without.
    """

    documents: DocumentRule = "auto"
    encoding: str = "auto"
    text_field: str = "text"
    heldout_share: float = 0.02
    shard_tokens: int = SHARD_TOKENS
    keep_duplicates: bool = False
    near_duplicates: float | None = None
    words: Literal["jieba"] | None = None

    def __post_init__(self) -> None:
        """Checks the ranges, and that what is asked for is installed."""
        if not 0 < self.heldout_share < 1:
            raise ConfigError(f"--heldout {self.heldout_share} must be between 0 and 1")
        if self.shard_tokens < 1:
            raise ConfigError(f"--shard-tokens {self.shard_tokens} must be at least 1")
        if self.near_duplicates is not None:
            NearDuplicates(self.near_duplicates)
        if self.words not in (None, "jieba"):
            raise ConfigError(f"--words {self.words!r} is unknown; use jieba")
        if self.words:
            # 词典在派生进程之前载入一次，各进程共用
            word_cutter()


def build_corpus(
    paths: Sequence[str | Path],
    tokenizer: WordPieceTokenizer,
    folder: str | Path,
    options: CorpusOptions | None = None,
    *,
    engine: Engine = "local",
    workers: int | None = 1,
    on_progress: Progress | None = None,
) -> TokenCorpus:
    """Tokenizes files into a folder of shards; goes on where an earlier call was broken off.

    Where the corpus is there already, every byte of it is checked instead.

    Args:
        paths: files, folders, patterns and URLs of text, JSON Lines and Parquet.
        tokenizer: makes the ids.
        folder: where the shards go, with `manifest.json`, `statistics.json` and `statistics.png`.
        options: what the corpus is like; the defaults if left out.
        engine: `local` or `ray`, see `parallel_map`.
        workers: processes; None for all cores. Neither this nor the engine changes the result.
        on_progress: told after every unit how many bytes are done, how many there are, and how many ids were made.

    Raises:
        InputError: an input is missing, damaged or malformed, or there are fewer than three documents.
        RunFolderError: the folder holds a corpus made with other settings, is in use, or cannot be written.
        CheckpointError: a shard of the finished corpus is damaged.
    """
    options = options or CorpusOptions()
    sources = _without_own_files(find_sources(paths), paths, Path(folder))
    rule = resolve_documents([Path(source.name) for source in sources if source.kind == "text"], options.documents)
    settings = _settings(sources, rule, options)
    folder = make_folder(Path(folder))
    with _locked_patiently(folder):
        apply_commit(folder)
        if (folder / MANIFEST).is_file():
            require_same_settings(folder, tokenizer, settings)
            corpus = TokenCorpus(folder, tokenizer)
            corpus.verify()
        else:
            shard_settings = ShardSettings(
                options.heldout_share,
                options.shard_tokens,
                words=options.words is not None,
                signatures=options.near_duplicates is not None,
            )
            units = _planned(folder, sources, tokenizer, rule, options, settings)
            work = _UnitWork(folder / PARTS, tokenizer, rule, options.text_field, shard_settings)
            _make_units(work, units, engine, workers, on_progress)
            _finish(folder, work, units, options, settings, sources)
            corpus = TokenCorpus(folder, tokenizer)
        picture = folder / _PICTURE
        if not picture.exists():
            with atomic_path(picture) as temporary:
                statistics = json.loads((folder / _STATISTICS).read_text(encoding="utf-8"))
                draw_statistics(statistics).savefig(temporary, format="png", dpi=120)
        return corpus


def _without_own_files(sources: Sequence[Source], paths: Sequence[str | Path], folder: Path) -> list[Source]:
    """Leaves out what a build writes into its folder, where a pattern among `paths` matches that as well.

    Raises:
        InputError: such a file is named.
    """
    named = {Path(path).resolve() for path in paths if not is_url(str(path)) and Path(path).is_file()}
    kept = []
    for source in sources:
        if is_url(source.name) or not _is_own_file(Path(source.name).resolve(), folder.resolve()):
            kept.append(source)
        elif Path(source.name).resolve() in named:
            raise InputError(f"{source.name}: this is what a build writes, not text; name other input or another --out")
    return kept


def _is_own_file(file: Path, folder: Path) -> bool:
    # 只认构建自己写的名字：用户放在输出目录里的文本照常读，绝不悄悄丢掉
    if file.parent == folder:
        return file.name in (MANIFEST, _STATISTICS, _PICTURE) or SHARD_NAME.fullmatch(file.name) is not None
    return folder / PARTS in file.parents


@dataclass(frozen=True)
class _UnitWork:
    """Makes the parts of a unit; travels to the workers."""

    parts: Path
    tokenizer: WordPieceTokenizer
    rule: str
    field: str
    settings: ShardSettings

    def __call__(self, unit: WorkUnit) -> int:
        path = self.path(unit)
        documents = read_unit(unit, rule=self.rule, field=self.field)
        try:
            return write_unit(path, documents, self.tokenizer, self.settings)
        except RunFolderError:
            # 别的机器上迟到的工作进程可能已交出同一单元：内容必然相同，用它的
            if not path.is_dir():
                raise
            return unit_tokens(path)

    def path(self, unit: WorkUnit) -> Path:
        return self.parts / f"{unit.number:05d}"


def _make_units(
    work: _UnitWork, units: Sequence[WorkUnit], engine: Engine, workers: int | None, on_progress: Progress | None
) -> None:
    todo = [unit for unit in units if not work.path(unit).is_dir()]
    ready = [unit for unit in units if work.path(unit).is_dir()]
    total = sum(unit.size for unit in units)
    done = sum(unit.size for unit in ready)
    tokens = sum(unit_tokens(work.path(unit)) for unit in ready)
    for unit, made in zip(todo, parallel_map(work, todo, engine=engine, workers=workers), strict=True):
        done += unit.size
        tokens += made
        if on_progress is not None:
            on_progress(done, total, tokens)


def _finish(
    folder: Path,
    work: _UnitWork,
    units: Sequence[WorkUnit],
    options: CorpusOptions,
    settings: dict[str, Any],
    sources: Sequence[Source],
) -> None:
    parts = [part for unit in units for part in read_parts(work.path(unit), work.settings)]
    try:
        if not parts:
            raise no_text_error([source.name for source in sources])
        finish(
            folder,
            parts,
            work.tokenizer,
            shard_settings=work.settings,
            dropping=Dropping(exact=not options.keep_duplicates, near=options.near_duplicates),
            settings=settings,
        )
    except InputError:
        # 文档太少：这些部分没有保留的价值，留下反而会挡住换了参数的下一条命令
        _remove_parts(folder)
        raise


def _planned(
    folder: Path,
    sources: Sequence[Source],
    tokenizer: WordPieceTokenizer,
    rule: str,
    options: CorpusOptions,
    settings: dict[str, Any],
) -> list[WorkUnit]:
    """Returns the plan of the build that was broken off here, or makes one and writes it down."""
    modified = [source.modified for source in sources]
    request = {"tokenizer": tokenizer.fingerprint, **settings, "modified": modified}
    path = folder / PARTS / _PLAN
    if path.is_file():
        saved = json.loads(path.read_text(encoding="utf-8"))
        if different := different_keys(saved["request"], request):
            changed = ", ".join(different)
            raise RunFolderError(
                f"{folder}: holds an unfinished corpus of another request ({changed}); choose another --out, "
                f"or remove {folder / PARTS} to begin anew"
            )
        return [
            WorkUnit(number, tuple(Span(*span) for span in unit["spans"]), unit["size"])
            for number, unit in enumerate(saved["units"])
        ]
    # 没有计划却有部分：来自更早的失败，无从对应
    _remove_parts(folder)
    units = plan_units(
        sources, rule=rule, encoding=options.encoding, field=options.text_field, shard_tokens=options.shard_tokens
    )
    described = [
        {"spans": [[span.name, span.start, span.end, span.encoding] for span in unit.spans], "size": unit.size}
        for unit in units
    ]
    write_text(path, json.dumps({"request": request, "units": described}, ensure_ascii=False))
    return units


def _settings(sources: Sequence[Source], rule: str, options: CorpusOptions) -> dict[str, Any]:
    return {
        "sources": [
            [source.name if is_url(source.name) else str(Path(source.name).resolve()), source.size]
            for source in sources
        ],
        "documents": rule,
        "encoding": options.encoding,
        "text_field": options.text_field,
        "heldout_share": options.heldout_share,
        "shard_tokens": options.shard_tokens,
        "keep_duplicates": options.keep_duplicates,
        "near_duplicates": options.near_duplicates,
        "words": options.words,
    }


def _remove_parts(folder: Path) -> None:
    shutil.rmtree(folder / PARTS, ignore_errors=True)


@contextlib.contextmanager
def _locked_patiently(folder: Path) -> Iterator[None]:
    # 工作进程继承了锁：拿到锁就说明上一次的进程都已退出，不会有两个写者
    deadline = time.monotonic() + _LOCK_PATIENCE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder))
                break
            except RunFolderError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield
