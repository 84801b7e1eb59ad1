"""From files to a corpus: planned in chunks, tokenized in parallel, committed in one pass, resumable at any moment.

- a chunk's partial shards depend on the chunk alone, and the commit goes through them in order, so the result is the
  same to the byte on one worker, on three, on a cluster, and after any number of kills
- finished chunks lie in `.parts` in the corpus folder; the same command takes them over and makes the rest
- memory is that of one shard per worker, whatever the size of a file; the commit alone takes more the larger the corpus
  is: about 40 bytes a sentence, 70 where repeated lines are dropped
"""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bertsmith.data.corpus.commit import (
    CHUNKS_MADE,
    PARTS,
    SHARD_NAME,
    STATISTICS,
    apply_commit,
    commit,
    read_statistics,
)
from bertsmith.data.corpus.manifest import HELDOUT, MANIFEST, TRAIN, different_keys, require_same_settings
from bertsmith.data.corpus.partial_shards import (
    PartialShard,
    read_record,
    verify_partial_shards,
    write_partial_shards,
)
from bertsmith.data.corpus.plan import SHARD_TOKENS, CorpusOptions, InputChunk, plan_chunks, read_chunk
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.corpus.statistics import draw_statistics
from bertsmith.data.reading.documents import readable_sources
from bertsmith.data.reading.opening import opening_lines
from bertsmith.data.reading.records import FileNames, Rows, files_of
from bertsmith.data.reading.sources import Source, is_url
from bertsmith.data.reading.text import LEAST_TEXTS, Document, corpus_documents, few_texts_error, no_text_error
from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import atomic_path, locked, make_folder, read_json, working_in, write_json
from bertsmith.parallel import Engine, available_cores, parallel_map
from bertsmith.settings import Result, built, divided
from bertsmith.tokenizer import Tokenizer, load_tokenizer

_PLAN, _PLAN_VERSION = "plan.json", 3
_PICTURE = "statistics.png"
_LOCK_PATIENCE = 5.0  # seconds; the workers of a killed build need a moment to notice

Progress = Callable[[int, int, int], None]


def build_corpus(
    text: FileNames | Rows,
    tokenizer: str | Path | Tokenizer,
    out: str | Path,
    *,
    engine: Engine = "local",
    workers: int | None = None,
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
    **settings: Any,
) -> Result[TokenCorpus]:
    """Turns text into token shards for pre-training; resumes where an earlier call was broken off.

    Examples:
        >>> import bertsmith
        >>> corpus = bertsmith.build_corpus("texts", "vocabulary", "corpus", documents="blank-line")
        >>> corpus.metrics["documents"] > 0
        True

    Args:
        text: as in `learn_vocabulary`; a row is a document.
        tokenizer: its folder, `vocab.txt`, or itself.
        workers: processes; None for all cores.
        on_progress: told how many bytes are done, how many there are, and how many ids were made.
        on_note: told what was understood of the text, a sentence each: kinds of files, encodings, what is taken for a
            document, the column of a table, and what is left out and why.
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
    with files_of(text, folder, options.text_field) as files:
        how: dict[str, Any] = {"engine": engine, "workers": workers, "on_progress": on_progress, "on_note": on_note}
        made = build_shards(files, cutter, folder, options, **how)
    found = read_statistics(folder)
    metrics = {
        f"{before}{name}": float(getattr(made.counts[split], name))
        for split, before in ((TRAIN, ""), (HELDOUT, "heldout_"))
        for name in ("documents", "sentences", "tokens")
    }
    metrics |= {name: found[name] for name in ("pieces_per_word", "unknown_rate")}
    metrics["unknown_characters"] = found.get("unknown_characters", 0) / max(1, found.get("characters", 0))
    repeated = found.get("repeated_lines", {})
    figures = ("copies", "token_share", "heldout_token_share", "dropped")
    metrics |= {f"repeated_lines_{name}": repeated.get(name, 0) for name in figures}
    metrics["special_tokens_as_text"] = found.get("special_tokens_as_text", 0)
    metrics |= {f"{kind}_duplicates": found["duplicates"][kind] for kind in ("exact", "near")}
    metrics["empty_rows"] = found.get("empty_rows", 0)
    metrics["unigram_entropy"] = made.unigram_entropy
    return Result(folder, metrics, None, folder / "statistics.png", made)


def build_shards(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: str | Path,
    options: CorpusOptions | None = None,
    *,
    engine: Engine = "local",
    workers: int | None = 1,
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
) -> TokenCorpus:
    """Tokenizes files into a folder of shards, as `build_corpus` does; where it is finished, checks every byte of it.

    Large plain files are shared among the workers; one that is gzip or zstd is read by a single worker, and from its
    beginning after a kill. Neither `engine` nor `workers` changes the result.
    """
    options = options or CorpusOptions()
    found, left_out = readable_sources(paths, options.encoding)
    sources = _without_own_files(found, paths, Path(folder))
    rule, why = corpus_documents([source.name for source in sources], options.documents, options.encoding)
    options = replace(options, documents=rule)
    places = (one.name if is_url(one.name) else str(Path(one.name).resolve()) for one in sources)
    settings = {"sources": [[place, one.size] for place, one in zip(places, sources, strict=True)], **asdict(options)}
    folder = Path(folder)
    # 工作进程继承了锁：拿到锁就说明上一次的进程都已退出，不会有两个写者
    with working_in(folder, CHUNKS_MADE, patience=_LOCK_PATIENCE):
        if on_note is not None:
            opening = opening_lines(
                paths, sources, options.encoding, rule, field=options.text_field, sheet=options.sheet
            )
            for note in filter(None, (*opening, left_out, why)):
                on_note(note)
        apply_commit(folder)
        if (folder / MANIFEST).is_file():
            require_same_settings(folder, tokenizer, settings)
            corpus = TokenCorpus(folder, tokenizer)
            corpus.verify()
            # 收尾时被杀，可能留下没删完的部分
            _remove_parts(folder)
        else:
            chunks = _planned(folder, sources, tokenizer, options, settings)
            work = _ChunkWork(folder / PARTS, tokenizer, options, functools.partial(read_chunk, options=options))
            try:
                _make_chunks(work, chunks, engine, workers, on_progress)
            except InputError:
                # 一块也没做成就被拒绝：不留下会挡住下一条命令的东西
                if not any(work.path(chunk).is_dir() for chunk in chunks):
                    _remove_parts(folder)
                raise
            corpus = _committed(folder, work, chunks, settings, [source.name for source in sources])
        picture = folder / _PICTURE
        if not picture.exists():
            with atomic_path(picture) as temporary:
                draw_statistics(read_statistics(folder)).savefig(temporary, format="png", dpi=120)
        return corpus


def build_from_documents(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    heldout_share: float = 0.02,
    shard_tokens: int = SHARD_TOKENS,
    words: Literal["jieba"] | None = None,
) -> TokenCorpus:
    """Builds a corpus as `build_shards` does, of documents that are at hand instead of files, in one process.

    Every document stays, also if it repeats another. They are read once, in order, in the memory of one shard; what an
    earlier call left unfinished is made again from the beginning. `CorpusOptions` says what the options mean.
    """
    options = CorpusOptions(heldout_share=heldout_share, shard_tokens=shard_tokens, keep_duplicates=True, words=words)
    folder = make_folder(Path(folder))
    with locked(folder):
        if (folder / MANIFEST).is_file():
            raise RunFolderError(f"{folder}: holds a corpus already; remove it or choose another folder")
        _remove_parts(folder)
        whole = InputChunk(0, (), 0)
        work = _ChunkWork(folder / PARTS, tokenizer, options, lambda *_, **__: documents)
        try:
            work(whole)
            return _committed(folder, work, [whole], asdict(options), [])
        finally:
            _remove_parts(folder)


@dataclass(frozen=True)
class _ChunkWork:
    """Makes the partial shards of a chunk; travels to the workers."""

    parts: Path
    tokenizer: Tokenizer
    options: CorpusOptions
    read: Callable[..., Iterable[Document]]

    def __call__(self, chunk: InputChunk) -> int:
        path, empty = self.path(chunk), Counter[str]()
        try:
            return write_partial_shards(path, self.read(chunk, empty=empty), self.tokenizer, self.options, empty)
        except RunFolderError:
            # 别的机器上迟到的工作进程可能已交出同一块：内容必然相同，用它的
            if not path.is_dir():
                raise
            return read_record(path).tokens

    def path(self, chunk: InputChunk) -> Path:
        return self.parts / f"{chunk.number:05d}"


def _make_chunks(
    work: _ChunkWork,
    chunks: Sequence[InputChunk],
    engine: Engine,
    workers: int | None,
    on_progress: Progress | None,
) -> None:
    todo = [chunk for chunk in chunks if not work.path(chunk).is_dir()]
    ready = [chunk for chunk in chunks if work.path(chunk).is_dir()]
    total = sum(chunk.size for chunk in chunks)
    done = sum(chunk.size for chunk in ready)
    for chunk in ready:
        # 早先做完的可能放了很久：搬进语料之前，先看它还是不是写下的样子
        verify_partial_shards(work.path(chunk))
    tokens = sum(read_record(work.path(chunk)).tokens for chunk in ready)
    if engine == "local":
        workers = min(workers or available_cores(), max(1, len(todo)))
    for chunk, made in zip(todo, parallel_map(work, todo, engine=engine, workers=workers), strict=True):
        done += chunk.size
        tokens += made
        if on_progress is not None:
            on_progress(done, total, tokens)


def _committed(
    folder: Path,
    work: _ChunkWork,
    chunks: Sequence[InputChunk],
    settings: Mapping[str, Any],
    sources: Sequence[str],
) -> TokenCorpus:
    partial_shards, empty_rows = list[PartialShard](), 0
    for path in map(work.path, chunks):
        record = read_record(path)
        partial_shards += [PartialShard(path, number, shards) for number, shards in enumerate(record.partial_shards)]
        empty_rows += record.empty_rows
    try:
        if sources and not partial_shards:
            raise no_text_error(sources)
        commit(folder, partial_shards, work.tokenizer, work.options, settings, empty_rows)
    except InputError:
        # 文档太少：这些部分没有保留的价值，留下反而会挡住换了参数的下一条命令
        _remove_parts(folder)
        raise
    return TokenCorpus(folder, work.tokenizer)


@dataclass(frozen=True)
class _Plan:
    """`plan.json`: what was asked for, and the chunks that its input was divided into."""

    request: dict[str, Any]
    chunks: tuple[InputChunk, ...]


def _planned(
    folder: Path,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    options: CorpusOptions,
    settings: Mapping[str, Any],
) -> Sequence[InputChunk]:
    """Returns the plan of the build that was broken off here, or makes one and writes it down."""
    modified = [source.modified for source in sources]
    request = {"version": _PLAN_VERSION, "tokenizer": tokenizer.fingerprint, **settings, "modified": modified}
    path = folder / PARTS / _PLAN
    if path.is_file():
        advice = f"remove {folder / PARTS} to begin anew"
        saved: dict[str, Any] = read_json(path, dict, RunFolderError, advice)
        if different := different_keys(saved.get("request", {}), request):
            raise RunFolderError(
                f"{folder}: holds an unfinished corpus of another request ({', '.join(different)}); "
                f"choose another --out, or {advice}"
            )
        return read_json(path, _Plan, RunFolderError, advice).chunks
    # 没有计划却有部分：来自更早的失败，无从对应
    _remove_parts(folder)
    plan = _Plan(request, tuple(plan_chunks(sources, options)))
    texts = {span.text for chunk in plan.chunks for span in chunk.spans}
    # 全是一两篇长文的段落：几小时之后也会被拒绝，不如现在就说
    if None not in texts and 0 < len(texts) < LEAST_TEXTS:
        raise few_texts_error(len(texts))
    write_json(path, plan, checked=True)
    return plan.chunks


def _without_own_files(sources: Sequence[Source], paths: Sequence[str | Path], folder: Path) -> list[Source]:
    """Leaves out what a build writes into its folder, where a pattern among `paths` matches that as well."""
    named = {Path(path).resolve() for path in paths if not is_url(str(path)) and Path(path).is_file()}
    folder, kept = folder.resolve(), []
    for source in sources:
        file = Path(source.name).resolve()
        # 只认构建自己写的名字：用户放在输出目录里的文本照常读，绝不悄悄丢掉
        has_own_name = file.name in (MANIFEST, STATISTICS, _PICTURE) or SHARD_NAME.fullmatch(file.name)
        if is_url(source.name) or not (folder / PARTS in file.parents or (file.parent == folder and has_own_name)):
            kept.append(source)
        elif file in named:
            raise InputError(f"{source.name}: this is what a build writes, not text; name other input or another --out")
    return kept


def _remove_parts(folder: Path) -> None:
    shutil.rmtree(folder / PARTS, ignore_errors=True)
