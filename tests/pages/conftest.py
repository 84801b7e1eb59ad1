"""The folder in which the blocks of a page run: what `docs/CONTRIBUTING-docs.md` lists, made once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.tinyworld import draw_questions, draw_reviews, draw_stories, draw_tagged_sentences

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def shell(tmp_path_factory):
    """Runs a block of shell code in a folder, with `bertsmith` and `python` as this test has them."""
    bin_folder = tmp_path_factory.mktemp("bin")
    for name, arguments in (("bertsmith", "-m bertsmith"), ("python", "")):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (bin_folder / name).chmod(0o755)
    settings = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "120",
    }

    def run(code: str, folder: Path) -> None:
        data = {"XDG_DATA_HOME": str(folder / "data-home")}
        command = ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(
            command, cwd=folder, env={**settings, **data}, capture_output=True, text=True, timeout=2400, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"

    return run


@pytest.fixture(scope="session")
def sample(tmp_path_factory, shell) -> Path:
    """A folder with text, labelled files, a run of pre-training, a classifier and an index."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "texts").mkdir()
    stories = [story.text for story in draw_stories(0, 300)]
    for number in range(3):
        # 一篇故事一段：空行把文件分成文档
        text = "\n\n".join(stories[number::3]) + "\n"
        (folder / "texts" / f"part-{number}.txt").write_text(text, encoding="utf-8")
    for name, count in (("train", 60), ("dev", 20)):
        rows = [f"{review.text}\t{review.label}" for review in draw_reviews(0, count, split=name)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    new = [review.text for review in draw_reviews(0, 5, split="new")]
    (folder / "new.txt").write_text("\n".join(new) + "\n", encoding="utf-8")
    scored = [f"{a}\t{b}\t{n % 6}" for n, (a, b) in enumerate(zip(stories[:30], stories[30:60], strict=True))]
    (folder / "pairs.tsv").write_text("\n".join(["a\tb\tscore", *scored]) + "\n", encoding="utf-8")
    sentences = draw_tagged_sentences(0, 40, split="train")
    tagged = ["\n".join(f"{w} {t}" for w, t in zip(one.words, one.tags, strict=True)) for one in sentences]
    (folder / "tagged.conll").write_text("\n\n".join(tagged) + "\n", encoding="utf-8")
    asked = []
    for number, one in enumerate(draw_questions(0, 30, split="train")):
        answer = {"text": one.answer, "answer_start": one.context.index(one.answer)}
        question = {"id": str(number), "question": one.question, "answers": [answer]}
        asked.append({"context": one.context, "qas": [question]})
    squad = {"version": "1.1", "data": [{"title": "village", "paragraphs": asked}]}
    (folder / "answers.json").write_text(json.dumps(squad), encoding="utf-8")
    shell(
        "bertsmith quickstart texts --documents blank-line --family bert --size 2/128 --minutes 0.05 --out runs/mine\n"
        "bertsmith finetune classify --model runs/mine/model --train train.tsv --dev dev.tsv --epochs 1"
        " --out runs/reviews\n"
        "bertsmith index texts --model runs/mine/model --out runs/mine.index\n",
        folder,
    )
    return folder
