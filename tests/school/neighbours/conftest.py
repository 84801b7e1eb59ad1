"""A corpus of the village, for everything that learns from token shards."""

import pytest

from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.reading.text import Document
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import WordPieceTokenizer


@pytest.fixture(scope="module")
def village(tmp_path_factory):
    folder = tmp_path_factory.mktemp("village")
    documents = [Document("t", tuple(render(s) for s in story.sentences)) for story in draw_stories(0, 1200)]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d.sentences), vocab_size=1500)
    tokenizer.save(folder / "vocab")
    return build_from_documents(documents, tokenizer, folder / "corpus"), tokenizer
