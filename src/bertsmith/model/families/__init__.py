"""The families: a file for each that has modules of its own; one that defines a `Family` is found by itself."""

import pkgutil
from importlib import import_module

from bertsmith.model.family import Family, register

# 目录里有哪些文件，就有哪些家族：加一个家族不必改别处的名单
for _each in pkgutil.iter_modules(__path__):
    for _value in vars(import_module(f"{__name__}.{_each.name}")).values():
        if isinstance(_value, Family):
            register(_value)
