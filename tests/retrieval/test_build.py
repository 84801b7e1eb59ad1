"""Making and updating an index: only what changed is embedded, and a kill leaves the old index or the new one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.files import CHECKSUM, write_json
from bertsmith.inference import load_pipeline
from bertsmith.inference.task_file import write_task_file
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.retrieval import IndexSettings, build, build_index, load_index
from bertsmith.retrieval.dense import USUAL_WEIGHT
from bertsmith.retrieval.passages import read_document
from bertsmith.retrieval.stored import CLAIM, StoredIndex


def contents(folder):
    """What an index holds, without the order of its files and its generation."""
    stored = StoredIndex.open(folder)
    names = [document.name for document in stored.current.documents]
    rows = stored.passages.to_pylist()
    return sorted(
        (names[row["document"]], row["start"], row["end"], row["line"], row["heading"], row["text"], vector.tolist())
        for row, vector in zip(rows, stored.vectors, strict=True)
    )


def same(left, right):
    """Whether two contents are equal; vectors but for the rounding of batches."""
    places = [[row[:-1] for row in contents] for contents in (left, right)]
    return places[0] == places[1] and np.allclose([row[-1] for row in left], [row[-1] for row in right], atol=1e-6)


def test_passages_know_their_place_and_vectors_are_the_models(notes, notes_index, tiny_model):
    stored = StoredIndex.open(notes_index)
    embed = load_pipeline("embed", tiny_model, precision="float32")
    for row, vector in zip(stored.passages.to_pylist(), stored.vectors, strict=True):
        name = stored.current.documents[row["document"]].name
        assert read_document(notes, name).text[row["start"] : row["end"]] == row["text"]
        text = (notes / name).read_text(encoding="utf-8")
        assert text.split("\n")[row["line"] - 1].startswith(row["text"].split("\n")[0])
        read = f"{row['heading']}\n{row['text']}" if row["heading"] else row["text"]
        np.testing.assert_allclose(vector, embed([read])[0], atol=1e-6)
    assert {row["heading"] for row in stored.passages.to_pylist()} == {"", "Books", "Books > Old books"}


def test_only_what_changed_is_embedded(notes, notes_index, tiny_model, settings, tmp_path):
    (notes / "bread.txt").write_text("The man eats bread. The woman eats bread too!\n\nThe bread is new.\n")
    (notes / "guides/trees.txt").unlink()
    (notes / "new.txt").write_text("A book is old.\n")
    found = build_index(notes, tiny_model, notes_index, settings)
    assert (found.added, found.changed, found.deleted, found.documents) == (1, 1, 1, 4)
    assert found.embedded == 2
    build_index(notes, tiny_model, tmp_path / "anew", settings)
    assert same(contents(notes_index), contents(tmp_path / "anew"))
    assert sorted(path.name for path in notes_index.iterdir() if path.is_dir()) == ["generation-00002"]


def test_a_moved_file_is_not_embedded_again(notes, notes_index, tiny_model, settings):
    (notes / "bread.txt").rename(notes / "moved.txt")
    found = build_index(notes, tiny_model, notes_index, settings)
    assert (found.added, found.deleted, found.embedded) == (1, 1, 0)


def test_nothing_to_do_changes_nothing(notes, notes_index, tiny_model, settings):
    before = (notes_index / "current.json").read_bytes()
    os.utime(notes / "bread.txt", (1, 1))
    found = build_index(notes, tiny_model, notes_index, settings)
    assert (found.added, found.changed, found.deleted, found.embedded) == (0, 0, 0, 0)
    assert (notes_index / "current.json").read_bytes() == before


def test_a_new_index_has_the_weight_that_solve_chose_for_its_model(notes, tiny_model, settings, tmp_path):
    told = {"task": "embed", "max_length": 0}
    for weight in (0.0, 0.7):
        write_task_file(tiny_model, {**told, "weight": weight})
        build_index(notes, tiny_model, tmp_path / f"{weight}", settings)
        assert StoredIndex.open(tmp_path / f"{weight}").current.weight == weight
    write_task_file(tiny_model, {**told, "weight": 7})
    with pytest.raises(CheckpointError, match=r"task\.json: damaged \(weight is 7"):
        build_index(notes, tiny_model, tmp_path / "damaged", settings)
    assert not (tmp_path / "damaged").exists()


def test_the_weight_of_vectors_stays_until_another_is_asked(notes, notes_index, tiny_model, settings):
    def weight():
        return StoredIndex.open(notes_index).current.weight

    assert weight() == USUAL_WEIGHT
    # 只换权重：什么也不重算，搜索马上用新的
    found = build_index(notes, tiny_model, notes_index, replace(settings, weight=0.0))
    assert (found.embedded, weight()) == (0, 0.0)
    hits = load_index(notes_index).search("the old bread", k=3)
    assert hits == load_index(notes_index).search("the old bread", k=3, weight=0.0)
    assert hits != load_index(notes_index).search("the old bread", k=3, weight=1.0)
    (notes / "new.txt").write_text("A book is old.\n")
    build_index(notes, tiny_model, notes_index, settings)
    assert weight() == 0.0
    for wrong in (1.5, "a"):
        with pytest.raises(ConfigError, match="weight"):
            bertsmith.index(notes, tiny_model, notes_index, weight=wrong)
    # 早先的版本不写权重：用通常的
    described = json.loads((notes_index / "current.json").read_text())
    earlier = {name: value for name, value in described.items() if name not in ("weight", CHECKSUM)}
    write_json(notes_index / "current.json", earlier, checked=True)
    assert weight() == USUAL_WEIGHT


def test_finished_blocks_are_not_computed_again(notes, tiny_model, tmp_path, settings, monkeypatch):
    (notes / "long.txt").write_text("\n\n".join(f"the man eats bread {number} ." * 3 for number in range(60)))
    build_index(notes, tiny_model, tmp_path / "whole", settings)
    monkeypatch.setattr(build, "PART", 8)
    original, calls = build._KnownVectors.add, []

    def dies_after_three(self, *block):
        calls.append(block)
        original(self, *block)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(build._KnownVectors, "add", dies_after_three)
    with pytest.raises(KeyboardInterrupt):
        build_index(notes, tiny_model, tmp_path / "index", settings)
    with pytest.raises(CheckpointError, match="not finished"):
        load_index(tmp_path / "index")
    seen = []
    found = build_index(
        notes, tiny_model, tmp_path / "index", settings, on_progress=lambda *counts: seen.append(counts)
    )
    # 先前算好的块不算：从零数到这一次要算的
    assert (seen[0], seen[-1]) == ((0, found.embedded), (found.embedded, found.embedded))
    assert 0 < found.embedded <= found.passages - 24
    assert same(contents(tmp_path / "index"), contents(tmp_path / "whole"))
    assert not (tmp_path / "index" / ".vectors").exists()


def test_the_progress_of_an_update_counts_what_it_embeds(notes, notes_index, tiny_model, settings):
    def update():
        told = []
        found = build_index(notes, tiny_model, notes_index, settings, on_progress=lambda *counts: told.append(counts))
        return found.embedded, told

    (notes / "new.txt").write_text("A book is old.\n")
    assert update() == (1, [(0, 1), (1, 1)])
    (notes / "new.txt").unlink()
    assert update() == (0, [])


KILLED = """
import os, sys
from bertsmith import files
from bertsmith.retrieval import IndexSettings, build_index
step = int(sys.argv[4])
real = {name: getattr(os, name) for name in ("replace", "open", "fsync", "mkdir")}
count = 0
def counted(name):
    def call(*values, **named):
        global count
        count += 1
        if count == step:
            os.kill(os.getpid(), 9)
        return real[name](*values, **named)
    return call
settings = IndexSettings(overlap=4, precision="float32")
import bertsmith.retrieval.build as build, torch, bm25s
build.PART = 2
build.fingerprint_of(sys.argv[2])
build.Embed.load(sys.argv[2])(["a"])
for name in real:
    setattr(os, name, counted(name))
build_index(sys.argv[1], sys.argv[2], sys.argv[3], settings)
print(count)
"""


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_the_old_index_or_the_new(notes, notes_index, tiny_model, tmp_path, settings):
    """The process dies before its 1st, 5th, 9th … call that changes the disk; each time from the same old index."""
    old = contents(notes_index)
    (notes / "bread.txt").write_text("The woman reads.\n")
    (notes / "new.txt").write_text("A book is old.\n\n" * 5)
    build_index(notes, tiny_model, tmp_path / "anew", settings)
    new = contents(tmp_path / "anew")
    outcomes, step = [], 1
    while True:
        place = tmp_path / f"killed-{step}"
        shutil.copytree(notes_index, place)
        words = [sys.executable, "-c", KILLED, str(notes), str(tiny_model), str(place), str(step)]
        died = subprocess.run(words, capture_output=True, text=True, check=False).returncode
        found = contents(place)
        assert same(found, old) or same(found, new)
        outcomes.append(same(found, new))
        build_index(notes, tiny_model, place, settings)
        assert same(contents(place), new)
        if died == 0:
            break
        assert died == -signal.SIGKILL
        step += 4
    assert len(outcomes) > 5
    assert not outcomes[0]
    assert outcomes == sorted(outcomes)


def test_a_killed_process_leaves_the_old_index(notes, notes_index, tiny_model, settings):
    """The same at one moment: when the new generation has its name, and `current.json` still has the old content."""
    old = contents(notes_index)
    (notes / "bread.txt").write_text("The woman reads.\n")
    script = (
        "import os, sys; import bertsmith.retrieval.build as build\n"
        "build.write_json = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "build.build_index(*sys.argv[1:4], build.IndexSettings(overlap=4, precision='float32'))"
    )
    died = subprocess.run([sys.executable, "-c", script, str(notes), str(tiny_model), str(notes_index)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert (notes_index / "generation-00002").is_dir()
    assert contents(notes_index) == old
    assert build_index(notes, tiny_model, notes_index, settings).embedded == 0
    assert load_index(notes_index).search("woman reads", mode="lexical")[0].text == "The woman reads."


def test_another_request_is_refused_and_the_index_stays(notes, notes_index, tiny_model, settings, tmp_path):
    other = tmp_path / "other-model"
    shutil.copytree(tiny_model, other)
    requests = [
        (notes, other, settings, "another model"),
        (notes, tiny_model, replace(settings, overlap=5), "another overlap"),
        (notes, tiny_model, replace(settings, passage_prompt="book "), "another passage_prompt"),
        (notes / "guides", tiny_model, settings, "another folder"),
    ]
    before = contents(notes_index)
    for folder, model, chosen, message in requests:
        with pytest.raises(RunFolderError, match=message):
            build_index(folder, model, notes_index, chosen)
    claim = notes_index / "search-index.json"
    claim.write_text(claim.read_text().replace('"format": "0.3"', '"format": "9.9"'))
    with pytest.raises(RunFolderError, match=r"written by bertsmith 9\.9"):
        build_index(notes, tiny_model, notes_index, settings)
    with pytest.raises(CheckpointError, match=r"format 9\.9"):
        load_index(notes_index)
    claim.write_text(claim.read_text().replace('"format": "9.9"', '"format": "0.3"'))
    assert contents(notes_index) == before


def test_an_index_that_was_asked_to_finds_traditional_characters_by_simplified_ones(notes, tiny_model, tmp_path):
    (notes / "臺灣.txt").write_text("臺灣的頭髮\n", encoding="utf-8")
    for simplified in (False, True):
        out = tmp_path / f"index-{simplified}"
        settings = IndexSettings(precision="float32", simplified=simplified)
        build_index(notes, tiny_model, out, settings)
        found = load_index(out).search("头发", k=1, mode="lexical")
        assert [hit.file for hit in found] == (["臺灣.txt"] if simplified else [])
        claim = json.loads((out / CLAIM).read_text())
        assert claim.get("simplified", False) is simplified
    with pytest.raises(RunFolderError):
        build_index(notes, tiny_model, out, IndexSettings(precision="float32"))


@pytest.mark.parametrize("change", ["trained again", "cuts its vectors short"])
def test_a_model_that_gives_other_vectors_is_refused(change, notes, notes_index, tiny_model, settings):
    if change == "trained again":
        torch.manual_seed(1)
        BertForPreTraining(BertConfig.load(tiny_model)).save_pretrained(tiny_model)
    else:
        usage = tiny_model / "config_sentence_transformers.json"
        usage.write_text(json.dumps({"truncate_dim": 16}), encoding="utf-8")
    with pytest.raises(RunFolderError, match="another fingerprint"):
        build_index(notes, tiny_model, notes_index, settings)
    with pytest.raises(CheckpointError, match="made by another model"):
        load_index(notes_index).search("bread")
    assert load_index(notes_index).search("bread", mode="lexical")


@pytest.mark.parametrize("name", ["vectors.npy", "passages.arrow", "lexical/data.csc.index.npy"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damage_is_one_line(notes_index, name, harm):
    path = notes_index / "generation-00001" / name
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif harm == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=rf"{path.name}: (damaged|is missing).*bertsmith index again"):
        load_index(notes_index)


def test_damaged_descriptions_are_one_line(notes_index):
    for name in ("current.json", "search-index.json"):
        path = notes_index / name
        content = path.read_text()
        for bad in ("", "{", "[]", "{}", json.dumps({"generation": -1})):
            path.write_text(bad)
            with pytest.raises(CheckpointError):
                load_index(notes_index)
        path.write_text(content)


def test_bad_folders_are_one_line(notes, tiny_model, tmp_path, settings):
    with pytest.raises(CheckpointError, match="holds no index; .*: bertsmith index FOLDER --model MODEL --out"):
        load_index(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=f"index {notes} --model MODEL --out {notes}.index"):
        load_index(notes)
    with pytest.raises(InputError, match="no such folder"):
        build_index(tmp_path / "none", tiny_model, tmp_path / "x", settings)
    with pytest.raises(CheckpointError):
        build_index(notes, tmp_path / "none", tmp_path / "x", settings)
    with pytest.raises(ConfigError, match="--passage-tokens 99: the model reads 32"):
        build_index(notes, tiny_model, tmp_path / "x", replace(settings, passage_tokens=99))
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank/a.txt").write_text(" \n")
    with pytest.raises(InputError, match="hold no word"):
        build_index(tmp_path / "blank", tiny_model, tmp_path / "y", settings)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty"):
        build_index(notes, tiny_model, tmp_path / "taken", settings)


def test_a_file_that_vanishes_meanwhile_leaves_the_old_index(notes, notes_index, tiny_model, settings, monkeypatch):
    old = contents(notes_index)
    (notes / "bread.txt").write_text("The woman reads.\n")
    real = build.digests_of

    def then_gone(folder):
        found = list(real(folder))
        (notes / "bread.txt").unlink()
        return found

    monkeypatch.setattr(build, "digests_of", then_gone)
    with pytest.raises(InputError, match=r"bread\.txt"):
        build_index(notes, tiny_model, notes_index, settings)
    assert contents(notes_index) == old


def test_numbers_that_are_none_never_reach_an_index(notes, tiny_model, tmp_path, settings, monkeypatch):
    monkeypatch.setattr(build.Embed, "__call__", lambda self, texts, **_: np.full((len(texts), 64), np.nan))
    with pytest.raises(CheckpointError, match="NaN"):
        build_index(notes, tiny_model, tmp_path / "x", settings)


def test_another_process_is_kept_out(another_process, notes, notes_index, tiny_model, settings):
    with another_process(notes_index), pytest.raises(RunFolderError, match="another process"):
        build_index(notes, tiny_model, notes_index, settings)


@pytest.fixture
def broken_off(notes, tiny_model, tmp_path, settings, monkeypatch):
    """A folder with vectors of a first index that was never finished."""
    with monkeypatch.context() as patch:
        patch.setattr(build.LexicalSearch, "build", lambda *_: (_ for _ in ()).throw(InputError("stop")))
        with pytest.raises(InputError, match="stop"):
            build_index(notes, tiny_model, tmp_path / "x", settings)
    return tmp_path / "x"


def test_a_damaged_block_is_named(notes, tiny_model, broken_off, settings):
    (block,) = broken_off.glob(".vectors/*/0000000.npz")
    block.write_bytes(block.read_bytes()[:-30])
    with pytest.raises(CheckpointError, match=r"0000000\.npz: damaged"):
        build_index(notes, tiny_model, broken_off, settings)


def test_another_request_takes_over_no_vectors_of_one_that_was_broken_off(
    notes, tiny_model, broken_off, settings, tmp_path
):
    other = replace(settings, pooling="max")
    build_index(notes, tiny_model, broken_off, other)
    build_index(notes, tiny_model, tmp_path / "whole", other)
    assert same(contents(broken_off), contents(tmp_path / "whole"))
    assert not (broken_off / ".vectors").exists()


def test_many_passages_get_codes(notes, tiny_model, tmp_path, settings, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(build, "EXACT_ROWS", 3)
    build_index(notes, tiny_model, tmp_path / "coded", settings)
    build_index(notes, tiny_model, tmp_path / "plain", replace(settings))
    coded, plain = load_index(tmp_path / "coded"), load_index(tmp_path / "plain")
    assert "codes.faiss" in coded.stored.current.checksums
    assert coded.search("bread", mode="dense") == plain.search("bread", mode="dense")


@pytest.mark.parametrize("may_mount", [True, False], ids=["a file system", "a limit"])
def test_a_full_disk_is_one_line_and_leaves_the_old_index(notes, tiny_model, settings, tmp_path, small_disk, may_mount):
    disk = small_disk(160 << 10, limit=24 << 10, may_mount=may_mount)
    out = disk.path / "index"
    build_index(notes, tiny_model, out, settings)
    before = contents(out)
    for number in range(60):
        (notes / f"{number}.txt").write_text(f"The man reads {number} books.\n\nThe woman eats {number}!\n" * 3)
    with pytest.raises(RunFolderError, match=disk.message) as caught:
        build_index(notes, tiny_model, out, settings)
    assert "\n" not in str(caught.value)
    assert contents(out) == before
    disk.make_room()
    build_index(notes, tiny_model, out, settings)
    build_index(notes, tiny_model, tmp_path / "whole", settings)
    assert same(contents(out), contents(tmp_path / "whole"))
