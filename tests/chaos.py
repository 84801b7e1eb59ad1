"""`make chaos`: kills commands that promise to resume, at random moments, and looks at what they end with.

Each trial starts a command, kills it with SIGKILL after a random time, whole or one random process of it, and starts it
again, up to a few times; then it lets it end. What it made must be, byte for byte, what an undisturbed run makes (a
log but for its speeds and times). Commands keep their states as often as they do by default. The moments come from a
seed, so a campaign can be told apart from another; since a machine is never twice as fast, a kill does not hit the same
instruction again.

    python tests/chaos.py --minutes 10 --seed 0

A line of JSON per trial goes to `--out`/trials.jsonl; the status is 1 where a trial ended in anything but `same`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MOST_KILLS = 6
PATIENCE = 90.0
"""Seconds in which a command must end by itself after one of its processes was killed, beyond an undisturbed run."""


@dataclass(frozen=True)
class Command:
    """A command that says it goes on.

    Attributes:
        name: of its trials.
        words: what is run, with `{in}` for the folder of inputs and `{out}` for that of the trial.
        made: globs under the trial's folder whose files must be those of an undisturbed run. Of a command that measures
            how many steps fit into its minutes these are the stages before and after.
        before: Python that is run first, in the same process: what makes a run meet something rare, or be compared.
    """

    name: str
    words: str
    made: tuple[str, ...]
    before: str = ""

    def arguments(self, inputs: Path, out: Path) -> list[str]:
        """Returns the words for a trial."""
        filled = self.words.replace("{in}", str(inputs)).replace("{out}", str(out)).split()
        if self.before:
            return [sys.executable, "-c", f"{self.before}\nfrom bertsmith.cli import main\nmain()", *filled]
        python = [sys.executable, "-m"]
        return [*python, *filled] if filled[0].startswith("torch.") else [*python, "bertsmith", *filled]


_PRETRAIN = "--corpus {in}/corpus --tokenizer {in}/vocab --out {out}/run --size 2/128 --dropout 0.1"
# a minute and more on one core: an undisturbed run writes two states by the clock, so that kills meet states and not
# beginnings alone; `Trial.undisturbed` says how long it was
_LONG = f"{_PRETRAIN} --steps 600"
_RUN = ("run/model/*.safetensors", "run/model/config.json", "run/best/*.safetensors", "run/metrics.jsonl")
_NOW_AND_THEN_NO_NUMBER = """
from bertsmith.objectives import LossOutput
from bertsmith.train.trainer import BertTrainer
backward = BertTrainer._backward
def no_number_at_times(self, part, *, last):
    output = backward(self, part, last=last)
    return LossOutput(output.loss * float("nan"), output.sums) if self.step % 37 in (5, 6) else output
BertTrainer._backward = no_number_at_times
"""
_GIVEN_STEPS = """
from bertsmith_school.study import work
work.steps_for = lambda *_, **__: 60
"""
COMMANDS = (
    Command(
        "vocab",
        "vocab {in}/large.txt --vocab-size 3000 --workers 2 --out {out}/vocab",
        ("vocab/vocab.txt", "vocab/*.json"),
    ),
    Command(
        "corpus",
        "corpus {in}/large.txt --tokenizer {in}/vocab --documents blank-line --workers 2 --shard-tokens 400000"
        " --out {out}/corpus",
        ("corpus/*.arrow", "corpus/manifest.json"),
    ),
    Command("pretrain", f"pretrain {_LONG} --track tensorboard", _RUN),
    Command(
        "pretrain, losses that are no numbers",
        f"pretrain {_LONG} --skipped-share 0.2",
        _RUN,
        _NOW_AND_THEN_NO_NUMBER,
    ),
    Command("pretrain bf16", f"pretrain {_LONG} --precision bf16 --workers 1", _RUN),
    Command(
        "pretrain, 2 ranks",
        f"torch.distributed.run --standalone --nproc-per-node 2 -m bertsmith pretrain {_LONG}",
        _RUN,
    ),
    Command(
        "finetune",
        "finetune classify --model {in}/model --train {in}/train.tsv --dev {in}/dev.tsv --epochs 6 --out {out}/run",
        ("run/model/*.safetensors", "run/model/config.json", "run/metrics.jsonl", "run/result.json"),
    ),
    # time enough for all epochs: with less, how many fit would depend on the machine
    Command(
        "solve",
        "solve {in}/train.tsv --dev {in}/dev.tsv --model {in}/model --minutes 30 --out {out}/run",
        ("run/model/*.safetensors", "run/parts/words/*.safetensors"),
    ),
    # it writes no file of its own: what it prints is compared
    Command(
        "look",
        "look {in}/train.tsv --dev {in}/dev.tsv --json {out}/look.json",
        ("look.json",),
        "import sys\nsys.stdout = open(sys.argv.pop(), 'w', encoding='utf-8')",
    ),
    Command("embed", "embed {in}/medium.txt {in}/small.txt --model {in}/model --out {out}/v.npy", ("v.npy",)),
    Command(
        "embed, 2 workers",
        "embed {in}/parts/1.txt {in}/parts/2.txt {in}/parts/3.txt {in}/parts/4.txt --workers 2"
        " --model {in}/model --out {out}/v.npy",
        ("v.npy",),
    ),
    Command(
        "index",
        "index {in}/parts --model {in}/model --passage-tokens 32 --out {out}/index",
        ("index/**/*.npy", "index/**/*.arrow"),
    ),
    Command(
        "topics",
        "topics {in}/parts --model {in}/model --out {out}/topics",
        ("topics/topics.json",),
    ),
    Command(
        "quickstart",
        "quickstart --size 1/64 --out {out}/run",
        (*_RUN, "run/tokenizer/vocab.txt", "run/corpus/*.arrow", "run/sentiment/*/model/*.safetensors"),
    ),
    Command(
        "distil",
        "distil --teacher {in}/model --text {in}/small.txt --keep-layers 1 --minutes 0.3 --out {out}/run",
        ("run/corpus/*.arrow", "run/model/config.json"),
    ),
    Command(
        "adapt",
        "adapt --model {in}/model --text {in}/small.txt --new-pieces 20 --minutes 0.3 --out {out}/run",
        ("run/corpus/*.arrow", "run/model/config.json"),
    ),
    # how many steps fit into its minutes is not measured here, so that all it ends with is compared
    Command(
        "study",
        "study steps --text {in}/small.txt --size 1/64 --vocab-size 600 --seeds 1 --out {out}/run",
        ("run/text/*/*.arrow", "run/runs/*/*/model/*.safetensors", "run/results.json"),
        _GIVEN_STEPS,
    ),
    Command(
        "word-vectors",
        "compare word-vectors --corpus {in}/corpus --tokenizer {in}/vocab --epochs 20 --out {out}/run",
        ("run/vectors.bin",),
    ),
    Command(
        "lstm",
        "compare lstm --corpus {in}/corpus --tokenizer {in}/vocab --size 64 --epochs 2 --out {out}/run",
        ("run/*.safetensors",),
    ),
    Command(
        "seq2seq",
        "compare seq2seq --village reverse --size 64 --epochs 1 --out {out}/run",
        ("run/*.safetensors",),
    ),
)
_TIMES = ("tokens_per_second", "mfu", "seconds", "examples_per_second", "checksum of the rest")
"""What a log says of the machine and not of the run."""


@dataclass(frozen=True)
class Trial:
    """How one ended.

    Attributes:
        command: its name.
        kills: of the whole command.
        parts: kills of one of its processes.
        outcome: `same`, `different`, `refused` (the command would not resume) or `hung`.
        message: where the outcome is not `same`, what the command said last, or which files differ.
        seconds: it took.
        undisturbed: how many an undisturbed run takes: one of pre-training writes a state every 20.
    """

    command: str
    kills: int
    parts: int
    outcome: str
    message: str
    seconds: float
    undisturbed: float


def main() -> int:
    """Runs a campaign; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[each.name for each in COMMANDS])
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    chosen = [each for each in COMMANDS if not options.only or each.name in options.only]
    inputs = options.out.resolve() / "inputs"
    make_inputs(inputs)
    rng = random.Random(options.seed)
    trials: list[Trial] = []
    undisturbed: dict[str, tuple[dict[str, str], float]] = {}
    while not trials or time.monotonic() < end:
        command = chosen[len(trials) % len(chosen)]
        folder = options.out.resolve() / "trial"
        if command.name not in undisturbed:
            undisturbed[command.name] = run_undisturbed(command, inputs, folder)
        made, seconds = undisturbed[command.name]
        trial = run_trial(command, inputs, folder, made, seconds, rng)
        trials.append(trial)
        if trial.kills + trial.parts == 0:
            # 第一次运行偏慢（缓存是冷的）：不缩短的话，以后的时刻都落在命令做完之后
            undisturbed[command.name] = made, min(seconds, trial.seconds)
        with (options.out / "trials.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seed": options.seed, "number": len(trials) - 1, **asdict(trial)}) + "\n")
        print(
            f"{trial.command}: {trial.kills} kills, {trial.parts} of a part: {trial.outcome} {trial.message}",
            flush=True,
        )
    print_table(trials)
    return int(any(trial.outcome != "same" for trial in trials))


def print_table(trials: Sequence[Trial]) -> None:
    """Prints a Markdown table over the commands."""
    print("\n| command | trials | kills | of one process | outcomes |\n|---|---|---|---|---|")
    for name in dict.fromkeys(trial.command for trial in trials):
        own = [trial for trial in trials if trial.command == name]
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(t.outcome for t in own).items())
        kills, parts = sum(trial.kills for trial in own), sum(trial.parts for trial in own)
        print(f"| {name} | {len(own)} | {kills} | {parts} | {outcomes} |")


def make_inputs(folder: Path) -> None:
    """Writes texts of the village, a vocabulary, shards, a small model and labelled reviews, once."""
    if (folder / "done").exists():
        return
    from bertsmith.tinyworld import draw_reviews, draw_stories

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "parts").mkdir(parents=True)
    stories = [story.text for story in draw_stories(0, 40_000)]
    # 一行一句：既能读成篇章（空行分隔），也能逐行变成向量
    texts = {"large": stories, "medium": stories[:6000], "small": stories[:600]}
    texts |= {f"parts/{number}": stories[number:24_000:40] for number in range(1, 5)}
    for name, chosen in texts.items():
        lines = "\n\n".join(story.replace(". ", ".\n") for story in chosen)
        (folder / f"{name}.txt").write_text(lines + "\n", encoding="utf-8")
    for split, count in (("train", 2000), ("dev", 400)):
        rows = [f"{review.label}\t{review.text}" for review in draw_reviews(0, count, split=split)]
        (folder / f"{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    for words in (
        "vocab {in}/small.txt --vocab-size 1200 --out {out}/vocab",
        "corpus {in}/small.txt --documents blank-line --tokenizer {in}/vocab --out {out}/corpus",
        f"pretrain {_PRETRAIN.replace('/run', '/first')} --steps 20",
    ):
        subprocess.run(Command("", words, ()).arguments(folder, folder), check=True, capture_output=True)
    (folder / "first/model").rename(folder / "model")
    (folder / "done").touch()


def run_undisturbed(command: Command, inputs: Path, folder: Path) -> tuple[dict[str, str], float]:
    """Returns the checksums of what a command makes, and how long it takes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.monotonic()
    subprocess.run(command.arguments(inputs, folder), check=True, capture_output=True)
    seconds = time.monotonic() - started
    for each in command.made:
        assert checksums(folder, [each]), f"{command.name}: makes no {each} to look at"
    return checksums(folder, command.made), seconds


def run_trial(
    command: Command, inputs: Path, folder: Path, expected: dict[str, str], duration: float, rng: random.Random
) -> Trial:
    """Kills a command again and again, lets it end, and compares."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kills, parts, began = 0, 0, time.monotonic()
    arguments = command.arguments(inputs, folder)

    def ended(outcome: str, said: str = "") -> Trial:
        lines = said.strip().splitlines()
        seconds = time.monotonic() - began
        return Trial(command.name, kills, parts, outcome, lines[-1] if lines else "", seconds, duration)

    while True:
        with (folder / "said").open("w+", encoding="utf-8") as said:
            process = subprocess.Popen(arguments, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            moment = rng.uniform(0.0, 1.1 * duration) if kills + parts < MOST_KILLS else float("inf")
            is_part = rng.random() < 0.3
            killed_part = False
            try:
                process.wait(min(moment, duration * 10 + PATIENCE))
            except subprocess.TimeoutExpired:
                if moment == float("inf"):
                    kill_all(process.pid)
                    return ended("hung", "it did not end by itself")
                victims = descendants(process.pid) if is_part else []
                if victims:
                    parts, killed_part = parts + 1, True
                    kill_quietly(rng.choice(victims))
                    try:
                        # 少了一个进程：要么自己补上，要么一行话结束，不能永远等下去
                        process.wait(duration * 3 + PATIENCE)
                    except subprocess.TimeoutExpired:
                        kill_all(process.pid)
                        return ended("hung", "one of its processes was killed")
                else:
                    kills += 1
                    kill_all(process.pid)
                    process.wait()
            said.seek(0)
            message = said.read()
        if process.returncode == 0:
            break
        if process.returncode != -signal.SIGKILL and not killed_part:
            return ended("refused", message)
    found = checksums(folder, command.made)
    # 缺的、多的、内容不同的，都算不同
    different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return ended("different", ", ".join(different)) if different else ended("same")


def descendants(pid: int) -> list[int]:
    """Returns the processes below one, whole depth, as `/proc` has them."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(word) for word in task.read_text().split()]
            except OSError:
                continue  # 刚刚结束
            found += children
            waiting += children
    return found


def kill_all(pid: int) -> None:
    """Kills a command with all its processes; `torchrun` gives each rank a group of its own."""
    others = descendants(pid)
    for each in (pid, *others):
        kill_quietly(each)


def kill_quietly(pid: int) -> None:
    """Kills a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def checksums(folder: Path, globs: Sequence[str]) -> dict[str, str]:
    """Returns name → checksum of the files that globs name."""
    paths = sorted(path for each in globs for path in folder.glob(each))
    return {str(path.relative_to(folder)): hashlib.sha256(_without_times(path)).hexdigest() for path in paths}


def _without_times(path: Path) -> bytes:
    """Returns what a file holds; of a log or a result without what it says of speed and time."""
    if path.name not in ("metrics.jsonl", "result.json"):
        return path.read_bytes()
    lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
    rows = [{name: value for name, value in json.loads(line).items() if name not in _TIMES} for line in lines]
    return json.dumps(rows).encode()


if __name__ == "__main__":
    sys.exit(main())
