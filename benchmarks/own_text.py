"""Whether a new user's first command keeps its minutes, and what it learns in them: `bertsmith quickstart`.

- on 0.5, 2.4 and 10 MB of English, in one minute and in ten, with nothing else said
- on the bundled village, as `make quickstart` runs it, beside the time that the Makefile promises

Seconds are those of the whole command, from the start of Python to the report. A command that refuses its minutes
leaves a line with its reason; any other failure ends the run. Every line is written as soon as it is measured, so a run
that was stopped resumes with the next one.

    python benchmarks/own_text.py
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.monitor import read_metrics
from bertsmith.train.recipe import PreTrainingRecipe
from measured import Row, add_options, results_of
from real_data import DATA

MEGABYTES, MINUTES = (0.5, 2.4, 10.0), (1.0, 10.0)
USUAL_MINUTES = 10.0
"""What the command takes where nothing is said: not part of a line's name."""
VILLAGE_SECONDS = 120.0
"""What the Makefile promises of `make quickstart`."""
TOO_SHORT = re.compile(r" takes \d+ of at least \d+ steps .*; give [\d.]+ minutes")
"""What a refusal of the minutes says."""


def main() -> None:
    """Runs what is not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", nargs="+", type=float, choices=MINUTES, default=MINUTES)
    options = parser.parse_args()
    results = results_of("own_text", options)
    with tempfile.TemporaryDirectory() as name:
        for seed in range(1 if options.quick else options.seeds):
            for minutes in (0.5,) if options.quick else options.minutes:
                for megabytes in MEGABYTES[:1] if options.quick else MEGABYTES:
                    words = [*_text(Path(name), megabytes), "--minutes", f"{minutes:g}"]
                    words += ["--size", "1/64"] if options.quick else []
                    suffix = "" if minutes == USUAL_MINUTES else f", --minutes {minutes:g}"
                    what = {"name": f"quickstart on {megabytes:g} MB of English{suffix}", "seed": seed}
                    print(results.get(what, partial(learned, words, 60 * minutes, seed)), flush=True)
            what = {"name": "quickstart on the bundled village", "seed": seed}
            words = ["--minutes", "2", "--size", "1/64"] if options.quick else []
            print(results.get(what, partial(learned, words, VILLAGE_SECONDS, seed)), flush=True)


def _text(folder: Path, megabytes: float) -> list[str]:
    """Returns the folder with the first megabytes of the corpus, in files as they are; the last one is cut."""
    part, left = folder / f"{megabytes:g}", round(1e6 * megabytes)
    part.mkdir(exist_ok=True)
    # 维基百科在前：0.5 MB 里也有很多篇，不是一本小说的开头
    for path in (file for kind in ("wiki", "books", "speeches") for file in sorted((DATA / "corpus" / kind).iterdir())):
        content = path.read_bytes()[:left]
        left -= len(content)
        if content:
            # 从行尾截断：半个字符、半句话都不留
            whole = content if left else content[: content.rfind(b"\n") + 1]
            (part / path.name).write_bytes(whole)
    return [str(part)]


def learned(words: Sequence[str], asked_seconds: float, seed: int) -> Row:
    """Runs the command; returns its seconds and what the model of its folder has learned, or why it refused."""
    with tempfile.TemporaryDirectory() as name:
        out, begun = Path(name) / "run", time.perf_counter()
        command = [sys.executable, "-m", "bertsmith", "quickstart", *words, "--seed", str(seed), "--out", str(out)]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        found: Row = {"asked_seconds": asked_seconds, "seconds": time.perf_counter() - begun}
        print(done.stderr, file=sys.stderr, end="", flush=True)
        # 缺文件、选项写错也以 2 结束：只有嫌时间短的才是结果
        if done.returncode and TOO_SHORT.search(said := done.stderr.strip().rpartition("\n")[2]):
            return {**found, "refused": said}
        done.check_returncode()
        last = [row for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "heldout"][-1]
        recipe = PreTrainingRecipe.load(out)
        return {
            **found,
            "family": recipe.model.family,
            "size": recipe.model.size,
            "precision": recipe.model.precision,
            "unigram_entropy": TokenCorpus(out / "corpus", load_tokenizer(out / "model")).unigram_entropy,
            "steps": last["step"],
            **{key: last[key] for key in ("tokens", "mlm_loss", "mlm_accuracy")},
        }


if __name__ == "__main__":
    main()
