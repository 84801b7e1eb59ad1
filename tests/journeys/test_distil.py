"""`bertsmith distil`: a student of some layers, or of another size or family, learns from a larger model."""

import io
import json
from pathlib import Path

import pytest
import torch
import transformers
from rich.console import Console

from bertsmith import distil, load_tokenizer
from bertsmith.batch import RaggedBatch
from bertsmith.errors import BertsmithError, CheckpointError, ConfigError
from bertsmith.inference import Embed
from bertsmith.inference.embed import SentenceFolder, read_sentence_folder, write_sentence_folder
from bertsmith.model import ModelForPreTraining, as_distilbert, family_named, load_any
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import learn_tokenizer
from typed_command import typed

SHORT = {"minutes": 0.05}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    stories = "\n\n".join(" ".join(render(s) for s in story.sentences) for story in draw_stories(0, 120))
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text(stories, encoding="utf-8")
    return str(path)


def save_teacher(folder, text, family="bert", size="4/64"):
    tokenizer = learn_tokenizer([Path(text).read_text(encoding="utf-8")], kind="wordpiece", vocab_size=150)
    config = family_named(family).config.named(size, vocab_size=len(tokenizer), pad_token_id=0)
    ModelForPreTraining(config.with_position_limit(64), pair_head=family == "bert").save_pretrained(folder)
    tokenizer.save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def teacher(text, tmp_path_factory):
    torch.manual_seed(0)
    return save_teacher(tmp_path_factory.mktemp("teacher"), text)


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_every_second_layer_becomes_a_distilbert(teacher, text, tmp_path):
    shown = io.StringIO()
    how = {"keep_layers": "0,2", "family": "distilbert", **SHORT}
    result = distil(teacher, text, tmp_path / "run", console=Console(file=shown, width=100), **how).details
    assert result.loss_after < result.loss_before
    assert result.parameters < result.teacher_parameters
    assert "M parameters became" in shown.getvalue()
    peer = transformers.AutoModelForMaskedLM.from_pretrained(result.model_folder)
    assert type(peer).__name__ == "DistilBertForMaskedLM"
    assert peer.config.n_layers == 2
    assert {"mlm_loss", "soft_loss", "states_loss"} <= rows_of(tmp_path / "run")[-1].keys()
    # the same command again has nothing left to do
    assert distil(teacher, text, tmp_path / "run", **how).details.loss_after == result.loss_after


@pytest.mark.slow
def test_a_fresh_student_of_another_family_and_width(teacher, text, tmp_path, capsys):
    command = ["distil", "--teacher", teacher, "--text", text, "--out", str(tmp_path / "run"), "--minutes", "0.08"]
    typed(capsys, *command, "--size", "1/128", "--family", "modernbert")
    model = load_any(tmp_path / "run/model")
    assert (model.family.name, model.config.hidden_size) == ("ModernBert", 128)
    assert "relations_loss" in rows_of(tmp_path / "run")[-1]
    assert load_tokenizer(tmp_path / "run/model").vocab == load_tokenizer(teacher).vocab


def test_a_bert_as_distilbert_computes_the_same_for_one_text(teacher):
    bert = ModelForPreTraining.from_pretrained(teacher).eval()
    distilbert = as_distilbert(bert).eval()
    batch = RaggedBatch.from_sequences([[2, 7, 9, 3], [2, 8, 3]])
    with torch.inference_mode():
        torch.testing.assert_close(distilbert(batch).mlm_logits, bert(batch).mlm_logits, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_sentence_encoder_without_a_masked_lm_head_teaches_its_states(teacher, text, tmp_path):
    encoder = tmp_path / "encoder"
    network = ModelForPreTraining.from_pretrained(teacher).backbone
    # 随机的小权重几乎不改变状态：放大，让中间两层做的事看得见
    for block in network.encoder.blocks:
        block.attention.qkv.weight.data *= 8
        block.output.weight.data *= 8
    network.save_pretrained(encoder)
    load_tokenizer(teacher).save(encoder)
    write_sentence_folder(encoder, SentenceFolder(pooling="cls", max_length=32, normalize=True), 64)
    result = distil(encoder, text, tmp_path / "run", keep_layers="0,3", **SHORT).details
    assert result.loss_after < 0.7 * result.loss_before
    assert read_sentence_folder(result.model_folder) == SentenceFolder(pooling="cls", max_length=32, normalize=True)
    texts = ["the man eats bread", "a dog runs"]
    own, other = (Embed.load(folder)(texts) for folder in (result.model_folder, encoder))
    assert ((own * other).sum(1) > 0.8).all()


@pytest.mark.slow
def test_a_student_narrower_than_what_its_teacher_keeps_gives_all_of_its_own_numbers(text, tmp_path):
    encoder = save_teacher(tmp_path / "encoder", text, size="2/128")
    write_sentence_folder(tmp_path / "encoder", SentenceFolder(dims=100), 128)
    result = distil(encoder, text, tmp_path / "run", size="1/64", **SHORT).details
    assert Embed.load(result.model_folder)(["the man"]).shape == (1, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say what the student is"),
        ({"keep_layers": "0", "size": "tiny"}, "say what the student is"),
        ({"keep_layers": "0", "family": "electra"}, "leave --family out"),
        ({"keep_layers": "0;1"}, "write numbers"),
        ({"keep_layers": "0,9"}, "the model has 4 layers"),
        ({"keep_layers": "2,0"}, "rising order"),
        ({"size": "1/48"}, "48"),
        ({"size": "1/128", "loss": ("states",)}, "use relations"),
        ({"size": "1/64", "loss": ("smoke",)}, "teacher loss"),
        ({"size": "1/64", "temperature": 0.0}, "is 0.0; give more than 0"),
    ],
)
def test_what_cannot_be_a_student(teacher, text, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        distil(teacher, text, tmp_path / "run", **options, **SHORT)


def test_what_cannot_be_a_teacher(teacher, text, tmp_path):
    with pytest.raises(BertsmithError, match="nowhere"):
        distil(tmp_path / "nowhere", text, tmp_path / "a", size="1/64", **SHORT)
    ModelForPreTraining.from_pretrained(teacher).backbone.save_pretrained(tmp_path / "headless")
    load_tokenizer(teacher).save(tmp_path / "headless")
    with pytest.raises(ConfigError, match="compares predictions"):
        distil(tmp_path / "headless", text, tmp_path / "b", size="1/64", loss=("soft",), **SHORT)
    write_sentence_folder(tmp_path / "headless", SentenceFolder(prompts={"query": "q: "}), 64)
    (tmp_path / "headless/1_Pooling/config.json").write_text('{"pooling_mode": "mean", "include_prompt": false}')
    with pytest.raises(CheckpointError, match="leaves the prompt out"):
        distil(tmp_path / "headless", text, tmp_path / "d", size="1/64", **SHORT)
    # 训练之前就拒绝：什么也没有留下
    assert not (tmp_path / "d").exists()
    roberta = save_teacher(tmp_path / "roberta", text, family="roberta")
    with pytest.raises(ConfigError, match="only a bert can become one"):
        distil(roberta, text, tmp_path / "c", keep_layers="0,2", family="distilbert", **SHORT)
