"""A Hub on this machine, and the command line beside it."""

import pytest
from hub_server import TOKEN, HubServer

from bertsmith import hub as door
from bertsmith.cli import main


def forget():
    """What a new process would begin with."""
    door._commits.clear()
    door._folders.clear()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The server, which `huggingface_hub` in this process asks; its cache and the current folder are empty."""
    from huggingface_hub import HfFileSystem, constants

    server = HubServer()
    for name, value in server.constants(tmp_path / "cache").items():
        monkeypatch.setattr(constants, name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    HfFileSystem.clear_instance_cache()
    forget()
    yield server
    forget()
    server.close()


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def run(capsys):
    """Runs a command as a new process would, and returns what it printed."""

    def command(*words):
        forget()
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
        return said.out

    return command


@pytest.fixture
def fails(capsys):
    """Runs a command that must fail, and returns the one line it says."""

    def command(*words):
        forget()
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        lines = capsys.readouterr().err.strip().splitlines()
        assert ended.value.code == 2
        assert len(lines) == 1, lines
        return lines[0]

    return command
