"""What `--compile` needs, and that it fits batches of any lengths; whether it is faster only a GPU can tell."""

import numpy as np
import pytest
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.kernels import compiling
from bertsmith.model import ModelForPreTraining, family_named

LENGTHS = [(5, 9, 3), (40,), (7, 7, 7, 7)]


@pytest.fixture
def traced(monkeypatch):
    """Blocks are traced as for a GPU, and run by torch's own kernels: nothing is written in C++."""
    plain = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: plain(self, backend="aot_eager", **how))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def batch_of(lengths: tuple[int, ...]) -> RaggedBatch:
    draw = np.random.default_rng(sum(lengths))
    return RaggedBatch.from_sequences([draw.integers(0, 90, length).tolist() for length in lengths])


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("family", "graphs"), [("bert", 1), ("modernbert", 3)])
def test_blocks_of_a_kind_share_a_graph_whatever_the_lengths(family, graphs):
    """ModernBERT's kinds are the first block, which has no norm, those that read all, and those that read a window."""
    kind = family_named(family)
    model = kind.backbone(kind.config.named("4/64", vocab_size=90, pad_token_id=0, attention_probs_dropout_prob=0.0))
    model.set_compute_dtype(torch.bfloat16)
    # meta 设备走的是 GPU 的路：变长注意力，没有矩形
    model.to("meta").compile_blocks()
    for lengths in LENGTHS:
        model(batch_of(lengths).to("meta")).hidden_states.float().sum().backward()
    found = torch._dynamo.utils.counters
    assert found["stats"]["unique_graphs"] == graphs
    assert not found["graph_break"]


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_training_evaluation_and_dropout_stay_within_the_graphs_that_are_kept():
    kind = family_named("modernbert")
    config = kind.config.named("4/64", vocab_size=90, pad_token_id=0)
    for dropout in (0.0, 0.1):
        model = kind.backbone(config.changed(hidden_dropout_prob=dropout))
        model.set_compute_dtype(torch.bfloat16)
        model.to("meta").compile_blocks()
        for lengths in LENGTHS:
            batch = batch_of(lengths).to("meta")
            model.train()(batch).hidden_states.float().sum().backward()
            with torch.inference_mode():
                model.eval()(batch)
    # 三种层，训练与评估，有无 dropout：超过 torch 默认的 8 个，多的那种就会不声不响地不编译
    assert 8 < torch._dynamo.utils.counters["stats"]["unique_graphs"] <= compiling.MOST_GRAPHS


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("family", ["bert", "modernbert", "albert"])
def test_compiled_blocks_compute_the_same(family):
    torch.manual_seed(0)
    kind = family_named(family)
    config = kind.config.named("2/64", vocab_size=90, pad_token_id=0)
    model = kind.backbone(config).eval()
    batches = [batch_of(lengths) for lengths in LENGTHS]
    wanted = [model(batch).hidden_states for batch in batches]
    model.compile_blocks()
    for batch, states in zip(batches, wanted, strict=True):
        torch.testing.assert_close(model(batch).hidden_states, states)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=pytest.mark.slow), "modernbert"])
def test_the_loss_over_the_pieces_is_compiled_with_the_blocks(family):
    kind = family_named(family)
    model = ModelForPreTraining(kind.config.named("1/64", vocab_size=90, pad_token_id=1), pair_head=False)
    batch = batch_of(LENGTHS[0])
    places = torch.tensor([1, 4])
    assert not model(batch, places).mlm.compiled
    model.compile_blocks()
    assert model(batch, places).mlm.compiled


def test_compiled_blocks_read_the_angles_and_compute_none(monkeypatch):
    """In a kernel of the rotation, sines would be computed again for every pair of every head."""
    called: list[str] = []

    def note(graph, _inputs):
        called.extend(str(node.target) for node in graph.graph.nodes if node.op in ("call_method", "call_function"))
        return graph.forward

    plain = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: plain(self, backend=note, **how))
    torch._dynamo.reset()
    kind = family_named("modernbert")
    model = kind.backbone(kind.config.named("2/64", vocab_size=90, pad_token_id=0)).to("meta")
    model.compile_blocks()
    model(batch_of(LENGTHS[0]).to("meta"))
    assert any("cat" in name for name in called)
    assert not [name for name in called if "cos" in name or "sin" in name]


def test_a_cpu_is_refused():
    with pytest.raises(ConfigError, match="--compile is for GPUs, and this run computes on cpu; leave it out"):
        compiling.require_compiler("cpu")


def test_what_the_compiler_lacks_is_said_before_a_run_begins(monkeypatch):
    def compile_nothing(_function):
        raise RuntimeError("Failed to find C compiler.\nPlease set CC.")

    monkeypatch.setattr(torch, "compile", compile_nothing)
    with pytest.raises(ConfigError, match=r"cannot compile here \(Failed to find C compiler\.\); it needs Triton, gcc"):
        compiling.require_compiler("cuda")
