"""A command of `bertsmith`, typed in the process of the tests."""

import pytest

from bertsmith.cli import main


def typed(capsys, *words, code=0):
    """Returns what a command prints; where it is to end with another code, what it says on the error stream."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    assert (ended.value.code or 0) == code, said.err
    return said.err if code else said.out
