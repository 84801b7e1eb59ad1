"""The main job on somebody's own files, in small."""

import io
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bertsmith import plan, quickstart
from bertsmith.errors import ConfigError, InputError
from bertsmith.inference import load_pipeline
from bertsmith.journeys import plan as planning
from bertsmith.journeys.source import default_vocab_sizes, learn_vocabulary, own_text, shards_of
from bertsmith.model import ModelConfig
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import PreTrainingResult
from bertsmith.train.recipe import PreTrainingRecipe

ENGLISH = "\n\n".join(
    f"Day {n}. The man eats the bread at the old house. Then he reads a book about the sea. The dog sleeps by the door."
    for n in range(30)
)
CHINESE = "\n\n".join(
    f"第{n}天早上下雨。他在家里看书，喝了一杯茶。晚上他去河边散步，看见一只白色的鸟。" for n in range(30)
)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["english", "chinese"])
@pytest.mark.usefixtures("unhurried")
def test_a_file_becomes_a_model_and_a_report(tmp_path, text, capsys):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    how = {"size": "1/64", "minutes": 0.05, "console": Console(width=200)}
    result = quickstart(tmp_path / "corpus", out, **how).details
    assert result.pretraining.verdict in capsys.readouterr().out
    assert result.pretraining.verdict in (out / "report.html").read_text(encoding="utf-8")
    assert result.sentiment == {}
    assert {"mlm_loss", "mlm_accuracy"} <= result.pretraining.heldout.keys()
    assert (out / "report.html").stat().st_size > 20_000
    assert load_pipeline("embed", out / "model")(["一", "a"]).shape == (2, 64)
    for name in ("recipe.toml", "metrics.jsonl", "state", "model", "tokenizer", "corpus"):
        assert (out / name).exists()


@pytest.mark.parametrize(
    ("family", "asked", "learned"),
    [
        ("bert", None, "mlm"),
        ("bert", "mlm+nsp", "mlm+nsp"),
        pytest.param("albert", None, "mlm", marks=pytest.mark.slow),
        ("electra", None, "rtd"),
    ],
)
@pytest.mark.usefixtures("unhurried")
def test_on_own_text_masks_are_learned_and_pairs_where_they_are_asked_for(tmp_path, family, asked, learned):
    (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
    how = {"family": family, "objective": asked, "size": "2/64", "minutes": 0.05}
    result = quickstart(tmp_path / "a.txt", tmp_path / "q", **how)
    assert PreTrainingRecipe.load(tmp_path / "q").objective == learned
    assert ("nsp_loss" in result.metrics) == (learned == "mlm+nsp")


def test_two_large_files_are_cut_at_blank_lines_before_anything_is_learned(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} begins.\n\n{ENGLISH}", encoding="utf-8")
    asked = {"encoding": "auto", "leave_out": tmp_path / "out"}
    assert own_text([tmp_path], documents="auto", **asked).documents == "blank-line"
    (tmp_path / "c.txt").write_text("A third one.", encoding="utf-8")
    assert own_text([tmp_path], documents="auto", **asked).documents == "file"
    (tmp_path / "c.txt").unlink()
    monkeypatch.setattr("bertsmith.journeys.quickstart.learn_vocabulary", lambda *_: pytest.fail("learned"))
    with pytest.raises(InputError, match="the corpus has 2 different document"):
        quickstart(tmp_path, tmp_path / "out", documents="file", size="1/64", minutes=0.05)


def test_a_list_of_lines_is_own_text_too(tmp_path):
    lines = [f"Day {n}: the man eats bread, and the dog sleeps by the door." for n in range(120)]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"a\.txt: a line is a document, as none of its 120 lines is blank"):
        source = own_text([tmp_path / "a.txt"], documents="auto", encoding="auto", leave_out=tmp_path / "out")
    assert source.documents == "line"
    counts = shards_of(source, learn_vocabulary(source, "wordpiece", [300]), tmp_path / "corpus").counts
    assert sum(split.documents for split in counts.values()) == 120


def test_what_is_lost_and_repeated_in_own_text_is_said_once(tmp_path):
    for number, text in enumerate([*ENGLISH.split("\n\n"), ENGLISH.split("\n\n")[0]]):
        (tmp_path / f"{number}.txt").write_text(f"{text}\nPage footer [SEP] of the company.", encoding="utf-8")
    source = own_text([tmp_path], documents="auto", encoding="auto", leave_out=tmp_path / "out")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer = learn_vocabulary(source, "wordpiece", [300])
        shards_of(source, tokenizer, tmp_path / "out" / "corpus")
        shards_of(source, tokenizer, tmp_path / "out" / "corpus")
    vocabulary, *corpus = (str(one.message) for one in caught)
    assert vocabulary.startswith("special tokens stand in the text as words ([SEP] 31 times)")
    assert corpus[:2] == ["dropped 1 duplicates", "31 special tokens stand in the text as words: plain characters"]
    assert re.match(r"\d+ lines repeat one that stands in 10 documents or more: .* of the held-out ones", corpus[2])
    assert len(corpus) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # of a sample, as `plan` reads, and of the bundled world nothing is said
        shards_of(replace(source, warns=False), tokenizer, tmp_path / "out" / "sample")


@pytest.fixture
def timed(monkeypatch):
    """Two small sizes alone, and the seconds of their steps as they are set."""
    seconds = {"1/64": 0.01, "2/64": 0.012}
    monkeypatch.setattr(planning, "NAMED_SIZES", {name: ModelConfig.shape_of(name) for name in seconds})
    monkeypatch.setattr(planning, "_measured", lambda recipe, *_: seconds[recipe.model.size])
    return seconds


@pytest.mark.parametrize("seconds", [0.012, 60.0])
def test_the_size_is_the_one_that_plan_chooses(tmp_path, timed, seconds, capsys):
    (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
    timed["2/64"] = seconds
    best = plan(tmp_path / "a.txt", minutes=0.05).best.size
    how = {"minutes": 0.05, "console": Console(width=200)}
    first = quickstart(tmp_path / "a.txt", tmp_path / "q", **how)
    assert PreTrainingRecipe.load(tmp_path / "q").model.size == best
    assert f"{best} learns most in 0.05 minutes here" in capsys.readouterr().out
    # the size stays, though the machine is another one today
    timed |= dict.fromkeys(timed, 60.0)
    assert quickstart(tmp_path / "a.txt", tmp_path / "q", **how).metrics == first.metrics


class ReachedTraining(Exception):
    """Ends a quickstart where its training would begin."""


@pytest.fixture
def recipes(monkeypatch):
    """The recipes that training would have begun with."""
    found = []

    def pretrain(out, corpus, tokenizer, recipe, **how):
        found.append(recipe)
        raise ReachedTraining

    monkeypatch.setattr(sys.modules["bertsmith.journeys.quickstart"], "pretrain", pretrain)
    return found


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ({}, "1/64"),
        ({"size": "2/64"}, "2/64"),
        ({"family": "bert"}, "mini"),
        ({"family": "bert", "objective": "mlm+nsp"}, "mini"),
        ({"family": "electra", "size": "2/64"}, "2/64"),
    ],
)
def test_a_time_in_which_the_fewest_steps_do_not_fit_is_refused(tmp_path, timed, recipes, how, size):
    (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
    timed |= dict.fromkeys((*timed, "mini"), 60.0)
    with pytest.raises(ConfigError) as refused:
        quickstart(tmp_path / "a.txt", tmp_path / "q", minutes=0.05, **how)
    said = re.fullmatch(
        rf"preparation and report take \S+ of 0.05 minutes; in the \S+ that are left {size} takes 0 of at least 20"
        r" steps on this machine; give ([\d.]+) minutes( or a smaller size)?",
        str(refused.value),
    )
    assert said
    assert bool(said[2]) == bool(how)
    # 语料已经做好，换个时间就能接着用；别的什么也没有开始
    assert {path.name for path in (tmp_path / "q").iterdir()} >= {"corpus"}
    assert recipes == []
    with pytest.raises(ReachedTraining):
        quickstart(tmp_path / "a.txt", tmp_path / "q", minutes=float(said[1]), **how)


@pytest.mark.parametrize("how", [{}, {"family": "bert", "size": "2/64"}])
@pytest.mark.parametrize(("spent", "left"), [(0.0, 1.0), (0.4, 0.6), (0.6, 0.5), (0.9, 0.35)])
def test_preparing_counts_against_the_minutes(tmp_path, timed, recipes, monkeypatch, how, spent, left):
    console = Console(file=io.StringIO(), width=500)
    (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
    monkeypatch.setattr(sys.modules["bertsmith.journeys.quickstart"], "_minutes_spent", lambda _: spent)
    with pytest.raises(ReachedTraining):
        quickstart(tmp_path / "a.txt", tmp_path / "q", minutes=1.0, console=console, **how)
    late = f"take {spent:g} of 1 minutes; {left:g} are kept for pre-training, so that the command ends after about"
    assert (late in console.file.getvalue()) == (spent > 0.5)
    # 训练自己计时的那几步也算在内
    assert left - 0.05 < recipes[0].length.minutes < left


@pytest.mark.parametrize(
    ("loss", "said"),
    [(6.378, "Worse than word frequencies"), (6.2, "Barely better than"), (4.2, "Better than word frequencies")],
)
def test_a_verdict_compares_with_word_frequencies(loss, said):
    recipe = recipe_for("tiny", minutes=1.0)
    result = PreTrainingResult(Path("run"), recipe, {"mlm_loss": loss}, 6.286, tokens_seen=1, seconds=1.0, steps=1)
    assert result.verdict.startswith(f"{said}")
    assert f"({loss:.2f} nats, and 6.29 by frequencies alone)" in result.verdict


def test_an_objective_without_masks_has_no_report(tmp_path):
    with pytest.raises(ConfigError, match="ltr fills no masks"):
        quickstart(out=tmp_path / "q", objective="ltr")
    assert not (tmp_path / "q").exists()


@pytest.mark.usefixtures("unhurried")
def test_little_text_of_many_characters_gets_a_larger_vocabulary(tmp_path):
    """Novels of 900 KB have more than 4,096 Chinese characters."""
    characters = [chr(0x4E00 + n) for n in range(4300)]
    lines = ["".join(characters[start : start + 20]) + "。" for start in range(0, 4300, 20)]
    (tmp_path / "a.txt").write_text(
        "\n\n".join("\n".join(lines[n : n + 5]) for n in range(0, 215, 5)), encoding="utf-8"
    )
    short = {"size": "1/64", "minutes": 0.05}
    quickstart(tmp_path / "a.txt", tmp_path / "q", **short)
    assert 4305 < WordPieceTokenizer.load(tmp_path / "q" / "tokenizer").vocab_size <= 8192
    with pytest.raises(InputError, match="a vocabulary of 4096 cannot hold .* give it at least"):
        quickstart(tmp_path / "a.txt", tmp_path / "small", vocab_size=4096, **short)


def test_the_amount_of_text_chooses_the_vocabulary():
    assert default_vocab_sizes(0) == [4096, 8192, 16384, 30522]
    assert default_vocab_sizes(999_999)[0] == 4096
    assert default_vocab_sizes(1_000_000)[0] == 8192
    assert default_vocab_sizes(20_000_000)[0] == 16384
    assert default_vocab_sizes(10**12) == [30522]


@pytest.mark.usefixtures("unhurried")
def test_the_output_inside_the_text_folder_is_not_read_as_text(tmp_path):
    (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
    how = {"out": tmp_path / "runs" / "q", "size": "1/64", "minutes": 0.05}
    first = quickstart(tmp_path, **how).details
    assert list((tmp_path / "runs" / "q").rglob("*.txt"))
    assert quickstart(tmp_path, **how).details.pretraining.recipe == first.pretraining.recipe


@pytest.mark.usefixtures("unhurried")
def test_one_long_held_out_sentence_is_enough_for_a_report(tmp_path):
    long = " ".join(f"clause {n} of a very long sentence," for n in range(40))
    text = "\n\n".join(f"Document {n}: {long} and so on." for n in range(4))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    quickstart(tmp_path / "a.txt", tmp_path / "q", size="1/64", minutes=0.05)
    assert (tmp_path / "q" / "report.html").exists()
