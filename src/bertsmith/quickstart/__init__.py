"""The main job in one command: `journey` does it, `options` says what it can be asked for.

The package is a function as well: `bertsmith.quickstart("texts")` is `bertsmith.quickstart.calls.quickstart`.
"""

from bertsmith.result import make_callable

make_callable(__name__)
