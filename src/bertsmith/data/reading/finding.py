"""Which files a corpus is made of: what files, folders, patterns and URLs name.

Notable:
- a file that is named or matched by a pattern is read whatever it is called; from a folder only files of known endings
- the order is that of the names, and a file that is reached twice is read once: the result does not depend on how the
  file system lists its folders
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from bertsmith.data.reading.sources import CORPUS_ENDINGS, TEXT_ENDINGS, Source, file_system, is_url, readable
from bertsmith.errors import InputError

_TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.json"}


def find_sources(paths: Sequence[str | Path]) -> list[Source]:
    """Finds the files of a corpus that paths, folders, patterns and URLs name.

    Args:
        paths: as for `find_text_files`, and URLs of any protocol `fsspec` knows.

    Returns:
        The files in the order of their names, each once.

    Raises:
        InputError: nothing was named, or something is missing, unreadable or holds no text file.
    """
    local = [path for path in paths if not is_url(str(path))]
    found = find_text_files(local, CORPUS_ENDINGS) if local or not paths else []
    states = [(file, file.stat()) for file in found]
    sources = [Source(str(file), state.st_size, state.st_mtime_ns) for file, state in states]
    remote = {source.name: source for path in paths if is_url(str(path)) for source in _find_remote(str(path))}
    return sources + [remote[name] for name in sorted(remote)]


def find_text_files(paths: Sequence[str | Path], endings: Sequence[str] = TEXT_ENDINGS) -> list[Path]:
    """Finds the text files that files, folders and glob patterns name.

    A folder is searched with all its subfolders for `.txt`, `.txt.gz` and `.txt.zst`; links to folders are followed,
    hidden files and folders passed over (they are the droppings of editors and file managers), and so is the
    `vocab.txt` or `merges.txt` of a tokenizer, known by the files beside it. A file that is named, or matched by a
    pattern, may have any name. `**` in a pattern stands for any number of folders.

    Args:
        paths: names of files and folders, and patterns with `*`, `?` or `[...]`.
        endings: of the files taken from a folder, in lower case.

    Returns:
        The files sorted by name, each once, however many of the paths lead to it.

    Raises:
        InputError: nothing was named, or a path is missing, holds or matches no text file, or cannot be read.
    """
    if not paths:
        raise InputError("no text was named; give at least one file, folder or pattern, for example corpus/*.txt")
    found = [file for path in paths for file in _expand(str(path), endings)]
    for file in found:
        if not file.is_file():
            raise InputError(f"{file}: is not a regular file; save its text to a file and name that")
        try:
            file.open("rb").close()
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror}); check its rights: ls -l {file}") from None
    # 按真实路径去重，同一文件经链接或两种写法出现时只读一次；按名字排序，结果与文件系统的列举顺序无关
    unique = {file.resolve(): file for file in sorted(found, key=str, reverse=True)}
    return sorted(unique.values(), key=str)


def _find_remote(url: str) -> list[Source]:
    """Finds the files that a URL names: a file, a folder, or a pattern.

    Args:
        url: of any protocol `fsspec` knows, such as `s3://bucket/texts/*.jsonl.gz`.

    Returns:
        The files sorted by name.

    Raises:
        InputError: nothing there, or it cannot be reached.
    """
    with readable(url):
        system, path = file_system(url)
        if any(mark in path for mark in "*?["):
            paths = [found for found in system.glob(path) if system.isfile(found)]
        elif system.isdir(path):
            paths = [found for found in system.find(path) if found.lower().endswith(CORPUS_ENDINGS)]
        else:
            paths = [path]
        if not paths:
            raise InputError(f"{url}: holds or matches no text file; check the address")
        return [Source(system.unstrip_protocol(found), int(system.size(found) or 0)) for found in sorted(paths)]


def _expand(path: str, endings: Sequence[str]) -> list[Path]:
    """The files one argument names."""
    if os.path.isdir(path):
        files = _walk(path, endings)
        if not files:
            raise InputError(f"{path}: the folder holds no {_listed(endings)} file; name the files, or put text there")
        return files
    if os.path.lexists(path) or not glob.has_magic(path):
        if not os.path.exists(path):
            raise InputError(f"{path}: no such file or folder; check the name (the current folder is {Path.cwd()})")
        return [Path(path)]
    matches = sorted(glob.glob(path, recursive=True))
    files = [file for match in matches for file in (_walk(match, endings) if os.path.isdir(match) else [Path(match)])]
    if not files:
        raise InputError(f"{path}: the pattern matches no text file; check it with: ls {path}")
    return files


def _listed(endings: Sequence[str]) -> str:
    # 只列未压缩的写法，一行里放得下
    plain = [ending for ending in endings if ending.count(".") == 1]
    return ".txt or .txt.gz" if plain == [".txt"] else ", ".join(plain)


def _walk(folder: str, endings: Sequence[str]) -> list[Path]:
    """The text files under a folder and under those that links in it lead to, hidden ones left out."""

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read ({error.strerror}); check its rights") from None

    files = []
    waiting, seen = [folder], set[str]()
    for top in waiting:
        for parent, folders, names in os.walk(top, onerror=fail):
            real = os.path.realpath(parent)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            # os.walk 不进入链接：排到最后再看，同一文件夹以它本来的名字为准；指回上层的链接是环，不跟
            links = [os.path.join(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]
            waiting += [link for link in links if not Path(real).is_relative_to(os.path.realpath(link))]
            # 分词器文件夹里的词表也叫 .txt：它不是文本
            other = {"vocab.txt", "merges.txt"} if _TOKENIZER_FILES & set(names) else set()
            wanted = (name for name in names if name.lower().endswith(tuple(endings)) and not name.startswith("."))
            files += [Path(parent, name) for name in wanted if name not in other]
    return files
