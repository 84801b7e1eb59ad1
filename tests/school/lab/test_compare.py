"""Two models side by side: each says what its own pipelines say; bad folders are named in one line."""

from dataclasses import replace

import pytest

from bertsmith import load_pipeline
from bertsmith.errors import BertsmithError
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.tokenizer import WordPieceTokenizer

pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[school]'")

from bertsmith.serve.settings import ServeSettings
from bertsmith_school.lab import compare
from bertsmith_school.lab.models import LabError, LabModels, missing_head
from bertsmith_school.lab.run import build_lab

TEXT = "the man [MASK] bread ."


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A folder that the lab was not started with; its vocabulary is another one."""
    folder = tmp_path_factory.mktemp("other") / "model"
    tokenizer = WordPieceTokenizer.train(["the man eats bread . the woman reads"] * 3, vocab_size=40)
    BertForPreTraining(BertConfig.named("2/64", vocab_size=tokenizer.vocab_size)).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def opening(folders):
    """The models of a lab, as it is started with some settings."""
    apps = []

    def begin(monkeypatch, **changes):
        settings = ServeSettings((("base", str(folders["base"])), ("tag", str(folders["tag"]))), threads=1, drain=0.0)
        made = []
        monkeypatch.setattr("bertsmith_school.lab.run.mount", lambda _, models, *__, **___: made.append(models))
        apps.append(build_lab(replace(settings, **changes)))
        return made[0]

    yield begin
    for app in apps:
        app.state.admission.close()
        app.state.admission.batcher.close()


def test_a_folder_is_compared_with_the_chosen_model(opening, folders, other, monkeypatch):
    models: LabModels = opening(monkeypatch)
    pair = [models.named("base"), models.opened(str(other))]
    for folder, filled in zip((folders["base"], other), compare.filled_by_both(pair, TEXT), strict=True):
        (expected,) = load_pipeline("fill-mask", folder)(TEXT, top_k=10)
        assert [one.piece for one in filled.masks[0]] == [one.piece for one in expected]
    lines = ["the man eats bread .", "the woman reads", "bread"]
    others, cosines = compare.similarities(pair, "\n".join(lines))
    assert others == lines[1:]
    for folder, found in zip((folders["base"], other), cosines, strict=True):
        assert found == pytest.approx(load_pipeline("embed", folder).compare(lines)[0, 1:].tolist(), abs=1e-5)


def test_a_folder_is_read_once_and_again_when_it_is_rewritten(opening, other, monkeypatch):
    models: LabModels = opening(monkeypatch)
    first = models.opened(str(other))
    assert models.opened(str(other)) is first
    (other / "config.json").write_text((other / "config.json").read_text())
    assert models.opened(str(other)) is not first
    assert models.opened("tag") is models.named("tag")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "Choose another model"),
        ("", "Choose another model"),
        ("/no/such/folder", "/no/such/folder: there is no such folder"),
        ("org/name", "org/name: there is no such folder"),
        ("\0", "there is no such folder"),
        ("a" * 9_000, "there is no such folder"),
        ("{empty}", "has no config.json"),
        ("{broken}", "config.json"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(opening, tmp_path, given, said, monkeypatch):
    models: LabModels = opening(monkeypatch)
    for name in ("empty", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(BertsmithError, match=said) as caught:
        models.opened(given and given.format(empty=tmp_path / "empty", broken=tmp_path / "broken"))
    assert "\n" not in str(caught.value)


def test_visitors_open_no_folder_of_the_machine(opening, other, monkeypatch):
    monkeypatch.setenv("BERTSMITH_API_KEYS", "k" * 32)
    for changes in ({"host": "0.0.0.0"}, {"allowed_hosts": ("lab.example",)}):
        models: LabModels = opening(monkeypatch, **changes)
        assert not models.may_open
        for folder in (other, "/no/such/folder"):
            with pytest.raises(LabError, match="no such model"):
                models.opened(str(folder))


def test_masks_that_one_model_does_not_know_are_said(lab):
    with pytest.raises(LabError, match=r"Write \[MASK\]"):
        compare.filled_by_both([lab["base"]] * 2, "no mask")
    with pytest.raises(LabError, match="has no"):
        compare.filled_by_both([lab["base"], lab["tag"]], TEXT)


def test_what_fills_masks_as_well_is_chosen_at_first(opening, folders, monkeypatch):
    models: LabModels = opening(monkeypatch)
    village = compare.chosen_first(models)
    assert models.opened(village).tokenizer.vocab_size
    assert "fill-mask" in models.opened(village).served.pipelines
    # 会打标签的模型不会填空：不替人选一对只会失败的
    assert compare.chosen_first(opening(monkeypatch, allowed_hosts=("lab.example",))) is None
    both = tuple((name, str(folders[kind])) for name, kind in (("base", "base"), ("tag", "tag"), ("other", "base")))
    assert compare.chosen_first(opening(monkeypatch, models=both)) == "other"
    assert compare.chosen_first(opening(monkeypatch, models=(("village", village),))) is None


@pytest.mark.parametrize("kind", ["fill-mask", "next-sentence"])
def test_a_name_that_is_a_word_is_told_from_the_sentence(opening, folders, kind, monkeypatch):
    """`The model model has no …` reads as a slip."""
    told = missing_head(opening(monkeypatch, models=(("model", str(folders["tag"])),)).named("model"), kind)
    assert told.text.en.startswith("The model `model` has no ")
    assert told.text.zh.startswith("模型 `model` 没有")
