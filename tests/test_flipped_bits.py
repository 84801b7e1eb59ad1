"""Files in which a bit flipped: whoever reads them says so in one line, or comes to the right result.

A bit of each file is flipped at places spread over it, at the beginning and at the end. Files of the field's own
formats that people edit (`config.json`, a vocabulary) have no place for a checksum: there a clean end is enough.
"""

import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.corpus.manifest import SPLITS
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.text import Document
from bertsmith.errors import BertsmithError
from bertsmith.inference import embed_files as embedding
from bertsmith.inference.embed_files import embed_files
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.retrieval import IndexSettings, build_index, load_index
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import WordPieceTokenizer, load_tokenizer
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import RunOptions, pretrain
from bertsmith.train.trainer import BertTrainer

PLACES = 12
EDITED_BY_PEOPLE = ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A corpus of a few stories, its tokenizer, and a small model, each in its folder."""
    folder = tmp_path_factory.mktemp("world")
    documents = [Document("t", tuple(render(s) for s in story.sentences)) for story in draw_stories(0, 40)]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d.sentences), vocab_size=600)
    build_from_documents(documents, tokenizer, folder / "corpus")
    torch.manual_seed(0)
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=32)
    BertForPreTraining(config).save_pretrained(folder / "model")
    tokenizer.save(folder / "model")
    (folder / "notes").mkdir()
    for number, document in enumerate(documents[:6]):
        (folder / "notes" / f"{number}.txt").write_text("\n".join(document.sentences), encoding="utf-8")
    return folder


def flipped_everywhere(whole, scratch, read, *, places=PLACES, leave=()):
    """Flips bits of a copy of a folder, one at a time; returns the files whose damage led to something else."""
    expected, wrong, rng = read(whole), set(), random.Random(26)
    for path in sorted(path for path in whole.rglob("*") if path.is_file() and path.name not in leave):
        content, name = path.read_bytes(), path.relative_to(whole)
        spread = {0, len(content) - 1, *(rng.randrange(len(content)) for _ in range(places - 2))} if content else ()
        for place in spread:
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(whole, scratch)
            damaged = bytearray(content)
            damaged[place] ^= 1 << rng.randrange(8)
            (scratch / name).write_bytes(damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = read(scratch)
                except Exception as error:
                    if isinstance(error, BertsmithError) and "\n" not in str(error):
                        continue
                    raise AssertionError(f"{name}, byte {place}: {error!r}") from error
            if found != expected:
                wrong.add(str(name))
    return wrong


def test_a_model_folder(world, tmp_path):
    def read(folder):
        tokenizer = load_tokenizer(folder)
        weights = BertForPreTraining.from_pretrained(folder).state_dict()
        return tokenizer.fingerprint, {name: value.numpy().tobytes() for name, value in weights.items()}

    wrong = flipped_everywhere(world / "model", tmp_path / "copy", read, places=40)
    assert wrong <= set(EDITED_BY_PEOPLE)


def test_a_corpus(world, tmp_path):
    tokenizer = load_tokenizer(world / "model")

    def read(folder):
        corpus = TokenCorpus(folder, tokenizer)
        documents = [corpus.document(split, n) for split in SPLITS for n in range(corpus.counts[split].documents)]
        return corpus.piece_counts.tolist(), [[list(map(int, ids)) for ids in each] for each in documents]

    assert not flipped_everywhere(world / "corpus", tmp_path / "copy", read, leave=("statistics.json",))


def test_an_index(world, tmp_path):
    build_index(world / "notes", world / "model", tmp_path / "index", IndexSettings(precision="float32"))

    def read(folder):
        index = load_index(folder, precision="float32")
        hits = [index.search(query, k=9, mode=mode) for query in ("the man", "book") for mode in ("dense", "lexical")]
        return [(hit.file, hit.text, hit.score) for found in hits for hit in found]

    assert not flipped_everywhere(tmp_path / "index", tmp_path / "copy", read, places=8)


def test_parts_of_vectors(world, tmp_path, monkeypatch):
    """Two files, the second broken off in the middle, and what is left is gone on with."""
    monkeypatch.setattr(embedding, "PART", 4)
    text, out = world / "notes" / "0.txt", tmp_path / "v.npy"
    with monkeypatch.context() as patch:
        patch.setattr(embedding, "_put_together", lambda *_: pytest.fail("broken off"))
        with pytest.raises(pytest.fail.Exception):
            embed_files([text], world / "model", out)
    whole = shutil.copytree(out.with_name("v.npy.parts"), tmp_path / "whole")
    assert len(list(whole.glob("[0-9]*.npy"))) > 1

    def read(folder):
        shutil.rmtree(out.with_name("v.npy.parts"), ignore_errors=True)
        shutil.copytree(folder, out.with_name("v.npy.parts"))
        embed_files([text], world / "model", out)
        return np.load(out).tobytes()

    assert not flipped_everywhere(whole, tmp_path / "copy", read)


@pytest.mark.slow
def test_a_run_that_was_broken_off(world, tmp_path, monkeypatch):
    """Two states, the best model, the log and the recipe: the run goes on to the same weights, or says why not."""
    tokenizer = load_tokenizer(world / "model")
    corpus = TokenCorpus(world / "corpus", tokenizer)
    recipe = recipe_for("1/64", sequence_length=16, batch_size=2, steps=6, precision="float32", dropout=0.1)

    def start(folder, **options):
        pretrain(folder, corpus, tokenizer, recipe, RunOptions(evaluations=1, **options), listeners=())

    original = BertTrainer.train_batch
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.train.pretraining.SAVING_SHARE", 1e9)
        patch.setattr(BertTrainer, "train_batch", lambda self, *b: original(self, *b) if self.step < 5 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start(tmp_path / "run", save_every=0.0)
    whole = tmp_path / "run"
    assert len(list(whole.glob("state/step-*"))) == 2

    def read(folder):
        finished = Path(shutil.copytree(folder, tmp_path / "finished", dirs_exist_ok=True))
        try:
            start(finished)
            return {
                name: value.numpy().tobytes() for name, value in load_file(finished / "model/model.safetensors").items()
            }
        finally:
            shutil.rmtree(finished)

    assert not flipped_everywhere(whole, tmp_path / "copy", read)
