"""Builds the documentation in both languages into `src/bertsmith/site`, where `bertsmith docs` finds it.

    python docs/site/build.py [--no-strict] [--out FOLDER]

Each language is a MkDocs site of its own, so that a search finds pages of one language only. Warnings are errors: a
link that leads nowhere, an anchor that is not there, a page outside the navigation. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "src/bertsmith/site"
CONFIGS = {"en": "mkdocs.yml", "zh": "mkdocs.zh.yml"}
FRONT = """<!doctype html>
<meta charset="utf-8">
<title>bertsmith</title>
<script>location.replace((navigator.language || "").toLowerCase().startsWith("zh") ? "zh/" : "en/")</script>
<a href="en/">English</a> · <a href="zh/">中文</a>
"""


def build(site: Path = SITE, *, strict: bool = True) -> int:
    """Builds the site; what stood there is replaced only when both languages are built.

    Args:
        site: folder of the site.
        strict: end at warnings.

    Returns:
        0, or the exit status of MkDocs.
    """
    fresh = site.with_name(f"{site.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    # DISABLE_MKDOCS_2_WARNING：主题对将来版本的广告，与本站无关
    settings = {**os.environ, "DISABLE_MKDOCS_2_WARNING": "true", "NO_MKDOCS_2_WARNING": "1"}
    for language, config in CONFIGS.items():
        command = [sys.executable, "-m", "mkdocs", "build", "-f", config, "-d", str(fresh / language)]
        command += ["--strict"] * strict
        done = subprocess.run(command, cwd=ROOT, env=settings, check=False, capture_output=True, text=True)
        told = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
        print("\n".join(told), file=sys.stderr)
        if done.returncode:
            return done.returncode
    # 源码映射只有调试主题的人用，另外两个是日语和泰语的分词：都不必进轮子
    for name in ("*.map", "wordcut.js", "tinyseg.js"):
        for unused in fresh.rglob(name):
            unused.unlink()
    (fresh / "index.html").write_text(FRONT, encoding="utf-8")
    # 两种语言都成了才换：建到一半失败，旧站点还在
    shutil.rmtree(site, ignore_errors=True)
    fresh.rename(site)
    return 0


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Builds the documentation in both languages.")
    words.add_argument("--no-strict", action="store_true", help="tell of warnings and go on")
    words.add_argument("--out", type=Path, default=SITE, help="folder of the site")
    given = words.parse_args()
    sys.exit(build(given.out, strict=not given.no_strict))
