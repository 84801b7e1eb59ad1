"""Every task through the command line: fine-tune, evaluate, predict, on files of the forms people have."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers

from bertsmith.finetune.run import FineTuningRun
from bertsmith.inference import load_pipeline
from bertsmith.train.monitor import StopRequest, TrainingStopped
from typed_command import typed

RECIPE = ["--epochs", 2, "--batch-size", 4, "--learning-rate", 1e-3]


def test_the_help_of_a_task_shows_its_own_options_alone(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tagging = typed(capsys, "finetune", "tag", "--help")
    assert "--constrained" in tagging
    assert "Column of the words" in tagging
    assert not {"--matryoshka", "--scoring", "--unlabelled", "--choice-column"} & set(tagging.split())
    assert {"--matryoshka", "--scoring", "--constrained"} <= set(typed(capsys, "finetune", "--help").split())
    assert "--choice-column" in typed(capsys, "finetune", "choose", "--help")


def questions(count):
    """Returns SQuAD JSON about who reads what."""
    paragraphs = []
    for number in range(count):
        thing = ("book", "bread")[number % 2]
        context = f"the man reads the {thing} . the woman eats ."
        answer = {"text": thing, "answer_start": context.index(thing)}
        question = {"id": str(number), "question": "the man reads ?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


FILES = {
    "classify": ("tsv", "".join(f"the {w}\t{label}\n" for w, label in [("book", "good"), ("man", "bad")] * 4)),
    "multilabel": ("tsv", "text\tlabels\n" + "the book\tgood,long\nthe man\tbad\nthe bread\t\n" * 3),
    "regress": ("csv", "sentence1,sentence2,score\n" + "the man,the woman,3.5\nthe book,eats,0.5\na man,a man,5\n" * 3),
    "tag": ("conll", "the\tO\nman\tB-PER\nreads\tO\n\na\tO\nbook\tO\n\n" * 4),
    "features": ("conll", "the\tDET\nman\tNOUN\nreads\tVERB\n\na\tDET\nbook\tNOUN\n\n" * 4),
    "answer": ("json", questions(6)),
    "choose": (
        "jsonl",
        "".join(
            json.dumps({"context": "the man", "choices": ["reads a book", "bread eats"], "label": 0}) + "\n"
            for _ in range(6)
        ),
    ),
    "rank": ("tsv", "query\ttext\tlabel\n" + "book\tthe man reads a book\t1\nbook\tthe woman eats\t0\n" * 4),
}
INPUTS = {
    "classify": "the book",
    "multilabel": "the book",
    "regress": "the man\tthe woman",
    "tag": "the man reads",
    "features": "the man reads",
    "answer": "the man reads ?\tthe man reads the book .",
    "choose": "the man\treads a book\tbread eats",
    "rank": "book\tthe man reads a book",
}


@pytest.mark.parametrize("task", FILES)
def test_fine_tune_evaluate_predict(task, tiny_model, tmp_path, capsys):
    ending, content = FILES[task]
    data, out = tmp_path / f"data.{ending}", tmp_path / "run"
    data.write_text(content, encoding="utf-8")
    options = ["--layers", "last", "--tagger-head", "linear"] if task == "features" else []
    command = ["finetune", task, "--model", tiny_model, "--train", data, "--dev", data, "--test", data, "--out", out]
    printed = typed(capsys, *command, *RECIPE, *options)
    assert printed.splitlines()[-1].endswith(f"kept in {out / 'model'}; report in {out / 'report.html'}")
    metric = printed.split("dev: ")[1].split(" ")[0]
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert next(iter(result["dev"]["metrics"])) == metric
    assert (out / "model" / "README.md").read_text(encoding="utf-8").startswith("---\n")
    evaluated = typed(capsys, "evaluate", "--model", out / "model", "--file", data, "--out", tmp_path / "scores.json")
    assert f"{metric} {result['test']['metrics'][metric]:.3f}" in evaluated
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert scores["metrics"] == pytest.approx(result["test"]["metrics"], abs=1e-6)
    one = typed(capsys, "predict", "--model", out / "model", INPUTS[task])
    assert one.endswith(INPUTS[task] + "\n")
    assert typed(capsys, "predict", "--model", out / "model", "--precision", "int8", INPUTS[task]).endswith("\n")
    lines = tmp_path / "inputs.txt"
    lines.write_text((INPUTS[task] + "\n") * 3, encoding="utf-8")
    assert "3 predictions" in typed(
        capsys, "predict", "--model", out / "model", "--file", lines, "--out", tmp_path / "p.jsonl"
    )
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["input"] for record in records] == [INPUTS[task].split("\t")] * 3
    # 微调读过的文件，预测也读，标签不看
    labelled = [
        json.loads(line)
        for line in typed(capsys, "predict", "--model", out / "model", "--file", data, "--json").splitlines()
    ]
    assert len(labelled) == result["test"].get("count", len(labelled))
    assert all(record["input"] and "fault" not in record for record in labelled)
    again = typed(capsys, *command, *RECIPE, *options).splitlines()
    assert again[-1] == printed.splitlines()[-1], "the same command again reads the result"
    assert set(again) <= set(printed.splitlines())


def test_an_adapter_is_small_and_the_update_is_folded_in(tiny_model, tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text(FILES["classify"][1], encoding="utf-8")
    command = ["finetune", "classify", "--model", tiny_model, "--train", data, "--dev", data, *RECIPE]
    before = (tiny_model / "model.safetensors").read_bytes()
    printed = typed(capsys, *command, "--adapter", "lora", "--adapter-size", 4, "--out", tmp_path / "lora")
    assert f"{tmp_path / 'lora' / 'model'} and {tmp_path / 'lora' / 'adapter'}" in printed
    assert (tiny_model / "model.safetensors").read_bytes() == before
    predicted = load_pipeline("classify", tmp_path / "lora" / "model")(["the book"])[0]
    theirs = transformers.pipeline("text-classification", str(tmp_path / "lora" / "model"))("the book")[0]
    assert theirs["score"] == pytest.approx(predicted.probabilities[theirs["label"]], abs=1e-3)
    printed = typed(capsys, *command, "--adapter", "bottleneck", "--out", tmp_path / "bottleneck")
    adapter = tmp_path / "bottleneck" / "adapter"
    assert f"kept in {adapter};" in printed
    card = (adapter / "README.md").read_text(encoding="utf-8")
    assert "--adapter FOLDER" in card
    assert str(tiny_model) in card
    evaluated = typed(capsys, "evaluate", "--model", tiny_model, "--adapter", adapter, "--file", data)
    result = json.loads((tmp_path / "bottleneck" / "result.json").read_text(encoding="utf-8"))
    assert f"accuracy {result['dev']['metrics']['accuracy']:.3f}" in evaluated
    for precision in ("float32", "int8"):
        command = ["predict", "--model", tiny_model, "--adapter", adapter, "--precision", precision, "the book"]
        assert typed(capsys, *command).endswith("the book\n")


def test_a_card_that_was_edited_stays(tiny_model, tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text(FILES["classify"][1], encoding="utf-8")
    command = ["finetune", "classify", "--model", tiny_model, "--train", data, "--dev", data, "--out", tmp_path / "run"]
    typed(capsys, *command, *RECIPE)
    card = tmp_path / "run" / "model" / "README.md"
    card.write_text("My own words.\n", encoding="utf-8")
    typed(capsys, *command, *RECIPE)
    assert card.read_text(encoding="utf-8") == "My own words.\n"
    card.unlink()
    typed(capsys, *command, *RECIPE)
    assert card.exists()


EVERY_OPTION = {
    "settings": {
        "epochs": 7, "batch_size": 5, "learning_rate": 0.002, "warmup_share": 0.3, "weight_decay": 0.2,
        "layer_decay": 0.8, "freeze_layers": 1, "dropout": 0.4, "patience": 2, "max_length": 20,
        "precision": "float32", "gradient_checkpointing": "blocks", "seed": 9,
    },
    "reading": {
        "text_column": "body", "pair_column": -1, "label_column": "verdict", "separator": "|", "word_column": 2,
        "tag_column": "xpos", "alternatives": ",", "faults": "skip", "encoding": "gb18030",
        "offsets": "utf16",
    },
    "options": {
        "metric": "f1", "scoring": "cmrc", "stride": 11, "max_answer_tokens": 13, "layers": "last",
        "tagger_head": "linear", "tagger_head_size": 17,
    },
}  # fmt: skip


def test_every_option_of_the_command_reaches_the_job(tiny_model, tmp_path, capsys, monkeypatch):
    jobs = []

    def stopped(task, _model, out, **given):
        jobs.append((task, given))
        raise TrainingStopped(out, 0, 1)

    monkeypatch.setattr("bertsmith.finetune.job.finetune", stopped)
    files = ["--model", tiny_model, "--train", "a", "--dev", "b", "--test", "c", "--out", tmp_path / "run"]
    words = [f"--{name.replace('_', '-')}={value}" for part in EVERY_OPTION.values() for name, value in part.items()]
    typed(capsys, "finetune", "classify", *files, *words, "--balanced", "--no-header", "--seeds=3", "--baselines",
        "--choice-column=one", "--choice-column=2")  # fmt: skip
    typed(capsys, "finetune", "tag", *files, "--adapter=lora", "--adapter-size=3", "--search=paper", "--label-column=a",
        "--label-column=3")  # fmt: skip
    (task, given), (other, less) = jobs
    named = {name: value for part in EVERY_OPTION.values() for name, value in part.items()}
    named |= {
        "label_column": ("verdict",),
        "balanced": True,
        "header": False,
        "choice_column": ("one", 2),
        "seeds": 3,
        "baselines": True,
    }
    assert task == "classify"
    assert {name: given[name] for name in named} == named
    assert [given[name] for name in ("train", "dev", "test")] == ["a", "b", "c"]
    assert (other, less["adapter"], less["adapter_size"], less["search"]) == ("tag", "lora", 3, "paper")
    assert less["label_column"] == ("a", 3)


def test_seeds_and_baselines_stand_in_one_report(tiny_model, tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text(FILES["classify"][1], encoding="utf-8")
    command = ["finetune", "classify", "--model", tiny_model, "--train", data, "--dev", data, "--out", tmp_path / "run"]
    typed(capsys, *command, *RECIPE, "--seeds", 2, "--baselines")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "majority" in page
    assert "seed" in page
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert "It is the best on dev of 2 runs." in card
    assert "Over 2 seeds" in card
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert "accuracy" in typed(capsys, "evaluate", "--model", tmp_path / "run" / "model", "--file", data)


def test_tags_are_compared_with_the_most_frequent_of_each_word(tiny_model, tmp_path, capsys):
    data = tmp_path / "data.conll"
    data.write_text(FILES["tag"][1], encoding="utf-8")
    command = ["finetune", "tag", "--model", tiny_model, "--train", data, "--dev", data, "--out", tmp_path / "run"]
    typed(capsys, *command, *RECIPE, "--baselines")
    assert "most frequent tag" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_another_metric_chooses_the_epoch(tiny_model, tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text(FILES["classify"][1], encoding="utf-8")
    command = ["finetune", "classify", "--model", tiny_model, "--train", data, "--dev", data, *RECIPE]
    printed = typed(capsys, *command, "--metric", "f1", "--out", tmp_path / "run")
    assert printed.split("dev: ")[1].startswith("f1_good ")
    task = json.loads((tmp_path / "run" / "model" / "task.json").read_text(encoding="utf-8"))
    assert task["metric"] == "f1_good"
    interval = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["dev"]["intervals"][
        "matthews"
    ]
    assert interval["low"] <= interval["estimate"] <= interval["high"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = [row["f1_good"] for row in rows if row["kind"] == "dev"]
    best = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["epoch"]
    assert scores[best - 1] == max(scores)
    message = typed(capsys, *command, "--metric", "f2", "--out", tmp_path / "other", code=2)
    assert "use accuracy, macro_f1, matthews, f1" in message


def test_a_prediction_stands_on_the_line_of_its_input(tiny_model, tmp_path, capsys):
    data, out = tmp_path / "data.csv", tmp_path / "run"
    data.write_text(FILES["regress"][1], encoding="utf-8")
    typed(capsys, "finetune", "regress", "--model", tiny_model, "--train", data, "--dev", data, "--out", out, *RECIPE)
    command = ["predict", "--model", out / "model", "--file"]
    lines = tmp_path / "in.txt"
    lines.write_text("the man\tthe\u2028woman\n\nthe book\teats\n", encoding="utf-8")
    first, blank, third = typed(capsys, *command, lines).split("\n")[:3]
    assert (blank, third.split("\t")[1:]) == ("", ["the book", "eats"])
    assert first.endswith("the man\tthe\u2028woman")
    lines.write_bytes("\nthe man\n".encode("utf-16"))
    assert f"{lines}: line 2 has 1 field(s) instead of 2" in typed(capsys, *command, lines, code=2)
    records = tmp_path / "in.jsonl"
    records.write_text('["the man", "reads\\ta\\nbook"]\n', encoding="utf-8")
    assert typed(capsys, *command, records).rstrip("\n").split("\t")[1:] == ["the man", "reads a book"]
    shutil.copy(records, tmp_path / "in.json")
    assert typed(capsys, *command, tmp_path / "in.json") == typed(capsys, *command, records)
    for bad, message in (('["the man"', "not valid JSON"), ('["a", 3]', "neither a text nor a list of texts")):
        records.write_text(bad + "\n", encoding="utf-8")
        assert f"{records}: line 1 is {message}" in typed(capsys, *command, records, code=2)


def test_baselines_are_checked_before_training(tiny_model, tmp_path, capsys, monkeypatch):
    data, dev = tmp_path / "data.tsv", tmp_path / "dev.tsv"
    data.write_text(FILES["classify"][1], encoding="utf-8")
    dev.write_text("text\tlabel\nthe man\tneverseen\n", encoding="utf-8")
    monkeypatch.setattr(FineTuningRun, "_train_epoch", lambda *_: pytest.fail("trained"))
    command = ["finetune", "classify", "--model", tiny_model, "--train", data, "--dev", dev, "--out", tmp_path / "run"]
    assert f"{dev}: line 2: label 'neverseen' does not occur" in typed(capsys, *command, "--baselines", code=2)


def test_a_test_file_that_cannot_be_scored_ends_before_training(tiny_model, tmp_path, capsys, monkeypatch):
    data, test = tmp_path / "data.tsv", tmp_path / "test.tsv"
    data.write_text(FILES["rank"][1], encoding="utf-8")
    test.write_text("query\ttext\tlabel\nbook\tthe man\t0\n", encoding="utf-8")
    monkeypatch.setattr(FineTuningRun, "_train_epoch", lambda *_: pytest.fail("trained"))
    files = ["--train", data, "--dev", data, "--test", test]
    command = ["finetune", "rank", "--model", tiny_model, *files, "--out", tmp_path / "run"]
    assert f"{test}: line 2: no query has a text with a relevance of 0.5 or more" in typed(capsys, *command, code=2)


def test_a_stopped_run_goes_on_to_the_same_result(tiny_model, tmp_path, capsys, monkeypatch):
    data = tmp_path / "data.tsv"
    data.write_text(FILES["classify"][1], encoding="utf-8")
    command = ["finetune", "classify", "--model", tiny_model, "--train", data, "--dev", data, *RECIPE]
    typed(capsys, *command, "--out", tmp_path / "whole")
    train_epoch = FineTuningRun._train_epoch

    def asked_to_stop(self, units, request):
        request.made = True
        return train_epoch(self, units, request)

    monkeypatch.setattr(FineTuningRun, "_train_epoch", asked_to_stop)
    assert StopRequest.made is False
    assert "stopped after step 1 of 4" in typed(capsys, *command, "--out", tmp_path / "parts")
    assert "stopped after step 2 of 4" in typed(capsys, *command, "--out", tmp_path / "parts")
    monkeypatch.undo()
    typed(capsys, *command, "--out", tmp_path / "parts")
    for name in ("metrics.jsonl", "model/model.safetensors", "model/config.json"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["classify", "--stride", 64], "--stride is not for classify; leave it out"),
        (["classify", "--separator", "|"], "--separator is not for the files of classify"),
        (["tag", "--text-column", "text"], "--text-column is not for the files of tag"),
        (["regress", "--baselines"], "baselines are for classify and tag, not for regress"),
        (["classify", "--adapter", "lora", "--freeze-layers", 1], "an adapter freezes the whole encoder by itself"),
        (["classify", "--adapter-size", 4], "there is no adapter; name one"),
        (["classify", "--precision", "int3"], "precision 'int3' is unknown"),
        (["classify", "--learning-rate", 0], "learning_rate is 0.0; give more than 0"),
        (["classify", "--learning-rate", "nan"], "learning_rate is nan; give a finite number"),
        (["classify", "--no-header", "--label-column", "label"], "without a header no column has a name"),
        (["rank", "--no-header", "--label-column", "label"], "without a header no column has a name"),
        (["answer", "--header"], "--header is not for the files of answer"),
        (["regress", "--metric", "accuracy"], "--metric is not for regress"),
        (["features", "--layers", "last", "--layer-decay", 0.9], "leave out layer decay"),
        (["features", "--layers", "last", "--gradient-checkpointing", "blocks"], "leave out gradient checkpointing"),
    ],
)
def test_options_that_do_not_go_together(arguments, message, tiny_model, tmp_path, capsys):
    ending, content = FILES[arguments[0]]
    data = tmp_path / f"data.{ending}"
    data.write_text(content, encoding="utf-8")
    files = ["--model", tiny_model, "--train", data, "--dev", data, "--out", tmp_path / "run"]
    assert message in typed(capsys, "finetune", *arguments, *files, code=2)
    assert not (tmp_path / "run").exists()


def test_lines_with_other_fields_than_the_task_needs(tiny_model, tmp_path, capsys):
    data = tmp_path / "data.json"
    data.write_text(FILES["answer"][1], encoding="utf-8")
    out = tmp_path / "run"
    typed(capsys, "finetune", "answer", "--model", tiny_model, "--train", data, "--dev", data, "--out", out, *RECIPE)
    model = ["--model", out / "model"]
    assert "line 1 has 1 field(s) instead of 2" in typed(capsys, "predict", *model, "who", code=2)
    assert "--pairs and --single are not for answer" in typed(capsys, "predict", *model, "--pairs", "who\twhat", code=2)
    assert "line 1 has nothing in field 2" in typed(capsys, "predict", *model, "who\t ", code=2)
    assert "nothing to predict" in typed(capsys, "predict", *model, "--out", tmp_path / "p.tsv", code=2)
    assert not (tmp_path / "p.tsv").exists()


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("classify", "the man\tmiddling\n", "dev.tsv: line {}: label 'middling'"),
        (
            "tag",
            "a\tO\nbook\tB-PLACE\n\n",
            "dev.conll: the sentence from line {}: the tag 'B-PLACE'",
        ),
    ],
)
def test_a_label_that_training_has_never_seen_ends_before_training(
    task, line, message, tiny_model, tmp_path, capsys, monkeypatch
):
    ending, content = FILES[task]
    train, dev = tmp_path / f"train.{ending}", tmp_path / f"dev.{ending}"
    train.write_text(content, encoding="utf-8")
    dev.write_text(content + line, encoding="utf-8")
    message = message.format(len(content.splitlines()) + 1)
    monkeypatch.setattr(FineTuningRun, "_train_epoch", lambda *_: pytest.fail("trained"))
    files = ["--model", tiny_model, "--train", train, "--dev", dev, "--out", tmp_path / "run"]
    assert message in typed(capsys, "finetune", task, *files, code=2)


def test_labels_in_brackets_and_inputs_as_tables(tiny_model, tmp_path, capsys):
    rows = [f"the {('man', 'woman')[n % 2]} eats\t{('[/neg]', '$$')[n % 2]}" for n in range(8)]
    labelled = tmp_path / "l.tsv"
    labelled.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    out = tmp_path / "run"
    typed(capsys, "finetune", "classify", "--model", tiny_model, "--train", labelled, "--dev", labelled, "--out", out,
        *RECIPE)  # fmt: skip
    assert (out / "report.html").exists()
    said = typed(capsys, "evaluate", "--model", out / "model", "--file", labelled, "--out", tmp_path / "e.json")
    assert "[/neg]" in said
    assert (tmp_path / "e.json").exists()
    table = tmp_path / "new.csv"
    table.write_text('id,text\n7,"a nice, long day"\n8,\n9,a day\n', encoding="utf-8")
    predict = ("predict", "--model", out / "model", "--file", table, "--out")
    for name in ("p.jsonl", "p.tsv"):
        said = typed(capsys, *predict, tmp_path / name, code=2)
        assert "1 input(s) could not be predicted" in said
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["columns"] for record in records] == [{"id": "7"}, {"id": "8"}, {"id": "9"}]
    assert [record["input"] for record in records] == [["a nice, long day"], [], ["a day"]]
    given = [{"id": "7", "text": "a nice, long day"}, {"id": "8", "text": ""}, {"id": "9", "text": "a day"}]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(given), tmp_path / "new.parquet")
    for name in ("new.jsonl", "new.parquet"):
        again = ("predict", "--model", out / "model", "--file", tmp_path / name, "--out", tmp_path / "again.jsonl")
        typed(capsys, *again, code=2)
        found = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text(encoding="utf-8").splitlines()]
        # 出错的一行说的是各自文件里的位置，其余全同
        assert [found[0], found[2]] == [records[0], records[2]]
    rows = (tmp_path / "p.tsv").read_text(encoding="utf-8").splitlines()
    assert rows[0].split("\t")[2:] == ["a nice, long day", "7"]
    assert rows[1] == f"({table}: line 3 has an empty text)"
    search = ("finetune", "classify", "--model", tiny_model, "--train", labelled, "--dev", labelled)
    assert "--epochs: --search paper tries several" in typed(
        capsys, *search, "--search", "paper", "--epochs", 10, "--out", tmp_path / "s", code=2
    )


def test_the_file_that_is_read_is_not_written(tiny_model, tmp_path, capsys):
    data, out = tmp_path / "data.tsv", tmp_path / "run"
    data.write_text(FILES["classify"][1], encoding="utf-8")
    typed(capsys, "finetune", "classify", "--model", tiny_model, "--train", data, "--dev", data, "--out", out, *RECIPE)
    (tmp_path / "same.tsv").symlink_to(data)
    for command in ("predict", "evaluate"):
        for other in (data, tmp_path / "same.tsv"):
            said = typed(capsys, command, "--model", out / "model", "--file", data, "--out", other, code=2)
            assert "is the file that is read" in said
    assert data.read_text(encoding="utf-8") == FILES["classify"][1]


def test_a_line_that_cannot_be_predicted_is_named(tiny_model, tmp_path, capsys):
    data, out = tmp_path / "data.json", tmp_path / "run"
    data.write_text(questions(6), encoding="utf-8")
    typed(capsys, "finetune", "answer", "--model", tiny_model, "--train", data, "--dev", data, "--out", out, *RECIPE)
    predict = ["predict", "--model", out / "model", "--file"]
    (tmp_path / "a.txt").write_text("\nthe man ?\tthe man eats\nthe man ?\t\u200b\n", encoding="utf-8")
    assert "1 input(s) could not be predicted" in typed(capsys, *predict, tmp_path / "a.txt", code=2)
    (tmp_path / "a.jsonl").write_text('["the man ?", "the man eats"]\n["the man ?", "a \\ud83d b"]\n', encoding="utf-8")
    assert "a.jsonl: line 2 holds half of a surrogate pair" in typed(capsys, *predict, tmp_path / "a.jsonl", code=2)


def test_labels_with_commas_stay_apart(tiny_model, tmp_path, capsys):
    data, out = tmp_path / "data.tsv", tmp_path / "run"
    data.write_text("text\tlabels\n" + "the book\tDoe, Jane|Smith, John\nthe man\tDoe, Jane\n" * 4, encoding="utf-8")
    files = ["--train", data, "--dev", data, "--separator", "|"]
    typed(capsys, "finetune", "multilabel", "--model", tiny_model, *files, "--out", out, *RECIPE)
    typed(capsys, "predict", "--model", out / "model", "the book", "--out", tmp_path / "p.jsonl")
    record = json.loads((tmp_path / "p.jsonl").read_text(encoding="utf-8"))
    assert set(record["labels"]) <= {"Doe, Jane", "Smith, John"} == set(record["probabilities"])
    assert record["prediction"] == ",".join(record["labels"])
