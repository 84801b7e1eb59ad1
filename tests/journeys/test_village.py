"""The trained models that the package carries: small, whole, as good as they say, and made by one command."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith import load_pipeline
from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.masking import MaskingSettings, mask_tokens
from bertsmith.hub import BUNDLED, model_folder
from bertsmith.model import BertForPreTraining
from bertsmith.objectives import MaskedLMLoss
from bertsmith.seeding import generator
from bertsmith.tinyworld import MADE, draw_reviews, draw_stories, render, trained_model
from bertsmith.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "most"), [("village", 3_000_000), ("village-reviews", 700_000)])
def test_it_is_small_and_comes_with_the_package(name, most):
    folder = BUNDLED[name]
    assert sum(path.stat().st_size for path in folder.iterdir()) < most
    if (ROOT / "pyproject.toml").exists():
        assert f'"tinyworld/{folder.name}/*"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("the man reads the [MASK]", {"book"}),
        ("the man [MASK] the book", {"reads"}),
        ("the man eats the [MASK]", {"bread", "cake", "bun", "pie", "soup", "apple", "trout", "oyster", "omelette"}),
        ("In the evening Anna casts the [MASK].", {"net"}),
    ],
)
def test_it_fills_masks_with_what_is_true_in_the_village(text, wanted):
    candidates = load_pipeline("fill-mask", "village")(text, top_k=5)[0]
    assert wanted & {candidate.piece for candidate in candidates}


def test_it_is_as_good_as_it_says():
    """Masked as in pre-training, on stories of a split that nobody has trained on."""
    made = json.loads((trained_model() / MADE).read_text())
    model, tokenizer = BertForPreTraining.from_pretrained(trained_model()).eval(), load_tokenizer(trained_model())
    rows = []
    for story in draw_stories(1, 60, split="village-test"):
        ids = [index for sentence in story.sentences for index in tokenizer.encode(render(sentence))][:62]
        rows.append([tokenizer.cls_token_id, *ids, tokenizer.sep_token_id])
    masked = mask_tokens(
        np.concatenate([np.array(row) for row in rows]),
        np.array([len(row) for row in rows]),
        special_ids=np.array(sorted(tokenizer.special_ids)),
        mask_token_id=tokenizer.mask_token_id,
        vocab_size=tokenizer.vocab_size,
        settings=MaskingSettings(),
        rng=generator(0, "village-test"),
    )
    starts = np.cumsum([0, *map(len, rows)])
    read = [masked.input_ids[a:b].tolist() for a, b in itertools.pairwise(starts)]
    with torch.inference_mode():
        output = model(RaggedBatch.from_sequences(read), torch.tensor(masked.positions))
        loss = float(MaskedLMLoss()(output.mlm_logits, torch.tensor(masked.labels)).loss)
    assert loss == pytest.approx(made["heldout"]["mlm_loss"], abs=0.25)
    assert loss < made["unigram_entropy"] / 3
    assert made["heldout"]["nsp_accuracy"] > 0.8


def test_the_one_of_reviews_is_as_good_as_it_says():
    """On reviews of a split that nobody has trained on; the mood is one word among 120, few of which were labelled."""
    made = json.loads((BUNDLED["village-reviews"] / MADE).read_text())
    reviews = list(draw_reviews(1, 400, split="village-test"))
    found = load_pipeline("classify", "village-reviews")([review.text for review in reviews])
    right = np.mean([one.label == review.label for one, review in zip(found, reviews, strict=True)])
    assert right == pytest.approx(made["test"]["accuracy"], abs=0.02)
    assert made["test"]["accuracy"] > 0.95


def test_its_name_means_it_unless_something_here_is_called_so(tmp_path, monkeypatch):
    assert model_folder("village") == trained_model()
    (tmp_path / "village").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_folder("village") == Path("village")


@pytest.mark.slow
def test_they_are_made_by_one_command_and_come_out_the_same(tmp_path):
    """A few steps, twice on one text: the same files, of the names that the shipped models have."""
    for name in ("one", "two"):
        command = [sys.executable, ROOT / ".ci/village_models.py", str(tmp_path / name), "--steps", "4"]
        subprocess.run([*command, "--work", str(tmp_path / "work")], check=True, capture_output=True, timeout=500)
        # 语料留着，只重新训练：第二次从同样的文本再走一遍
        for run in ("run", "reviews"):
            shutil.rmtree(tmp_path / "work" / run)
    assert json.loads((tmp_path / "one" / trained_model().name / MADE).read_text())["steps"] == 4
    for shipped in BUNDLED.values():
        one, two = (tmp_path / name / shipped.name for name in ("one", "two"))
        names = sorted(path.name for path in shipped.iterdir())
        assert sorted(path.name for path in one.iterdir()) == names
        for name in names:
            assert (one / name).read_bytes() == (two / name).read_bytes(), name
        assert (one / "vocab.txt").read_text() == (shipped / "vocab.txt").read_text()
