"""`bertsmith docs`: the documentation in the browser, without a network."""

from __future__ import annotations

from typing import Annotated

import typer


def docs(
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8002,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Read the guides, the commands and the Python interface in the browser, offline, in English or Chinese."""
    import contextlib
    import webbrowser

    from bertsmith.reporting.site import find_site, site_server

    with site_server(find_site(), port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        print(f"The documentation is at {address} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
