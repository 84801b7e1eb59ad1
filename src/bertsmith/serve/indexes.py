"""The indexes of a server: folders of text that can be searched, with a served model behind each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError
from bertsmith.retrieval.search import SearchIndex
from bertsmith.retrieval.stored import StoredIndex, fingerprint_of
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.models import ServedModels


def load_indexes(given: Iterable[tuple[str, str]], models: ServedModels) -> dict[str, SearchIndex]:
    """Opens indexes; queries become vectors by the served model that made the index, together with other requests.

    Args:
        given: (name, folder) of each.
        models: those that are served.

    Raises:
        CheckpointError: a folder holds no index, a damaged one, or one of a model that is not served.
    """
    able = {fingerprint_of(model.folder): model.pipelines["embed"] for model in models if "embed" in model.pipelines}
    found = {}
    for name, folder in given:
        stored = StoredIndex.open(folder)
        # 换一个模型，查询与段落的向量就不在同一个空间里：指纹必须相同
        embed = able.get(stored.claim.fingerprint)
        if embed is None:
            raise CheckpointError(
                f"{folder}: no served model made this index; add --model {stored.claim.model}, or where it lies now"
            )
        found[name] = SearchIndex(stored, embed=embed)
        found[name].load()
    return found


def index_named(indexes: Mapping[str, SearchIndex], name: str | None) -> tuple[str, SearchIndex]:
    """Returns the index that a request asks for, and its name; the first where it names none.

    Raises:
        HttpError: there is none (422), or none of that name (404).
    """
    if not indexes:
        raise HttpError(422, "no_index", "this server searches nothing; start it with --index")
    if name is None:
        return next(iter(indexes.items()))
    if name not in indexes:
        there = ", ".join(indexes)
        raise HttpError(404, "index_not_found", f"no index of that name is served; there are: {there}", where="index")
    return name, indexes[name]


def describe_index(name: str, index: SearchIndex) -> dict[str, Any]:
    """Returns what `/info` says of an index."""
    current = index.stored.current
    return {
        "name": name,
        "documents": len(current.documents),
        "passages": current.passages,
        "model": Path(index.stored.claim.model).name,
    }
