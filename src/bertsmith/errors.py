"""The errors a user can meet and catch.

Every message names the thing, the place and the way out, on one line, because the command line prints exactly that
line and nothing else. Code below the boundary where data enters trusts its input and raises none of these.
"""

from __future__ import annotations

import sys


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Prints a warning as one line of the command, in the place of `warnings.showwarning`."""
    print(f"bertsmith: warning: {message}", file=sys.stderr)


class BertsmithError(Exception):
    """Base of every error that is the input's or the machine's fault, not a bug; the command line exits with 2."""


class InputError(BertsmithError):
    """A file, folder or value given by the user cannot be used: missing, empty, binary, malformed, out of range."""


class ConfigError(BertsmithError):
    """A model or training setting is impossible, or contradicts another one."""


class CheckpointError(BertsmithError):
    """A model folder, a shard or a training state is damaged or does not fit the model."""


class TrainingError(BertsmithError):
    """Training cannot continue: the loss is no longer a finite number."""


class RunFolderError(BertsmithError):
    """An output folder belongs to a run with other settings, is in use, or cannot be written."""
