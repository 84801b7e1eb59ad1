"""How long a run is, and what a step costs."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.shards import TRAIN
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.errors import ConfigError
from bertsmith.model import BertConfig, family_named
from bertsmith.objectives.pretraining import _REGISTERED, objective_named
from bertsmith.train.budget import SAMPLED_BATCHES, passes_over, steps_for, training_flops, with_dropout
from bertsmith.train.choosing import DROPOUT, MANY_PASSES, recipe_for
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import RunOptions, pretrain
from bertsmith.train.recipe import parse_phases
from bertsmith.train.start import open_stream

RECIPE = recipe_for("1/64", sequence_length=32, batch_size=8, precision="float32")


def equal_batch(sequences, length, masked, *, label=0, spans=None):
    tokens = RaggedBatch.from_flat(np.ones(sequences * length, np.int64), np.full(sequences, length))
    labels = torch.full((sequences,), label)
    draws = torch.linspace(0, 0.99, masked)
    return PreTrainingBatch(tokens, torch.arange(masked), torch.ones(masked, dtype=torch.int64), labels, spans, draws)


@pytest.mark.parametrize(
    ("objective", "family"),
    [
        *((name, "electra" if name == "rtd" else "bert") for name in _REGISTERED if name != "imitation"),
        *(("mlm with spans", "bert"), ("mlm+sop with spans", "bert")),
        *(("mlm+sop", "albert"), ("mlm with spans", "albert"), ("mlm", "electra")),
    ],
)
def test_the_operations_of_every_objective_are_those_of_the_matmuls_that_run(objective, family, monkeypatch):
    # torch's counter knows its own matmuls, not those of oneDNN
    monkeypatch.setattr("bertsmith.kernels.matmul.onednn_is_faster", lambda: False)
    name, _, spans = objective.partition(" with ")
    narrow = {} if family == "bert" else {"embedding_size": 32}
    config = family_named(family).config.named("2/128", vocab_size=90, **narrow)
    batch = equal_batch(
        4,
        16,
        10,
        label=0 if "+" in name else NO_LABEL,
        spans=torch.ones(10, 3, dtype=torch.int64) if spans else None,
    )
    objective = objective_named(name).for_masking("span" if spans else "token")
    model = objective.build_model(config).train()
    with FlopCounterMode(display=False) as counter:
        objective(model, batch).loss.backward()
    assert training_flops(config, batch, objective) == counter.get_total_flops()


def test_the_operations_of_unequal_sequences_add_up():
    config = BertConfig.named("mini", vocab_size=500)
    mixed = RaggedBatch.from_flat(np.ones(50, np.int64), np.array([10, 30, 10]))
    batch = PreTrainingBatch(mixed, torch.arange(3), torch.ones(3, dtype=torch.int64), torch.zeros(3))
    parts = training_flops(config, equal_batch(2, 10, 2)) + training_flops(config, equal_batch(1, 30, 1))
    assert training_flops(config, batch) == parts


def test_a_budget_of_tokens_or_operations_is_met(village):
    corpus, tokenizer, _ = village
    config = RECIPE.model_config(tokenizer)
    stream = open_stream(RECIPE, corpus, tokenizer)
    batches = [next(stream) for _ in range(100)]
    tokens = sum(batch.tokens.num_tokens for batch in batches)
    flops = sum(training_flops(config, batch) for batch in batches)
    assert steps_for(RECIPE.changed(tokens=tokens), corpus, tokenizer) == pytest.approx(100, abs=6)
    assert steps_for(RECIPE.changed(flops=flops), corpus, tokenizer) == pytest.approx(100, abs=6)


def test_a_budget_that_one_step_does_not_use_up_takes_two(village):
    corpus, tokenizer, _ = village
    stream = open_stream(RECIPE, corpus, tokenizer)
    per_step = np.mean([next(stream).tokens.num_tokens for _ in range(SAMPLED_BATCHES)])
    assert steps_for(RECIPE.changed(tokens=int(1.2 * per_step)), corpus, tokenizer) == 2
    assert steps_for(RECIPE.changed(tokens=int(0.9 * per_step)), corpus, tokenizer) == 1


def test_a_run_without_an_end_in_sight_is_refused(village, tmp_path):
    corpus, tokenizer, _ = village
    with pytest.raises(ConfigError, match="steps is .*; give at least 1 and at most 1000000000"):
        pretrain(tmp_path / "run", corpus, tokenizer, RECIPE.changed(tokens=10**300))
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_the_first_budget_that_is_used_up_ends_the_run(village, tmp_path):
    corpus, tokenizer, _ = village
    recipe = RECIPE.changed(tokens=10**9, flops=1e15, steps=4)
    assert steps_for(recipe, corpus, tokenizer) == 4
    assert steps_for(recipe.changed(tokens=500), corpus, tokenizer) < 4
    result = pretrain(tmp_path, corpus, tokenizer, recipe.changed(tokens=1500, steps=0, flops=0.0))
    assert result.tokens_seen == pytest.approx(1500, rel=0.15)


def test_a_run_without_an_end_is_refused(village, tmp_path):
    corpus, tokenizer, _ = village
    with pytest.raises(ConfigError, match="needs an end"):
        pretrain(tmp_path, corpus, tokenizer, RECIPE)


def test_a_run_that_cannot_compile_is_refused_before_its_folder_is_made(village, tmp_path):
    corpus, tokenizer, _ = village
    compiled = RunOptions(compiled=True)
    with pytest.raises(ConfigError, match="--compile is for GPUs"):
        pretrain(tmp_path / "run", corpus, tokenizer, RECIPE.changed(steps=1), compiled)
    with pytest.raises(ConfigError, match="--compile does not go with --teacher"):
        pretrain(tmp_path / "run", corpus, tokenizer, RECIPE.changed(steps=1, teacher="some/folder"), compiled)
    assert not (tmp_path / "run").exists()


def test_dropout_follows_from_how_often_the_text_is_read(village):
    corpus, tokenizer, _ = village
    stream = open_stream(RECIPE, corpus, tokenizer)
    per_step = np.mean([next(stream).tokens.num_tokens for _ in range(SAMPLED_BATCHES)])
    often = round(MANY_PASSES * corpus.counts[TRAIN].tokens / per_step)
    for steps, dropout in ((often // 2, 0.0), (often + 1, DROPOUT)):
        passes = passes_over(RECIPE.changed(steps=steps), corpus, tokenizer)
        assert with_dropout(RECIPE, passes).model.dropout == dropout
        assert with_dropout(RECIPE.changed(dropout=0.3), passes).model.dropout == 0.3


def test_a_text_that_the_time_exhausts_is_said_before(village, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    for limit, count in ((1e9, 0), (0.0, 1)):
        monkeypatch.setattr("bertsmith.train.pretraining.REPEATED", limit)
        console = Console(file=io.StringIO(), width=500)
        pretrain(tmp_path / f"{limit}", corpus, tokenizer, RECIPE.changed(steps=1), console=console)
        said = console.file.getvalue()
        assert said.count("more text teaches more than more time") == count
        assert said.count("the text will be read 0 times") == count


def test_phases_share_the_steps(village):
    recipe = recipe_for("1/64", phases=parse_phases("128:0.9,512:0.1"), steps=50)
    assert recipe.data.sequence_length == 512
    assert recipe.model_config(village[1]).max_position_embeddings == 512
    assert [recipe.phase_at(step) for step in (0, 44, 45, 49)] == [0, 0, 1, 1]
    assert [recipe.stream_settings(phase).sequence_length for phase in (0, 1)] == [128, 512]
    assert recipe_for("1/64", steps=50).phase_at(49) == 0
    assert recipe_for("1/64", phases=[[128, 0.9], [512, 0.1]], steps=50) == recipe


def test_a_budget_counts_each_phase_by_its_share(village):
    corpus, tokenizer, _ = village
    recipe = RECIPE.changed(phases=((16, 0.5), (32, 0.5)))
    short, long = (RECIPE.changed(sequence_length=length, tokens=20_000) for length in (16, 32))
    steps = steps_for(recipe.changed(tokens=20_000), corpus, tokenizer)
    assert steps_for(long, corpus, tokenizer) < steps < steps_for(short, corpus, tokenizer)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("128", "LENGTH:SHARE"),
        ("128:x", "LENGTH:SHARE"),
        ("128:0.9,512:0.2", "add up to 1"),
        ("8:1.5,9:-0.5", "add up"),
        ("16:nan,32:0.5", "add up"),
        ("16:0.5,32:nan", "add up"),
        ("16:inf,32:0.5", "add up"),
        ("16:0.5,32:0.5:0.2:8:1", "LENGTH:SHARE"),
        ("16:0.5,32:0.5:1.5", "mask_rate is 1.5"),
        ("16:0.5,32:0.5:nan", "mask_rate is nan"),
        ("16:0.5,32:0.5:0.2:-8", "batch_size is -8"),
        ("16.5:0.5,32:0.5", "LENGTH:SHARE"),
    ],
)
def test_impossible_phases_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        recipe_for("1/64", phases=parse_phases(text))


def test_a_phase_has_its_own_masks_and_batches(village):
    corpus, tokenizer, _ = village
    recipe = RECIPE.changed(phases=parse_phases("16:0.5:0.4,32:0.25:0.2:6,32:0.25"), steps=8, batch_size=4)
    wanted = [(16, 0.4, 4), (32, 0.2, 6), (32, recipe.data.masking.rate, 4)]
    for phase, (length, rate, size) in enumerate(wanted):
        settings = recipe.stream_settings(phase)
        assert (settings.sequence_length, settings.masking.rate, settings.batch_size) == (length, rate, size)
        batch = next(open_stream(recipe, corpus, tokenizer, phase=phase))
        assert batch.tokens.num_sequences == size
        assert batch.global_masked / batch.tokens.num_tokens == pytest.approx(rate, abs=0.12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"phases": parse_phases("16:0.5:0.3:8,32:0.5"), "batch_tokens": 256}, "leave batch sizes out"),
        ({"phases": parse_phases("16:0.5:0.3,32:0.5"), "objective": "ltr"}, "leave mask rates out"),
        ({"phases": ((16, 0.5), (32,))}, "LENGTH:SHARE"),
    ],
)
def test_phases_that_contradict_the_rest(settings, message):
    with pytest.raises(ConfigError, match=message):
        recipe_for("1/64", steps=8, **settings)


def test_phases_and_another_sequence_length_contradict_each_other():
    with pytest.raises(ConfigError, match="leave it out with phases"):
        recipe_for("1/64", phases=parse_phases("16:0.5,32:0.5"), sequence_length=64)


@pytest.mark.parametrize(("seconds", "said"), [(3.0, r"1\.\d+"), (8640.0, r"\d,\d{3}(\.\d+)?")])
def test_a_floor_of_steps_is_said_before(village, monkeypatch, seconds, said):
    """Without powers of ten: three thousand minutes are no 2.9e+03."""
    corpus, tokenizer, _ = village
    monkeypatch.setattr("bertsmith.train.budget.seconds_per_step", lambda *_, **__: seconds)
    recipe = recipe_for("1/64", sequence_length=32, batch_size=8, minutes=0.1)
    with pytest.warns(UserWarning, match=f"steps, here about {said} minutes instead of 0.1; give more minutes"):
        assert steps_for(recipe, corpus, tokenizer) == 20


@pytest.mark.parametrize(("minutes", "written"), [(0.03, "0.03"), (1440.0, "1,440")])
def test_a_run_that_takes_too_long_says_so_and_ends(village, tmp_path, monkeypatch, capsys, minutes, written):
    """Steps that were measured as far too fast: the minutes are kept, and the same command has nothing left to do."""
    corpus, tokenizer, _ = village
    monkeypatch.setattr("bertsmith.train.budget.seconds_per_step", lambda *_, **__: 1e-4)
    monkeypatch.setattr("bertsmith.train.pretraining.latest_end", lambda _: 2.0)
    recipe = recipe_for("1/64", sequence_length=32, batch_size=8, minutes=minutes)
    first = pretrain(tmp_path / "run", corpus, tokenizer, recipe, console=Console(width=200))
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert 0 < rows[-1]["step"] < first.recipe.trainer.total_steps
    assert rows[-1]["kind"] == "heldout"
    assert first.seconds < 60
    said = capsys.readouterr().out
    assert f"ended after step {rows[-1]['step']} of {first.recipe.trainer.total_steps}" in said
    assert f"the {written} minutes are over" in said
    # 报告里的步数是走过的，不是打算走的
    assert first.steps == rows[-1]["step"] < first.recipe.trainer.total_steps
    assert (tmp_path / "run/model/model.safetensors").exists()
    again = pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    assert again.heldout == first.heldout
    assert read_metrics(tmp_path / "run/metrics.jsonl") == rows
