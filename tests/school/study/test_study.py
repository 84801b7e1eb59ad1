"""`bertsmith study`: a table of the paper from text to a page."""

import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from bertsmith.data.corpus.shards import HELDOUT, TRAIN
from bertsmith.errors import ConfigError, RunFolderError, TrainingError
from bertsmith.journeys.source import own_text
from bertsmith.model import ModelConfig
from bertsmith.tinyworld import draw_stories, render
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import RunOptions, kept_steps, pretrain
from bertsmith.train.start import heldout_set
from bertsmith_school.study import Base, Start, StudyOptions, run_study, studies, study_named, tasks, work
from bertsmith_school.study.work import StudyText, characters_per_piece, heldout_figures
from typed_command import typed

BASE = Base("bert", "4/64", 32, 200, has_tags=True, models=(Start(model="a/model"), Start(model="b/model")))
SMALL = {"size": "1/64", "vocab_size": 150}
SMALL_STUDY = """
import sys
from bertsmith.cli import main
from bertsmith_school.study import tables, work

tables.SHAPES = ("2/64", "1/128")
if "--minutes" not in sys.argv:
    work.steps_for = lambda *_, **__: 24
main(sys.argv[1:])
"""
"""A study in a process of its own, with small shapes; every run has 24 steps, unless a budget is given and measured."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    stories = "\n\n".join(" ".join(render(s) for s in story.sentences) for story in draw_stories(0, 200))
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text(stories, encoding="utf-8")
    return str(path)


@pytest.fixture
def few_steps(monkeypatch):
    """Budgets are not measured: every run has 24 steps, those of twice the pieces 30."""
    monkeypatch.setattr(
        work, "steps_for", lambda recipe, corpus, tokenizer, device, **_: 24 + 6 * (len(tokenizer) > 200)
    )


def study(text, out, *, name="vocabulary", **options):
    shown = io.StringIO()
    rows = run_study(name, [text], [], out, StudyOptions(**{**SMALL, "seeds": 1, **options}), Console(file=shown))
    return rows, shown.getvalue()


@pytest.mark.parametrize("name", list(studies()))
def test_every_study_has_arms_that_can_be_trained(name):
    found = study_named(name)
    arms = found.arms(BASE)
    assert len({(arm.group, arm.name) for arm in arms}) == len(arms) >= 2
    assert found.title
    assert found.found.endswith(".")
    for start in {arm.start for arm in arms}:
        settings = {"family": BASE.family, "sequence_length": 32, **dict(start.settings), "steps": 5}
        recipe_for(settings.pop("size", "1/64"), **settings)
    names = [start.name for start in {arm.start for arm in arms}]
    assert len(set(names)) == len(names)
    assert all("/" not in name for name in names)


def test_table_8_is_the_papers():
    starts = [dict(arm.start.settings) for arm in study_named("masking").arms(BASE)][:6]
    shares = [(s["mask_share"], round(1 - s["mask_share"] - s["random_share"], 6), s["random_share"]) for s in starts]
    assert shares == [(0.8, 0.1, 0.1), (1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0.2, 0.8), (0, 0, 1)]


def test_no_study_of_that_name():
    with pytest.raises(ConfigError, match="objectives"):
        study_named("sice")


@pytest.mark.slow
def test_runs_are_made_once_compared_and_more_seeds_join_them(text, tmp_path, few_steps, monkeypatch):
    rows, shown = study(text, tmp_path)
    good = [row for row in rows if not row.error]
    # 38 个词片装不下字母表：只坏这一行，其余照做
    assert [row.arm for row in good] == ["150 pieces", "75 pieces", "300 pieces"]
    assert [row.arm for row in rows if row.error] == ["38 pieces"]
    assert "1 of 4 rows failed" in shown
    assert all(row.figures["bits per character"] > 0 for row in good)
    assert "one seed cannot tell" in shown
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "150 pieces" in page
    assert '<p class="verdict">Bits per character: one seed cannot tell' in page
    assert (tmp_path / "study.png").stat().st_size > 5000
    # 再来一次：做完的不重做；多要一个种子：只补新的
    trained = []

    def counted(folder, *given, **how):
        trained.append(folder)
        return pretrain(folder, *given, **how)

    monkeypatch.setattr(work, "pretrain", counted)
    again, _ = study(text, tmp_path)
    assert [row for row in again if not row.error] == good
    assert trained == []
    # 两个新的进程各做一些
    more, _ = study(text, tmp_path, seeds=2, jobs=2)
    assert [row for row in more if row.seed == 0 and not row.error] == good
    assert [row.arm for row in more if row.seed == 1 and not row.error] == [row.arm for row in good]
    assert not list((tmp_path / "runs").glob("*/seed-*/state"))


@pytest.mark.slow
def test_one_run_that_fails_costs_itself_alone(text, tmp_path, few_steps, monkeypatch):
    def failing(folder, corpus, tokenizer, recipe, *given, **how):
        if recipe.objective == "mlm" and recipe.data.masking.mask_share == 1.0:
            raise TrainingError("the loss is no longer finite")
        return pretrain(folder, corpus, tokenizer, recipe, *given, **how)

    monkeypatch.setattr(work, "pretrain", failing)
    rows, shown = study(text, tmp_path, name="masking")
    failed = [row for row in rows if row.error]
    assert [row.error for row in failed] == ["the loss is no longer finite"]
    assert len(rows) == 13
    assert "1 of 13 rows failed" in shown
    assert "the loss is no longer finite" in (tmp_path / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(work, "pretrain", pretrain)
    rows, shown = study(text, tmp_path, name="masking")
    assert not [row for row in rows if row.error]
    assert "failed" not in shown


def test_a_folder_of_another_setting_is_refused(text, tmp_path, few_steps):
    study(text, tmp_path)
    for change, error in (({"minutes": 3.0}, "minutes"), ({"size": "2/64"}, "size"), ({"name": "data"}, "study")):
        with pytest.raises(RunFolderError, match=f"another {error}"):
            study(text, tmp_path, **change)


def test_a_budget_for_nothing_is_refused_with_what_would_do(text, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "steps_for", lambda *_, **__: 20)
    with pytest.raises(ConfigError, match="not enough for 20 steps; give more --minutes"):
        study(text, tmp_path, minutes=0.05)


def test_features_want_words_with_tags(text, tmp_path):
    with pytest.raises(ConfigError, match="--tasks with a tagging task"):
        study(text, tmp_path, name="features")
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_is_wrong_in_a_line(text, tmp_path, capsys):
    for arguments, said in (
        (["sice", "--out", str(tmp_path / "a")], "sice"),
        (["sizes", "--text", str(tmp_path / "none"), "--out", str(tmp_path / "a")], "none"),
        (["sizes", "--text", text, "--tasks", str(tmp_path / "no.toml"), "--out", str(tmp_path / "a")], "no.toml"),
        (["sizes", "--text", text, "--family", "gpt", "--out", str(tmp_path / "a")], "gpt"),
    ):
        error = typed(capsys, "study", *arguments, code=2)
        assert said in error
        assert error.count("\n") == 1


def test_held_out_figures_are_those_of_the_run_itself(village_small, tmp_path):
    corpus, tokenizer = village_small
    recipe = recipe_for("1/64", objective="mlm", sequence_length=32, batch_size=8, steps=12, precision="float32")
    result = pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    found = heldout_figures(tmp_path / "run/model", heldout_set(recipe, corpus, tokenizer))
    assert found["loss"] == pytest.approx(result.heldout["mlm_loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(result.heldout["mlm_accuracy"], rel=1e-5)


def test_a_model_that_reads_one_way_has_no_masked_loss(village_small, tmp_path):
    corpus, tokenizer = village_small
    recipe = recipe_for("1/64", objective="ltr", sequence_length=32, batch_size=8, steps=2, precision="float32")
    pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    assert ModelConfig.load(tmp_path / "run/model").is_decoder
    reference = heldout_set(recipe_for("1/64", objective="mlm", sequence_length=32, steps=1), corpus, tokenizer)
    assert heldout_figures(tmp_path / "run/model", reference) == {}


def test_models_are_kept_on_the_way(village_small, tmp_path):
    corpus, tokenizer = village_small
    recipe = recipe_for("1/64", objective="mlm", sequence_length=32, batch_size=8, steps=10, precision="float32")
    pretrain(tmp_path / "run", corpus, tokenizer, recipe, RunOptions(keep_models=4, evaluations=1))
    assert kept_steps(10, 4) == [2, 5, 8, 10]
    assert sorted(int(folder.name) for folder in (tmp_path / "run/models").iterdir()) == [2, 5, 8, 10]
    last, model = (tmp_path / "run" / name / "model.safetensors" for name in ("models/10", "model"))
    assert last.read_bytes() == model.read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "heldout"] == [0, 10]


def test_smaller_shares_are_part_of_larger_ones_and_hold_nothing_out_that_others_read(text, tmp_path):
    source = own_text([text], documents="auto", encoding="auto", leave_out=tmp_path)
    cut = StudyText(source, tmp_path, 150)
    corpora = [cut.corpus(Start(share=share)) for share in (1.0, 0.5, 0.25)]

    def documents(corpus, split):
        count = corpus.counts[split].documents
        return {tuple(np.concatenate(corpus.document(split, n)).tolist()) for n in range(count)}

    whole, half, quarter = (documents(corpus, TRAIN) for corpus in corpora)
    assert quarter < half < whole
    assert 0.35 < len(half) / len(whole) < 0.65
    assert not half & documents(corpora[0], HELDOUT)


def test_characters_per_piece_by_hand(text, tmp_path):
    source = own_text([text], documents="auto", encoding="auto", leave_out=tmp_path)
    cut = StudyText(source, tmp_path, 150)
    tokenizer, corpus = cut.tokenizer(), cut.corpus(Start())
    total = count = 0
    for number in range(corpus.counts[TRAIN].documents):
        for ids in corpus.document(TRAIN, number):
            for one in ids.tolist():
                total += len(tokenizer.vocab[one].removeprefix("##"))
                count += 1
    assert characters_per_piece(tokenizer, corpus) == pytest.approx(total / count, rel=1e-9)


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """The village's tasks with 60 rows a file and two epochs: what is looked at is the way from start to end."""
    listed = tasks.village_tasks(tmp_path_factory.mktemp("tasks"), seed=0)
    listed.write_text(listed.read_text().replace("epochs = 10", "epochs = 2"))
    for pattern, between in (("reviews-*.tsv", "\n"), ("tags-*.conll", "\n\n")):
        for path in listed.parent.glob(pattern):
            path.write_text(between.join(path.read_text().split(between)[:60]) + "\n")
    return listed


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, found in studies().items() if found.pretrains])
def test_every_study_goes_from_text_to_a_page(name, text, listed, tmp_path):
    # 另起进程、一个线程：旁边还有别的测试时，不至于被等待的线程拖慢几十倍
    how = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "capture_output": True, "text": True}
    given = [sys.executable, "-c", SMALL_STUDY, "study", name, "--tasks", str(listed), "--seeds", "1"]
    given += ["--out", str(tmp_path / "out"), "--size", "4/64" if name == "features" else "1/64"]
    # 不给文本就是村庄：有一个研究这样走就够，它的文本长得多
    given += [] if name == "objectives" else ["--text", text]
    # 一个研究照用户那样给时间、现测步数；机器忙得不够二十步，就照命令说的多给些
    budgets = [["--minutes", f"{0.1 * 2**n}"] for n in range(8)] if name == "steps" else [[]]
    for budget in budgets:
        ended = subprocess.run([*given, *budget], check=False, **how)
        if "give more --minutes" not in ended.stderr:
            break
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "out/results.json").read_text())
    assert not [row["error"] for row in rows if row["error"]]
    assert all(row["figures"] for row in rows)
    assert (tmp_path / "out/report.html").stat().st_size > 20_000


@pytest.mark.slow
def test_a_study_that_is_killed_comes_to_the_same(text, tmp_path):
    def command(out):
        given = ["study", "steps", "--text", text, "--seeds", "2", "--size", "1/64", "--vocab-size", "150"]
        return [sys.executable, "-c", SMALL_STUDY, *given, "--out", str(out)]

    how = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "stdout": subprocess.DEVNULL}
    subprocess.run(command(tmp_path / "whole"), check=True, **how)
    kills = 0
    finished = False
    while not finished:
        process = subprocess.Popen(command(tmp_path / "killed"), **how)
        try:
            # 每次多等一会儿：机器忙时，几秒连一次存盘都等不到
            finished = process.wait(4 + 4 * kills) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        assert process.returncode in (0, -signal.SIGKILL)
        assert kills < 16
    assert kills
    one, other = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "killed"))
    assert one == other
