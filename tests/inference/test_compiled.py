"""Batches through ONNX Runtime and OpenVINO: the same results, the rest as before, the cache, and what is refused."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from bertsmith.batch import CAUSAL, RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.inference import Embed, InferenceConfig, compiled, graph_cache
from bertsmith.inference.compiled import EngineChoice
from bertsmith.inference.pipeline import pipeline_named
from bertsmith.model import family_named, graph
from bertsmith.parallel import available_cores

pytest.importorskip("onnxscript")
pytest.importorskip("openvino")
LENGTHS = ([1], [7], [3, 5, 1, 5], [16, 16], [64])
LONG = ([70, 3, 22, 4, 31, 8, 9, 10, 11, 12], [70] * 9)
ENGINES = ("onnxruntime", "openvino")


@pytest.fixture(autouse=True, scope="module")
def shared_cache(tmp_path_factory):
    """Graphs of the same weights are made once for all tests: each takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("BERTSMITH_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def measured_anew(shared_cache):
    for verdict in shared_cache.glob("engines/*.json"):
        verdict.unlink()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def backbone_of(family="bert"):
    torch.manual_seed(0)
    config = family_named(family).config.named("2/64", vocab_size=50).with_position_limit(70)
    return config.family.backbone(config, need_pooler=family == "bert").eval()


def compile_backbone(backbone, kind, precision="float32"):
    graphs, verdict = compiled.graphs_of(backbone, kind, precision)
    return compiled.use_graphs(backbone, graphs, kind, verdict)


def drawn(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return RaggedBatch.from_sequences([torch.randint(5, 50, (n,), generator=generator).tolist() for n in lengths])


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("family", ["bert", pytest.param("modernbert", marks=pytest.mark.slow)])
def test_the_graph_gives_what_the_model_gives(family, kind):
    backbone = backbone_of(family)
    with torch.inference_mode():
        expected = [backbone(drawn(lengths)) for lengths in LENGTHS + LONG]
        assert compile_backbone(backbone, kind).short == kind
        found = [backbone(drawn(lengths)) for lengths in LENGTHS + LONG]
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
    real = graph.graph
    counted = type("Counted", (), {"run": lambda _, given: runs.append(1) or real.run(given), "inputs": real.inputs})
    monkeypatch.setattr(graph, "graph", counted())
    with torch.inference_mode():
        backbone(drawn([7]))
        assert len(runs) == 1
        assert len(backbone(drawn([7]), need_layers=True).layers) == 3
        assert len(backbone(drawn([7]), need_maps=True).attentions) == 2
        backbone(drawn([7]), mask=CAUSAL)
        with pytest.raises(InputError, match="outside"):
            backbone(RaggedBatch.from_sequences([[99]]))
    backbone(drawn([7])).hidden_states.sum().backward()
    assert backbone.embedding.word.weight.grad is not None
    assert len(runs) == 1


def test_openvino_computes_long_batches_too_and_in_bf16_nearly_the_same(monkeypatch):
    backbone = backbone_of()
    with torch.inference_mode():
        expected = backbone(drawn([40, 64, 12] * 9)).mean
        assert compile_backbone(backbone, "openvino", "bf16") == EngineChoice("openvino", "openvino")
        monkeypatch.setattr(vars(backbone)["forward"], "own", None)
        found = backbone(drawn([40, 64, 12] * 9)).mean
    assert float(torch.cosine_similarity(found, expected).min()) > 0.999


def test_a_graph_that_computes_something_else_is_refused_and_auto_leaves_it_out(shared_cache, monkeypatch):
    for checked in shared_cache.glob("*/checked-*"):
        checked.unlink()
    monkeypatch.setattr(compiled, "ALIKE", {"float32": 1.1, "bf16": 1.1})
    with pytest.raises(CheckpointError, match=r"engine openvino gives vectors with a cosine of .* use --engine torch"):
        compile_backbone(backbone_of(), "openvino")
    with pytest.warns(UserWarning, match="it is left out"):
        assert compile_backbone(backbone_of(), "auto") == EngineChoice("torch", "torch")


def test_weights_that_no_onnx_file_holds(own_cache, monkeypatch):
    monkeypatch.setattr("bertsmith.model.graph.LARGEST_FILE", 1000)
    with pytest.raises(InputError, match="an ONNX file holds 2 GiB; use --engine torch"):
        compile_backbone(backbone_of(), "openvino")
    with pytest.warns(UserWarning, match="2 GiB; use --engine torch; it is left out"):
        assert compile_backbone(backbone_of(), "auto") == EngineChoice("torch", "torch")


def test_pipelines_give_equal_results(tiny_model):
    texts = ["the man reads a book .", "a woman"]
    plain = pipeline_named("embed").load(tiny_model, precision="float32")
    assert (plain.engine.kind, plain.engine.long_kind) == ("torch", "torch")
    for kind in ENGINES:
        quick = pipeline_named("embed").load(tiny_model, precision="float32", engine=kind)
        assert (quick.engine.kind, quick.engine.long_kind) == (kind, kind)
        np.testing.assert_allclose(plain(texts), quick(texts), atol=1e-5)
        np.testing.assert_allclose(plain(texts * 40), quick(texts * 40), atol=1e-5)
    fill = [
        pipeline_named("fill-mask").load(tiny_model, engine=engine, precision="float32") for engine in ("torch", "auto")
    ]
    own, other = (pipeline(["the [MASK] reads ."])[0] for pipeline in fill)
    assert [each.piece for each in own[0]] == [each.piece for each in other[0]]


@pytest.mark.slow
def test_a_graph_is_made_once_and_again_when_it_is_damaged_or_of_other_weights(own_cache, monkeypatch):
    backbone = backbone_of()
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
    for changed in (lambda: other, lambda: monkeypatch.setattr(graph_cache, "__version__", "99") or backbone_of()):
        before = set(own_cache.glob("*/graph.onnx"))
        compile_backbone(changed(), "onnxruntime")
        assert len(set(own_cache.glob("*/graph.onnx")) - before) == 1


@pytest.mark.parametrize("kind", ENGINES)
def test_passes_of_a_graph_divide_the_cores_and_give_what_one_pass_gives(tiny_model, kind):
    texts = [f"the man reads a book of {'good ' * (number % 9)}" for number in range(40)]
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            pipeline = pipeline_named("embed").load(tiny_model, precision="float32", engine=kind, batch_tokens=30)
            found.append(pipeline(texts))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(*found, atol=1e-5)
    if kind == "openvino":
        graph = vars(pipeline.engine.model.backbone)["forward"].graph
        assert graph._compiled.get_property("NUM_STREAMS") == min(2, available_cores())


def test_auto_takes_the_fastest_for_short_and_for_long_batches_apart_and_keeps_the_answer(shared_cache, monkeypatch):
    # 依次：torch 与两个图，先短批次，后长批次
    for times, expected in (
        ([1.0, 1.0, 1.05, 1.0, 1.05, 1.0], EngineChoice("torch", "torch")),
        ([1.0, 0.5, 0.6, 1.0, 0.6, 0.5], EngineChoice("onnxruntime", "openvino")),
        ([1.0, 0.6, 0.5, 1.0, 1.1, 1.1], EngineChoice("openvino", "torch")),
        ([1.0, 1.1, 1.1, 1.0, 0.5, 1.0], EngineChoice("torch", "onnxruntime")),
        ([1.0, 0.6, 0.5, 1.0, 0.6, 0.5], EngineChoice("openvino", "openvino")),
    ):
        left = iter(times)
        monkeypatch.setattr(compiled, "seconds_of", lambda *_, left=left: next(left))
        backbone = backbone_of()
        assert compile_backbone(backbone, "auto") == expected
        # 第二次不再量：答案在模型的图旁边
        monkeypatch.setattr(compiled, "seconds_of", lambda *_: pytest.fail("measured again"))
        assert compile_backbone(backbone_of(), "auto") == expected
        for verdict in shared_cache.glob("engines/*.json"):
            verdict.write_text("{")
        with torch.inference_mode():
            for lengths in LENGTHS + LONG:
                found, own = (one(drawn(lengths)).cls for one in (backbone, backbone_of()))
                torch.testing.assert_close(found, own, atol=1e-5, rtol=1e-5)


def test_workers_take_what_was_measured_once_for_all(own_cache, tiny_model, tmp_path):
    """In a process of its own: one that has computed by OpenVINO before cannot be forked."""
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    for file in files:
        file.write_text("the man reads\n" * 3, encoding="utf-8")
    command = [sys.executable, "-m", "bertsmith", "embed", *files, "--model", tiny_model, "--out", tmp_path / "v.npy"]
    done = subprocess.run([*command, "--engine", "auto", "--workers", "2"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(list(own_cache.glob("engines/*.json"))) == 1
    # what takes seconds is said, once for each engine
    said = re.findall(r"making the graph of (\w+), once for this model and machine", done.stderr)
    assert sorted(said) == ["onnxruntime", "openvino"]


def test_a_graph_that_is_there_is_only_read(monkeypatch):
    compile_backbone(backbone_of(), "openvino")
    monkeypatch.setattr(compiled, "held", lambda _: pytest.fail("written"))
    assert compile_backbone(backbone_of(), "openvino") == EngineChoice("openvino", "openvino")


def test_without_a_place_for_graphs_auto_is_torch(tiny_model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "file/cache"))
    said = "a file stands where a folder is needed; set BERTSMITH_CACHE to another folder"
    with pytest.raises(RunFolderError, match=said):
        Embed.load(tiny_model, engine="openvino")
    with pytest.warns(UserWarning, match=f"{said}; torch computes"):
        assert Embed.load(tiny_model, engine="auto").engine.kind == "torch"


def test_rectangles_hold_every_sequence_once_and_little_padding():
    lengths = np.array([70, 3, 22, 4, 31, 8, 9, 600, 11, 12, *[20] * 60])
    groups = list(compiled._rectangles(lengths))
    assert sorted(np.concatenate(groups)) == list(range(70))
    for rows in groups:
        assert lengths[rows].max() == lengths[rows[-1]] <= 1.3 * lengths[rows[0]] + 4
        assert len(rows) * lengths[rows[-1]] <= 512 or len(rows) == 1
    assert [lengths[rows].tolist() for rows in groups[:2]] == [[3, 4], [8, 9, 11, 12]]


def test_the_engines_share_an_export(own_cache, monkeypatch):
    written = []
    real = graph.write_graph
    monkeypatch.setattr(graph, "write_graph", lambda *given, **how: written.append(1) or real(*given, **how))
    compile_backbone(backbone_of(), "auto")
    assert len(written) == 1
    assert {path.name for path in own_cache.glob("*/graph.*")} == {"graph.onnx", "graph.bin", "graph.xml"}


def test_an_engine_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(compiled, "is_installed", lambda _: False)
    assert compile_backbone(backbone_of(), "auto") == EngineChoice("torch", "torch")
    with pytest.raises(ConfigError, match=r"bertsmith\[onnx\]"):
        compile_backbone(backbone_of(), "onnxruntime")
    with pytest.raises(ConfigError, match=r"openvino; pip install 'bertsmith\[fast\]'"):
        compile_backbone(backbone_of(), "openvino")


def test_what_does_not_go_together(tiny_model):
    with pytest.raises(ConfigError, match="engine 'tvm' is unknown"):
        InferenceConfig(engine="tvm")
    with pytest.raises(ConfigError, match="computes in float32, not in int8"):
        Embed.load(tiny_model, precision="int8", engine="onnxruntime")
    with pytest.raises(ConfigError, match="computes in float32 or bf16, not in int8"):
        Embed.load(tiny_model, precision="int8", engine="openvino")


@pytest.mark.parametrize("engine", ENGINES)
def test_bf16_with_a_graph(tiny_model, monkeypatch, engine):
    # torch，然后两个图依次，先短批次，后长批次
    times = iter([1.0, 0.5, 0.6, 1.0, 2.0, 2.0] if engine == "onnxruntime" else [1.0, 0.6, 0.5, 1.0, 0.6, 0.5])
    monkeypatch.setattr(compiled, "seconds_of", lambda *_: next(times))
    mixed = Embed.load(tiny_model, precision="bf16", engine="auto")
    assert (mixed.engine.precision, mixed.engine.kind) == ("bf16", engine)
    exact = Embed.load(tiny_model, precision="float32")
    # ONNX Runtime 以 float32 计算短批次，比 bf16 更准
    close = 1e-5 if engine == "onnxruntime" else 1e-2
    np.testing.assert_allclose(mixed(["a woman"]), exact(["a woman"]), atol=close)
    assert (mixed(["the man " * 60]) * exact(["the man " * 60])).sum() > 0.999


def test_a_signal_finds_its_stack_after_graphs_were_closed(shared_cache):
    """OpenVINO puts a stack of its own under the process's signal handlers, and takes it away with its core."""
    compile_backbone(backbone_of(), "openvino")
    code = (
        "import gc, pathlib, signal, sys\nfrom bertsmith.inference.runtimes import RUNTIMES\n"
        "opened = [RUNTIMES['openvino'].open(pathlib.Path(sys.argv[1]), 'float32', 1) for _ in range(3)]\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('handled', flush=True))\n"
        "while opened:\n    opened.pop(0)\n    gc.collect()\n    signal.raise_signal(signal.SIGTERM)\n"
    )
    folder = next(shared_cache.rglob("graph.xml")).parent
    ended = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "handled\n" * 3), ended.stderr
