"""The table of the names of `import bertsmith`, made from the package itself."""

from __future__ import annotations

import importlib
import inspect

WORDS = {"en": ("name", "what it is"), "zh": ("名字", "说明")}


def names_table(language: str) -> str:
    """Returns a row for every public name: its first sentence, and a link to where it is told in full."""
    import bertsmith

    lines = ["| {} | {} |".format(*WORDS[language]), "|---|---|"]
    for name in sorted(bertsmith.__all__, key=str.lower):
        # 不从 bertsmith 取：`bertsmith.finetune` 既是函数也是子包
        value = getattr(importlib.import_module(bertsmith._HOMES[name]), name)
        first = inspect.cleandoc(value.__doc__ or "").partition("\n")[0]
        lines.append(f"| [`{name}`][{value.__module__}.{value.__qualname__}] | {first} |")
    return "\n".join(lines)
