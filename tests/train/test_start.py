"""What a run starts from: every objective, and the models of others."""

import math
import os
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.cooccurrence import piece_vectors
from bertsmith.data.stream.prefetch import PrefetchedStream
from bertsmith.errors import BertsmithError, CheckpointError, ConfigError, RunFolderError
from bertsmith.model import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.choosing import DROPOUT, recipe_for, recipe_to_continue
from bertsmith.train.pretraining import RunOptions, pretrain
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import build_model, fingerprint_start, heldout_set, open_stream

SMALL = {"sequence_length": 32, "batch_size": 8, "precision": "float32", "steps": 3}


@pytest.mark.parametrize(
    ("changes", "figures", "architecture"),
    [
        ({}, {"mlm_loss", "nsp_loss"}, "BertForPreTraining"),
        ({"pairing": "google", "static_masking": 2}, {"mlm_loss", "nsp_loss"}, "BertForPreTraining"),
        ({"objective": "mlm+sop", "masking": "whole-word"}, {"mlm_loss", "sop_loss"}, "BertForPreTraining"),
        ({"objective": "mlm", "packing": "full", "batch_tokens": 256}, {"mlm_loss"}, "BertForMaskedLM"),
        ({"objective": "mlm", "masking": "span"}, {"mlm_loss", "sbo_loss"}, "BertForMaskedLM"),
        ({"objective": "ltr"}, {"ltr_loss"}, "BertForMaskedLM"),
        ({"objective": "ltr+nsp"}, {"ltr_loss", "nsp_loss"}, "BertForPreTraining"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_every_objective_runs_to_a_model_folder(village, tmp_path, changes, figures, architecture):
    corpus, tokenizer, _ = village
    recipe = recipe_for("1/64", **SMALL, **changes)
    result = pretrain(tmp_path, corpus, tokenizer, recipe)
    assert {name for name in result.heldout if name.endswith("_loss")} == figures
    assert result.heldout["perplexity"] > 1
    assert PreTrainingRecipe.load(tmp_path) == result.recipe
    assert BertConfig.load(tmp_path / "model").hidden_size == 64
    assert f'"{architecture}"' in (tmp_path / "model" / "config.json").read_text()


def test_the_settings_of_a_recipe_reach_the_batches(village):
    corpus, tokenizer, _ = village
    recipe = recipe_for("1/64", **SMALL, mask_rate=0.4, mask_share=1.0, random_share=0.0)
    batch = next(open_stream(recipe, corpus, tokenizer))
    hidden = batch.tokens.input_ids[batch.masked_positions]
    assert (hidden == tokenizer.mask_token_id).all()
    assert len(hidden) / batch.tokens.num_tokens == pytest.approx(0.4, abs=0.06)


def test_held_out_masks_are_the_papers_whatever_a_run_hides(village):
    """So that the losses of runs compare; the kind of mask stays that of the run."""
    corpus, tokenizer, _ = village
    usual = recipe_for("1/64", **SMALL, mask_rate=0.15)
    other = recipe_for("1/64", **SMALL, mask_rate=0.6, mask_share=1.0, random_share=0.0)
    first, second = (heldout_set(recipe, corpus, tokenizer) for recipe in (usual, other))
    assert all(torch.equal(a.tokens.input_ids, b.tokens.input_ids) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a.masked_labels, b.masked_labels) for a, b in zip(first, second, strict=True))


def test_a_table_of_positions_starts_as_sinusoids(village):
    """Vaswani et al. 2017, §3.5: PE(p, i) = sin(p / 10000^(2i/E)) and cos of the same, here side by side."""
    corpus, tokenizer, _ = village
    waves = build_model(recipe_for("1/64", **SMALL, sinusoids=0.5), corpus, tokenizer).backbone.embedding
    table, place, pair = waves.position.weight, 7, 5
    angle = place / 10_000 ** (2 * pair / 64)
    assert float(table[place, pair]) == pytest.approx(0.5 * math.sin(angle), abs=1e-6)
    assert float(table[place, 32 + pair]) == pytest.approx(0.5 * math.cos(angle), abs=1e-6)
    drawn = build_model(recipe_for("1/64", **SMALL, sinusoids=0.0), corpus, tokenizer).backbone.embedding
    assert float(drawn.position.weight.std()) == pytest.approx(0.018, abs=0.004)
    # 其他权重不变：表只在画好之后被改写
    assert torch.equal(drawn.word.weight, waves.word.weight)


@pytest.mark.parametrize(("family", "objective"), [("bert", "mlm"), ("albert", "mlm"), ("electra", "rtd")])
def test_vectors_of_pieces_start_as_counted_or_as_drawn(village, family, objective):
    corpus, tokenizer, _ = village

    def table(**changes):
        recipe = recipe_for("2/64", family=family, objective=objective, **SMALL, **changes)
        model = build_model(recipe, corpus, tokenizer)
        parts = recipe.build_objective().models(model).values()
        return next(iter(parts)).backbone.embedding.word.weight.detach()

    counted, drawn = table(), table(first_vectors="drawn")
    expected = torch.from_numpy(piece_vectors(corpus, counted.shape[1]))
    seen = expected.any(dim=1)
    assert torch.equal(counted[: len(seen)][seen], expected[seen])
    if family != "bert":
        # 去往隐藏宽度的矩阵保住角度：数出来的相近，到了状态里仍相近
        recipe = recipe_for("1/256", family=family, objective=objective, **SMALL)
        model = recipe.build_objective().models(build_model(recipe, corpus, tokenizer))[""]
        weight = model.backbone.embedding.projection.weight
        torch.testing.assert_close(weight.T @ weight, torch.eye(128))
    # [MASK] 等没有邻居的词与随机的表相同
    assert not seen[tokenizer.mask_token_id]
    assert torch.equal(counted[: len(seen)][~seen], drawn[: len(seen)][~seen])
    assert float(drawn.std()) == pytest.approx(0.018, abs=0.002)


def test_a_discriminator_starts_at_the_share_that_is_replaced(village):
    corpus, tokenizer, _ = village
    model = build_model(recipe_for("2/64", family="electra", objective="rtd", **SMALL), corpus, tokenizer)
    with torch.inference_mode():
        logits = model.discriminator(RaggedBatch.from_sequences([list(range(5, 37))]))
    assert float(logits.mean()) == pytest.approx(math.log(0.15 / 0.85), abs=0.1)


def test_trained_vectors_are_not_counted_anew(village, general):
    corpus, tokenizer, _ = village
    recipe = recipe_to_continue(general, **SMALL, first_vectors="counted")
    table = build_model(recipe, corpus, tokenizer).backbone.embedding.word.weight
    assert torch.equal(table, load_file(general / "model.safetensors")["bert.embeddings.word_embeddings.weight"])


@pytest.mark.parametrize(("family", "rate"), [("modernbert", 2e-3), ("bert", 1e-3), ("roberta", 1e-3)])
def test_family_and_size_choose_the_recipe(family, rate):
    mini, base = (recipe_for(size, family=family) for size in ("mini", "base"))
    assert (mini.trainer.optimizer, mini.trainer.learning_rate, mini.data.masking.rate) == ("muon", rate, 0.3)
    assert base.trainer.learning_rate == pytest.approx(rate / 3)
    assert base.trainer.matrix_rate == mini.trainer.matrix_rate
    assert mini.data.packing == ("sentences" if family == "bert" else "full")
    assert recipe_for("mini", family=family, mask_rate=0.2, packing="sentences").data.masking.rate == 0.2
    assert recipe_for("mini", family="electra").data.masking.rate == 0.15


@pytest.fixture
def general(village, tmp_path):
    """A model of the village's vocabulary with positions for 48 tokens, and its tokenizer."""
    _, tokenizer, _ = village
    torch.manual_seed(3)
    config = BertConfig.named("2/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=48)
    BertForPreTraining(config).save_pretrained(tmp_path / "general")
    tokenizer.save(tmp_path / "general")
    return tmp_path / "general"


def test_training_goes_on_from_a_model_folder(village, general, tmp_path):
    corpus, tokenizer, _ = village
    recipe = recipe_to_continue(general, **SMALL, learning_rate=1e-9)
    assert recipe.model.size == "2/64"
    pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    before, after = (load_file(folder / "model.safetensors") for folder in (general, tmp_path / "run" / "model"))
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-6, rtol=0)
    assert recipe_to_continue(general).trainer.learning_rate == 1e-3 / 4
    assert recipe_to_continue(general).trainer.optimizer == "adamw"


@pytest.mark.parametrize(("continued", "measured"), [(True, [DROPOUT]), (False, [0.0, DROPOUT])])
def test_minutes_are_measured_with_the_dropout_that_is_trained_with(
    village, general, tmp_path, monkeypatch, continued, measured
):
    """A model that is trained on always has some; a fresh one where its steps turn out to read the text often."""
    corpus, tokenizer, _ = village
    found = []

    def seconds(trainer, *_, **__):
        found.append(trainer.model.config.hidden_dropout_prob)
        return 0.1

    monkeypatch.setattr("bertsmith.train.budget.seconds_per_step", seconds)
    monkeypatch.setattr("bertsmith.train.budget.MANY_PASSES", 1e-9)
    asked = {**SMALL, "minutes": 0.05}
    del asked["steps"]
    recipe = recipe_to_continue(general, **asked) if continued else recipe_for("1/64", **asked)
    result = pretrain(tmp_path / "run", corpus, tokenizer, recipe, RunOptions(evaluations=0))
    assert found == measured
    assert result.recipe.model.dropout == DROPOUT


@pytest.mark.parametrize("architecture", [BertForMaskedLM, BertModel])
def test_missing_heads_start_afresh(village, general, tmp_path, architecture):
    corpus, tokenizer, _ = village
    architecture.from_pretrained(general).save_pretrained(tmp_path / "headless")
    model = build_model(recipe_to_continue(tmp_path / "headless", **SMALL), corpus, tokenizer)
    whole = BertForPreTraining.from_pretrained(general)
    assert model.backbone.embedding.word.weight.equal(whole.backbone.embedding.word.weight)
    assert model.next_sentence.linear.weight.abs().sum() > 0
    if architecture is BertModel:
        prior = torch.from_numpy((corpus.piece_counts + 1.0) / (corpus.piece_counts + 1.0).sum()).float()
        torch.testing.assert_close(model.masked_lm.bias.softmax(0).detach(), prior, rtol=1e-4, atol=0)
    else:
        assert model.masked_lm.transform.weight.equal(whole.masked_lm.transform.weight)


def test_a_pair_head_that_is_not_needed_is_left_aside(village, general):
    corpus, tokenizer, _ = village
    assert (
        build_model(recipe_to_continue(general, **SMALL, objective="mlm"), corpus, tokenizer).architecture
        == "BertForMaskedLM"
    )


def test_sequences_longer_than_the_models_positions_are_refused(general):
    assert recipe_to_continue(general).data.sequence_length == 48
    with pytest.raises(ConfigError, match="has 48 positions, sequences of 64 do not fit"):
        recipe_to_continue(general, sequence_length=64)


@pytest.mark.parametrize(("objective", "way_out"), [("mlm+nsp", "mlm"), ("mlm+sop", "mlm"), ("ltr+nsp", "ltr")])
def test_a_model_of_one_segment_goes_on_without_pairs(village, general, objective, way_out):
    corpus, tokenizer, _ = village
    BertForMaskedLM(BertConfig.load(general).changed(type_vocab_size=1)).save_pretrained(general)
    with pytest.raises(ConfigError, match=f"a single segment.* choose --objective {way_out}$"):
        recipe_to_continue(general, **SMALL, objective=objective)
    recipe = recipe_to_continue(general, **SMALL, objective=way_out)
    assert next(open_stream(recipe, corpus, tokenizer)).tokens.token_type_ids.max() == 0


def test_a_tokenizer_that_is_not_the_models_is_refused(village, general, tmp_path):
    corpus, tokenizer, _ = village
    WordPieceTokenizer.train(["another text altogether"], vocab_size=200).save(general)
    with pytest.raises(CheckpointError, match="reads another vocabulary"):
        pretrain(tmp_path / "run", corpus, tokenizer, recipe_to_continue(general, **SMALL))


def test_a_tokenizer_of_another_casing_is_refused(village, general, tmp_path):
    corpus, tokenizer, _ = village
    recipe = recipe_to_continue(general, **SMALL)
    WordPieceTokenizer(tokenizer.vocab, lowercase=False).save(general)
    for missing in (None, "tokenizer.json"):
        if missing:
            (general / missing).unlink()
        with pytest.raises(CheckpointError, match=r"reads text by other rules \(its casing"):
            pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    # a vocabulary alone says nothing of casing
    (general / "tokenizer_config.json").unlink()
    assert fingerprint_start(recipe, tokenizer).model.start_weights


def test_a_run_does_not_go_on_from_other_weights(village, general, tmp_path):
    corpus, tokenizer, _ = village
    recipe = recipe_to_continue(general, **SMALL)
    pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    weights = load_file(general / "model.safetensors")
    weights["bert.pooler.dense.bias"] += 1
    save_file(weights, general / "model.safetensors")
    with pytest.raises(RunFolderError, match="start_weights"):
        pretrain(tmp_path / "run", corpus, tokenizer, recipe)


def test_a_process_that_draws_batches_and_dies_is_named(village, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    original = PrefetchedStream.__next__

    def dies(self):
        batch = original(self)
        os.kill(self.worker.pid, signal.SIGKILL)
        return batch

    monkeypatch.setattr(PrefetchedStream, "__next__", dies)
    with pytest.raises(BertsmithError, match=r"prepares batches died \(signal 9\).*run the same command again"):
        pretrain(tmp_path, corpus, tokenizer, recipe_for("1/64", **{**SMALL, "steps": 60}), RunOptions(workers=1))


@pytest.mark.parametrize(
    ("device", "precision", "on_weights"), [("cuda", "bf16", 0.0), ("cuda", "float32", 0.1), ("cpu", "bf16", 0.1)]
)
def test_only_a_gpu_in_bf16_takes_the_dropout_from_attention_weights(village, device, precision, on_weights):
    corpus, tokenizer, _ = village
    recipe = recipe_for("2/64", family="bert", precision=precision, dropout=0.1, steps=1)
    config = build_model(recipe, corpus, tokenizer, device).config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, on_weights)
