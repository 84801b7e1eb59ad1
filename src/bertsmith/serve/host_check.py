"""What stands before an application without keys: under which name it may be asked, and how much its pages take.

Notable:
- a foreign web page may point its own name at 127.0.0.1 (DNS rebinding), and its script then passes for one of this
  machine; the Host header still tells it apart, so what listens here alone answers to this machine's names only.
  What listens to others answers to any address besides: a name can be pointed elsewhere, an address cannot
- the server's endpoints count their bodies themselves, the lab's pages (Gradio) do not: here it is done for them
"""

from __future__ import annotations

import re
from collections.abc import Collection, MutableMapping
from ipaddress import ip_address
from typing import Any

from bertsmith.serve.guard import Application, Receive, Scope, Send, send_error
from bertsmith.serve.http_errors import HttpError

_HOST = re.compile(r"(?:\[(?P<bracketed>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]*)?", re.IGNORECASE)


class HostCheck:
    """Refuses requests that were sent to another name than this machine's."""

    def __init__(self, app: Application, *, hosts: Collection[str], any_address: bool = False) -> None:
        """Takes its place before an application.

        Args:
            app: what it stands before.
            hosts: names of this machine besides `localhost` and the loopback addresses.
            any_address: whether it may be asked for by any address, as what listens to other machines is.
        """
        self.app = app
        self.any_address = any_address
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] == "http":
            named = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not is_own_name(named, self.hosts, any_address=self.any_address):
                said = "this listens for its own machine alone; ask for localhost or 127.0.0.1, or start it with --host"
                if self.any_address:
                    said = "this is not its name; ask for it by its address, or start it with --allow-host NAME"
                await send_error(send, HttpError(403, "foreign_host", said))
                return
        await self.app(scope, receive, send)


def is_own_name(named: str, hosts: Collection[str], *, any_address: bool = False) -> bool:
    """Tells whether a Host header names this machine.

    Args:
        named: the header, such as `127.0.0.1:8001` or `[::1]:8001`.
        hosts: other names of this machine, in small letters.
        any_address: whether every address counts as one of its names.
    """
    found = _HOST.fullmatch(named)
    if found is None:
        return False
    name = (found["bracketed"] or found["name"]).lower()
    if name == "localhost" or name in hosts:
        return True
    try:
        # 必须真是一个地址：只看开头的“127.”，会放过 127.evil.example 这样的域名
        return ip_address(name).is_loopback or any_address
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Tells whether an address to listen on is reached from this machine alone."""
    try:
        # 必须真是一个地址：127.example 这样的名字可以指向任何机器
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class BodyLimit:
    """Refuses bodies that are too large on the way to some pages."""

    def __init__(self, app: Application, *, paths: Collection[str], most: int) -> None:
        """Takes its place before an application.

        Args:
            app: what it stands before.
            paths: where the pages are, such as `/en`.
            most: bytes.
        """
        self.app = app
        self.paths = tuple(f"{path}/" for path in paths)
        self.most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(self.paths):
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        too_large = announced.isdigit() and int(announced[:20]) > self.most
        body, more = bytearray(), True
        # 先读完再放行：边读边查的话，超限的异常会被框架吞掉，变成 400 或 500
        while more and not too_large:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more, too_large = message.get("more_body", False), len(body) > self.most
        if too_large:
            said = f"the body has more than {self.most} bytes; send shorter texts, or use the command line"
            await send_error(send, HttpError(413, "body_too_large", said))
            return
        held: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> MutableMapping[str, Any]:
            return held.pop() if held else await receive()

        await self.app(scope, replay, send)
