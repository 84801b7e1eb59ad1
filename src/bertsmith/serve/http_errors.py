"""How a server says no: one class, one JSON shape for every endpoint.

The shape is the one OpenAI's clients read: `{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

import json


class HttpError(Exception):
    """A request that is not answered, and why.

    Attributes:
        status: HTTP status.
        code: a word for programs, such as `too_many_tokens`.
        message: a sentence for people: what, where, and the way out.
        where: the field it is about, such as `texts[3]`; None where it is about the whole request.
        retry_after: seconds after which another try makes sense; None where it never will.
        challenge: of a 401, how a key is asked for; browsers open a prompt for `Basic`, and none for `Bearer`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        where: str | None = None,
        retry_after: int | None = None,
        challenge: str = "Bearer",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.where = where
        self.retry_after = retry_after
        self.challenge = challenge

    def body(self) -> bytes:
        """Returns the answer's body."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.where, "code": self.code}
        # 只用 ASCII：报错里可能引用请求的字段名，孤立代理项写不成 UTF-8
        return json.dumps({"error": error}).encode("ascii")

    def headers(self) -> dict[str, str]:
        """Returns the headers that belong to the status."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = self.challenge
        return headers
