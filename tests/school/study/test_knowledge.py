"""`bertsmith study knowledge`: finished models, fine-tuned on the field's sets that are at hand."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from bertsmith.errors import ConfigError
from bertsmith.model import BertConfig, BertForMaskedLM, BertModel
from bertsmith.tinyworld import draw_tagged_sentences
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.study import StudyOptions, score_models, work
from bertsmith_school.study.tasks import field_tasks
from typed_command import typed

SENTENCES = list(draw_tagged_sentences(0, 240, split="knowledge"))
TEXTS = [" ".join(sentence.words) for sentence in SENTENCES]


def save_model(folder, seed, *, has_head=True):
    tokenizer = WordPieceTokenizer.train(TEXTS, vocab_size=120)
    torch.manual_seed(seed)
    config = BertConfig.named("1/64", vocab_size=len(tokenizer), max_position_embeddings=48)
    (BertForMaskedLM(config) if has_head else BertModel(config, need_pooler=False)).save_pretrained(folder)
    tokenizer.save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [save_model(folder / name, seed) for seed, name in enumerate("ab")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three sets: one whole, one without dev, and one whose letters no model here knows."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("sst2", "ud_ewt", "chnsenticorp"):
        (folder / name).mkdir(parents=True)
    for number, part in enumerate(("train", "dev", "test")):
        some = list(zip(SENTENCES, TEXTS, strict=True))[80 * number : 80 * number + 40]
        rows = [f"{text}\t{'person' if any(tag != 'O' for tag in s.tags) else 'none'}" for s, text in some]
        (folder / f"sst2/{part}.tsv").write_text("\n".join(rows) + "\n")
        rows = [f"{n % 2}\t{'好坏'[n % 2]}店{n}" for n in range(20)]
        (folder / f"chnsenticorp/{part}.tsv").write_text("label\ttext_a\n" + "\n".join(rows) + "\n")
    for part, some in (("dev", SENTENCES[:60]), ("test", SENTENCES[60:80])):
        words = (zip(s.words, s.tags, strict=True) for s in some)
        lines = [[f"{n}\t{w}\t_\t{t}" + "\t_" * 6 for n, (w, t) in enumerate(one, 1)] for one in words]
        (folder / f"ud_ewt/{part}.conllu").write_text("\n\n".join("\n".join(one) for one in lines) + "\n\n")
    return folder


@pytest.fixture(scope="module")
def finished(models, data, tmp_path_factory):
    """The rows of two seeds, what the command printed, and its folder."""
    out = tmp_path_factory.mktemp("study") / "out"
    tasks, missing = field_tasks(data)
    console = Console(file=io.StringIO(), width=200)
    rows = score_models(models, tasks, out, StudyOptions(seeds=2), console)
    return rows, missing, console.file.getvalue(), out


def scored(models, data, out):
    return score_models(models, field_tasks(data)[0], out, StudyOptions(seeds=1), Console(file=io.StringIO()))


def test_finished_models_stand_in_one_table(finished, models):
    rows, missing, shown, out = finished
    assert "left out: STS-B (stsb/train.* is not there), WNUT-17 (" in missing
    assert f"{models[0]} is not scored on ChnSentiCorp: most pieces are unknown" in shown
    assert [(row.arm, row.seed) for row in rows] == [(model, seed) for seed in (0, 1) for model in models]
    assert all(list(row.figures) == ["SST-2", "UD"] for row in rows)
    assert len({row.figures["UD"] for row in rows}) > 1
    for entry in json.loads((out / "means.json").read_text()):
        for column in ("SST-2", "UD"):
            values = [row.figures[column] for row in rows if row.arm == entry["arm"]]
            assert entry[column] == {"value": np.mean(values), "error": pytest.approx(stats.sem(values)), "seeds": 2}
    assert "Mean ± standard error" in shown
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Mean ± standard error" in page
    assert '<p class="verdict">SST-2: ' in page
    assert f"bertsmith solve YOUR_LABELS.tsv --model {models[0]} --model {models[1]}" in page
    # 没有 dev 的一套：从训练文件里留出来的，训练和选择都看不到测试
    asked = json.loads(next((out / "runs").glob("*/seed-1/tasks/*/UD/finetune.json")).read_text())
    assert [asked[part]["examples"] for part in ("train", "dev", "test")] == [48, 12, 20]


def test_a_study_of_models_that_is_killed_comes_to_the_same(finished, models, data, tmp_path, monkeypatch, capsys):
    one, other = finished[0][:2]
    tuned, called = work.fine_tune, []

    def killed_at_the_second(*given, **how):
        called.append(given[4])
        if len(called) == 2:
            raise KeyboardInterrupt
        return tuned(*given, **how)

    monkeypatch.setattr(work, "fine_tune", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        scored(models[:1], data, tmp_path / "out")
    assert scored(models[:1], data, tmp_path / "out") == [one]
    # 以后加的模型只做它自己的，先前的不重做
    done = len(called)
    shown = typed(capsys, "study", "knowledge", *models, "--data", data, "--seeds", "1", "--out", tmp_path / "out")
    assert "WNUT-17 (wnut17/train.* is not there)" in shown
    kept = json.loads((tmp_path / "out/results.json").read_text())
    assert [row["figures"] for row in kept] == [one.figures, other.figures]
    assert len(called) == done + 2


def test_blimp_is_a_column_of_its_own(models, data, tmp_path):
    blimp = tmp_path / "blimp"
    blimp.mkdir()
    pair = {"sentence_good": TEXTS[0], "sentence_bad": TEXTS[0][::-1], "UID": "u", "linguistics_term": "l"}
    (blimp / "u.jsonl").write_text(json.dumps(pair) + "\n")
    console = Console(file=io.StringIO(), width=200)
    rows = score_models(models, [], tmp_path / "out", StudyOptions(seeds=2), console, blimp=blimp)
    assert [row.figures.get("BLiMP") in (0.0, 1.0) for row in rows] == [True, True, False, False]
    assert "one seed" not in console.file.getvalue()
    bare = save_model(tmp_path / "bare", 0, has_head=False)
    with pytest.raises(ConfigError, match="leave out --blimp"):
        score_models([models[0], bare], [], tmp_path / "new", StudyOptions(), console, blimp=blimp)
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_scored_is_refused_before_a_model_is_trained(models, data, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    wrong = tmp_path / "wrong"
    (wrong / "sst2").mkdir(parents=True)
    for part in ("train", "dev", "test"):
        (wrong / f"sst2/{part}.tsv").write_text("one column\nof words\n")
    known = ["knowledge", models[0], "--data", data]
    for arguments, said in (
        (["knowledge", models[0], tmp_path / "empty", "--data", data], "empty"),
        (["knowledge", models[0], "--data", tmp_path / "empty"], "holds none of the sets"),
        (["knowledge", models[0], "--data", wrong], "[SST-2]"),
        (["knowledge", "--data", data], "needs model folders"),
        (["knowledge", models[0]], "--data, --tasks or --blimp"),
        ([*known, "--tasks", tmp_path / "tasks.toml"], "leave one of them out"),
        ([*known, "--minutes", "3"], "leave out minutes"),
        ([*known, "--text", tmp_path], "leave out text"),
        (["sizes", models[0]], "leave out models"),
    ):
        error = typed(capsys, "study", *arguments, "--out", tmp_path / "out", code=2)
        assert said in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_fields_sets_are_read_as_they_are(shared_data):
    tasks, missing = field_tasks(shared_data / "tasks")
    found = {task.name: {part: len(rows) for part, rows in task.read()[1].items()} for task in tasks}
    assert found.pop("XQuAD").keys() == {"train", "dev", "test"}
    ud = found.pop("UD")
    assert (ud["train"] + ud["dev"], ud["test"]) == (2001, 2077)
    assert [tuple(rows.values()) for rows in found.values()] == [
        (6920, 872, 1821),
        (5749, 1500, 1379),
        (3394, 1009, 1287),
        (9600, 1200, 1200),
    ]
    assert not missing
