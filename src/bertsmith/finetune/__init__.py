"""Fine-tuning: from labelled files to a model for one task, its scores and its report.

The package is a function as well: `bertsmith.finetune("classify", ...)` is `bertsmith.finetune.calls.finetune`.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that can be called."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls `calls.finetune`."""
        from bertsmith.finetune.calls import finetune

        return finetune(*arguments, **named)


# 包和调用同名：导入子模块时，包总会占住 bertsmith.finetune 这个名字，所以让它自己可以调用
sys.modules[__name__].__class__ = _CallablePackage
