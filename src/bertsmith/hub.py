"""Model folders from the Hub: where a folder is taken, `org/name` or `org/name@revision` works as well.

Every function that opens a file of a model folder asks `model_folder` first, so that no command has to.

- what exists on this disk wins; only a name that exists nowhere here, and is not bundled, is looked up
- safetensors, JSON and text are downloaded, into the cache of `huggingface_hub`; pickles never are
- one process reads one commit of a name, wherever the branch moves meanwhile; run folders note it (`noted_start`)
- `huggingface_hub` is loaded only when a name is looked up; it obeys HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import CheckpointError
from bertsmith.files import parse_json, require_utf8_names

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:@([\w.][\w./-]*))?", re.ASCII)
_FILE_ENDINGS = (".txt", ".json", ".safetensors", ".toml", ".csv", ".tsv")

_TEXTS = ("*.json", "*.txt", "*.model")
_WEIGHTS = ("*.safetensors",)
_OTHER_FOLDERS = ("[!1-9g]*/*", "g[!e]*/*", "*/*/*")
"""Folders such as `onnx/` or `checkpoint-500/`, but neither the steps of sentence-transformers, which begin with a
number (`1_Pooling/`), nor the `generator/` of an ELECTRA."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".pkl", ".ot")


_TINYWORLD = Path(__file__).parent / "tinyworld"
BUNDLED = {"village": _TINYWORLD / "model", "village-reviews": _TINYWORLD / "reviews"}
"""Models that come with the package, by name; a file or folder of that name wins."""


PUBLISHED_BY = {
    name: organisation
    for organisation, names in {
        "albert": "albert-base-v1 albert-base-v2 albert-large-v2 albert-xlarge-v2 albert-xxlarge-v2",
        "answerdotai": "ModernBERT-base ModernBERT-large",
        "distilbert": "distilbert-base-cased distilbert-base-multilingual-cased distilbert-base-uncased"
        " distilroberta-base",
        "FacebookAI": "roberta-base roberta-large xlm-roberta-base xlm-roberta-large",
        "google": "electra-base-discriminator electra-large-discriminator electra-small-discriminator",
        "google-bert": "bert-base-cased bert-base-chinese bert-base-german-cased bert-base-multilingual-cased"
        " bert-base-multilingual-uncased bert-base-uncased bert-large-cased bert-large-uncased",
        "sentence-transformers": "all-MiniLM-L12-v2 all-MiniLM-L6-v2 all-mpnet-base-v2 multi-qa-MiniLM-L6-cos-v1"
        " multi-qa-mpnet-base-dot-v1 paraphrase-MiniLM-L6-v2 paraphrase-multilingual-MiniLM-L12-v2",
    }.items()
    for name in names.split()
}
"""Models that people know by their short name → the organisation that the Hub lists them under."""


class HubName(NamedTuple):
    """A repository of the Hub at a revision: a branch, a tag or a commit; empty for its main branch."""

    repository: str
    revision: str = ""


# 一个进程里同一个名字只解析一次：配置与权重若来自不同的提交，就会拼出一个不存在的模型
_commits: dict[HubName, str] = {}
_folders: dict[tuple[str, str, bool], Path] = {}


def hub_name(folder: str | Path) -> HubName | None:
    """Returns the repository that a name means; None for a path of this disk, or what cannot be a repository."""
    text = str(folder)
    match = _NAME.fullmatch(text)
    if match is None or text.lower().endswith(_FILE_ENDINGS) or os.path.lexists(text):
        return None
    return HubName(match[1], match[2] or "")


def model_folder(folder: str | Path, *, weights: bool = True) -> Path:
    """Returns where a model folder lies on this disk; a Hub name is downloaded to a snapshot whose name is the commit.

    Args:
        folder: a path, `org/name` or `org/name@revision`, or a name of `BUNDLED`.
        weights: whether the weights are needed; False leaves them on the Hub, for those who only want the tokenizer.

    Raises InputError where the name is not UTF-8.
    """
    # 读权重的库只认 UTF-8 的路径
    require_utf8_names(folder)
    name = hub_name(folder)
    if name is None:
        if str(folder) in PUBLISHED_BY and not os.path.lexists(folder):
            meant = f"{PUBLISHED_BY[str(folder)]}/{folder}"
            raise CheckpointError(f"{folder}: there is no such folder here; did you mean {meant}, of the Hub?")
        return Path(folder) if os.path.lexists(folder) else BUNDLED.get(str(folder), Path(folder))
    revision = _commits.get(name, name.revision)
    key = (name.repository, revision, weights)
    # 缓存可能在进程运行中被清空：文件夹还在才算数
    if key not in _folders or not _folders[key].is_dir():
        _folders[key] = _downloaded(str(folder), name.repository, revision, weights=weights)
        _commits.setdefault(name, _folders[key].name)
    return _folders[key]


def no_model_in(folder: str | Path, lacks: str = "config.json") -> CheckpointError:
    """Returns why a folder holds no model, with the one that was perhaps meant: a run has it in `model`."""
    place = Path(folder)
    if not place.is_dir():
        return CheckpointError(f"{folder}: there is no such folder")
    meant = f"; did you mean {place / 'model'}?" if (place / "model").is_dir() else ""
    return CheckpointError(f"{folder}: no {lacks}; this is not a model folder{meant}")


def commit_of(folder: str | Path) -> str:
    """Returns the commit that a Hub name stands for in this process; empty for a path."""
    return "" if hub_name(folder) is None else model_folder(folder).name


def pin(folder: str | Path, commit: str) -> None:
    """Makes a Hub name stand for a commit from now on, wherever its branch is; does nothing for a path."""
    name = hub_name(folder)
    if name is not None and commit:
        _commits[name] = commit


def noted_start(folder: str | Path, claim: Path) -> dict[str, Any]:
    """Returns what a run notes of the model it starts from, and resumes with the commit that it noted before.

    The note, `{"start": {"name": …, "commit": …}}`, stands in the JSON file `claim`, which may not be there yet. A path
    has none: its weights are known by their fingerprint.
    """
    if hub_name(folder) is None:
        return {}
    try:
        found = parse_json(claim)["start"]
        # 分支可能已经移动：同一条命令接着用当初的提交，而不是悄悄换一个模型
        if found["name"] == str(folder):
            pin(folder, str(found["commit"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {"start": {"name": str(folder), "commit": commit_of(folder)}}


def _downloaded(asked: str, repository: str, revision: str, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    log = logging.getLogger("huggingface_hub")
    level = log.level
    # 库对每次重试都写一行警告；结局由下面的一行错误说明，或者根本没有出错
    log.setLevel(logging.ERROR)
    try:
        found = Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=[*_TEXTS, *(_WEIGHTS if weights else ())],
                ignore_patterns=list(_OTHER_FOLDERS),
                library_name="bertsmith",
                tqdm_class=None if sys.stderr.isatty() else _silent_bar(),
            )
        )
    # 下载库换过几次网络库（requests、httpx、httpx2），断线的异常类各不相同，只能全接住再分辨
    except Exception as error:
        raise CheckpointError(_explained(asked, repository, revision, error)) from error
    finally:
        log.setLevel(level)
    if weights and not any(found.glob("*.safetensors")):
        raise CheckpointError(f"{asked}: {_without_safetensors(repository, found.name)}")
    return found


def _silent_bar() -> type[Any]:
    """Returns a progress bar that shows nothing: in a log file every redrawing would be a line."""
    from tqdm.auto import tqdm

    class SilentBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            settings.pop("name", None)
            super().__init__(*args, **{**settings, "disable": True})

    return SilentBar


def _explained(asked: str, repository: str, revision: str, error: Exception) -> str:
    from huggingface_hub import constants

    number = next((cause.errno for cause in causes(error) if isinstance(cause, OSError) and cause.errno), None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"{asked}: the disk of {constants.HF_HUB_CACHE} is full; make room, or set HF_HOME to another disk"
    if number in (errno.EACCES, errno.EROFS):
        return f"{asked}: no permission to write in {constants.HF_HUB_CACHE}; set HF_HOME to a folder of yours"
    reason = why_hub_failed(error, repository, revision)
    return f"{asked}: no such folder here, and the Hub {reason}"


def why_hub_failed(error: Exception, repository: str, revision: str = "") -> str:
    """Returns why a request to the Hub failed and what to do, to be read after "the Hub"."""
    from huggingface_hub import constants, errors

    # 库把真正的原因包在“缓存里没有”的异常里面：从里往外找
    kinds: tuple[BaseException, ...] = tuple(causes(error))
    page = f"{constants.ENDPOINT}/{repository}"

    def first(kind: type[BaseException]) -> BaseException | None:
        return next((one for one in kinds if isinstance(one, kind)), None)

    if first(errors.OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return "may not be asked: HF_HUB_OFFLINE is set, and its cache does not hold all of it; unset it once"
    if first(errors.GatedRepoError):
        return f"gives it to those with access only (gated); ask for access on {page} and set HF_TOKEN"
    if first(errors.RevisionNotFoundError):
        return f"has no revision {revision or 'main'!r} of it; see {page}/commits"
    answered: Any = first(errors.HfHubHTTPError)
    status = None if answered is None or answered.response is None else answered.response.status_code
    if first(errors.RepositoryNotFoundError):
        return "has no such repository, or it is private; check the name, or set HF_TOKEN to a token that may use it"
    if status in (401, 403):
        return f"refuses it (status {status}); set HF_TOKEN to a token that may use it"
    if status is not None:
        return f"answered with status {status}; try again later"
    if first(errors.HFValidationError):
        return "has no such names; it is org/name, at most 96 characters"
    if "Consistency check failed" in str(error) or type(error).__name__ in ("RemoteProtocolError", "ReadError"):
        return "broke off in the middle of a file; what is whole is kept, run the same command again"
    root = kinds[-1]
    said = " ".join(str(root).split()) or type(root).__name__
    return f"({constants.ENDPOINT}) cannot be reached ({said[:120]}), nor is all of it cached; check name and network"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and what it came from, the outermost first."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _without_safetensors(repository: str, commit: str) -> str:
    """Says what a repository holds instead of weights that can be read."""
    from huggingface_hub import HfApi

    try:
        files = HfApi(library_name="bertsmith").list_repo_files(repository, revision=commit)
    # 只为把话说清楚：问不到就少说一句
    except Exception:
        files = []
    pickled = next((name for name in files if name.endswith(_PICKLES) and "/" not in name), None)
    if pickled is None:
        return "holds no *.safetensors, so it is no model folder; check the name"
    return (
        f"holds no safetensors; {pickled} may run code when it is read and is not downloaded. If you trust it, fetch it"
        f" with `hf download {repository} --local-dir DIR`, then `bertsmith import DIR --out FOLDER`"
    )
