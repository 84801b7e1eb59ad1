"""Runs the package's main jobs on a small drawn text and prints a hash for each result, so that two states compare.

    python .ci/golden.py [--source SRC] > lines.txt

`--source` is the `src` of another checkout; the lines of two states differ exactly where their results do. What runs:
vocabularies, ids, corpora, losses, weights of a run that was killed and resumed, vectors, logits, ONNX files, scores of
two tasks, search hits; about two minutes. Times, paths and versions are left out of what is hashed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = "the man woman child dog cat reads sees finds loves old red small book house river in on by a good bad day town"
FAMILIES = {"bert": "mlm+nsp", "roberta": "mlm", "albert": "mlm+sop", "modernbert": "mlm", "electra": "rtd"}
# 只比较结果：时间、路径、版本每次都变
RESULT = re.compile(r"loss|accuracy|score|f1|step|label|token|text|probabilit|passage")
RECORDS = ("manifest.json", "state.json", "current.json", "search-index.json", ".checked.json")


def draw(folder: Path) -> None:
    """Writes 60 documents of drawn sentences, labelled rows, tagged rows and lines to embed."""
    rng = random.Random(0)
    words = WORDS.split()
    sentence = [" ".join(rng.choices(words, k=rng.randint(4, 12))).capitalize() + "." for _ in range(3000)]
    (folder / "text").mkdir()
    for i in range(60):
        (folder / "text" / f"{i:02}.txt").write_text("\n".join(sentence[i * 40 : i * 40 + 40]) + "\n")
    rows = [f"{text}\t{'good' if 'good' in text else 'other'}\n" for text in sentence[2400:2800]]
    tagged = [
        "".join(f"{word} {'B-PER' if word in ('man', 'woman') else 'O'}\n" for word in text[:-1].split()) + "\n"
        for text in sentence[2400:2600]
    ]
    for name, start, end in (("train", 0, 0.8), ("dev", 0.8, 1)):
        for kind, lines in (("tsv", rows), ("conll", tagged)):
            part = lines[int(len(lines) * start) : int(len(lines) * end)]
            header = "text\tlabel\n" if kind == "tsv" else ""
            (folder / f"{name}.{kind}").write_text(header + "".join(part))
    (folder / "lines.txt").write_text("\n".join(sentence[2800:2900]) + "\n")


def run(folder: Path, *command: str, killed: bool = False) -> str:
    """Runs a command and returns what it printed; `killed`: once more after a kill in its middle."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    arguments = [sys.executable, "-m", "bertsmith", *command]
    if killed:
        process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # 等第一份训练状态写好再杀，续跑才真的从中间开始
        while process.poll() is None and not list(folder.glob(f"{command[-1]}/state*")):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout


def digest(data: bytes) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def results(value: object) -> object:
    """Returns a JSON value without what differs between two runs of the same code, such as seconds."""
    if isinstance(value, dict):
        return {
            key: results(inner) for key, inner in sorted(value.items()) if RESULT.search(key) and "second" not in key
        }
    return [results(inner) for inner in value] if isinstance(value, list) else value


def content(path: Path) -> bytes:
    """Returns the bytes of a result that are compared."""
    if path.name in ("metrics.jsonl", "result.json"):
        text = path.read_text()
        values = [json.loads(part) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]
        return json.dumps(results(values)).encode()
    return path.read_bytes()


def main() -> None:
    """Runs the jobs and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the src of the checkout to run")
    os.environ["PYTHONPATH"] = str(parser.parse_args().source.resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(folder)
        printed: dict[str, str] = {}
        for kind in ("wordpiece", "bpe", "unigram"):
            run(folder, "vocab", "text", "--kind", kind, "--vocab-size", "300", "--out", f"vocab-{kind}")
            run(folder, "corpus", "text", "--tokenizer", f"vocab-{kind}", "--out", f"corpus-{kind}", "--workers", "1")
        for family, objective in FAMILIES.items():
            kind = {"roberta": "bpe", "albert": "unigram"}.get(family, "wordpiece")
            command = ["pretrain", "--corpus", f"corpus-{kind}", "--tokenizer", f"vocab-{kind}", "--family", family]
            command += ["--objective", objective, "--size", "2/64", "--sequence-length", "64", "--batch-size", "16"]
            command += ["--steps", "60" if family == "bert" else "8", "--precision", "float32"]
            run(folder, *command, "--save-every", "1", "--out", f"run-{family}", killed=family == "bert")
        model = ["--model", "run-bert/model", "--out"]
        for task, suffix in (("classify", "tsv"), ("tag", "conll")):
            files = ["--train", f"train.{suffix}", "--dev", f"dev.{suffix}"]
            run(folder, "finetune", task, *files, "--epochs", "2", "--precision", "float32", *model, f"tuned-{task}")
            tuned = f"tuned-{task}/model"
            run(folder, "evaluate", "--file", f"dev.{suffix}", "--model", tuned, "--out", f"scores-{task}.json")
            printed[f"predict {task}"] = run(folder, "predict", "--file", "lines.txt", "--model", tuned, "--json")
            run(folder, "export", "onnx", tuned, "--out", f"onnx-{task}")
        run(folder, "embed", "lines.txt", "--precision", "float32", *model, "vectors.npy")
        printed["fill-mask"] = run(
            folder, "fill-mask", "The man [MASK] the book.", "--model", "run-bert/model", "--json"
        )
        run(folder, "index", "text", *model, "text.index")
        printed["search"] = run(folder, "search", "text.index", "a good day", "--json")
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            relative = path.relative_to(folder).as_posix()
            # 被杀的时刻不定，中途的训练状态也就不定；最后的权重不变
            if path.name in RECORDS or "/state/" in relative:
                continue
            if path.suffix in (".txt", ".json", ".jsonl", ".npy", ".bin", ".safetensors", ".onnx", ".data", ".arrow"):
                print(relative, digest(content(path)))
        for name, text in printed.items():
            lines = [results(json.loads(line)) for line in text.splitlines() if line.startswith(("{", "["))]
            print("printed:", name, digest(json.dumps(lines or text).encode()))


if __name__ == "__main__":
    main()
