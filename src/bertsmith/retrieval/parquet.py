"""An index as one Parquet file, for who outgrows it: what vector databases and FAISS read.

A row is a passage: `id`, `file`, `start`, `end`, `line`, `heading`, `text`, `metadata` (JSON) and `vector`, a list of
fixed size, float32 of unit length. The file's own metadata names the model and the prompts, since queries have to
become vectors in the same way. `examples/pgvector_search.py` loads such a file into PostgreSQL.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bertsmith.files import atomic_path
from bertsmith.retrieval.stored import StoredIndex

_ROWS = 8192


def export_passages(index: str | Path, out: str | Path) -> int:
    """Writes an index as Parquet; returns how many passages it has.

    Raises:
        CheckpointError: the folder holds no index, or a damaged one.
        OSError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = StoredIndex.open(index)
    stored.verify()
    claim, documents = stored.claim, stored.current.documents
    files = pa.array([document.name for document in documents])
    fields = pa.array([json.dumps(document.metadata, ensure_ascii=False) for document in documents])
    model = {"model": claim.model, "query_prompt": claim.query_prompt, "passage_prompt": claim.passage_prompt}
    width, writer = stored.vectors.shape[1], None
    with atomic_path(Path(out)) as unfinished:
        for first in range(0, len(stored.vectors), _ROWS):
            passages = stored.passages.slice(first, _ROWS)
            vectors = np.ascontiguousarray(stored.vectors[first : first + _ROWS])
            number = passages["document"]
            columns = {
                "id": pa.array(range(first, first + len(vectors)), pa.int64()),
                "file": files.take(number.combine_chunks()),
                **{name: passages[name] for name in ("start", "end", "line", "heading", "text")},
                "metadata": fields.take(number.combine_chunks()),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width),
            }
            table = pa.table(columns).replace_schema_metadata({"bertsmith": json.dumps(model, ensure_ascii=False)})
            # 一次一组行：文件再大，内存也不跟着长
            writer = writer or pq.ParquetWriter(unfinished, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
    return len(stored.vectors)
