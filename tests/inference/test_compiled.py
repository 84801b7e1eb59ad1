"""Short batches through ONNX Runtime: the same results, long ones as before, the cache, and what is refused."""

import shutil

import numpy as np
import pytest
import torch

from bertsmith.batch import CAUSAL, RaggedBatch
from bertsmith.errors import ConfigError, InputError
from bertsmith.inference import Embed, InferenceConfig, compiled, graph_cache
from bertsmith.inference.pipeline import pipeline_named
from bertsmith.model import family_named

pytest.importorskip("onnxscript")
LENGTHS = ([1], [7], [3, 5, 1, 5], [16, 16], [64])


@pytest.fixture(autouse=True, scope="module")
def shared_cache(tmp_path_factory):
    """Graphs of the same weights are made once for all tests: each takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("BERTSMITH_CACHE", str(folder))
        yield folder


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def backbone_of(family="bert"):
    torch.manual_seed(0)
    config = family_named(family).config.named("2/64", vocab_size=50).with_position_limit(70)
    return config.family.backbone(config, need_pooler=family == "bert").eval()


def compile_backbone(backbone, kind):
    return compiled.use_graph(backbone, compiled.graph_of(backbone, kind), kind)


def drawn(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return RaggedBatch.from_sequences([torch.randint(5, 50, (n,), generator=generator).tolist() for n in lengths])


@pytest.mark.parametrize("family", ["bert", pytest.param("modernbert", marks=pytest.mark.slow)])
def test_the_graph_gives_what_the_model_gives(family):
    backbone = backbone_of(family)
    with torch.inference_mode():
        expected = [backbone(drawn(lengths)) for lengths in LENGTHS]
        assert compile_backbone(backbone, "onnxruntime") == "onnxruntime"
        found = [backbone(drawn(lengths)) for lengths in LENGTHS]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.hidden_states, theirs.hidden_states, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours.cls, theirs.cls, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours.mean, theirs.mean, atol=1e-5, rtol=1e-5)
        if theirs.pooler_output is not None:
            torch.testing.assert_close(ours.pooled, theirs.pooled, atol=1e-5, rtol=1e-5)


def test_what_the_graph_does_not_give_the_model_does(monkeypatch):
    backbone = backbone_of()
    compile_backbone(backbone, "onnxruntime")
    graph = vars(backbone)["forward"]
    runs = []
    real = graph.session
    monkeypatch.setattr(
        graph, "session", type("Counted", (), {"run": lambda _, *given: runs.append(1) or real.run(*given)})()
    )
    with torch.inference_mode():
        backbone(drawn([7]))
        assert len(runs) == 1
        assert len(backbone(drawn([7]), need_layers=True).layers) == 3
        assert len(backbone(drawn([7]), need_maps=True).attentions) == 2
        backbone(drawn([7]), mask=CAUSAL)
        backbone(drawn([40, 40]))
        with pytest.raises(InputError, match="outside"):
            backbone(RaggedBatch.from_sequences([[99]]))
    backbone(drawn([7])).hidden_states.sum().backward()
    assert backbone.embedding.word.weight.grad is not None
    assert len(runs) == 1


def test_pipelines_give_equal_results(tiny_model):
    texts = ["the man reads a book .", "a woman"]
    plain = pipeline_named("embed").load(tiny_model, precision="float32")
    quick = pipeline_named("embed").load(tiny_model, engine="onnxruntime")
    assert (plain.engine.kind, quick.engine.kind) == ("torch", "onnxruntime")
    np.testing.assert_allclose(plain(texts), quick(texts), atol=1e-5)
    fill = [
        pipeline_named("fill-mask").load(tiny_model, engine=engine, precision="float32") for engine in ("torch", "auto")
    ]
    own, other = (pipeline(["the [MASK] reads ."])[0] for pipeline in fill)
    assert [each.piece for each in own[0]] == [each.piece for each in other[0]]


@pytest.mark.slow
def test_a_graph_is_made_once_and_again_when_it_is_damaged_or_of_other_weights(shared_cache, own_cache, monkeypatch):
    backbone = backbone_of()
    made = shared_cache / compiled.graph_name(backbone)
    if made.is_dir():
        shutil.copytree(made, own_cache / made.name)
    compile_backbone(backbone, "onnxruntime")
    file = next(own_cache.glob("*/graph.onnx"))
    monkeypatch.setattr("bertsmith.model.graph.write_graph", lambda *_, **__: pytest.fail("made again"))
    compile_backbone(backbone_of(), "onnxruntime")
    monkeypatch.undo()
    monkeypatch.setenv("BERTSMITH_CACHE", str(own_cache))
    file.write_bytes(file.read_bytes()[:1000])
    mended = backbone_of()
    compile_backbone(mended, "onnxruntime")
    with torch.inference_mode():
        torch.testing.assert_close(mended(drawn([7])).cls, backbone_of()(drawn([7])).cls, atol=1e-5, rtol=1e-5)
    other = backbone_of()
    with torch.no_grad():
        other.embedding.word.weight[0] += 1
    assert compiled.graph_name(other) != compiled.graph_name(backbone_of())
    monkeypatch.setattr(graph_cache, "__version__", "99")
    assert compiled.graph_name(backbone_of()) != file.parent.name


def test_auto_keeps_torch_where_the_graph_is_no_faster_or_not_installed(monkeypatch):
    monkeypatch.setattr(compiled, "is_installed", lambda: False)
    assert compile_backbone(backbone_of(), "auto") == "torch"
    with pytest.raises(ConfigError, match=r"bertsmith\[onnx\]"):
        compile_backbone(backbone_of(), "onnxruntime")
    monkeypatch.undo()
    times = iter([1.0, 0.95, 1.0, 0.5])
    monkeypatch.setattr(compiled, "_seconds", lambda *_: next(times))
    assert [compile_backbone(backbone_of(), "auto") for _ in range(2)] == ["torch", "onnxruntime"]


def test_what_does_not_go_together(tiny_model):
    with pytest.raises(ConfigError, match="engine 'tvm' is unknown"):
        InferenceConfig(engine="tvm")
    with pytest.raises(ConfigError, match="computes in float32, not in int8"):
        Embed.load(tiny_model, precision="int8", engine="onnxruntime")


def test_auto_measures_against_the_precision_that_is_asked_for(tiny_model, monkeypatch):
    times = iter([1.0, 0.5])
    monkeypatch.setattr(compiled, "_seconds", lambda *_: next(times))
    mixed = Embed.load(tiny_model, precision="bf16", engine="auto")
    assert (mixed.engine.precision, mixed.engine.kind) == ("bf16", "onnxruntime")
    exact = Embed.load(tiny_model, precision="float32")
    # 短批次由 float32 的图来算，比 bf16 更准；长批次仍是 bf16
    np.testing.assert_allclose(mixed(["a woman"]), exact(["a woman"]), atol=1e-5)
    assert (mixed(["the man " * 60]) * exact(["the man " * 60])).sum() > 0.999
