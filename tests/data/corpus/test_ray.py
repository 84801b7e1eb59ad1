"""The same shards from processes on one machine and from a Ray cluster of two."""

import subprocess
import sys

import numpy as np
import pytest

from bertsmith.data.corpus.build import build_shards
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.tokenizer import WordPieceTokenizer

# in a process of its own: Ray leaves threads and signal handlers behind
ON_A_CLUSTER = """
import sys
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from bertsmith.data.corpus import plan
from bertsmith.data.corpus.build import build_shards
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.errors import InputError
from bertsmith.tokenizer import WordPieceTokenizer
folder = Path(sys.argv[1])
plan._SMALLEST_CHUNK = 5000
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes.add_node(num_cpus=1)
ray.init(address=nodes.address, log_to_driver=False)
tokenizer = WordPieceTokenizer.load(folder / "tokenizer")
build_shards([folder / "a.txt"], tokenizer, folder / "ray", CorpusOptions(near_duplicates=0.9), engine="ray", workers=3)
try:
    build_shards([folder / "b.jsonl"], tokenizer, folder / "bad", engine="ray")
except InputError as error:
    print(f"error: {error}")
print("nodes:", len(ray.nodes()))
ray.shutdown()
nodes.shutdown()
"""


@pytest.mark.slow
def test_ray_makes_the_same_bytes_and_reports_the_same_errors(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr("bertsmith.data.corpus.plan._SMALLEST_CHUNK", 5000)
    rng = np.random.default_rng(0)
    words = ["the", "man", "eats", "bread", "woman", "reads", "old", "book"]
    texts = [" ".join(" ".join(rng.choice(words, 6)) + "." for _ in range(5)) for _ in range(400)]
    (tmp_path / "a.txt").write_text("\n\n".join([*texts, *texts[:30]]))
    (tmp_path / "b.jsonl").write_text('{"text": "The man eats."}\n{"text": \n')
    tokenizer = WordPieceTokenizer.train(texts, vocab_size=100)
    tokenizer.save(tmp_path / "tokenizer")
    build_shards([tmp_path / "a.txt"], tokenizer, tmp_path / "local", CorpusOptions(near_duplicates=0.9), workers=2)
    done = subprocess.run(
        [sys.executable, "-c", ON_A_CLUSTER, tmp_path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"error: {tmp_path / 'b.jsonl'}: line 2 is not valid JSON" in done.stdout
    assert "nodes: 2" in done.stdout
    # a third actor would wait for a CPU for ever
    assert "workers=3: the cluster has 2 CPUs, so 2 work" in done.stderr
    names = [path.name for path in (tmp_path / "local").iterdir() if path.name not in (".checked.json", ".lock")]
    assert sum(name.endswith(".arrow") for name in names) > 5
    for name in names:
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()
