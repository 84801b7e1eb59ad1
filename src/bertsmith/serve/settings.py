"""What a server is told: which models, where it listens, how much it takes on.

It travels as JSON to the worker processes, without API keys: each reads them itself (`guard.ApiKeys`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from bertsmith.errors import ConfigError, InputError
from bertsmith.files import from_json
from bertsmith.hub import hub_name, model_folder, no_model_in
from bertsmith.inference.engine import Precision
from bertsmith.inference.graph_cache import EngineKind
from bertsmith.inference.linear import WORDS_FILE
from bertsmith.parallel import available_cores
from bertsmith.settings import Checked, option

_LONGEST = 86_400.0
"""Seconds that anything may be told to wait: more, some systems cannot, and it makes no sense."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Limits(Checked):
    """The most that one request may ask for; `tokens` are those the model would read, overlapping windows included."""

    panel: ClassVar[str] = "Limits of a request"

    items: int = option(2048, name="max_items", min=1, help="Maximum texts in a request.")
    characters: int = option(500_000, name="max_characters", min=1, help="Maximum characters in a request.")
    tokens: int = option(131_072, name="max_tokens", min=1, help="Maximum tokens of a request.")

    @property
    def body_bytes(self) -> int:
        """Most bytes of a body: a character may be written as an escape of six, and token ids take room as well."""
        return 6 * self.characters + 8 * self.tokens + 65_536


@dataclass(frozen=True)
class ServeSettings(Checked):
    """Everything a server is told; `bertsmith serve` has an option for each setting.

    `models` are (name, folder) of each; the first one answers requests that name none.
    """

    models: tuple[tuple[str, str], ...]
    indexes: tuple[tuple[str, str], ...] = ()
    host: str = option("127.0.0.1", help="Address to listen on; 0.0.0.0 is every address of this machine.")
    port: int = option(8000, min=0, max=65535, help="Port; 0 takes a free one.")
    workers: int = option(1, min=1, help="Processes; they divide the cores among them.")
    threads: int = option(0, min=0, help="Computing threads of each process; 0: all its cores.")
    precision: Precision | None = option(None, help="Precision, as in `bertsmith embed`.")
    engine: EngineKind = option("torch", help="Engine on a CPU, as in `bertsmith embed`.")
    queue: int = option(64, min=1, help="Maximum requests in progress; one more gets 429.")
    deadline: float = option(30.0, above=0, max=_LONGEST, help="Seconds to answer a request; later it gets 504.")
    batch_tokens: int = option(0, min=0, help="Tokens per forward pass; 0: chosen for the device.")
    drain: float = option(
        1.0, min=0, max=_LONGEST, help="Seconds after SIGTERM in which requests are accepted; /ready says 503."
    )
    limits: Limits = Limits()
    key_file: str | None = option(
        None, name="api_key_file", help="File with one API key per line; default: BERTSMITH_API_KEYS."
    )
    allowed_hosts: tuple[str, ...] = option(
        (), name="allow_host", help="Host name that requests may use besides localhost, where no keys are set."
    )
    cors_origins: tuple[str, ...] = option(
        (), name="cors_origin", help="Web origin whose pages may call the server; may be repeated."
    )

    def _check_together(self) -> None:
        if not self.models:
            raise ConfigError("no model to serve; pass --model DIR, or --index DIR for the model that made it")

    @property
    def reading_bytes(self) -> int:
        """Bytes of bodies that a process holds, of all requests together; above them, 429."""
        return max(4 * self.limits.body_bytes, 64 << 20)

    @property
    def queue_tokens(self) -> int:
        """Tokens that may wait in a process, of all requests together; above them, 429."""
        return 4 * self.limits.tokens

    @property
    def compute_threads(self) -> int:
        """Threads of each process that compute."""
        return self.threads or max(1, available_cores() // self.workers)

    def to_json(self) -> str:
        """Writes the settings for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServeSettings:
        """Reads what `to_json` wrote."""
        found: ServeSettings = from_json(cls, json.loads(text))
        return found


def served(models: Sequence[str] | None, indexes: Sequence[str] | None) -> ServeSettings:
    """Reads `--model` and `--index` together: without a model, those that made the indexes are served."""
    found = named_indexes(indexes or ())
    if not models and found:
        from bertsmith.retrieval.stored import read_claim

        # 没有另说模型在哪里，就是建索引时的那些
        models = list(dict.fromkeys(read_claim(Path(folder)).model for _, folder in found))
    return ServeSettings(named_models(models or ()), found)


def named_models(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Reads what `--model` was given, `DIR` or `NAME=DIR`, as (name, folder); a model of the Hub is downloaded."""
    found = []
    for name, place in named_indexes(given):
        # 就地换成本机的文件夹：各个工作进程此后读到的是同一个提交
        folder = str(model_folder(place)) if place else place
        # 只有词的模型没有 config.json
        if not any((Path(folder) / name).is_file() for name in ("config.json", WORDS_FILE)):
            raise no_model_in(folder)
        found.append((name, folder))
    return tuple(found)


def named_indexes(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Reads what `--index` was given, as (name, folder); without a name, it is that on disk or on the Hub."""
    found: dict[str, str] = {}
    for text in given:
        name, separator, folder = text.partition("=")
        # 目录名里可以有等号：整段就是一个存在的目录时，不当作“名字=目录”
        if not separator or Path(text).is_dir():
            remote = hub_name(text)
            name, folder = Path(remote.repository if remote else text).resolve().name, text
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot be a name; use letters, digits, dots and dashes: NAME={folder}")
        if name in found:
            raise InputError(f"two are called {name!r}; give them names: NAME={folder}")
        found[name] = folder
    return tuple(found.items())
