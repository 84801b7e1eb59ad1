"""API keys: where they come from, and how one is compared.

Keys are read from a file or from the environment, never from the command line, which every user of a machine can see.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from bertsmith.errors import InputError

KEYS_VARIABLE = "BERTSMITH_API_KEYS"
"""The environment variable that holds keys, with white space or commas between."""

_SHORTEST = 16


class ApiKeys:
    """The keys that open a server; none at all leave it open."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """Takes the keys.

        Raises:
            InputError: a key is too short to be one, or holds characters that a header cannot carry.
        """
        self._keys = [key.encode() for key in keys]
        for key in self._keys:
            # 报错不得带出密钥本身：只说长度
            if len(key) < _SHORTEST or not key.isascii() or not key.decode().isprintable():
                raise InputError(
                    f"an API key of {len(key)} bytes cannot be used; take {_SHORTEST} or more plain characters, as"
                    " `openssl rand -hex 24` prints"
                )

    @classmethod
    def read(cls, file: str | Path | None) -> ApiKeys:
        """Reads the keys of a file, or of the environment where no file is given.

        Args:
            file: one key a line; blank lines and those that begin with `#` are left out.

        Raises:
            InputError: the file cannot be read or holds no key, or a key cannot be used.
        """
        if file is None:
            return cls(os.environ.get(KEYS_VARIABLE, "").replace(",", " ").split())
        try:
            lines = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeError) as error:
            raise InputError(f"{file}: the API keys cannot be read ({type(error).__name__})") from None
        keys = [line for line in lines if line and not line.startswith("#")]
        # 空文件多半是写错了：绝不能因此悄悄敞开大门
        if not keys:
            raise InputError(f"{file}: holds no API key; write one on a line")
        return cls(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> int | None:
        """Returns which key a request's headers carry: `Authorization: Bearer KEY`, `X-API-Key: KEY`, or as a password.

        A browser sends what its user types into its prompt as `Authorization: Basic`, user and password in base64;
        the user's name does not count.

        Returns:
            Its number from 0; 0 where no key is needed; None where the request has none.
        """
        if not self._keys:
            return 0
        given = b""
        for name, value in headers:
            if name == b"x-api-key":
                given = value.strip()
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
            elif name == b"authorization" and value[:6].lower() == b"basic ":
                given = _password(value[6:])
        # 与每一把都比、每次都用常数时间：应答的快慢不透露猜对了几个字符，也不透露是哪一把
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        return matches.index(True) if any(matches) else None


def _password(basic: bytes) -> bytes:
    """Returns the password of Basic credentials; nothing where they are none."""
    try:
        return base64.b64decode(basic.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""
