"""What a server is told: which models, where it listens, how much it takes on.

One frozen value, which also travels as JSON to the worker processes. Keys are no part of it: every process reads them
from the environment or from their file by itself (`keys`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bertsmith.cores import available_cores
from bertsmith.errors import ConfigError, InputError

_LONGEST = 86_400.0
"""Seconds that anything may be told to wait."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for.

    Attributes:
        items: texts, second texts and choices together.
        characters: of all its texts together.
        tokens: that the model would read for it, special tokens and overlapping windows included.
    """

    items: int = 2048
    characters: int = 500_000
    tokens: int = 131_072

    @property
    def body_bytes(self) -> int:
        """Most bytes of a body: a character may be written as an escape of six, and token ids take room as well."""
        return 6 * self.characters + 8 * self.tokens + 65_536


@dataclass(frozen=True)
class ServeSettings:
    """Everything a server is told.

    Attributes:
        models: (name, folder) of each model; the first one answers requests that name none.
        host: address to listen on.
        port: likewise; 0 takes a free one.
        workers: processes.
        threads: that compute, in each process; 0 divides the processor's cores among the processes.
        precision: of the matmuls, as in `load_pipeline`; None as the engine chooses.
        queue: requests that a process has accepted and not answered; one more is refused with 429.
        deadline: seconds in which a request is answered; after them it gets 504 and its work is dropped.
        batch_tokens: tokens that are computed in one go; 0 takes what suits the device.
        batch_delay: seconds that a computing thread waits for requests that are already being read.
        drain: seconds between SIGTERM and the closing of the door, in which `/ready` says 503.
        limits: of one request.
        key_file: a file with one API key a line; None where the environment has them, or nobody needs one.
        cors_origins: web origins whose pages may call the server.
    """

    models: tuple[tuple[str, str], ...]
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 0
    precision: str | None = None
    queue: int = 64
    deadline: float = 30.0
    batch_tokens: int = 0
    batch_delay: float = 0.003
    drain: float = 1.0
    limits: Limits = Limits()
    key_file: str | None = None
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ConfigError: a number is out of range, or no model is given.
        """
        if not self.models:
            raise ConfigError("no model to serve; pass --model DIR")
        least = {"workers": 1, "queue": 1, "batch_tokens": 0, "threads": 0, "port": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ConfigError(f"{name} {getattr(self, name)} is below {smallest}")
        if self.port > 65535:
            raise ConfigError(f"port {self.port} is above 65535")
        for name in ("deadline", "batch_delay", "drain"):
            value = getattr(self, name)
            # 更久的等待有的操作系统不支持，也没有意义
            if not 0 <= value <= _LONGEST or (name == "deadline" and value == 0):
                raise ConfigError(f"{name} {value} is no duration in seconds, at most a day")
        for field in fields(self.limits):
            if getattr(self.limits, field.name) < 1:
                raise ConfigError(f"the limit of {field.name} is {getattr(self.limits, field.name)}; at least 1")

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
        values = json.loads(text)
        values["models"] = tuple((name, folder) for name, folder in values["models"])
        values["cors_origins"] = tuple(values["cors_origins"])
        values["limits"] = Limits(**values["limits"])
        return cls(**values)


def named_models(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Reads what `--model` was given: `DIR`, or `NAME=DIR`.

    Returns:
        (name, folder) of each; a folder without a name is called as it is called on disk.

    Raises:
        InputError: a folder does not exist or holds no `config.json`, or a name is unusable or used twice.
    """
    models: dict[str, str] = {}
    for text in given:
        name, separator, folder = text.partition("=")
        # 目录名里可以有等号：整段就是一个存在的目录时，不当作“名字=目录”
        if not separator or Path(text).is_dir():
            name, folder = Path(text).resolve().name, text
        if not (Path(folder) / "config.json").is_file():
            raise InputError(f"{folder or text!r} is not a model folder: it has no config.json")
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot be a model's name; use letters, digits, dots and dashes: NAME={folder}")
        if name in models:
            raise InputError(f"two models are called {name!r}; give them names: NAME={folder}")
        models[name] = folder
    return tuple(models.items())
