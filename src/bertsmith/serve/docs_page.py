"""The page at `/docs`: every endpoint, its example, and a button to try it.

FastAPI's own page loads its script from the internet, which servers of private text often cannot reach, and should not
run. This page reads `/openapi.json` of the same server alone, which its Content-Security-Policy enforces.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from fastapi import Response

_PAGE = (Path(__file__).parent / "templates" / "docs.html").read_text(encoding="utf-8")


def _digest(tag: str) -> str:
    # 浏览器只执行摘要相符的脚本：即使有内容被注入页面也不会运行
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", _PAGE, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")


_POLICY = (
    f"default-src 'none'; script-src '{_digest('script')}'; style-src '{_digest('style')}'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def docs_page() -> Response:
    """Shows the endpoints in a browser, and lets one try them: runs its own script, and calls its own server alone."""
    return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": _POLICY})
