"""Replaced-token detection: the loss by hand, the draws, the folders, and a run that dies."""

import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from bertsmith import load_pipeline
from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.errors import CheckpointError, ConfigError, RunFolderError
from bertsmith.model import load_any
from bertsmith.model.families.electra import ElectraConfig
from bertsmith.objectives import ReplacedTokenLoss, objective_named
from bertsmith.objectives.replaced_tokens import generator_config, sample_pieces
from bertsmith.train.choosing import chosen_recipe, recipe_for, recipe_to_continue
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import RunOptions, pretrain
from bertsmith.train.report import write_run_report
from bertsmith.train.start import build_model, heldout_set, make_trainer, open_stream
from bertsmith.train.trainer import BertTrainer

RTD = objective_named("rtd")
SMALL = {"sequence_length": 32, "batch_size": 8, "precision": "float32", "seed": 7}
RECIPE = recipe_for("2/128", family="electra", steps=6, **SMALL)
VOLATILE = ("tokens_per_second", "mfu")


def test_the_loss_of_the_discriminator_by_hand():
    logits = torch.tensor([2.0, -1.0, 0.5, -3.0])
    replaced = torch.tensor([True, False, False, True])
    # -log σ(2), -log σ(1), -log σ(-0.5), -log σ(-3)
    expected = [math.log1p(math.exp(-2)), math.log1p(math.exp(-1)), math.log1p(math.exp(0.5)), math.log1p(math.exp(3))]
    measured = ReplacedTokenLoss()(logits, replaced)
    assert measured.loss.item() == pytest.approx(sum(expected) / 4, rel=1e-6)
    assert measured.sums["rtd_loss"] == (pytest.approx(sum(expected), rel=1e-6), 4)
    assert measured.sums["rtd_accuracy"] == (2.0, 4)
    assert measured.sums["rtd_recall"] == (1.0, 2)
    parts = [ReplacedTokenLoss()(logits[part], replaced[part], total=4).loss for part in (slice(0, 1), slice(1, 4))]
    assert sum(parts).item() == pytest.approx(measured.loss.item(), rel=1e-6)


def small_model():
    torch.manual_seed(0)
    config = ElectraConfig(
        vocab_size=20,
        embedding_size=8,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=16,
    )
    model = RTD.build_model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def test_the_loss_of_a_batch_by_hand():
    """Three masks of two texts: pieces drawn by the running sum of probabilities, then two cross-entropies."""
    model = small_model()
    tokens = RaggedBatch.from_sequences([[2, 4, 9, 4, 3], [2, 7, 4, 3]])
    positions, labels = torch.tensor([1, 3, 7]), torch.tensor([11, 12, 13])
    with torch.no_grad():
        logits = model.generator(tokens, positions)
        probabilities = logits.softmax(-1).tolist()
    # the first is drawn where its own label lies: a guess that is right counts as original
    draws = [sum(probabilities[0][:11]) + probabilities[0][11] / 2, 0.0, 0.97]
    drawn = [
        next(piece for piece in range(20) if sum(row[: piece + 1]) > draw)
        for row, draw in zip(probabilities, draws, strict=True)
    ]
    assert drawn[0] == 11
    assert drawn[1] == 0
    assert drawn[2] > 5
    filled = tokens.input_ids.tolist()
    for place, piece in zip(positions.tolist(), drawn, strict=True):
        filled[place] = piece
    replaced = torch.zeros(9)
    replaced[3] = replaced[7] = 1.0
    no_pairs = torch.full((2,), -100)
    batch = PreTrainingBatch(tokens, positions, labels, no_pairs, masked_draws=torch.tensor(draws))
    found = RTD(model, batch)
    with torch.no_grad():
        judged = model.discriminator(RaggedBatch.from_sequences([filled[:5], filled[5:]]))
    mlm = F.cross_entropy(logits, labels)
    rtd = F.binary_cross_entropy_with_logits(judged, replaced)
    assert found.loss.item() == pytest.approx((mlm + 50 * rtd).item(), rel=1e-5)
    assert found.sums["mlm_loss"] == (pytest.approx(3 * mlm.item(), rel=1e-5), 3)
    assert found.sums["rtd_loss"] == (pytest.approx(9 * rtd.item(), rel=1e-5), 9)
    assert found.sums["rtd_recall"][1] == 2
    assert RTD.total_loss({"mlm_loss": mlm.item(), "rtd_loss": rtd.item()}) == pytest.approx(
        found.loss.item(), rel=1e-5
    )


def test_no_gradient_goes_through_the_draw():
    """The discriminator's loss reaches the generator through the shared embedding alone."""
    model = small_model()
    tokens = RaggedBatch.from_sequences([[2, 4, 9, 4, 3]])
    output = model(tokens, torch.tensor([1, 3]), torch.tensor([11, 12]), torch.tensor([0.3, 0.6]))
    output.rtd_logits.sum().backward()
    assert model.generator.backbone.embedding.word is model.discriminator.backbone.embedding.word
    reached = {name for name, parameter in model.generator.named_parameters() if parameter.grad is not None}
    assert {name.split(".")[2] for name in reached} == {"word", "position", "token_type", "norm"}


def test_pieces_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    places = (torch.arange(1000) + 0.5) / 1000
    counts = torch.bincount(sample_pieces(logits.expand(1000, 4), places), minlength=4)
    assert counts.tolist() == [100, 200, 300, 400]
    edge = torch.tensor([0.0, 1 - 2**-24])
    assert sample_pieces(torch.zeros(2, 30522), edge).tolist() == [0, 30521]


def test_the_generator_has_a_third_of_the_heads_rounded_up_and_is_as_deep():
    for size, heads, hidden in (("12/256", 2, 128), ("base", 4, 256), ("large", 6, 384), ("1/64", 1, 64)):
        config = ElectraConfig.named(size)
        small = generator_config(config)
        assert (small.num_attention_heads, small.hidden_size, small.intermediate_size) == (heads, hidden, 4 * hidden)
        assert (small.embedding_size, small.num_hidden_layers) == (config.embedding_size, config.num_hidden_layers)


def test_the_draws_are_those_of_the_batch(village_small):
    corpus, tokenizer = village_small
    first, second = open_stream(RECIPE, corpus, tokenizer), open_stream(RECIPE, corpus, tokenizer)
    one, _ = next(first), next(second)
    second.position = type(second.position)()
    again, following = next(second), next(first)
    assert one.masked_draws.equal(again.masked_draws)
    assert len(one.masked_draws) == len(one.masked_labels)
    assert not set(one.masked_draws.tolist()) & set(following.masked_draws.tolist())
    parts = torch.cat([part.masked_draws for part in one.split(3)])
    assert sorted(parts.tolist()) == sorted(one.masked_draws.tolist())


class Killed(Exception):
    """Stands for the process dying between two steps."""


def figures_of(run):
    rows = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name not in VOLATILE} for row in rows]


def test_a_run_that_dies_ends_bit_for_bit_the_same(village_small, tmp_path, monkeypatch):
    corpus, tokenizer = village_small
    pretrain(tmp_path / "whole", corpus, tokenizer, RECIPE, RunOptions(accumulate=2))
    original = BertTrainer.train_batch
    monkeypatch.setattr("bertsmith.train.pretraining.SAVING_SHARE", 1e9)
    for deadline in (2, 5):

        def dies(self, *parts, deadline=deadline):
            if self.step == deadline:
                raise Killed
            return original(self, *parts)

        monkeypatch.setattr(BertTrainer, "train_batch", dies)
        with pytest.raises(Killed):
            pretrain(tmp_path / "dies", corpus, tokenizer, RECIPE, RunOptions(save_every=0.0, accumulate=2))
    monkeypatch.setattr(BertTrainer, "train_batch", original)
    pretrain(tmp_path / "dies", corpus, tokenizer, RECIPE, RunOptions(accumulate=2))
    for part in ("model", "model/generator", "best", "best/generator"):
        expected, found = (load_file(tmp_path / run / part / "model.safetensors") for run in ("whole", "dies"))
        assert expected.keys() == found.keys()
        assert all(value.equal(found[name]) for name, value in expected.items()), part
    assert figures_of(tmp_path / "whole") == figures_of(tmp_path / "dies")
    # an embedding that both have is in the state once
    state = load_file(next((tmp_path / "whole" / "state").iterdir()) / "tensors.safetensors")
    assert sum(name.startswith("model.") and "embedding.word" in name for name in state) == 1


@pytest.fixture
def run(village_small, tmp_path):
    corpus, tokenizer = village_small
    return pretrain(tmp_path / "run", corpus, tokenizer, RECIPE)


def test_both_networks_are_folders_that_transformers_reads(run, village_small):
    corpus, tokenizer = village_small
    assert run.heldout.keys() >= {"mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_accuracy", "perplexity"}
    model = run.run / "model"
    tables = []
    for place, head_class in ((model, "ElectraForPreTraining"), (model / "generator", "ElectraForMaskedLM")):
        peer, report = getattr(transformers, head_class).from_pretrained(place, output_loading_info=True)
        assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert load_any(place).architecture == head_class
        tables.append(peer.electra.embeddings.word_embeddings.weight)
    assert tables[0].equal(tables[1])
    assert len(load_pipeline("fill-mask", model / "generator")("the [MASK] .")[0]) == 5
    assert "replaced-token accuracy" in write_run_report([run.run]).read_text()
    trainer = make_trainer(recipe_to_continue(model, steps=1, **SMALL), corpus, tokenizer)
    figures = trainer.evaluate(heldout_set(RECIPE, corpus, tokenizer))
    assert figures["rtd_loss"] == pytest.approx(run.heldout["rtd_loss"], abs=1e-6)
    assert figures["mlm_loss"] == pytest.approx(run.heldout["mlm_loss"], abs=1e-5)


def test_training_goes_on_from_a_discriminator_with_its_generator_or_a_fresh_one(run, village_small, tmp_path):
    corpus, tokenizer = village_small
    model = run.run / "model"
    recipe = recipe_to_continue(model, steps=1, **SMALL)
    assert recipe.objective == "rtd"
    both = build_model(recipe, corpus, tokenizer)
    for own, place in ((both.discriminator, model), (both.generator, model / "generator")):
        for name, value in load_any(place).state_dict().items():
            assert value.equal(own.state_dict()[name]), name
    alone = tmp_path / "alone"
    load_any(model).save_pretrained(alone)
    tokenizer.save(alone)
    fresh = build_model(recipe_to_continue(alone, steps=1, **SMALL), corpus, tokenizer)
    assert fresh.generator.backbone.embedding.word.weight.equal(both.generator.backbone.embedding.word.weight)
    assert not fresh.generator.masked_lm.transform.weight.equal(both.generator.masked_lm.transform.weight)
    prior = torch.from_numpy((corpus.piece_counts + 1.0) / (corpus.piece_counts + 1.0).sum()).float()
    torch.testing.assert_close(fresh.generator.masked_lm.bias.softmax(0).detach(), prior, rtol=1e-4, atol=0)
    bare = tmp_path / "bare"
    load_any(model).backbone.save_pretrained(bare)
    assert build_model(recipe_to_continue(bare, steps=1, **SMALL), corpus, tokenizer).discriminator.load_report.fresh


def test_a_run_does_not_go_on_with_another_generator(run, village_small, tmp_path):
    corpus, tokenizer = village_small
    model = run.run / "model"
    recipe = recipe_to_continue(model, steps=1, **SMALL)
    pretrain(tmp_path / "next", corpus, tokenizer, recipe)
    weights = load_file(model / "generator" / "model.safetensors")
    weights["generator_lm_head.bias"] += 1
    save_file(weights, model / "generator" / "model.safetensors")
    with pytest.raises(RunFolderError, match="start_weights"):
        pretrain(tmp_path / "next", corpus, tokenizer, recipe)
    weights["electra.embeddings.word_embeddings.weight"] += 1
    save_file(weights, model / "generator" / "model.safetensors")
    with pytest.raises(CheckpointError, match="generator: its word embedding is not that of .*move it away") as caught:
        build_model(recipe, corpus, tokenizer)
    assert "\n" not in str(caught.value)


def test_what_does_not_go_together_is_refused_in_one_line(run, tiny_model):
    with pytest.raises(ConfigError, match="family 'bert' has no replaced_tokens head, which --objective rtd trains"):
        recipe_for("1/64", objective="rtd", **SMALL)
    with pytest.raises(ConfigError, match="family 'electra' has no next_sentence head.*choose --objective rtd"):
        chosen_recipe({"family": "electra", "objective": "mlm+nsp", "steps": 3})
    with pytest.raises(ConfigError, match="no replaced_tokens head"):
        recipe_to_continue(tiny_model, objective="rtd", steps=1)
    with pytest.raises(ConfigError, match="rtd has no span boundary loss"):
        recipe_for("1/64", family="electra", masking="span", **SMALL)
    assert recipe_for("1/64", family="electra", masking="whole-word", **SMALL).build_objective() is RTD
