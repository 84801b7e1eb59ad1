"""What stands before an application: under which name it may be asked.

Notable:
- a foreign web page may point its own name at 127.0.0.1 (DNS rebinding), and its script then passes for one of this
  machine; the Host header still tells it apart, so what listens here alone answers to this machine's names only.
  What listens to others answers to any address besides: a name can be pointed elsewhere, an address cannot
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address

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
