"""A folder of small documents, and an index of it by a small random model."""

import pytest

from bertsmith.retrieval import IndexSettings, build_index

DOCUMENTS = {
    "bread.txt": "The man eats bread. The woman eats bread too!\n\nThe bread is old.\n",
    "guides/books.md": "---\nlang: en\ntopic: 'reading'\n---\nIntro.\n\n# Books\n\nThe woman reads a book.\n\n"
    "## Old books\n\nThe man reads an old book.\n",
    "guides/trees.txt": "A tree is green. The tree has a leaf.\n",
    "中文.txt": "男人吃面包。女人读一本书。\n",
}


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    for name, text in DOCUMENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def settings():
    return IndexSettings(overlap=4, precision="float32")


@pytest.fixture
def notes_index(notes, tiny_model, tmp_path, settings):
    build_index(notes, tiny_model, tmp_path / "index", settings)
    return tmp_path / "index"
