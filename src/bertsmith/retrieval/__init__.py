"""Search in a folder of text: passages, their vectors and words on disk, and what is found with them.

build_index("notes", "model", "notes.index")
load_index("notes.index").search("how do I renew a licence?", k=5)
"""

from bertsmith.retrieval.build import IndexSettings, build_index
from bertsmith.retrieval.search import Hit, SearchIndex, load_index

__all__ = ["Hit", "IndexSettings", "SearchIndex", "build_index", "load_index"]
