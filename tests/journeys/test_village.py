"""The trained model that the package carries: small, whole, as good as it says, and made by one command."""

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
from bertsmith.hub import model_folder
from bertsmith.model import BertForPreTraining
from bertsmith.objectives import MaskedLMLoss
from bertsmith.seeding import generator
from bertsmith.tinyworld import MADE, draw_stories, render, trained_model
from bertsmith.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]


def test_it_is_small_and_comes_with_the_package():
    files = [path for path in trained_model().iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_000_000
    if (ROOT / "pyproject.toml").exists():
        assert '"tinyworld/model/*"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


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


def test_its_name_means_it_unless_something_here_is_called_so(tmp_path, monkeypatch):
    assert model_folder("village") == trained_model()
    (tmp_path / "village").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_folder("village") == Path("village")


@pytest.mark.slow
def test_it_is_made_by_one_command_and_comes_out_the_same(tmp_path):
    """A few steps of it, twice on one text: the same files, of the names that the shipped model has."""
    for name in ("one", "two"):
        command = [sys.executable, "-m", "bertsmith.journeys.village", str(tmp_path / name), "--steps", "4"]
        subprocess.run([*command, "--work", str(tmp_path / "work")], check=True, capture_output=True, timeout=500)
        # 语料留着，只重新训练：第二次从同样的文本再走一遍
        shutil.rmtree(tmp_path / "work" / "run")
    assert json.loads((tmp_path / "one" / MADE).read_text())["steps"] == 4
    names = sorted(path.name for path in trained_model().iterdir())
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert (tmp_path / "one" / "vocab.txt").read_text() == (trained_model() / "vocab.txt").read_text()
