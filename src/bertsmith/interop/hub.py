"""Puts a model folder on the Hub, where `transformers` and bertsmith load it by name.

- what a model folder is made of goes up: safetensors, JSON, text and the card; neither a run's state nor pickles
- one commit also takes away the weights, settings and tokenizer files that the folder no longer has, so that no reader
  meets parts of two models
- `--private` never ends in a public repository: one that is there already and public is refused
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.hub import why_hub_failed
from bertsmith.model.folder import stored_heads
from bertsmith.tokenizer.loading import TOKENIZER_FILES

_FILES = ("*.safetensors", "*.json", "*.txt")
_FOLDERS = ("", "[1-9]_*/", "generator/")
"""The folder itself, the steps of sentence-transformers, and the generator of an ELECTRA."""
_CARDS = ("README.md", "card.md")
_OF_MODEL = (
    *("*.safetensors", "*.safetensors.index.json", "*config*.json", "task.json", "modules.json"),
    *(*TOKENIZER_FILES, "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *(f"{folder}*" for folder in _FOLDERS if folder),
)
"""What of a repository would be read as a part of the model; a licence or somebody's results are not."""


def push_model(
    folder: str | Path, repository: str, *, private: bool = False, branch: str = "", message: str = ""
) -> str:
    """Uploads a model folder, and returns its address; the repository and the branch are made when missing.

    Args:
        folder: a model folder on this disk. Its card is `README.md`, or `card.md`.
        repository: `org/name`.
        private: for a new repository; one that is there must be private already.
        branch: empty for the main one.

    Raises:
        CheckpointError: the folder is no model folder, or damaged.
        ConfigError: there is no token.
        InputError: the name is none, or the Hub refuses.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give the model folder to upload")
    if not (folder / "config.json").is_file() and (folder / "model" / "config.json").is_file():
        raise CheckpointError(f"{folder}: is a run folder; upload its model: {folder / 'model'}")
    # 上传之前先打开配置与权重：坏的文件夹不该让别人下载之后才发现
    stored_heads(folder)
    if repository.count("/") != 1 or "@" in repository:
        raise InputError("give the repository as org/name; a branch goes into --branch")
    files = _files_of(folder)

    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    if get_token() is None:
        raise ConfigError("uploading needs a token with the right to write; set HF_TOKEN, or run `hf auth login`")
    api = HfApi(library_name="bertsmith")
    try:
        api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.model_info(repository).private:
            raise InputError(f"{repository}: is there already and public; make it private on its page, or leave it out")
        if branch:
            api.create_branch(repository, branch=branch, exist_ok=True)
        there = api.list_repo_files(repository, revision=branch or None)
        stale = [path for path in there if path not in files and _is_of_model(path)]
        operations: list[Any] = [CommitOperationAdd(path, source) for path, source in files.items()]
        operations += [CommitOperationDelete(path) for path in stale]
        api.create_commit(
            repository,
            operations,
            commit_message=message or f"Upload {folder.resolve().name} with bertsmith",
            revision=branch or None,
        )
    except InputError:
        raise
    # 与下载一样：网络库的异常各不相同
    except Exception as error:
        raise InputError(f"{repository}: not uploaded: the Hub {why_hub_failed(error, repository)}") from error
    return f"{api.endpoint}/{repository}" + (f"/tree/{branch}" if branch else "")


def _is_of_model(path: str) -> bool:
    # 通配符也会跨过斜杠：文件夹里的，只认模型自己的那几个
    own = _OF_MODEL if "/" not in path else [one for one in _OF_MODEL if "/" in one]
    return any(fnmatch(path, pattern) for pattern in own)


def _files_of(folder: Path) -> dict[str, Path]:
    patterns = [inner + pattern for inner in _FOLDERS for pattern in _FILES]
    found = {str(path.relative_to(folder)): path for pattern in patterns for path in sorted(folder.glob(pattern))}
    card = next((folder / name for name in _CARDS if (folder / name).is_file()), None)
    return found if card is None else {**found, "README.md": card}
