"""The engine: order, packs, precision; checked against the reference model and against arithmetic."""

import threading

import numpy as np
import pytest
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference import Engine, InferenceConfig, load_pipeline
from bertsmith.inference import engine as precision_module
from bertsmith.kernels.layers import Linear
from bertsmith.kernels.matmul import has_int8_kernels, linear_int8, quantized
from bertsmith.model import BertConfig, BertForSequenceClassification, BertModel

CPU = InferenceConfig("cpu", "float32")
needs_int8 = pytest.mark.skipif(not has_int8_kernels(), reason="no int8 kernels in this torch")

SENTENCES = [
    "The man eats the bread and the cheese that his neighbour brought yesterday.",
    "Stock markets fell sharply after the central bank raised interest rates again.",
    "x",
    "A long story about nothing at all, told twice. " * 12,
    "How do I reset my password?",
    "Le café était fermé ce matin-là.",
]


def first_states(model, batch):
    return model(batch).cls


def all_states(model, batch):
    return model(batch).hidden_states


def states_at(model, batch, places):
    return model(batch).hidden_states.index_select(0, places)


def sequences_of(count, vocab_size, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, vocab_size, draw.integers(1, 30)).tolist() for _ in range(count)]


def reference_states(folder, sequences):
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.inference_mode():
        return [model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in sequences]


@pytest.fixture
def engine(tiny_model):
    return Engine(BertModel.from_pretrained(tiny_model), InferenceConfig("cpu", "float32", batch_tokens=64))


def test_rows_tokens_and_positions_are_the_references(engine, tiny_model):
    sequences = sequences_of(25, engine.model.config.vocab_size)
    expected = reference_states(tiny_model, sequences)
    rows = engine.run(sequences, None, first_states)
    torch.testing.assert_close(rows, torch.stack([states[0] for states in expected]), atol=1e-5, rtol=0)
    for got, wanted in zip(engine.run_tokens(sequences, None, all_states), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
    positions = [list(range(0, len(ids), 3)) for ids in sequences]
    positions[4] = []
    for got, wanted, places in zip(
        engine.run_positions(sequences, None, positions, states_at), expected, positions, strict=True
    ):
        torch.testing.assert_close(got, wanted[places], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("threads", "workers"), [(2, 2), (3, 3), (5, 4), (6, 3), (7, 3), (8, 4), (16, 4)])
def test_packs_computed_at_once_come_back_in_order(engine, tiny_model, threads, workers):
    sequences = sequences_of(60, engine.model.config.vocab_size)
    expected = engine.run(sequences, None, first_states)
    at_work, seen = threading.Barrier(workers), []

    def slow_states(model, batch):
        # 第一轮等齐：确实是几批同时在算，而不是一批接一批
        if len(seen) < at_work.parties:
            seen.append((torch.get_num_threads(), threading.get_ident()))
            at_work.wait(20)
        return model(batch).cls

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = engine.run(sequences, None, slow_states)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert {share for share, _ in seen} == {threads // at_work.parties}
    assert len({thread for _, thread in seen}) == at_work.parties
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_thread_born_while_packs_are_computed_has_all_cores(engine):
    sequences = sequences_of(60, engine.model.config.vocab_size)
    seen = []

    def look(model, batch):
        if not seen:
            newborn = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            newborn.start()
            newborn.join()
        return model(batch).cls

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        engine.run(sequences, None, look)
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {4}


def test_one_failing_pack_ends_the_call(engine):
    def fail(model, batch):
        raise RuntimeError("no memory")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="no memory"):
            engine.run_tokens(sequences_of(60, engine.model.config.vocab_size), None, fail)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_nothing_to_run(engine):
    assert engine.run_tokens([], None, all_states) == []
    assert engine.run_positions([], None, [], states_at) == []
    with pytest.raises(InputError, match="nothing to run"):
        engine.run([], None, first_states)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda engine: engine.run([[1], []], None, first_states), "is empty"),
        (lambda engine: engine.run([[1, 10**9]], None, first_states), "outside 0 to"),
        (lambda engine: engine.run([[1] * 33], None, first_states), "33 tokens"),
        (lambda engine: engine.run([[1, 2]], [[0]], first_states), "differ in length"),
        (lambda engine: engine.run_positions([[1]], None, [], states_at), "1 sequences and 0 lists"),
        (lambda engine: engine.run_positions([[1]], None, [[1]], states_at), "position 1 is outside 0 to 0"),
        (lambda engine: engine.run_positions([[1]], None, [[-1]], states_at), "position -1 is outside"),
    ],
)
def test_what_cannot_be_run_is_one_line(engine, call, error):
    with pytest.raises(InputError, match=error):
        call(engine)


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="precision 'int4' is unknown; use float32, bf16, int8, auto"):
        InferenceConfig(precision="int4")
    with pytest.raises(ConfigError, match="batch_tokens is -1; give at least 0"):
        InferenceConfig(batch_tokens=-1)
    with pytest.raises(ConfigError, match="int8 is for the CPU"):
        precision_module.apply_precision(BertModel(BertConfig.named("1/64")), "int8", torch.device("cuda"))


@needs_int8
@pytest.mark.parametrize("width", [64, 65, 384])
def test_an_int8_product_is_the_exact_product_of_the_rounded_numbers(width):
    torch.manual_seed(0)
    weight, bias = torch.randn(48, width), torch.randn(48)
    # outliers, a constant row and a row of zeros; the largest weights side by side would overflow 16 bits
    weight[0, :2] = 9.0
    weight[1] = 0.0
    states = torch.randn(20, width)
    states[3], states[4], states[5, 7] = 2.5, 0.0, 300.0
    kept = quantized(weight)
    rounded_weight = torch.round(weight / kept.scales[:, None]).double() * kept.scales[:, None]
    low, high = states.aminmax(dim=1, keepdim=True)
    step = ((high - low) / 254).clamp(min=1e-30).double()
    zero = torch.floor(low / step)
    integers = torch.round(states / step - zero)
    assert 0 <= integers.min() <= integers.max() <= 255  # nothing is cut off
    rounded_states = step * (integers + zero)
    expected = rounded_states @ rounded_weight.T + bias.double()
    with torch.inference_mode():
        got = linear_int8(states, kept, bias).double()
        without = linear_int8(states, kept, None).double()
    scale = expected.abs().amax(1, keepdim=True)
    # a half-way case may be rounded to the other side: one step of one number
    assert ((got - expected).abs() / scale).max() < 2e-3
    assert (got - expected).abs().median() < 1e-5
    torch.testing.assert_close(without, got - bias, rtol=1e-4, atol=1e-3)


@needs_int8
def test_no_state_wraps_around_its_byte():
    """The ends of a row are where a rounding error would turn 0 into 255; the product is then far off."""
    torch.manual_seed(0)
    weight = torch.eye(64)
    # rows of all places and widths, also far narrower than they are away from zero
    states = torch.randn(4096, 64) * 10 ** torch.empty(4096, 1).uniform_(-4, 2) + 3 * torch.randn(4096, 1)
    with torch.inference_mode():
        got = linear_int8(states, quantized(weight), torch.zeros(64))
    low, high = states.aminmax(dim=1, keepdim=True)
    assert ((got - states).abs() <= 0.6 * (high - low) / 254 + 1e-5 * states.abs()).all()


@needs_int8
def test_int8_vectors_of_real_text_are_close_to_float32(minilm_folder):
    exact = load_pipeline("embed", minilm_folder, precision="float32")(SENTENCES)
    rounded = load_pipeline("embed", minilm_folder, precision="int8")(SENTENCES)
    cosines = (exact * rounded).sum(1)
    assert cosines.mean() > 0.998
    assert cosines.min() > 0.995
    assert np.abs(exact - rounded).max() > 1e-4  # it is int8 indeed


def test_bf16_vectors_are_close_to_float32(tiny_model):
    texts = ["the man eats bread", "a book !"]
    exact = load_pipeline("embed", tiny_model, precision="float32")(texts)
    rounded = load_pipeline("embed", tiny_model, precision="bf16")(texts)
    assert (exact * rounded).sum(1).min() > 0.999


@needs_int8
def test_company_does_not_change_an_int8_vector(tiny_model):
    pipeline = load_pipeline("embed", tiny_model, precision="int8")
    alone = pipeline(["the man eats the bread"])
    among = pipeline([*("a book " * (n % 10) + "! " * (n % 3) for n in range(60)), "the man eats the bread"])
    assert (alone[0] * among[-1]).sum() > 0.9999


@needs_int8
def test_int8_is_for_the_blocks_and_ends_with_the_engine(tiny_model):
    model = BertForSequenceClassification.from_pretrained(tiny_model, new_heads=True, id2label={0: "a", 1: "b"})
    Engine(model, InferenceConfig("cpu", "int8"))
    rounded = [name for name, module in model.named_modules() if isinstance(module, Linear) and module.int8]
    assert len(rounded) == 4
    assert all(".blocks.0." in name for name in rounded)
    engine = Engine(model, CPU)
    assert engine.precision == "float32"
    assert not any(module.int8 for module in model.modules() if isinstance(module, Linear))


@needs_int8
def test_int8_leaves_gradients_as_they_are(tiny_model):
    model = BertModel.from_pretrained(tiny_model).eval()
    batch = RaggedBatch.from_sequences([[1, 2, 3], [4, 5]])

    def gradient():
        model.zero_grad()
        model(batch).pooled.sum().backward()
        return model.get_parameter("encoder.blocks.0.intermediate.weight").grad.clone()

    before = gradient()
    model.set_int8(True)
    with torch.inference_mode():
        model(batch)
    assert torch.equal(gradient(), before)


@needs_int8
def test_new_weights_are_rounded_anew(tiny_model):
    model = BertModel.from_pretrained(tiny_model)
    engine = Engine(model, InferenceConfig("cpu", "int8"))
    before = engine.run([[1, 2, 3]], None, first_states)
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.output.weight.mul_(-1.0)
    after = engine.run([[1, 2, 3]], None, first_states)
    exact = Engine(model, CPU).run([[1, 2, 3]], None, first_states)
    assert torch.cosine_similarity(after, exact).item() > 0.999
    assert (before - after).abs().max() > 1e-3


def test_auto_says_what_it_measured_and_takes_what_is_faithful(minilm_folder):
    pipeline = load_pipeline("embed", minilm_folder, precision="auto", device="cpu")
    choice = pipeline.engine.choice
    assert pipeline.engine.precision == choice.precision
    assert {trial.precision for trial in choice.trials} | set(choice.not_tried) == {"float32", "bf16", "int8"}
    faithful = [trial for trial in choice.trials if trial.cosine >= 0.995]
    assert choice.precision == min(faithful, key=lambda trial: trial.seconds).precision
    assert choice.trials[0].cosine == pytest.approx(1.0, abs=1e-6)
    assert str(choice).startswith(f"{choice.precision} (float32 ")
    exact = load_pipeline("embed", minilm_folder, precision="float32", device="cpu")(SENTENCES)
    assert (pipeline(SENTENCES) * exact).sum(1).min() > 0.99


def test_auto_refuses_what_is_fast_but_wrong(tiny_model, monkeypatch):
    times = {"float32": 1.0, "bf16": 0.5, "int8": 0.1}
    model = BertModel.from_pretrained(tiny_model)
    monkeypatch.setattr(precision_module, "FAITHFUL", 1.0 - 1e-7)
    applied = []
    original = precision_module.apply_precision

    def noted(model, precision, device):
        applied.append(precision)
        original(model, precision, device)

    monkeypatch.setattr(precision_module, "apply_precision", noted)
    monkeypatch.setattr(precision_module, "seconds_of", lambda *_: times[applied[-1]])
    choice = precision_module.choose_precision(model, torch.device("cpu"))
    assert choice.precision == "float32" == applied[-1]
    if has_int8_kernels():
        assert "too far from float32" in str(choice)


def test_auto_says_that_states_are_no_numbers(tiny_model):
    model = BertModel.from_pretrained(tiny_model)
    model.embedding.word.weight.data.fill_(float("nan"))
    with pytest.raises(CheckpointError, match="states are not finite numbers"):
        precision_module.choose_precision(model, torch.device("cpu"))


def test_precision_reaches_every_pipeline(tiny_model):
    for kind in ("fill-mask", "next-sentence", "embed"):
        assert load_pipeline(kind, tiny_model, precision="bf16", device="cpu").engine.precision == "bf16"
