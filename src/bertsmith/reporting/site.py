"""The documentation site: where it is, and a server for it.

A wheel holds the built site (`make release`). A checkout builds it when first asked, and when a page or code is newer.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from bertsmith.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
SITE = PACKAGE / "site"
CHECKOUT = PACKAGE.parents[1]


def find_site(site: Path = SITE, checkout: Path = CHECKOUT) -> Path:
    """Returns the folder of the built site, after building it where that is possible and needed."""
    script = checkout / "docs/site/build.py"
    can_build = script.is_file() and find_spec("mkdocs") is not None and find_spec("mkdocstrings") is not None
    if can_build and is_stale(site, checkout):
        print("Building the documentation, which takes about a minute ...", flush=True)
        # 读者只要能读：警告不该挡住他；严格的检查在 make docs
        done = subprocess.run([sys.executable, str(script), "--no-strict"], check=False, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise ConfigError(f"{script}: the documentation could not be built: {lines[-1]}")
    if (site / "index.html").is_file():
        return site
    raise ConfigError(
        "this installation holds no documentation; in a checkout of the repository, "
        "pip install -c constraints.txt -e '.[docs]' and run `bertsmith docs` again"
    )


def is_stale(site: Path, checkout: Path) -> bool:
    """Returns whether anything that the site shows is newer than the built one, or there is none."""
    built = site / "index.html"
    if not built.is_file():
        return True
    sources = [*checkout.glob("mkdocs*.yml"), checkout / "CHANGELOG.md"]
    # 表格和图来自测量的数据行，课程的文字不在 .py 里：它们变了，站点也就旧了
    for folder in ("docs", "benchmarks", "src"):
        sources += (
            path
            for path in (checkout / folder).rglob("*")
            # 安装和打包只重写 egg-info：站点里没有它
            if path.suffix != ".pyc" and path.parent.suffix != ".egg-info" and site not in path.parents
        )
    made = built.stat().st_mtime
    return any(path.is_file() and site not in path.parents and path.stat().st_mtime > made for path in sources)


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Tells nothing of each request: the terminal shows the address alone."""


def site_server(site: Path, port: int) -> ThreadingHTTPServer:
    """Returns a server of the site on this machine's own address, not yet running."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_QuietHandler, directory=str(site)))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise ConfigError(
            f"port {port}: {error.strerror}; take another with --port, or a free one with --port 0"
        ) from None
