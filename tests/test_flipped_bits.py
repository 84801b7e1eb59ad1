"""Files in which a bit flipped: whoever reads them says so in one line, or comes to the right result.

A bit of each file is flipped at places spread over it, at the beginning and at the end. Files of the field's own
formats (`config.json`, a vocabulary, `vectors.bin`) have no place for a checksum: there a clean end is enough.
"""

import random
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith.data.corpus import plan
from bertsmith.data.corpus.build import build_from_documents, build_shards
from bertsmith.data.corpus.commit import read_statistics
from bertsmith.data.corpus.manifest import SPLITS
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.text import Document
from bertsmith.errors import BertsmithError
from bertsmith.finetune.adapters import load_adapted
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.run import FineTuningRun, fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import load_task
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.inference import embed_files as embedding
from bertsmith.inference.embed_files import embed_files
from bertsmith.model import BertConfig, BertForPreTraining, BertForSequenceClassification
from bertsmith.retrieval import IndexSettings, build_index, load_index
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import WordPieceTokenizer, load_tokenizer
from bertsmith.train.choosing import recipe_for
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import RunOptions, pretrain
from bertsmith.train.report import write_run_report
from bertsmith.train.trainer import BertTrainer
from bertsmith_school.neighbours.word2vec import WordVectorOptions, learn_word_vectors

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
        # 坏在校验和的名字上时，多出来的一项是文字：各项数字都还在
        counted = {name: value for name, value in read_statistics(folder).items() if not isinstance(value, str)}
        return corpus.piece_counts.tolist(), counted, [[list(map(int, ids)) for ids in each] for each in documents]

    assert not flipped_everywhere(world / "corpus", tmp_path / "copy", read)


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


@pytest.mark.parametrize("place", ["build.commit", "commit.apply_commit"])
def test_an_unfinished_corpus(world, tmp_path, monkeypatch, place):
    """Broken off when all chunks are made, and when it is decided where their shards go."""
    tokenizer = load_tokenizer(world / "model")
    monkeypatch.setattr(plan, "_SMALLEST_CHUNK", 200)
    monkeypatch.setattr(plan, "_CHUNKS", 10**9)
    options = CorpusOptions(documents="file", heldout_share=0.3)
    with monkeypatch.context() as patch:
        patch.setattr(f"bertsmith.data.corpus.{place}", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_shards([world / "notes"], tokenizer, tmp_path / "corpus", options)
    (tmp_path / "corpus" / ".lock").unlink()
    assert len(list((tmp_path / "corpus").glob(".parts/*/*.arrow"))) > 2

    def read(folder):
        finished = Path(shutil.copytree(folder, tmp_path / "finished"))
        # 图画起来慢，也不是数据
        (finished / "statistics.png").touch()
        try:
            build_shards([world / "notes"], tokenizer, finished, options)
            return {path.name: path.read_bytes() for path in finished.glob("[!.]*") if path.suffix != ".png"}
        finally:
            shutil.rmtree(finished)

    wrong = flipped_everywhere(tmp_path / "corpus", tmp_path / "copy", read, places=3)
    assert not wrong


def weights_of(folder, kind=BertForPreTraining):
    return {name: value.numpy().tobytes() for name, value in kind.from_pretrained(folder).state_dict().items()}


def log_of(run):
    """The figures of a log that are not about speed."""
    rows = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name not in ("tokens_per_second", "mfu")} for row in rows]


def names_of(wrong):
    return {Path(name).name for name in wrong}


@pytest.fixture(scope="module")
def pretrained(world, tmp_path_factory):
    """A run that was broken off with two states and a best model, the same run finished, and what goes on with it."""
    tokenizer = load_tokenizer(world / "model")
    corpus = TokenCorpus(world / "corpus", tokenizer)
    recipe = recipe_for("1/64", sequence_length=16, batch_size=2, steps=6, precision="float32", dropout=0.1)

    def start(folder, **options):
        pretrain(folder, corpus, tokenizer, recipe, RunOptions(evaluations=3, **options), listeners=())

    original, folder = BertTrainer.train_batch, tmp_path_factory.mktemp("pretrained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertsmith.train.pretraining.SAVING_SHARE", 1e9)
        patch.setattr(BertTrainer, "train_batch", lambda self, *b: original(self, *b) if self.step < 5 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start(folder / "broken off", save_every=0.0)
    shutil.copytree(folder / "broken off", folder / "finished")
    start(folder / "finished")
    for run in ("broken off", "finished"):
        (folder / run / ".lock").unlink()
    return folder, start


@pytest.mark.slow
@pytest.mark.parametrize("run", ["broken off", "finished"])
def test_a_run_of_pre_training(pretrained, tmp_path, run):
    """States, the best model, the log and the recipe: the run goes on to the same files, or says why not."""
    folder, start = pretrained
    assert len(list(folder.glob(f"{run}/state/step-*"))) >= 2
    assert (folder / run / "best/model.safetensors").is_file()

    def read(folder):
        finished = Path(shutil.copytree(folder, tmp_path / "finished"))
        try:
            start(finished)
            return weights_of(finished / "model"), weights_of(finished / "best"), log_of(finished)
        finally:
            shutil.rmtree(finished)

    wrong = flipped_everywhere(folder / run, tmp_path / "copy", read, places=5)
    assert names_of(wrong) <= set(EDITED_BY_PEOPLE)


@pytest.mark.slow
def test_the_log_of_a_report(pretrained, tmp_path):
    def read(folder):
        page = write_run_report([folder], tmp_path / "report.html").read_text(encoding="utf-8")
        return page.partition("<svg")[0]

    others = ("state", "best", "model")
    whole = shutil.copytree(pretrained[0] / "finished", tmp_path / "run", ignore=shutil.ignore_patterns(*others))
    assert not flipped_everywhere(whole, tmp_path / "copy", read, places=6, leave=("recipe.toml",))


@pytest.fixture(scope="module")
def finetuned(world, tmp_path_factory):
    """A run with an adapter, broken off after two epochs, the same run finished, and its call."""
    words = [("bread", "good"), ("man", "bad"), ("book", "good"), ("woman", "bad")]
    examples = [LabelledText(f"the {word} was {word} .", None, label) for word, label in words * 3]
    settings = FineTuningSettings(3, 4, learning_rate=2e-3, adapter="lora", adapter_size=2)
    task = ClassificationTask.of(examples)

    def start(folder):
        return fine_tune(task, world / "model", examples, examples, folder, settings)

    original, folder = FineTuningRun._train_epoch, tmp_path_factory.mktemp("finetuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            FineTuningRun,
            "_train_epoch",
            lambda self, *rest: original(self, *rest) if self.progress.epochs < 2 else 1 / 0,
        )
        with pytest.raises(ZeroDivisionError):
            start(folder / "broken off")
    shutil.copytree(folder / "broken off", folder / "finished")
    start(folder / "finished")
    for run in ("broken off", "finished"):
        (folder / run / ".lock").unlink()
    return folder, start


@pytest.mark.parametrize("run", ["broken off", pytest.param("finished", marks=pytest.mark.slow)])
def test_a_run_of_fine_tuning(finetuned, world, tmp_path, run):
    folder, start = finetuned
    names = {str(path.relative_to(folder / run)) for path in (folder / run).rglob("*.*")}
    assert {"finetune.json", "metrics.jsonl", "adapter/adapter.json", "adapter/adapter.safetensors"} <= names
    assert ("result.json" in names) == (run == "finished") != any(name.startswith("state/") for name in names)

    def read(folder):
        finished = Path(shutil.copytree(folder, tmp_path / "finished"))
        try:
            result = start(finished)
            adapted = load_adapted(world / "model", finished / "adapter").state_dict()
            return (
                replace(result, seconds=0.0),
                weights_of(finished / "model", BertForSequenceClassification),
                {name: value.numpy().tobytes() for name, value in adapted.items()},
                load_task(finished / "model"),
                log_of(finished),
            )
        finally:
            shutil.rmtree(finished)

    wrong = flipped_everywhere(folder / run, tmp_path / "copy", read, places=4)
    assert names_of(wrong) <= set(EDITED_BY_PEOPLE)


def test_word_vectors_that_were_broken_off(world, tmp_path, monkeypatch):
    tokenizer = load_tokenizer(world / "model")
    corpus = TokenCorpus(world / "corpus", tokenizer)
    options = WordVectorOptions(size=8, epochs=2)
    original = BertTrainer.train_batch
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith_school.neighbours.runs.SAVE_EVERY", 0.0)
        patch.setattr(BertTrainer, "train_batch", lambda self, *b: original(self, *b) if self.step < 5 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            learn_word_vectors(tmp_path / "run", corpus, tokenizer, options)
    (tmp_path / "run" / ".lock").unlink()

    def read(folder):
        finished = Path(shutil.copytree(folder, tmp_path / "finished"))
        try:
            vectors = learn_word_vectors(finished, corpus, tokenizer, options)
            return vectors.words, vectors.vectors.tobytes(), log_of(finished)
        finally:
            shutil.rmtree(finished)

    assert not flipped_everywhere(tmp_path / "run", tmp_path / "copy", read, places=6)
