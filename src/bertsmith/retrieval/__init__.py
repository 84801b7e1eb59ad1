"""Search in a folder of text: passages, their vectors and words on disk, and what is found with them.

build_index("notes", "model", "notes.index")
load_index("notes.index").search("how do I renew a licence?", k=5)
"""

from bertsmith.retrieval.build import IndexSettings as IndexSettings
from bertsmith.retrieval.build import build_index as build_index
from bertsmith.retrieval.search import Hit as Hit
from bertsmith.retrieval.search import SearchIndex as SearchIndex
from bertsmith.retrieval.search import load_index as load_index
