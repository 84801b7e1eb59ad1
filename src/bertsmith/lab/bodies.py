"""The bodies of requests to the pages, read as the server reads those of its endpoints.

Gradio reads a body for as long as it comes and as large as it is. Here it is read before Gradio sees the request, by
the server's own admission: in time, not too large, and within the memory that all bodies share.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from bertsmith.serve.admission import AdmissionController
from bertsmith.serve.guard import CLIENT, Application, Receive, Scope, Send, send_error
from bertsmith.serve.http_errors import HttpError


class AdmittedBodies:
    """Stands before the pages, behind the server's `Guard`, which says who sent a request."""

    def __init__(self, app: Application, *, admission: AdmissionController) -> None:
        """Takes its place.

        Args:
            app: the pages.
            admission: of the server; it counts the bodies of all requests.
        """
        self.app = app
        self.admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"").decode("latin-1")
        with self.admission.reading(scope[CLIENT]) as reading:
            held: list[MutableMapping[str, Any]] = []
            # 先读完再放行：边读边查的话，超限的异常会被框架吞掉，变成 400 或 500
            try:
                held.append({"type": "http.request", "body": await reading.body(receive, announced)})
            except HttpError as error:
                await send_error(send, error)
                return

            async def replay() -> MutableMapping[str, Any]:
                return held.pop() if held else await receive()

            await self.app(scope, replay, send)
