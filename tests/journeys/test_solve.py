"""`solve`: what is tried, what is kept, and that the folder is a model like any other."""

import csv
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from io import StringIO

import numpy as np
import pytest
import sentence_transformers
import torch
from rich.console import Console
from safetensors.torch import load_file

import bertsmith
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.look import read_likely
from bertsmith.inference import load_pipeline
from bertsmith.inference.linear import read_words
from bertsmith.inference.words import Words
from bertsmith.interop.huggingface import export_huggingface
from bertsmith.journeys import more_labels
from bertsmith.journeys import solve as journey
from bertsmith.journeys.more_labels import gain_of_twice
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.retrieval import load_index
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith_school.looking.scored import Explainable

PEOPLE = ("the man", "a woman", "the boy", "a girl", "my friend")
WORDS = {"good": ("lovely", "warm", "bright"), "bad": ("dull", "cold", "grey")}


def rows_of(count, seed, *, noise=0.1):
    draws = random.Random(seed)
    found = []
    for number in range(count):
        label = draws.choice(["good", "bad"])
        said = label if draws.random() > noise else draws.choice(["good", "bad"])
        text = f"{draws.choice(PEOPLE)} reads a {draws.choice(WORDS[said])} book {draws.randrange(90)} {number}"
        found.append({"text": text, "label": label})
    return found


def tagged_rows(count, seed):
    """What a person does is a verb where it is not a noun: the word before tells. Some tags are drawn."""
    draws, found = random.Random(seed), []
    for number in range(count):
        words = ["the", draws.choice(("man", "boy")), draws.choice(("walks", "runs")), "the", "walks", str(number)]
        tags = ["DET", "NOUN", "VERB", "DET", "NOUN", "NUM"]
        found.append({"words": words, "tags": [tag if draws.random() > 0.05 else "NOUN" for tag in tags]})
    return found


SEEDS = journey.MOST_SEEDS


@pytest.fixture(autouse=True)
def one_seed(monkeypatch):
    """Fine-tunes once: three times as long is for the test of what other seeds bring."""
    monkeypatch.setattr(journey, "MOST_SEEDS", 1)


@pytest.fixture
def encoder(tmp_path):
    """A small random encoder that knows the words."""
    torch.manual_seed(0)
    tokenizer = WordPieceTokenizer.train([row["text"] for row in rows_of(200, 9)], vocab_size=300)
    folder = tmp_path / "encoder"
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=48)
    BertForPreTraining(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def test_words_alone_are_kept_where_nothing_else_is_given(tmp_path):
    found = bertsmith.solve(rows_of(600, 0), tmp_path / "out")
    assert [one.name for one in found.details.tries] == ["majority", "words", "answer: words"]
    assert found.details.mix == (0.0, 1.0, 0.0)
    assert found.metrics["accuracy"] > 0.85
    assert sorted(path.name for path in found.model_folder.iterdir()) == ["task.json", "words.safetensors"]
    split = json.loads((tmp_path / "out/split.json").read_text())
    assert len(split["dev"]) + len(split["test"]) + len(split["train"]) == 600
    test = [rows_of(600, 0)[number] for number in split["test"]]
    assert bertsmith.evaluate(found.model_folder, test).metrics == found.metrics
    page = found.report.read_text()
    assert page.index("The best answer: ") < page.index("What was tried") < page.index("bertsmith predict --model")
    assert f"--model {found.model_folder} --file" in page
    # 第二次什么也不做
    assert bertsmith.solve(iter(rows_of(600, 0)), tmp_path / "out").details == found.details
    with pytest.raises(RunFolderError, match="another"):
        bertsmith.solve(rows_of(600, 1), tmp_path / "out")


def test_the_report_shows_what_was_read(tmp_path):
    path = tmp_path / "r.csv"
    rows = [f"{number},{row['text']},{row['label']}\n" for number, row in enumerate(rows_of(80, 0))]
    path.write_text("no,Review Text,Verdict\n" + "".join(rows) + "80,an unlabelled review,\n")
    said = Console(file=StringIO(), width=200)
    with pytest.warns(UserWarning, match="left out 1 rows: line 82 has an empty label") as caught:
        found = bertsmith.solve(path, tmp_path / "out", faults="skip", console=said)
    # 屏幕上已经说了用哪几列：警告不再说一遍
    assert said.file.getvalue().count("Review Text") == 1
    assert not [one for one in caught if "Review Text" in str(one.message)]
    first, second = found.report.read_text().split("<h2>")[1:3]
    assert first.startswith("What was read</h2>")
    assert second.startswith("What was tried</h2>")
    for told in (
        "r.csv: CSV with ",
        "columns: text from Review Text, label from Verdict; not read: no",
        "2 labels: ",
        "r.csv: left out 1 rows: line 82 has an empty label",
    ):
        assert told in first
    assert str(tmp_path) not in first


def test_what_dev_and_test_share_with_the_labels_is_counted_said_and_scored_apart(tmp_path):
    rows, out = rows_of(300, 0), tmp_path / "out"
    new = rows_of(20, 1)
    said = Console(file=StringIO())
    found = bertsmith.solve(rows, out, dev=rows, test=rows[:30] + new, console=said).details
    assert (found.dev.seen, found.dev.unseen) == (300, {})
    assert found.test.seen == 30
    predictions = load_pipeline("classify", out / "model")([row["text"] for row in new])
    right = [one.label == row["label"] for one, row in zip(predictions, new, strict=True)]
    assert found.test.unseen["accuracy"] == sum(right) / 20
    assert "300 of 300 examples of dev stand in the training file as well" in said.file.getvalue()
    assert "30 of 50 examples of test stand in the training file as well" in said.file.getvalue()
    assert "300 examples stand in the training file as well" in (out / "report.html").read_text()


def test_pairs_of_texts_are_solved_by_what_both_share(tmp_path):
    """Whether two sentences are of the same person: no word of either tells, their likeness does."""
    draws, rows = random.Random(0), []
    for _ in range(240):
        first, second = draws.sample(PEOPLE, 2)
        label = draws.choice(["same", "other"])
        rows.append({"text": f"{first} reads", "pair": f"{first if label == 'same' else second} eats", "label": label})
    found = bertsmith.solve(rows[:200], tmp_path / "out", dev=rows[200:])
    tries = {one.name: one.score for one in found.details.tries}
    assert tries["majority"] == pytest.approx(0.5, abs=0.2)
    assert found.metrics["accuracy"] == 1.0
    pairs = [(row["text"], row["pair"]) for row in rows[200:]]
    told = load_pipeline("classify", found.model_folder)(*map(list, zip(*pairs, strict=True)))
    assert [one.label for one in told] == [row["label"] for row in rows[200:]]


def test_few_labels_are_held_out_in_turn(encoder, tmp_path, monkeypatch):
    """What is told of a row comes from a model that had not learned from it; what is kept has learned from all."""
    draws = random.Random(0)
    rows = [
        {"text": f"{draws.choice(PEOPLE)} book {number} {number}x", "label": draws.choice("ab")}
        for number in range(120)
    ]
    # 标签是抽签得来的，谁赢全凭运气：照样比，但总算作没有赢
    gains = journey._Job._gains
    monkeypatch.setattr(journey._Job, "_gains", lambda *asked: gains(*asked) and not asked[-1])
    found = bertsmith.solve(rows, tmp_path / "out", model=encoder, minutes=5.0)
    split = json.loads((tmp_path / "out/split.json").read_text())
    assert sorted(set(split["folds"])) == [0, 1, 2, 3, 4]
    assert [one.name for one in found.details.tries][:5] == [
        "majority",
        "words",
        "frozen encoder",
        "contrastive encoder",
        "fine-tuned encoder",
    ]
    tuned = found.details.tries[4]
    assert (tuned.score, tuned.note) == (None, "stopped: no better than frozen encoder on the first of 5 parts")
    # 没学过的折上猜不中，学过的行上却能背出来
    words = np.load(tmp_path / "out/parts/words/dev.npy").argmax(1)
    truth = np.array([row["label"] == "b" for row in rows])
    assert (words == truth).mean() < 0.75
    assert found.details.dev.metrics["accuracy"] < 0.75
    assert found.details.test is None
    left = {path.name for path in (tmp_path / "out/parts").iterdir()}
    assert left == {"contrastive-encoder", "frozen-encoder", "words"}
    assert "held out in turn" in found.report.read_text()


def test_texts_of_a_class_are_pulled_together_where_labels_are_few(encoder, tmp_path):
    """The linear model reads the states of the tuned encoder; what is told of a row comes from the other rows alone."""
    rows = rows_of(60, 0, noise=0.0)
    found = bertsmith.solve(rows, tmp_path / "out", model=encoder, minutes=5.0)
    part = tmp_path / "out/parts/contrastive-encoder"
    tried = next(one for one in found.details.tries if one.name == "contrastive encoder")
    assert re.fullmatch(r"each text 5 times, strength [\d.]+, mean", tried.note)
    assert {path.name for path in part.iterdir()} == {"dev.npy", "model"}
    texts, labels = [row["text"] for row in rows], np.array([row["label"] for row in rows])

    def apart(folder):
        """Returns how much more alike texts of one class are than texts of two."""
        vectors = load_pipeline("embed", folder)(texts)
        same = labels[:, None] == labels
        np.fill_diagonal(same, False)
        cosines = vectors @ vectors.T
        return cosines[same].mean() - cosines[labels[:, None] != labels].mean()

    assert apart(part / "model") > 1.2 * apart(encoder) > 0
    held = np.load(part / "dev.npy")
    final = load_pipeline("classify", part / "model").logits(texts, None).numpy()
    kept = read_words(part / "model", Words)
    states = load_pipeline("embed", part / "model")(texts, normalize=False)
    np.testing.assert_allclose(final[:, 1:], states @ kept.states + kept.states_bias, atol=2e-2)
    # 留出的答案不是最后那个模型的：它学过全部的行
    assert held.shape == final.shape
    assert not np.allclose(held, final, atol=1e-2)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(
            [{"sentence1": row["text"], "sentence2": "a book", "label": row["label"]} for row in rows_of(60, 0)],
            id="pairs",
        ),
        pytest.param([{"text": row["text"], "labels": [row["label"]]} for row in rows_of(60, 0)], id="several labels"),
    ],
)
def test_what_has_no_classes_of_single_texts_is_not_pulled_together(rows, encoder, tmp_path):
    found = bertsmith.solve(rows, tmp_path / "out", model=encoder, minutes=0.5)
    assert not any(one.name.startswith("contrastive") for one in found.details.tries)


def test_an_encoder_is_tuned_on_all_rows_where_its_folds_say_so(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(journey._Job, "_gains", lambda *_: True)
    monkeypatch.setattr(journey, "STEPS", 10)
    rows = rows_of(120, 0)
    found = bertsmith.solve(rows, tmp_path / "out", model=encoder, minutes=5.0)
    tuned = next(one for one in found.details.tries if one.name == "fine-tuned encoder")
    assert tuned.score is not None
    config = json.loads((tmp_path / "out/parts/fine-tuned-encoder/finetune.json").read_text())
    assert config["train"]["examples"] == 120
    held = np.load(tmp_path / "out/parts/fine-tuned-encoder/dev.npy")
    assert held.shape == (120, 2)
    # 留出的答案不是最后那个模型的：它学过全部的行
    texts = [row["text"] for row in rows]
    final = load_pipeline("classify", tmp_path / "out/parts/fine-tuned-encoder/model").logits(texts, None)
    assert not np.allclose(held, final.numpy(), atol=1e-3)


def test_four_labels_of_a_class_are_enough(tmp_path):
    rows = [
        {"text": f"{word} {word} {end}", "label": word}
        for word in ("red", "blue")
        for end in ("tree", "house", "car", "sky")
    ]
    found = bertsmith.solve(rows, tmp_path / "out")
    assert load_pipeline("classify", found.model_folder)("a red and red dog").label == "red"
    assert found.metrics["accuracy"] == 1.0


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
def test_every_shape_is_solved_beside_an_encoder(task, encoder, tmp_path):
    rows, draws = rows_of(300, 0), random.Random(0)
    if task == "multilabel":
        rows = [{"text": row["text"], "labels": [row["label"], *["boy"] * ("boy" in row["text"])]} for row in rows]
    if task == "regress":
        score = {"good": 3.0, "bad": 1.0}
        rows = [{"text": row["text"], "score": score[row["label"]] + draws.gauss(0, 0.2)} for row in rows]
    asked = {"task": task} if task != "regress" else {"label_column": "score"}
    found = bertsmith.solve(rows[:200], tmp_path / "out", dev=rows[200:], model=encoder, minutes=5.0, **asked)
    solved = found.details
    assert [one.name for one in solved.tries][:4] == ["majority", "words", "frozen encoder", "fine-tuned encoder"]
    assert solved.task == task
    scores = {one.name: one.score for one in solved.tries}
    assert scores["words"] > scores["majority"]
    assert solved.tries[-1].score >= scores["words"] - 0.02
    assert bertsmith.evaluate(found.model_folder, rows[200:]).metrics == pytest.approx(solved.dev.metrics, abs=1e-6)
    frozen = tmp_path / "out/parts/frozen-encoder/model"
    texts = [row["text"] for row in rows[200:]]
    outputs = load_pipeline(task, frozen).logits(texts, None)
    np.testing.assert_allclose(outputs.numpy(), np.load(frozen.parent / "dev.npy"), atol=2e-2)
    with pytest.raises(ConfigError, match="holds an encoder alone"):
        load_pipeline(task, frozen, only="words")
    export_huggingface(frozen, tmp_path / "copy")
    np.testing.assert_allclose(load_pipeline(task, tmp_path / "copy").logits(texts, None).numpy(), outputs.numpy())
    for folder in (frozen, tmp_path / "out/parts/words"):
        with pytest.raises(CheckpointError, match="attributions need a fine-tuned head"):
            Explainable.load(folder)


def test_both_parts_are_kept_where_both_are_asked_for(encoder, tmp_path, monkeypatch):
    """Whatever the encoder says, the folder gives the sum that dev asked for."""
    monkeypatch.setattr(journey, "mix_of", lambda *_: ((0.5, 0.8, 0.0), np.ones(1)))
    rows = rows_of(300, 0)
    found = bertsmith.solve(rows[:200], tmp_path / "out", dev=rows[200:], model=[encoder], minutes=5.0)
    # dev 分不出高下：要微调过的，不要冻结的特征
    assert found.details.answer.startswith("words + fine-tuned encoder")
    texts = [row["text"] for row in rows[200:]]
    kept = found.model_folder
    whole, words, alone = (load_pipeline("classify", kept, only=only) for only in (None, "words", "encoder"))
    expected = 0.5 * alone.logits(texts, None) + 0.8 * words.logits(texts, None)
    torch.testing.assert_close(whole.logits(texts, None), expected)
    assert read_words(found.model_folder, Words).mix == (0.5, 0.8, 0.0)
    assert "Where the parts differ" in found.report.read_text()


def test_tags_of_a_file_are_solved_by_words(tmp_path):
    """Entities that only their neighbours tell; most words are outside, and the odds against that are lowered."""
    draws, lines = random.Random(0), []
    for number in range(300):
        called = draws.choice(("Ada", "Ben", f"N{number}"))
        said = f"meet O\n{called} B-PER\n" if draws.random() < 0.3 else f"see O\n{called} O\n"
        lines.append(said + f"x{draws.randrange(50)} O\n")
    file = tmp_path / "names.conll"
    file.write_text("\n".join(lines))
    found = bertsmith.solve(file, tmp_path / "out")
    assert found.details.task == "tag"
    assert found.details.answer == "words"
    assert found.metrics["f1"] > 0.9
    pipeline = load_pipeline("tag", found.model_folder)
    assert pipeline.tag_words([["meet", "Zoe", "x1"], ["see", "Zoe", "x1"]]) == [["O", "B-PER", "O"], ["O", "O", "O"]]
    assert [(one.type, one.text) for one in pipeline("meet Zoe")] == [("PER", "Zoe")]


def test_a_part_alone_decides_as_the_answer_does(tmp_path, monkeypatch):
    """The odds against O that held-out rows chose are kept with the part, whose score they are of."""
    monkeypatch.setattr("bertsmith.finetune.tasks.tag.OUTSIDES", (2.0,))
    rows = [{"words": ["meet", f"N{number}"], "tags": ["O", "B-PER"]} for number in range(40)]
    found = bertsmith.solve(rows[:30], tmp_path / "out", dev=rows[30:])
    tries = {one.name: one.score for one in found.details.tries}
    assert json.loads((tmp_path / "out/parts/words/task.json").read_text())["outside"] == 2.0
    assert bertsmith.evaluate(tmp_path / "out/parts/words", rows[30:]).metrics["f1"] == tries["words"]


def test_tags_of_both_parts_are_added_up(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(journey, "mix_of", lambda *_: ((0.5, 0.8, 0.0), np.ones(1)))
    rows = tagged_rows(120, 0)
    found = bertsmith.solve(rows[:80], tmp_path / "out", dev=rows[80:], model=[encoder], minutes=5.0)
    words = [row["words"] for row in rows[80:]]
    parts = (load_pipeline("tag", found.model_folder, only=only) for only in (None, "words", "encoder"))
    whole, ours, theirs = (one.logits(words) for one in parts)
    torch.testing.assert_close(whole, 0.5 * theirs + 0.8 * ours)
    assert [one.name for one in found.details.tries][2:] == [
        "fine-tuned encoder",
        "answer: words + fine-tuned encoder",
    ]
    assert bertsmith.evaluate(found.model_folder, rows[80:]).metrics == pytest.approx(found.metrics, abs=1e-6)
    assert "»walks«" in found.report.read_text()


def asked_rows(count, seed):
    """Who has things, or how many, of three people: the shape of the answer and what stands near tell where it is."""
    draws, found = random.Random(seed), []
    for _ in range(count):
        people, things = draws.sample(("Ada", "Ben", "Cleo", "Dan"), 3), draws.sample(("books", "cats", "maps"), 3)
        counts = [str(draws.randrange(10, 99)) for _ in things]
        context = " ".join(f"{who} has {many} {what}." for who, many, what in zip(people, counts, things, strict=True))
        which = draws.randrange(3)
        asked, answer = draws.choice(
            [(f"Who has {things[which]}?", people[which]), (f"How many {things[which]} are there?", counts[which])]
        )
        answers = {"text": [answer], "answer_start": [context.index(answer)]}
        found.append({"question": asked, "context": context, "answers": answers})
    return found


def choice_rows(count, seed):
    """The right dish is of the fruit that was bought, but for one in ten."""
    draws, found = random.Random(seed), []
    for number in range(count):
        dishes = draws.sample(["apple", "pear", "plum", "fig"], draws.choice([3, 4]))
        right = draws.randrange(len(dishes))
        bought = dishes[right] if draws.random() > 0.1 else "quince"
        context = f"the man has bought a {bought} {number}"
        found.append({"context": context, "choices": [f"a cold {one} tart" for one in dishes], "label": right})
    return found


def ranking_rows(count, seed):
    """The relevant text has two of the query's three words, but for one query in ten."""
    draws, found = random.Random(seed), []
    known = ["red", "blue", "green", "sun", "moon", "star", "tree", "leaf", "river", "stone", "cloud", "rain"]
    for number in range(count):
        asked = draws.sample(known, 3)
        texts = [draws.sample(asked if draws.random() > 0.1 else known, 2), *(draws.sample(known, 2) for _ in range(3))]
        query = " ".join([*asked, str(number)])
        found += [{"query": query, "text": " ".join(text), "relevance": int(text is texts[0])} for text in texts]
    return found


PAIRS = ["the man has bought a fig", "red sun"], ["a cold fig tart", "the sun is red"]


@pytest.mark.parametrize(
    ("task", "rows", "count", "asked"),
    [
        ("answer", asked_rows, 80, ([("Who has books?", "Ada has 12 books. Ben has 34 cats.")],)),
        ("choose", choice_rows, 110, PAIRS),
        ("rank", ranking_rows, 60, PAIRS),
    ],
)
def test_a_file_of_them_is_solved_by_words_and_an_encoder(task, rows, count, asked, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(journey, "mix_of", lambda *_: ((0.5, 0.8, 0.0), np.ones(1)))
    monkeypatch.setattr(journey, "STEPS", 8)
    file, held = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    for path, some in ((file, rows(count, 0)), (held, rows(40, 1))):
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    found = bertsmith.solve(file, tmp_path / "out", dev=held, model=encoder, minutes=5.0)
    tries = {one.name: one for one in found.details.tries}
    assert found.details.task == task
    assert ("no answer is the commonest" in tries["majority"].note) == (task != "rank")
    assert tries["words"].score > 0.8
    assert found.details.answer == "words + fine-tuned encoder"
    assert bertsmith.evaluate(found.model_folder, held).metrics == pytest.approx(found.metrics, abs=1e-6)
    parts = (load_pipeline(task, found.model_folder, only=only) for only in (None, "words", "encoder"))
    whole, ours, theirs = (one.logits(*asked) for one in parts)
    torch.testing.assert_close(whole, 0.5 * theirs + 0.8 * ours)
    assert "Where the parts differ" in found.report.read_text()


@pytest.mark.parametrize(("task", "rows"), [("choose", choice_rows), ("rank", ranking_rows)])
def test_few_choices_and_rankings_are_held_out_in_turn(task, rows, tmp_path):
    found = bertsmith.solve(rows(40, 0), tmp_path / "out", task=task)
    assert found.details.answer == "words"
    assert found.details.tries[1].score > 0.6
    split = json.loads((tmp_path / "out/split.json").read_text())
    assert len(set(split["folds"])) == 5
    pipeline = load_pipeline(task, found.model_folder)
    if task == "choose":
        assert pipeline("the man has bought a fig", ["an apple", "a cold fig tart", "a pear"]).index == 1
    else:
        assert pipeline("red sun moon", ["a blue stone", "the red moon"])[0].index == 1


def related_rows(count, seed):
    """A query has two words of its text, of which others have one or both; in one of ten it has none."""
    draws, found = random.Random(seed), []
    kinds = [word for words in WORDS.values() for word in words]
    for number in range(count):
        who, what, thing = draws.choice(PEOPLE), draws.choice(kinds), draws.choice(("book", "bread", "house"))
        query = f"{what} {thing}" if draws.random() > 0.1 else f"something {number}"
        found.append({"query": query, "positive": f"{who} reads of a {what} {thing} {seed} {number}"})
    return found


def test_pairs_are_solved_by_an_encoder_and_its_weight_in_a_search(encoder, tmp_path, monkeypatch):
    """What the answer is said to find, an index made with it finds."""
    for name, value in (("STEPS", 8), ("WEIGHTS", (0.3,))):
        monkeypatch.setattr(journey, name, value)
    rows, out = related_rows(40, 1), tmp_path / "out"
    found = bertsmith.solve(related_rows(90, 0), out, dev=rows, test=rows, task="embed", model=encoder, minutes=5.0)
    solved = found.details
    assert [one.name for one in solved.tries][:4] == ["majority", "words", "frozen encoder", "fine-tuned encoder"]
    assert (solved.task, solved.mix) == ("embed", (0.3, 0.7, 0.0))
    assert solved.answer in ("words + frozen encoder", "words + fine-tuned encoder")
    assert solved.test.metrics == pytest.approx(solved.dev.metrics)
    alone = bertsmith.evaluate(found.model_folder, rows).metrics["ndcg_at_10"]
    assert alone == pytest.approx({one.name: one.score for one in solved.tries}[solved.answer.removeprefix("words + ")])
    remark = f"vectors without words have ndcg_at_10 {alone:.3f}; in an index they count 0.3"
    assert remark in solved.dev.remarks
    page = found.report.read_text()
    assert remark in page
    assert "bertsmith index YOUR_FOLDER" in page

    embed, texts = load_pipeline("embed", found.model_folder, precision="float32"), [row["positive"] for row in rows]
    theirs = sentence_transformers.SentenceTransformer(str(found.model_folder), device="cpu")
    np.testing.assert_allclose(embed(texts), theirs.encode(texts), atol=1e-5)

    notes = tmp_path / "notes"
    notes.mkdir()
    for number, text in enumerate(texts):
        (notes / f"{number}.txt").write_text(text)
    bertsmith.index(notes, found.model_folder, tmp_path / "index")
    index = load_index(tmp_path / "index")
    assert index.stored.current.weight == 0.3
    by_query = {}
    for number, row in enumerate(rows):
        by_query.setdefault(row["query"], set()).add(f"{number}.txt")
    ranks = [[hit.file in right for hit in index.search(query, k=40)].index(True) for query, right in by_query.items()]
    assert found.metrics["mrr"] == pytest.approx(np.mean([1 / (1 + rank) for rank in ranks]))


@pytest.mark.parametrize(("weights", "answer"), [((0.0,), "words"), ((1.0,), "frozen encoder"), (None, None)])
def test_the_best_weight_of_vectors_is_taken(weights, answer, encoder, tmp_path, monkeypatch):
    """Nothing that was tried is better; where words are best, the folder has an encoder all the same."""
    monkeypatch.setattr(journey._Job, "_encoder", lambda *_, **__: None)
    if weights is not None:
        monkeypatch.setattr(journey, "WEIGHTS", weights)
    rows = related_rows(40, 1)
    found = bertsmith.solve(related_rows(20, 0), tmp_path / "out", dev=rows, task="embed", model=encoder)
    *tries, last = found.details.tries
    if answer is None:
        assert last.score >= max(one.score for one in tries if one.score is not None)
    else:
        assert last.score == next(one.score for one in tries if one.name == answer)
        assert found.details.answer == answer
    assert json.loads((found.model_folder / "task.json").read_text())["weight"] == found.details.mix[0]
    assert load_pipeline("embed", found.model_folder)(["a book"]).shape == (1, 64)


def test_vectors_are_learned_from_nothing(tmp_path, monkeypatch):
    for name, value in (("LEAST_PRETRAINING", 0.0), ("STEPS", 8)):
        monkeypatch.setattr(journey, name, value)
    real = journey.quickstart
    monkeypatch.setattr(journey, "quickstart", lambda *given, **more: real(*given, **more, size="1/64", vocab_size=300))
    rows = related_rows(100, 0)
    found = bertsmith.solve(rows, tmp_path / "out", task="embed", text=_text(tmp_path), minutes=0.3)
    names = [one.name for one in found.details.tries]
    assert names[2:5] == ["pre-trained from nothing", "frozen from nothing", "fine-tuned from nothing"]
    assert found.details.answer.endswith("from nothing")
    split = json.loads((tmp_path / "out/split.json").read_text())
    assert sorted(split["train"] + split["dev"]) == list(range(100))
    assert (found.model_folder / "modules.json").exists()


def test_pairs_with_scores_are_solved_by_their_cosines(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(journey, "STEPS", 8)
    draws, rows = random.Random(0), []
    for _ in range(120):
        words, others = draws.sample(PEOPLE, 3), draws.sample(PEOPLE, 3)
        score = len({*words} & {*others}) / 3
        rows.append({"sentence1": " ".join(words), "sentence2": " ".join(others), "score": score})
    asked = {"dev": rows[80:], "task": "embed", "model": encoder, "minutes": 5.0}
    found = bertsmith.solve(rows[:80], tmp_path / "out", **asked)
    tries = {one.name: one for one in found.details.tries}
    assert tries["words"].score > 0.5
    assert found.details.mix == (1.0, 0.0, 0.0)
    assert found.details.answer in tries
    assert "weight" not in json.loads((found.model_folder / "task.json").read_text())
    scored = bertsmith.evaluate(found.model_folder, rows[80:]).metrics
    assert scored == pytest.approx(found.metrics, abs=1e-6)
    assert found.metrics["spearman"] == tries[found.details.answer].score


def test_an_encoder_that_knows_nothing_stays_out(tmp_path, encoder):
    """As one of another language would: its vocabulary has none of the words."""
    torch.manual_seed(0)
    foreign = tmp_path / "foreign"
    tokenizer = WordPieceTokenizer.train(["我们 喜欢 这 本 书"] * 3, vocab_size=60)
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=48)
    BertForPreTraining(config).save_pretrained(foreign)
    tokenizer.save(foreign)
    rows = rows_of(300, 0)
    found = bertsmith.solve(rows[:200], tmp_path / "out", dev=rows[200:], model=foreign, minutes=5.0)
    assert found.details.answer == "words"
    assert found.details.mix == (0.0, 1.0, 0.0)


def test_too_short_a_time_leaves_words(encoder, tmp_path, monkeypatch):
    # 不靠机器慢：词一跑完，时间就用光了
    monkeypatch.setattr(journey._Job, "left", property(lambda _self: 0.0))
    found = bertsmith.solve(rows_of(200, 0), tmp_path / "out", model=encoder, text=_text(tmp_path))
    notes = {one.name: one.note for one in found.details.tries}
    assert found.details.answer == "words"
    assert notes["frozen encoder"] == notes["fine-tuned encoder"] == "not tried: too little time is left"
    assert notes["pre-trained from nothing"] == "not tried: too little time is left"


def _text(folder):
    path = folder / "text.txt"
    path.write_text("\n\n".join(row["text"] for row in rows_of(300, 5)))
    return path


def test_an_encoder_is_pre_trained_from_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(journey, "LEAST_PRETRAINING", 0.0)
    real = journey.quickstart
    monkeypatch.setattr(journey, "quickstart", lambda *given, **more: real(*given, **more, size="1/64", vocab_size=300))
    rows = rows_of(300, 0)
    found = bertsmith.solve(rows[:200], tmp_path / "out", dev=rows[200:], text=_text(tmp_path), minutes=0.3)
    names = [one.name for one in found.details.tries]
    assert names[2:5] == ["pre-trained from nothing", "frozen from nothing", "fine-tuned from nothing"]
    assert "masked-LM loss" in found.details.tries[2].note
    assert rows[0]["text"] in (tmp_path / "out/text/labelled.txt").read_text()


def test_an_encoder_that_is_of_use_is_adapted_to_the_text(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(journey, "LEAST_PRETRAINING", 0.0)
    monkeypatch.setattr(journey, "PRETRAINING_SHARE", 0.012)
    # 有用的编码器接着学；分数定成微调的更好，答案就是适应过的那个
    rank = {"frozen encoder": 3.0, "fine-tuned encoder": 2.0, "fine-tuned encoder adapted": 1.0}
    monkeypatch.setattr(
        journey._Job,
        "_mixes",
        lambda _, names: {name: ((1.0, 1.0, 0.0), np.array([rank.get(name, 9.0)])) for name in names},
    )
    rows, adapted = rows_of(120, 0), "fine-tuned encoder adapted"
    given = {"dev": rows[80:], "model": encoder, "text": _text(tmp_path), "minutes": 5.0}
    found = bertsmith.solve(rows[:80], tmp_path / "out", **given)
    notes = {one.name: one.note for one in found.details.tries}
    assert "pre-trained from nothing" not in notes
    assert re.fullmatch(r"held-out loss \d+\.\d\d", notes["adapted encoder"])
    recipe = PreTrainingRecipe.load(tmp_path / "out" / "parts" / "encoder-adapted")
    assert recipe.objective == "mlm", "labelled texts have no next sentence"
    assert found.details.answer.startswith(f"words + {adapted}")
    before, after = (
        load_file(folder / "model.safetensors")
        for folder in (encoder, tmp_path / "out" / "parts" / "encoder-adapted" / "model")
    )
    shared = before.keys() & after.keys()
    assert shared
    assert not any(torch.equal(before[name], after[name]) for name in shared if "output.dense.weight" in name)


def test_one_from_nothing_stands_in_for_an_encoder_that_is_of_no_use_or_cannot_adapt(encoder, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise ConfigError("it cannot")

    for name, value in (("LEAST_PRETRAINING", 0.0), ("adapt", refused), ("quickstart", refused)):
        monkeypatch.setattr(journey, name, value)
    rows, tried = rows_of(120, 0), []
    given = {"dev": rows[80:], "model": encoder, "text": _text(tmp_path), "minutes": 5.0}
    for weight in (0.0, 1.0):
        mix = ((weight, 1.0, 0.0), np.ones(1))
        monkeypatch.setattr(journey._Job, "_mixes", lambda _, names, mix=mix: dict.fromkeys(names, mix))
        found = bertsmith.solve(rows[:80], tmp_path / f"{weight:g}", **given)
        tried.append([one.name for one in found.details.tries if one.note == "did not run: it cannot"])
    assert tried == [["pre-trained from nothing"], ["adapted encoder", "pre-trained from nothing"]]


def test_time_that_is_left_goes_to_other_seeds_of_the_best_encoder(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(journey, "MOST_SEEDS", SEEDS)
    # 第二个种子更好：答案就是它；时间不够一次训练时不换种子
    best = {"fine-tuned encoder": 2.0, "fine-tuned encoder, seed 1": 3.0, "fine-tuned encoder, seed 2": 1.0}
    monkeypatch.setattr(
        journey._Job,
        "_mixes",
        lambda _, names: {name: ((1.0, 1.0, 0.0), np.array([best.get(name, 9.0)])) for name in names},
    )
    rows = rows_of(120, 0)
    found = bertsmith.solve(rows[:80], tmp_path / "out", dev=rows[80:], model=encoder, minutes=5.0)
    assert found.details.answer == "words + fine-tuned encoder, seed 2"
    runs = [tmp_path / "out/parts" / f"fine-tuned-encoder{more}/dev.npy" for more in ("", "--seed-1", "--seed-2")]
    first, second, third = map(np.load, runs)
    assert not np.allclose(first, second)
    assert not np.allclose(second, third)
    left = property(lambda job: 0.0 if "fine-tuned encoder" in job.notes.tries else 300.0)
    monkeypatch.setattr(journey._Job, "left", left)
    short = bertsmith.solve(rows[:80], tmp_path / "short", dev=rows[80:], model=encoder, minutes=5.0)
    assert "fine-tuned encoder, seed 1" not in [one.name for one in short.details.tries]


def test_texts_without_spaces_get_pieces_longer_than_a_character(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(journey, "LEAST_PRETRAINING", 0.0)

    def note(*_, **how):
        asked.append((how.get("tokenizer"), how.get("vocab_size")))
        raise InputError("enough")

    monkeypatch.setattr(journey, "quickstart", note)
    (tmp_path / "text.txt").write_text("一些文字。\n\n另一些文字。", encoding="utf-8")
    chinese = [{"text": f"{word}很好{number}", "label": word} for number in range(40) for word in ("早餐", "房间")]
    for name, rows in (("zh", chinese), ("en", rows_of(80, 0))):
        bertsmith.solve(rows[:60], tmp_path / name, dev=rows[60:], text=tmp_path / "text.txt", minutes=1.0)
    assert asked == [("unigram", journey.CHINESE_PIECES), (None, None)]


def test_few_rows_are_fine_tuned_on_where_an_encoder_is_of_use(tmp_path, encoder, monkeypatch):
    """Tags of ten sentences; classes of a hundred rows, or of fewer where the head knows them; answers of many."""
    monkeypatch.setattr(journey, "STEPS", 8)
    tuned = bertsmith.finetune("classify", encoder, tmp_path / "tuned", train=rows_of(120, 3), epochs=1).model_folder
    for name, task, rows, start, is_tried in (
        ("tags", "tag", tagged_rows(12, 0), encoder, True),
        ("classes", "classify", rows_of(60, 0), encoder, False),
        ("known", "classify", rows_of(60, 0), tuned, True),
        ("answers", "answer", asked_rows(120, 0), encoder, False),
    ):
        found = bertsmith.solve(rows, tmp_path / name, task=task, model=start, minutes=5.0)
        (note,) = (one.note for one in found.details.tries if one.name.startswith("fine-tuned"))
        assert note.endswith("rows are too few for it") != is_tried, (name, note)


def test_the_worse_features_are_not_fine_tuned(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(journey, "mix_of", lambda _p, outputs, *_: ((1.0, 0.0, 0.0), outputs.std()[None].numpy()))
    other = tmp_path / "other"
    other.mkdir()
    for path in encoder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    rows = rows_of(120, 0)
    with pytest.raises(ConfigError, match="twice"):
        bertsmith.solve(rows[:80], tmp_path / "out", dev=rows[80:], model=[encoder, encoder])
    found = bertsmith.solve(rows[:80], tmp_path / "out", dev=rows[80:], model=[encoder, other], minutes=5.0)
    notes = [one.note for one in found.details.tries if one.name.startswith("fine-tuned")]
    assert sum(note.startswith("not tried: its features do worse") for note in notes) == 1


def test_names_that_differ_in_a_sign_have_folders_of_their_own(tmp_path, encoder):
    rows, twins = rows_of(120, 0), [tmp_path / "my_bert", tmp_path / "my-bert"]
    for twin in twins:
        shutil.copytree(encoder, twin)
    found = bertsmith.solve(rows[:80], tmp_path / "out", dev=rows[80:], model=twins, minutes=5.0)
    assert [one.score is not None for one in found.details.tries if one.name.startswith("frozen")] == [True, True]
    assert len(list((tmp_path / "out/parts").glob("frozen-*"))) == 2


def test_a_class_of_which_the_timed_rows_have_none_is_no_hindrance(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(journey, "TIMED_ROWS", 4)
    rows = [row | {"label": "spam" if number % 50 == 7 else "ham"} for number, row in enumerate(rows_of(160, 0))]
    found = bertsmith.solve(rows[:100], tmp_path / "out", dev=rows[100:], model=encoder, metric="f1", minutes=0.5)
    notes = {one.name: one.note for one in found.details.tries}
    assert notes["fine-tuned encoder"].startswith("epoch ")


def test_folds_are_as_many_as_the_rarest_class_allows(tmp_path):
    rows = [row | {"label": "spam" if number in (3, 9, 40) else "ham"} for number, row in enumerate(rows_of(80, 0))]
    bertsmith.solve(rows, tmp_path / "out", metric="f1")
    folds = json.loads((tmp_path / "out/split.json").read_text())["folds"]
    assert {folds[3], folds[9], folds[40]} == set(folds) == {0, 1, 2}


@pytest.mark.parametrize("change", ["groups", "text"])
def test_another_division_or_another_text_is_another_run(change, tmp_path):
    rows = [row | {"who": str(number % 12)} for number, row in enumerate(rows_of(120, 0))]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = _text(tmp_path)
    bertsmith.solve(path, tmp_path / "out", text=text, minutes=0.01)
    if change == "text":
        text.write_text(text.read_text() + "\n\nOne more story.\n")
    more = {"group_column": "who"} if change == "groups" else {}
    with pytest.raises(RunFolderError, match=f"another {'folds' if more else 'text'}"):
        bertsmith.solve(path, tmp_path / "out", text=text, minutes=0.01, **more)


def test_a_page_that_was_not_drawn_is_drawn_by_the_same_command(tmp_path, monkeypatch):
    def interrupt(*_given):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(journey, "solved_page", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bertsmith.solve(rows_of(80, 0), tmp_path / "out")
    assert bertsmith.solve(rows_of(80, 0), tmp_path / "out").report.exists()


@pytest.mark.parametrize(
    ("rows", "asked", "error", "said"),
    [
        (rows_of(40, 0), {"dev": rows_of(20, 1), "group_column": "who"}, ConfigError, "leave out --dev, or these"),
        (rows_of(40, 0), {"dev": rows_of(20, 1), "time_column": "day"}, ConfigError, "leave out --dev, or these"),
        ([{"text": f"a {n}", "label": "x"} for n in range(20)], {}, InputError, "one class only"),
        ([{"text": f"a {n}", "label": f"x{n}"} for n in range(20)], {}, InputError, "a class of its own"),
        ([{"text": "same", "label": "ab"[n % 2]} for n in range(20)], {}, InputError, "too few to hold some out"),
        (rows_of(40, 0), {"task": "embed"}, ConfigError, "say --task classify"),
        (related_rows(40, 0), {"task": "embed"}, ConfigError, "words alone make no vectors"),
        (
            related_rows(40, 0),
            {"task": "embed", "dev": [{"query": "a", "text": "b", "score": number} for number in range(5)]},
            InputError,
            "give the same kind for all",
        ),
        (rows_of(40, 0), {"task": "rank"}, InputError, "no query column"),
        ([{"query": "a", "text": "b", "relevance": 1}] * 20, {"task": "rank"}, InputError, "all equally relevant"),
        (
            ranking_rows(40, 0),
            {"test": [{"query": "red", "text": "blue", "relevance": 0}], "task": "rank"},
            InputError,
            "no query has a text with a relevance",
        ),
        ([{"words": ["a", "b"], "tags": ["X", "X"]}] * 20, {}, InputError, "no more than one tag"),
        (
            tagged_rows(40, 0),
            {"dev": [{"words": ["a"], "tags": ["NEW"]}]},
            InputError,
            "does not occur in the training",
        ),
        ([{"words": ["a"], "tags": ["X", "Y"]}] * 20, {"task": "tag"}, InputError, "each word has one tag"),
        (rows_of(40, 0), {"task": "odd"}, ConfigError, "is unknown; use classify, multilabel, regress"),
        (rows_of(40, 0), {"dev": [{"text": "a", "label": "new"}]}, InputError, "does not occur in the training file"),
        (rows_of(40, 0), {"task": "regress"}, InputError, "not a finite number"),
    ],
)
def test_what_cannot_be_solved_is_said_and_leaves_nothing(rows, asked, error, said, tmp_path):
    with pytest.raises(error, match=said):
        bertsmith.solve(rows, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_texts_that_are_all_alike_and_classes_that_dev_lacks_are_solved(tmp_path):
    alike = [{"text": "the same", "label": "ab"[n % 3 == 0]} for n in range(30)]
    found = bertsmith.solve(alike, tmp_path / "alike", dev=alike)
    assert found.metrics["accuracy"] == pytest.approx(2 / 3)
    three = [{"text": text, "label": label} for text, label in (("red", "r"), ("blue", "b"), ("green", "g"))] * 8
    found = bertsmith.solve(three, tmp_path / "three", dev=[row for row in three if row["label"] != "g"])
    assert load_pipeline("classify", found.model_folder)("green").label == "g"


def test_pairs_are_no_ranking_and_a_bad_row_of_choices_is_named():
    ranked = ranking_rows(6, 0)
    read = partial(read_likely, task=None, options=ReadingOptions())
    assert read(ranked)[0] == "rank"
    once = [{"question": f"q {n}", "passage": f"p {n}", "label": str(n % 2)} for n in range(24)]
    assert read(once)[0] == "classify"
    rows = choice_rows(20, 0)
    with pytest.raises(InputError, match="'9' is none of its"):
        read([*rows, {**rows[0], "label": 9}])


@pytest.mark.parametrize("queries", [8, 6])
def test_the_curve_takes_whole_queries(tmp_path, queries):
    """Each query has one relevant text among many: rows by themselves would leave some without it."""
    words = [f"w{number}" for number in range(40)]
    rows = [
        {"query": f"{words[q]} {words[q + 8]}", "text": f"{words[20 + n % 20 if n else q]} {n}", "relevance": n < 1}
        for q in range(queries)
        for n in range(60)
    ]
    found = bertsmith.solve(rows, tmp_path / "out", minutes=5.0)
    counts = [count for count, _ in found.details.curve]
    assert counts[-1] == 60 * queries
    assert len(counts) > 1
    assert not any(count % 60 for count in counts)


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        (["1", "2", "3"] * 8, "classify"),
        ([str(number / 7) for number in range(24)], "regress"),
        ([str(number) for number in range(24)], "regress"),
        ([str(number % 30) for number in range(90)], "classify"),
        (["0.5", "1.0", "1.5"] * 8, "regress"),
        (["yes", "no"] * 12, "classify"),
    ],
)
def test_the_shape_is_read_from_the_labels(labels, shape):
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    assert read_likely(rows, None, ReadingOptions())[0] == shape


def test_killed_the_same_command_goes_on(encoder, tmp_path):
    rows = rows_of(300, 0)
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    for path, part in ((train, rows[:200]), (dev, rows[200:])):
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
    whole = bertsmith.solve(train, tmp_path / "whole", dev=dev, model=encoder, minutes=5.0)
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "bertsmith", "solve", str(train), "--dev", str(dev), "--model", str(encoder)]
    command += ["--minutes", "5", "--out", str(out)]
    for landmark in ("tries.json", "parts/words/dev.npy", "parts/fine-tuned-encoder/metrics.jsonl"):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (out / landmark).exists():
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = bertsmith.solve(train, out, dev=dev, model=encoder, minutes=5.0)
    assert found.details.answer == whole.details.answer
    assert found.metrics == pytest.approx(whole.metrics)
    assert [one.score for one in found.details.tries] == pytest.approx([one.score for one in whole.details.tries])
    outputs = [np.load(one / "parts/fine-tuned-encoder/dev.npy") for one in (tmp_path / "whole", out)]
    np.testing.assert_allclose(*outputs, atol=1e-5)


@pytest.mark.parametrize("count", [300, 700])
def test_the_curve_says_what_more_labels_bring(tmp_path, count):
    """By folds, and with a dev part."""
    found = bertsmith.solve(rows_of(count, 0, noise=0.3), tmp_path / "out")
    (curve, tries), words = (found.details.curve, found.details.tries), found.details.tries[1]
    learned = count if count < 500 else len(json.loads((tmp_path / "out/split.json").read_text())["train"])
    assert [rows for rows, _ in curve] == [learned // share for share in (8, 4, 2) if learned // share >= 32] + [
        learned
    ]
    assert curve[-1][1] == words.score
    assert "More labels" in found.report.read_text()
    assert gain_of_twice(((100, 0.5), (200, 0.6), (400, 0.7), (800, 0.8))) == pytest.approx(0.1)
    assert tries[-1].name == "answer: words"


def test_no_curve_is_drawn_of_few_rows_or_without_time(tmp_path, monkeypatch):
    assert bertsmith.solve(rows_of(40, 0), tmp_path / "few").details.curve == ()
    monkeypatch.setattr(journey._Job, "left", property(lambda _self: 0.0))
    assert bertsmith.solve(rows_of(300, 0), tmp_path / "late").details.curve == ()


def test_rows_to_label_next_are_unsure_and_unlike(tmp_path):
    """Most of what it is unsure of is one sentence, over and over; two others are as unsure."""
    rows = [{"text": f"a {what} day", "label": what} for what in ("warm", "cold")] * 12
    unsure = [f"a day, number {number}" for number in range(30)] + ["the moon", "three green boats"]
    sure = [f"a warm day {number}" for number in range(10)]
    file = tmp_path / "new.csv"
    lines = [f"{number},{text!r}" for number, text in enumerate(sure + unsure)]
    file.write_text("id;text\n" + "\n".join(line.replace(",", ";", 1).replace("'", "") for line in lines) + "\n")
    bertsmith.solve(rows, tmp_path / "out", dev=rows, unlabelled=file, suggest=4)
    with (tmp_path / "out/label_next.csv").open(newline="") as handle:
        told = list(csv.DictReader(handle))
    texts = [row["text"] for row in told]
    assert len(texts) == 4
    assert {"the moon", "three green boats"} < set(texts)
    assert not set(texts) & set(sure)
    assert all(float(row["probability"]) < 0.9 and row["predicted"] in ("warm", "cold") for row in told)
    assert [row["id"] for row in told] == [str((sure + unsure).index(text)) for text in texts]
    # 再跑一次只是换一份建议
    bertsmith.solve(rows, tmp_path / "out", dev=rows, unlabelled=file, suggest=100)
    assert len((tmp_path / "out/label_next.csv").read_text().splitlines()) == 43


@pytest.mark.parametrize(
    ("rows", "asked", "error", "said"),
    [
        (tagged_rows(40, 0), "new.txt", ConfigError, "a prediction of tag has no probability"),
        (rows_of(40, 0), "absent.txt", InputError, "absent.txt"),
        (rows_of(40, 0), "blank.txt", InputError, "no row can be predicted"),
    ],
)
def test_rows_that_cannot_be_suggested_are_refused(rows, asked, error, said, tmp_path):
    (tmp_path / "new.txt").write_text("a\n")
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(error, match=said):
        bertsmith.solve(rows, tmp_path / "out", unlabelled=tmp_path / asked)
    assert (tmp_path / "out").exists() == (asked == "blank.txt")


def test_rows_of_few_and_of_many_choices_stand_in_the_same_columns(tmp_path):
    rows = [("context", *choices) for choices in (("a", "b", "c"), ("a", "b", "c", "d"))]
    told = [{"input": row, "prediction": "b", "probability": 0.5, "columns": {"id": len(row)}} for row in rows]
    more_labels.write_rows(told, tmp_path / "next.csv")
    with (tmp_path / "next.csv").open(newline="") as handle:
        found = list(csv.DictReader(handle))
    assert [(row["text_5"], row["predicted"], row["id"]) for row in found] == [("", "b", "4"), ("d", "b", "5")]


def test_of_several_labels_the_least_sure_one_counts():
    told = {"prediction": "a", "labels": ["a"], "probabilities": {"a": 0.95, "b": 0.4, "c": 0.01}}
    assert more_labels._sure(told) == pytest.approx(0.6)
