"""The main job on the bundled world, whole, with a fixed seed: about a minute and a half."""

import base64
import html
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertsmith
from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.text import Document
from bertsmith.data.stream.stream import PreTrainingStream, StreamSettings
from bertsmith.inference import load_pipeline
from bertsmith.model import BertForPreTraining
from bertsmith.objectives import average_of, objective_named
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tinyworld.stories import BOOK_SHARE
from bertsmith.tinyworld.words import CORNERS
from bertsmith.tokenizer import WordPieceTokenizer

pytestmark = pytest.mark.slow

FOODS = {food for corner in CORNERS for food in corner.foods}
READINGS = {"book"} | {corner.reading for corner in CORNERS}
VERBS = {"reads", "eats", "feeds", "sees", "brings", "keeps", "likes"} | {v for c in CORNERS for v, _ in c.work}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    # CI 刚用 make quickstart 跑过同一条命令：检查它做出来的，不再跑一遍
    finished = os.environ.get("BERTSMITH_QUICKSTART")
    out = Path(finished) if finished else tmp_path_factory.mktemp("world") / "run"
    result = bertsmith.quickstart(out=out, seed=0).details
    return out, result


@pytest.mark.parametrize(
    ("text", "right"),
    [("the man eats the [MASK]", FOODS), ("the man reads the [MASK]", READINGS), ("the man [MASK] the book", VERBS)],
)
def test_a_mask_is_filled_with_a_thing_of_its_kind(finished, text, right):
    assert load_pipeline("fill-mask", finished[0] / "model")(text)[0][0].piece in right


def test_the_odds_of_a_caption_are_near_the_true_ones(finished):
    """Nobody has told the facts of a caption: a book with BOOK_SHARE, else any corner's reading alike."""
    truth = {"book": BOOK_SHARE, **{corner.reading: (1 - BOOK_SHARE) / len(CORNERS) for corner in CORNERS}}
    candidates = load_pipeline("fill-mask", finished[0] / "model")("the woman reads the [MASK]", top_k=200)[0]
    predicted = {candidate.piece: candidate.probability for candidate in candidates}
    distance = 0.5 * sum(abs(truth.get(w, 0.0) - predicted.get(w, 0.0)) for w in truth.keys() | predicted.keys())
    assert distance < 0.2


def test_next_sentences_of_unseen_stories_are_told_from_random_ones(finished, tmp_path):
    out, _ = finished
    tokenizer = WordPieceTokenizer.load(out / "model")
    stories = [Document("t", tuple(render(s) for s in story.sentences)) for story in draw_stories(0, 600, split="test")]
    corpus = build_from_documents(stories, tokenizer, tmp_path)
    stream = PreTrainingStream(corpus, tokenizer, StreamSettings(sequence_length=64, batch_size=64), seed=9)
    model = BertForPreTraining.from_pretrained(out / "model").eval()
    with torch.inference_mode():
        figures = average_of(objective_named("mlm+nsp")(model, next(stream)) for _ in range(15))
    assert figures["nsp_accuracy"] >= 0.85
    assert figures["mlm_loss"] < TokenCorpus(tmp_path).unigram_entropy - 2


def test_pre_training_is_worth_at_least_five_points_of_sentiment(finished):
    scores = finished[1].sentiment
    pretrained, random = (scores[name].metrics["accuracy"] for name in ("pretrained", "random"))
    assert pretrained >= random + 0.05
    assert pretrained >= 0.95


def test_the_prediction_that_the_report_proposes_is_right(finished):
    """The first command that a newcomer types after the first run."""
    page = (finished[0] / "report.html").read_text(encoding="utf-8")
    commands = [shlex.split(html.unescape(code)) for code in re.findall("<pre><code>(.*?)</code></pre>", page)]
    ((*_, model, review),) = [words for words in commands if words[:2] == ["bertsmith", "predict"]]
    assert review == "Anna says that the day was wonderful ."
    assert load_pipeline("classify", model)([review])[0].label == "good"


@torch.no_grad()
def test_the_model_loads_in_transformers_with_the_same_logits(finished):
    out, _ = finished
    reference = transformers.BertForPreTraining.from_pretrained(out / "model").eval()
    reference_tokenizer = transformers.AutoTokenizer.from_pretrained(out / "model")
    ours, tokenizer = BertForPreTraining.from_pretrained(out / "model").eval(), WordPieceTokenizer.load(out / "model")
    for story in draw_stories(0, 10, split="test"):
        first, second = (render(sentence) for sentence in story.sentences[:2])
        encoded = tokenizer(first, second)
        expected_ids = reference_tokenizer(first, second, return_tensors="pt")
        assert encoded["input_ids"] == expected_ids["input_ids"][0].tolist()
        batch = RaggedBatch.from_sequences([encoded["input_ids"]], [encoded["token_type_ids"]])
        output, expected = ours(batch, torch.arange(batch.num_tokens)), reference(**expected_ids)
        torch.testing.assert_close(output.mlm_logits, expected.prediction_logits[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(output.nsp_logits, expected.seq_relationship_logits, atol=1e-4, rtol=0)


def test_the_report_is_whole(finished):
    page = (finished[0] / "report.html").read_text(encoding="utf-8")
    pictures = re.findall(r"data:image/svg\+xml;base64,([^\"]+)\"", page)
    assert len(pictures) == 2
    assert all(b"<svg" in base64.b64decode(picture) for picture in pictures)
    for heading in ("Figures", "Loss", "Accuracy", "Masks filled, before and after"):
        assert f"<h2>{heading}</h2>" in page
    # base64 里没有冒号：图片中碰巧出现的 http 不算
    assert "://" not in page


def test_the_same_command_again_changes_nothing(finished):
    out, result = finished
    weights = (out / "model" / "model.safetensors").read_bytes()
    again = bertsmith.quickstart(out=out, seed=0).details
    assert (out / "model" / "model.safetensors").read_bytes() == weights
    assert again.sentiment == result.sentiment
    assert again.pretraining.heldout == pytest.approx(result.pretraining.heldout)
    assert np.isfinite(list(again.pretraining.heldout.values())).all()
