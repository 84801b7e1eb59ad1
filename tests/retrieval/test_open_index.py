"""An index that is open while another process updates it, and files that are no text."""

import os
import shutil
from importlib import import_module

import pytest

from bertsmith.errors import CheckpointError, InputError
from bertsmith.retrieval import build, build_index, load_index
from bertsmith.retrieval.stored import StoredIndex
from bertsmith.serve.settings import served


@pytest.fixture
def update(notes, notes_index, tiny_model, settings):
    """Brings the index up to date with a new document."""

    def run(text="A zebra runs."):
        (notes / "zebra.txt").write_text(text)
        build_index(notes, tiny_model, notes_index, settings)

    return run


@pytest.fixture
def coded_index(notes_index, update, monkeypatch):
    """An index with codes, as one of many passages has them."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(build, "EXACT_ROWS", 3)
    update("A horse runs.")
    return notes_index


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_an_open_index_finds_what_it_held(coded_index, update, mode):
    index = load_index(coded_index, precision="float32")
    old = index.stored.path
    assert (old / "codes.faiss").is_file()
    update()
    assert not old.exists()
    assert index.search("the old bread", k=2, mode=mode)
    assert index.search("horse", k=1, mode="lexical")
    assert "A zebra runs." not in {hit.text for hit in index.search("zebra", k=99, mode=mode)}


def test_the_newest_is_taken_up_once(notes_index, update):
    index = load_index(notes_index, precision="float32")
    assert index.newest() is index
    embed = index.embed
    update()
    newer = index.newest()
    assert newer.search("zebra", mode="lexical")[0].file == "zebra.txt"
    assert newer.newest() is newer
    assert newer.embed is embed


def test_an_update_that_cannot_be_opened_leaves_the_old_one(notes_index, update):
    index = load_index(notes_index, precision="float32")
    update()
    vectors = StoredIndex.open(notes_index).path / "vectors.npy"
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"?")
    assert index.newest() is index
    assert index.search("bread")


def test_an_index_made_anew_by_another_model_is_not_taken_up(notes, notes_index, tiny_model, settings, caplog):
    index = load_index(notes_index, precision="float32")
    found = index.search("bread", mode="dense")
    shutil.rmtree(notes_index)
    (tiny_model / "config_sentence_transformers.json").write_text('{"truncate_dim": 16}')
    build_index(notes, tiny_model, notes_index, settings)
    assert index.newest() is index
    assert "was made anew by another model; open it again" in caplog.text
    assert index.search("bread", mode="dense") == found


@pytest.mark.parametrize("step", ["stored._verify", "stored.read_passages", "search.open_codes"])
def test_a_generation_that_is_replaced_while_it_is_opened(coded_index, update, monkeypatch, step):
    """The file that says which generation counts is read, and then that generation is gone."""
    module, name = step.split(".")
    home = import_module(f"bertsmith.retrieval.{module}")
    real, times = getattr(home, name), []

    def replaced(*given):
        if not times:
            times.append(1)
            update()
        return real(*given)

    monkeypatch.setattr(home, name, replaced)
    assert load_index(coded_index, precision="float32").search("zebra", mode="lexical")


def test_one_file_that_is_no_text_does_not_end_an_index(notes, tiny_model, tmp_path, settings, recwarn):
    (notes / "photo.md").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe" * 50)
    (notes / "gone.txt").symlink_to(tmp_path / "nothing")
    (notes / "broken.txt.gz").write_bytes(b"\x1f\x8b no gzip")
    nameless = os.fsencode(notes) + b"/caf\xe9.txt"
    with open(nameless, "w") as file:
        file.write("coffee")
    found = build_index(notes, tiny_model, tmp_path / "index", settings)
    said = " ".join(str(warning.message) for warning in recwarn.list)
    for name in ("photo.md", "gone.txt", "broken.txt.gz", "caf\\udce9.txt"):
        assert name in said, name
    assert load_index(tmp_path / "index").search("bread", mode="lexical")
    # 没有变的不再提
    recwarn.clear()
    again = build_index(notes, tiny_model, tmp_path / "index", settings)
    assert (again.added, again.changed, again.embedded, again.passages) == (0, 0, 0, found.passages)
    assert "photo.md" not in " ".join(str(warning.message) for warning in recwarn.list)
    shutil.rmtree(notes)
    notes.mkdir()
    (notes / "gone.txt").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="no file that can be read"):
        build_index(notes, tiny_model, tmp_path / "other", settings)


def test_an_index_of_before_is_read_and_renewed(notes, notes_index, tiny_model, settings, monkeypatch):
    """One that knows words as they were read in 0.2."""
    shutil.rmtree(notes_index)
    (notes / "street.txt").write_text("die Straße")
    with monkeypatch.context() as before:
        before.setattr("bertsmith.retrieval.build.folded", str)
        before.setattr("bertsmith.retrieval.build.READING", 1)
        build_index(notes, tiny_model, notes_index, settings)
        assert StoredIndex.open(notes_index).current.reading == 1
    index = load_index(notes_index, precision="float32")
    assert index.search("straße", mode="lexical")
    assert not index.search("STRASSE", mode="lexical")
    assert build_index(notes, tiny_model, notes_index, settings).embedded == 0
    assert load_index(notes_index, precision="float32").search("STRASSE", mode="lexical")


def test_a_missing_file_of_the_same_generation_is_damage(notes_index):
    (StoredIndex.open(notes_index).path / "vectors.npy").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        load_index(notes_index)


def test_an_index_of_the_bundled_model_knows_it_by_name(notes, tmp_path, settings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build_index(notes, "village", "index", settings)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_index(tmp_path / "index", precision="float32").search("bread", k=1, mode="dense")
    named = served(None, [str(tmp_path / "index")])
    assert [name for name, _ in named.models] == ["village"]
    assert build_index(notes, "village", tmp_path / "index", settings).embedded == 0
