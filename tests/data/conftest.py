"""What several tests of the data need."""

import pytest


def _is_gone(pid):
    """Whether a process has ended (or waits to be collected by whoever adopted it)."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def is_gone():
    """Tells of a process id whether its process has ended."""
    return _is_gone
