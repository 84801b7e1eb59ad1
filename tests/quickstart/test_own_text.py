"""The main job on somebody's own files, in small."""

from dataclasses import replace

import pytest
from rich.console import Console

from bertsmith.errors import ConfigError, InputError
from bertsmith.inference import load_pipeline
from bertsmith.quickstart.journey import default_vocab_sizes, quickstart
from bertsmith.quickstart.options import QuickstartOptions
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.recipe import PreTrainingRecipe

ENGLISH = "\n\n".join(
    f"Day {n}. The man eats the bread at the old house. Then he reads a book about the sea. The dog sleeps by the door."
    for n in range(30)
)
CHINESE = "\n\n".join(
    f"第{n}天早上下雨。他在家里看书，喝了一杯茶。晚上他去河边散步，看见一只白色的鸟。" for n in range(30)
)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_a_file_becomes_a_model_and_a_report(tmp_path, text):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    options = QuickstartOptions(corpus=[str(tmp_path / "corpus")], out=out, size="1/64", minutes=0.03)
    result = quickstart(options, Console(quiet=True))
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
def test_on_own_text_masks_are_learned_and_pairs_where_they_are_asked_for(tmp_path, family, asked, learned):
    (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
    options = QuickstartOptions(
        corpus=[str(tmp_path / "a.txt")], out=tmp_path / "q", family=family, objective=asked, size="2/64", minutes=0.02
    )
    result = quickstart(options, Console(quiet=True))
    assert PreTrainingRecipe.load(tmp_path / "q").objective == learned
    assert ("nsp_loss" in result.pretraining.heldout) == (learned == "mlm+nsp")


def test_an_objective_without_masks_has_no_report(tmp_path):
    options = QuickstartOptions(corpus=[], out=tmp_path / "q", objective="ltr")
    with pytest.raises(ConfigError, match="ltr fills no masks"):
        quickstart(options, Console(quiet=True))
    assert not (tmp_path / "q" / "model").exists()


def test_little_text_of_many_characters_gets_a_larger_vocabulary(tmp_path):
    """Novels of 900 KB have more than 4,096 Chinese characters."""
    characters = [chr(0x4E00 + n) for n in range(4300)]
    lines = ["".join(characters[start : start + 20]) + "。" for start in range(0, 4300, 20)]
    (tmp_path / "a.txt").write_text(
        "\n\n".join("\n".join(lines[n : n + 5]) for n in range(0, 215, 5)), encoding="utf-8"
    )
    options = QuickstartOptions(corpus=[str(tmp_path / "a.txt")], out=tmp_path / "q", size="1/64", minutes=0.02)
    quickstart(options, Console(quiet=True))
    assert 4305 < WordPieceTokenizer.load(tmp_path / "q" / "tokenizer").vocab_size <= 8192
    small = replace(options, out=tmp_path / "small", vocab_size=4096)
    with pytest.raises(InputError, match="a vocabulary of 4096 cannot hold .* give it at least"):
        quickstart(small, Console(quiet=True))


def test_the_amount_of_text_chooses_the_vocabulary():
    assert default_vocab_sizes(0) == [4096, 8192, 16384, 30522]
    assert default_vocab_sizes(999_999)[0] == 4096
    assert default_vocab_sizes(1_000_000)[0] == 8192
    assert default_vocab_sizes(20_000_000)[0] == 16384
    assert default_vocab_sizes(10**12) == [30522]


@pytest.mark.slow
def test_files_in_mixed_encodings(tmp_path, shared_data):
    speeches = sorted((shared_data / "corpus" / "speeches").glob("*.txt"))[:12]
    latin = [p for p in (shared_data / "corpus" / "speeches").glob("*.txt") if any(b > 0x9F for b in p.read_bytes())][
        :3
    ]
    options = QuickstartOptions(
        corpus=[str(path) for path in {*speeches, *latin}], out=tmp_path / "out", size="1/64", minutes=0.05
    )
    result = quickstart(options, Console(quiet=True))
    assert result.pretraining.heldout["mlm_loss"] > 0


def test_the_output_inside_the_text_folder_is_not_read_as_text(tmp_path):
    (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
    options = QuickstartOptions(corpus=[str(tmp_path)], out=tmp_path / "runs" / "q", size="1/64", minutes=0.03)
    first = quickstart(options, Console(quiet=True))
    assert list((tmp_path / "runs" / "q").rglob("*.txt"))
    assert quickstart(options, Console(quiet=True)).pretraining.recipe == first.pretraining.recipe


def test_one_long_held_out_sentence_is_enough_for_a_report(tmp_path):
    long = " ".join(f"clause {n} of a very long sentence," for n in range(40))
    text = "\n\n".join(f"Document {n}: {long} and so on." for n in range(4))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    options = QuickstartOptions(corpus=[str(tmp_path / "a.txt")], out=tmp_path / "q", size="1/64", minutes=0.02)
    quickstart(options, Console(quiet=True))
    assert (tmp_path / "q" / "report.html").exists()
