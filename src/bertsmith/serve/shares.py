"""Who asks, and how much one client may hold while others want some too.

Places in the queue, waiting tokens and bytes of bodies are shared by dynamic thresholds (Choudhury and Hahne 1998): no
client takes more than three times what is still free. One alone gets three quarters; however much it asks for, there
is room for a newcomer, and nobody needs to know how many clients there are.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

LOCAL = ""
"""The client that all programs of this machine are where no key tells them apart; it may take everything."""

_TIMES_FREE = 3
_NETWORK_BITS = 64
_MAPPED_LOOPBACK = ip_address("::ffff:127.0.0.1")


def client_of(key: int, num_keys: int, address: str | None) -> str:
    """Returns who sends a request: the key where there are several, else the address.

    Args:
        key: the number of the request's API key.
        num_keys: API keys of the server.
        address: of the other end of the connection; None where it has none (a Unix socket).
    """
    if num_keys > 1:
        return f"key {key}"
    try:
        found = ip_address(address or "127.0.0.1")
    except ValueError:
        return LOCAL
    if found.is_loopback or found == _MAPPED_LOOPBACK:
        return LOCAL
    # 一个 IPv6 用户有整段 /64 的地址：换着地址来的仍是同一个人
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or f"{int(found) >> _NETWORK_BITS:x}::")
    return str(found)


def has_share(client: str, held: int, free: int) -> bool:
    """Tells whether a client that holds so much may take more.

    Args:
        client: who asks, see `client_of`.
        held: what it holds.
        free: what nobody holds.
    """
    return client == LOCAL or held < _TIMES_FREE * free
