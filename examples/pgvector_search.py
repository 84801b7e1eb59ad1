"""Search with PostgreSQL: load an exported index into a table of pgvector, and ask it a question.

bertsmith index notes --model MODEL --out notes.index
bertsmith export passages notes.index --out notes.parquet
pip install 'psycopg[binary]' pgvector
python examples/pgvector_search.py notes.parquet postgresql://localhost/notes "how do I renew a licence?"
"""

import json
import sys

import psycopg
import pyarrow.parquet as pq
from pgvector.psycopg import register_vector

from bertsmith import load_pipeline

TABLE = "CREATE TABLE passages (id bigint PRIMARY KEY, file text, line int, heading text, body text, vector vector({}))"
COLUMNS = ["id", "file", "line", "heading", "text", "vector"]


def load(connection: psycopg.Connection, path: str) -> None:
    """Copies the passages of a Parquet file into a new table."""
    file = pq.ParquetFile(path)
    connection.execute("DROP TABLE IF EXISTS passages")
    connection.execute(TABLE.format(file.schema_arrow.field("vector").type.list_size))
    with connection.cursor().copy("COPY passages FROM STDIN WITH (FORMAT BINARY)") as copy:
        copy.set_types(["int8", "text", "int4", "text", "text", "vector"])
        for batch in file.iter_batches(columns=COLUMNS):
            vectors = batch["vector"].flatten().to_numpy().reshape(batch.num_rows, -1)
            columns = [batch[name].to_pylist() for name in COLUMNS[:-1]]
            for row in zip(*columns, vectors, strict=True):
                copy.write_row(row)
    # HNSW 只是近似；段落不多时不建索引，结果才精确
    if file.metadata.num_rows > 100_000:
        connection.execute("CREATE INDEX ON passages USING hnsw (vector vector_ip_ops)")


def search(connection: psycopg.Connection, path: str, query: str, k: int = 5) -> list[tuple]:
    """Returns cosine, file, line and text of the k nearest passages."""
    made_by = json.loads(pq.read_schema(path).metadata[b"bertsmith"])
    embed = load_pipeline("embed", made_by["model"])
    vector = embed([made_by["query_prompt"] + query], prompt="", pooling=made_by["pooling"])[0]
    # <#> 是负内积；向量长度为 1，内积就是余弦
    asked = "SELECT -(vector <#> %s), file, line, body FROM passages ORDER BY vector <#> %s LIMIT %s"
    return connection.execute(asked, (vector, vector, k)).fetchall()


if __name__ == "__main__":
    parquet, place, question = sys.argv[1:4]
    with psycopg.connect(place) as database:
        database.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(database)
        load(database, parquet)
        for cosine, name, line, text in search(database, parquet, question):
            print(f"{cosine:.3f}  {name}:{line}  {' '.join(text.split())[:80]}")
