import pytest

from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.reading.text import Document
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import WordPieceTokenizer


@pytest.fixture(scope="session")
def village(tmp_path_factory):
    """A small corpus of the bundled world with its tokenizer, and the folders they are in."""
    documents = [Document("t", tuple(render(s) for s in story.sentences)) for story in draw_stories(0, 300)]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d.sentences), vocab_size=1500)
    folder = tmp_path_factory.mktemp("village")
    tokenizer.save(folder / "tokenizer")
    return build_from_documents(documents, tokenizer, folder / "corpus"), tokenizer, folder
