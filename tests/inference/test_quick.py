"""Short requests without torch: the same vectors, nothing imported that is not needed, and no graph of other code."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from bertsmith.inference import graph_cache, load_pipeline
from bertsmith.inference.graph_cache import QuickEmbed
from bertsmith.inference.runtimes import RUNTIMES

pytest.importorskip("onnxscript")
SHORT = ["the man reads a book ."]
CALL = """
import json, sys
from bertsmith import load_pipeline
vectors = load_pipeline("embed", sys.argv[1], engine=sys.argv[3])(json.loads(sys.argv[2]))
heavy = ("torch", "scipy", "sklearn", "pyarrow", "matplotlib", "transformers", "tokenizers", "onnx", "rich", "typer")
print(json.dumps([vectors.tolist(), [name for name in heavy if name in sys.modules]]))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "cache"


def quick(folder, engine="onnxruntime", **options):
    return load_pipeline("embed", folder, engine=engine, **options)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_vectors_are_those_of_the_whole_pipeline(tiny_model, engine):
    whole = load_pipeline("embed", tiny_model, precision="float32")
    fast = quick(tiny_model, engine, precision="float32")
    assert isinstance(fast, QuickEmbed)
    for texts in (SHORT, ["a", "the man reads .", ""], SHORT * 40, ["the man " * 60], []):
        np.testing.assert_allclose(fast(texts), whole(texts), atol=1e-5)
    for options in ({"normalize": False}, {"pooling": "cls"}, {"dims": 5}):
        np.testing.assert_allclose(fast(SHORT, **options), whole(SHORT, **options), atol=1e-5)
    np.testing.assert_allclose(fast.compare(SHORT, ["a"]), whole.compare(SHORT, ["a"]), atol=1e-5)
    assert fast.width() == whole.width()
    # 截短由整条流水线来做：图给出的总是全宽
    (tiny_model / "config_sentence_transformers.json").write_text('{"truncate_dim": 16}')
    whole = load_pipeline("embed", tiny_model, precision="float32")
    np.testing.assert_allclose(quick(tiny_model, engine, precision="float32")(SHORT), whole(SHORT), atol=1e-5)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_fresh_process_answers_without_what_it_does_not_need(tiny_model, engine):
    expected = quick(tiny_model, engine)(SHORT)
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-c", CALL, str(tiny_model), json.dumps(SHORT), engine]
    done = subprocess.run(command, env=os.environ | threads, check=True, capture_output=True, text=True)
    vectors, imported = json.loads(done.stdout)
    assert imported == []
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


@pytest.mark.slow
def test_a_graph_of_another_version_or_processor_is_made_again_and_never_opened(tiny_model, own_cache, monkeypatch):
    quick(tiny_model)
    graphs = {path.parent.name for path in own_cache.glob("*/graph.onnx")}
    assert len(graphs) == 1

    def reopened():
        opened = []
        runtime = RUNTIMES["onnxruntime"]
        real = type(runtime).open
        monkeypatch.setattr(
            type(runtime), "open", lambda self, folder, *how: opened.append(folder.name) or real(self, folder, *how)
        )
        quick(tiny_model)
        monkeypatch.setattr(type(runtime), "open", real)
        return set(opened)

    assert reopened() == graphs
    monkeypatch.setattr(graph_cache, "processor", lambda: ["x86_64", "another processor", "sse2"])
    other_processor = reopened()
    monkeypatch.setattr(graph_cache, "__version__", "9.9")
    other_version = reopened()
    assert len(graphs | other_processor | other_version) == 3


@pytest.mark.slow
def test_a_changed_folder_and_a_damaged_graph_are_read_anew(tiny_model, own_cache, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    before = quick(folder)(SHORT)
    for file in (*own_cache.glob("*/graph.onnx"), *own_cache.glob("folders/*.json")):
        file.write_bytes(file.read_bytes()[:20])
        np.testing.assert_allclose(quick(folder)(SHORT), before, atol=1e-6)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true, "word_embedding_dimension": 64}')
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])
    )
    np.testing.assert_allclose(
        quick(folder)(SHORT), load_pipeline("embed", folder, precision="float32")(SHORT), atol=1e-5
    )
    assert not np.allclose(quick(folder)(SHORT), before, atol=1e-3)


def test_options_that_say_nothing_load_nothing_and_a_card_that_cannot_be_kept_stops_nothing(tiny_model, own_cache):
    quick(tiny_model)
    fast = quick(tiny_model)
    np.testing.assert_array_equal(fast(SHORT, pooling=None, dims=None, prompt=None), fast(SHORT))
    assert fast._whole is None
    shutil.rmtree(own_cache / "folders")
    (own_cache / "folders").touch()
    np.testing.assert_array_equal(quick(tiny_model)(SHORT), fast(SHORT))
