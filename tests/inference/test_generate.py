"""Continuing texts with a model that reads from left to right."""

import numpy as np
import pytest
import torch
import transformers

from bertsmith.errors import ConfigError, InputError
from bertsmith.inference import FillMask, Generate, load_pipeline
from bertsmith.model import BertConfig, BertForMaskedLM
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import pretrain
from typed_command import typed


def save(folder, *, is_decoder=True):
    sentences = [render(s) for story in draw_stories(0, 40) for s in story.sentences]
    tokenizer = WordPieceTokenizer.train(sentences, vocab_size=300)
    torch.manual_seed(1)
    shape = {"vocab_size": len(tokenizer), "max_position_embeddings": 48, "initializer_range": 0.3}
    BertForMaskedLM(BertConfig.named("2/64", is_decoder=is_decoder, **shape)).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def pipeline(folder):
    return load_pipeline("generate", folder, precision="float32")


def test_the_likeliest_pieces_are_those_of_transformers(folder, pipeline):
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = pipeline.tokenizer
    ids = [tokenizer.cls_token_id, *tokenizer.encode("the man reads")]
    others = [n for n in tokenizer.special_ids if n != tokenizer.sep_token_id]
    expected = peer.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=20,
        do_sample=False,
        suppress_tokens=others,
        eos_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )[0, len(ids) :].tolist()
    found = pipeline("the man reads", max_new_tokens=20)
    assert found.num_tokens == len(expected)
    assert found.text == tokenizer.decode([n for n in expected if n != tokenizer.sep_token_id])
    assert found.is_complete == (expected[-1] == tokenizer.sep_token_id)


def test_draws_are_seeded_and_do_not_depend_on_the_texts_beside(pipeline):
    one, other = (pipeline("the man", top_p=0.95, seed=seed).text for seed in (3, 4))
    assert one != other
    assert pipeline("the man", top_p=0.95, seed=3).text == one
    assert pipeline(["the man", "a dog eats the bread"], top_p=0.95, seed=3)[0].text == one
    # 很低的温度、很小的 top_p 都等于取最可能的
    assert pipeline("the man", top_p=1.0, temperature=1e-4).text == pipeline("the man").text
    assert pipeline("the man", top_p=1e-6).text == pipeline("the man").text


def test_pieces_are_drawn_by_their_probability_within_the_nucleus(pipeline):
    logits = torch.full((len(pipeline.tokenizer.vocab),), -torch.inf)
    first = max(pipeline.tokenizer.special_ids) + 1
    logits[first : first + 4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    rng = np.random.default_rng(0)
    drawn = [pipeline._next(logits, 0.8, 1.0, rng) - first for _ in range(4000)]
    assert sorted(set(drawn)) == [0, 1]
    assert np.mean(np.equal(drawn, 0)) == pytest.approx(0.5 / 0.8, abs=0.03)
    sharper = [pipeline._next(logits, 1.0, 0.5, rng) - first for _ in range(4000)]
    squared = np.square([0.5, 0.3, 0.15, 0.05])
    assert np.mean(np.equal(sharper, 0)) == pytest.approx(squared[0] / squared.sum(), abs=0.03)


def test_it_stops_where_the_model_has_no_more_positions(pipeline):
    found = pipeline("the", max_new_tokens=1000, top_p=1.0, temperature=50.0)
    assert found.num_tokens <= 46
    assert pipeline("", max_new_tokens=3).num_tokens <= 3


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("the man", {"max_new_tokens": 0}, "max_new_tokens 0"),
        ("the man", {"top_p": 0.0}, "top_p 0.0"),
        ("the man", {"top_p": 1.5}, "top_p 1.5"),
        ("the man", {"temperature": 0.0}, "temperature 0.0"),
        ("the man", {"temperature": float("nan")}, "temperature nan"),
        ("the man reads the book " * 20, {}, "the model reads 48"),
    ],
)
def test_what_cannot_be_asked(pipeline, text, arguments, message):
    with pytest.raises(InputError, match=message):
        pipeline(text, **arguments)


def test_each_pipeline_refuses_models_of_the_other_direction(folder, tmp_path):
    with pytest.raises(ConfigError, match="from left to right.*use generate"):
        load_pipeline("fill-mask", folder)
    both = save(tmp_path, is_decoder=False)
    with pytest.raises(ConfigError, match="both ways.*use fill-mask"):
        load_pipeline("generate", both)
    assert isinstance(load_pipeline("fill-mask", both), FillMask)


def test_the_command(folder, capsys):
    found = Generate.load(folder)("the man", max_new_tokens=5).text
    assert typed(capsys, "generate", "the man", "--model", folder, "--max-new-tokens", "5") == f"the man {found}\n"
    assert "top_p 2.0" in typed(capsys, "generate", "the man", "--model", folder, "--top-p", "2", code=2)


@pytest.mark.slow
def test_a_trained_model_writes_the_villages_sentences(village_small, tmp_path):
    corpus, tokenizer = village_small
    how = {"objective": "ltr", "sequence_length": 64, "batch_size": 16, "steps": 150, "precision": "float32"}
    pretrain(tmp_path, corpus, tokenizer, recipe_for("2/64", **how))
    written = Generate.load(tmp_path / "model")("the man", max_new_tokens=30, top_p=0.9)
    known = {word for story in draw_stories(0, 40) for s in story.sentences for word in render(s).split()}
    words = written.text.split()
    assert len(words) > 5
    assert np.mean([word in known for word in words]) > 0.6
