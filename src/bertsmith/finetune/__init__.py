"""Fine-tuning: from labelled files to a model for one task, its scores and its report.

The package is a function as well: `bertsmith.finetune("classify", ...)` is `bertsmith.finetune.job.finetune`, whether
the name `bertsmith.finetune` holds the function or, once a module of the package was imported, the package.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return import_module("bertsmith.finetune.job").finetune(*arguments, **named)


sys.modules[__name__].__class__ = _CallablePackage
