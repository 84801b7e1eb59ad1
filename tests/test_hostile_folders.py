"""A model folder comes from anywhere: whatever its files say, loading it ends soon, with a model or one clear line."""

import copy
import json
import math
import os
import re
import resource
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bertsmith import files
from bertsmith.errors import BertsmithError
from bertsmith.finetune.adapters import load_adapted, save_adapter
from bertsmith.inference.embed import SentenceFolder, write_sentence_folder
from bertsmith.inference.pipeline import pipeline_named, pipelines_of_folder
from bertsmith.inference.task_file import write_task_file
from bertsmith.interop import import_checkpoint
from bertsmith.model import BertForSequenceClassification, ModelConfig, families
from bertsmith.model.architectures import ModelForMaskedLM, load_any
from bertsmith.model.peft import AdapterSettings, add_adapter
from bertsmith.retrieval import load_index
from bertsmith.retrieval.build import IndexSettings, build_index
from bertsmith.retrieval.stored import CLAIM, CURRENT, checksum_of
from bertsmith.serve.batching import Batcher
from bertsmith.serve.models import load_models
from bertsmith.serve.settings import ServeSettings
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from bertsmith_school.lab.models import LabModel
from bertsmith_school.learn import Deck

HUGE = 1_000_000_000
SIZES = [*ModelConfig.required, "max_position_embeddings", "type_vocab_size"]
FILES = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
]
TEXTS = ["[" * 200_000, '{"a":' * 200_000, "", "nul", "[1, 2]", "7", '{"a": 1e999}', "\x00"]
SHARDS, ADAPTER = "model.safetensors.index.json", "adapter/adapter.json"
STATE, CARDS = "step-000000000/state.json", "learn.json"
GENERATION = "generation-00001"
WORDS, PARAMETERS = (f"{GENERATION}/lexical/{name}.index.json" for name in ("vocab", "params"))


@pytest.fixture
def folder(tiny_model):
    """A folder with every file that says something of vectors."""
    write_sentence_folder(tiny_model, SentenceFolder(max_length=16, prompts={"query": "query: "}), 64)
    return tiny_model


def say(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def use(folder):
    """Loads a folder for all that it is good for, and uses it once; returns what was told instead."""
    try:
        load_tokenizer(folder)
        for name in pipelines_of_folder(folder):
            pipeline = pipeline_named(name).load(folder)
            pipeline(*pipeline.smallest_input())
    except BertsmithError as error:
        return str(error)
    return ""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", [HUGE, 10**30, -1, 0, 2.5, True, "x", [], {}])
@pytest.mark.parametrize("name", SIZES)
def test_an_impossible_size_is_refused_at_once(name, value, folder):
    say(folder / "config.json", **{name: value})
    with pytest.raises(BertsmithError, match=name if name != "max_position_embeddings" or value == 0 else ""):
        load_any(folder)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("model_type", sorted(families()))
def test_no_family_believes_a_number_of_layers(model_type, tmp_path):
    family = families()[model_type]
    ModelForMaskedLM(family.config.named("1/64", vocab_size=20, pad_token_id=0)).save_pretrained(tmp_path)
    layers = family.config.published_fields.get("num_hidden_layers", "num_hidden_layers")
    for count, said in ((HUGE, layers), (1000, "1000 layers")):
        if model_type == "albert" and count == 1000:
            continue
        say(tmp_path / "config.json", **{layers: count}, layer_types=None)
        with pytest.raises(BertsmithError, match=said):
            load_any(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("heads", [{"0": [HUGE]}, {str(HUGE): [0]}, {"0": list(range(1000))}])
def test_impossible_pruned_heads_are_refused_at_once(heads, folder):
    say(folder / "config.json", pruned_heads=heads)
    with pytest.raises(BertsmithError, match="pruned_heads"):
        load_any(folder)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", [*FILES, "task.json"])
def test_every_file_may_hold_anything(name, text, folder):
    (folder / name).write_text(text, encoding="utf-8")
    assert "\n" not in use(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_file_too_large_is_not_read(name, folder, monkeypatch):
    largest = max((folder / each).stat().st_size for each in FILES)
    (folder / name).write_bytes((folder / name).read_bytes() + b" " * (2 * largest))
    monkeypatch.setattr(files, "MOST_JSON_BYTES", 2 * largest)
    assert "more than any such file should" in use(folder)


def test_a_vocabulary_too_large_or_a_pipe_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(files, "MOST_JSON_BYTES", 10)
    with pytest.raises(BertsmithError, match=r"vocab\.txt: it has 0 MiB, more than any such file should"):
        load_tokenizer(folder / "vocab.txt")
    (folder / "vocab.txt").unlink()
    os.mkfifo(folder / "vocab.txt")
    with pytest.raises(BertsmithError, match=r"vocab\.txt: it is no plain file"):
        load_tokenizer(folder / "vocab.txt")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_is_not_read(name, folder):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    # 其余的文件可有可无：管道当作没有
    assert re.search({"config.json": "no plain file"}.get(name, "^$"), use(folder))


def places(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(inner)[:12]:
        yield from places(each, (*path, key))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    from bertsmith.model import BertConfig, BertForPreTraining
    from bertsmith.tokenizer import WordPieceTokenizer

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("sound") / "model"
    tokenizer = WordPieceTokenizer.train(["the man eats bread . the woman reads a book !"] * 3, vocab_size=200)
    BertForPreTraining(
        BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=32)
    ).save_pretrained(folder)
    tokenizer.save(folder)
    write_sentence_folder(folder, SentenceFolder(max_length=16, prompts={"query": "query: "}), 64)
    write_task_file(folder, {"task": "fill-mask", "max_length": 16})
    return folder


@pytest.fixture(scope="module")
def indexed(sound, tmp_path_factory):
    texts = tmp_path_factory.mktemp("texts")
    (texts / "a.txt").write_text("The man eats bread.\n\nThe woman reads a book.\n", encoding="utf-8")
    out = tmp_path_factory.mktemp("indexed") / "index"
    build_index(texts, sound, out, IndexSettings(precision="float32"))
    return out


@pytest.fixture(scope="module")
def sharded(sound, tmp_path_factory):
    """The model with its weights in two files, and the file that says which tensor lies where."""
    folder = Path(shutil.copytree(sound, tmp_path_factory.mktemp("sharded") / "model"))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for part in set(places.values()):
        save_file({name: tensors[name] for name, place in places.items() if place == part}, folder / part)
    (folder / SHARDS).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def adapted(sound, tmp_path_factory):
    folder = Path(shutil.copytree(sound, tmp_path_factory.mktemp("adapted") / "model"))
    labels = {0: "no", 1: "yes"}
    model = BertForSequenceClassification.from_pretrained(folder, new_heads=True, id2label=labels)
    add_adapter(model, AdapterSettings("lora", size=2))
    save_adapter(model, (folder / ADAPTER).parent)
    return folder


def trainer():
    return BertTrainer(torch.nn.Linear(1, 1), lambda *_: None, TrainerSettings(total_steps=1))


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory):
    """The folder of the states of a run."""
    folder = tmp_path_factory.mktemp("states")
    save_state(folder, trainer(), {"best": 1.5, "seen": [1, 2]}, keep=1)
    return folder


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """The folder with a reader's progress."""
    folder = tmp_path_factory.mktemp("studied")
    deck = Deck(folder / CARDS)
    deck.answer(deck.due()[0], "good")
    deck.mark_read("why")
    deck.record_quiz("why", 2, 3)
    return folder


@pytest.fixture
def little_memory():
    """Lets the process grow by 4 GiB at most: where a number is believed before it is checked, memory ends."""
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def told_by(read):
    """Lets a reader of a folder return what it was told instead of what it would have read."""

    def asked(folder):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(folder)
        except BertsmithError as error:
            return str(error)
        return ""

    return asked


@told_by
def imported(folder):
    """Imports a folder as a foreign checkpoint."""
    out = folder.with_name("imported")
    shutil.rmtree(out, ignore_errors=True)
    import_checkpoint(folder, out)


@told_by
def served(folder):
    """Loads a folder for all that it is good for, and uses it once, as a server and the lab do."""
    how = ServeSettings(models=(("model", str(folder)),))
    batcher = Batcher(budget=1024, most_tokens=how.queue_tokens, threads=1)
    try:
        (model,) = load_models(how, batcher)
        in_lab = LabModel(model, how)
        in_lab.maps("the man", None)
        in_lab.study()
    finally:
        batcher.close()


def seal(folder):
    """Makes the checksums of an index those of what it holds: a stranger who changes a file does so."""
    path = folder / CURRENT
    current = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(current, dict) and isinstance(current.get("checksums"), dict):
        places = {name: folder / GENERATION / name for name in current["checksums"]}
        current["checksums"] |= {name: checksum_of(place) for name, place in places.items() if place.is_file()}
        current.pop(files.CHECKSUM, None)
        path.write_text(json.dumps(current | {files.CHECKSUM: files.checksum_of(current)}), encoding="utf-8")


@told_by
def opened(folder):
    """Opens an index and asks it."""
    seal(folder)
    load_index(folder).search("bread")


@told_by
def applied(folder):
    """Puts an adapter over a model."""
    load_adapted(folder, (folder / ADAPTER).parent)


@told_by
def resumed(folder):
    """Goes on with a training."""
    load_latest_state(folder, trainer())


@told_by
def learned(folder):
    """Goes on with flash cards."""
    deck = Deck(folder / CARDS)
    deck.lesson_progress("why")
    deck.answer(deck.due()[0], "good")


READERS = {
    **{name: (served, "sound", name) for name in [*FILES, "task.json"]},
    **{f"import, {name}": (imported, "sound", name) for name in ("config.json", "tokenizer_config.json")},
    **{f"index, {name}": (opened, "indexed", name) for name in (CLAIM, CURRENT, WORDS, PARAMETERS)},
    SHARDS: (served, "sharded", SHARDS),
    ADAPTER: (applied, "adapted", ADAPTER),
    STATE: (resumed, "broken_off", STATE),
    CARDS: (learned, "studied", CARDS),
}


IMPOSSIBLE = {
    "training state": (STATE, {"step": math.inf}, "all training states are damaged"),
    "adapter": (ADAPTER, {"size": HUGE}, "size"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "change", "said"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_an_impossible_number_beside_weights_is_refused(name, change, said, request, little_memory, tmp_path):
    read, whole, _ = READERS[name]
    folder = Path(shutil.copytree(request.getfixturevalue(whole), tmp_path / "changed"))
    say(folder / name, **change)
    assert said in read(folder)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", [CLAIM, WORDS, PARAMETERS])
def test_every_file_of_an_index_may_hold_anything(name, text, indexed, tmp_path):
    folder = Path(shutil.copytree(indexed, tmp_path / "index"))
    (folder / name).write_text(text, encoding="utf-8")
    said = opened(folder)
    assert "\n" not in said
    # 词的参数谁也不读
    assert bool(said) == (name != PARAMETERS)


def test_words_too_many_are_not_read(indexed, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(indexed, tmp_path / "index"))
    assert opened(folder) == ""
    monkeypatch.setattr("bertsmith.retrieval.lexical._MOST_BYTES", 10)
    assert "more than any such file should" in opened(folder)


@pytest.mark.timeout(60)
def test_an_index_names_no_pipe(indexed, tmp_path):
    folder = Path(shutil.copytree(indexed, tmp_path / "index"))
    os.mkfifo(folder / "pipe")
    current = json.loads((folder / CURRENT).read_text(encoding="utf-8"))
    current["checksums"]["../pipe"] = 0
    (folder / CURRENT).write_text(json.dumps(current), encoding="utf-8")
    assert "pipe: it is no plain file" in opened(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"width": 5}, "vectors and passages do not belong together"),
        ({"documents": []}, "documents and passages do not belong together"),
    ],
)
def test_files_of_an_index_that_do_not_belong_together_are_refused(change, said, indexed, tmp_path):
    folder = Path(shutil.copytree(indexed, tmp_path / "index"))
    say(folder / CURRENT, **change)
    assert said in opened(folder)


@pytest.mark.parametrize("words", [{"": 0, "bread": 10**9}, {"": 0, "bread": True}, {"": 0, "bread": "x" * 10**6}, {}])
def test_words_of_an_index_that_stand_nowhere_are_refused(words, indexed, tmp_path):
    folder = Path(shutil.copytree(indexed, tmp_path / "index"))
    (folder / WORDS).write_text(json.dumps(words), encoding="utf-8")
    assert "words and counts do not belong together" in opened(folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("read", "whole", "name"), READERS.values(), ids=READERS.keys())
def test_any_value_at_any_place_of_a_file_is_used_or_refused(read, whole, name, request, little_memory, tmp_path):
    sound = request.getfixturevalue(whole)
    content = json.loads((sound / name).read_text(encoding="utf-8"))
    spots = list(places(content))

    @settings(max_examples=25, deadline=10_000, suppress_health_check=list(HealthCheck))
    @given(spot=st.sampled_from(spots), value=ANYTHING)
    def check(spot, value):
        changed = copy.deepcopy(content)
        if spot:
            inside = changed
            for key in spot[:-1]:
                inside = inside[key]
            inside[spot[-1]] = value
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        (folder / name).write_text(json.dumps(changed if spot else value), encoding="utf-8")
        if name != "task.json":
            (folder / "task.json").unlink(missing_ok=True)
        assert "\n" not in read(folder)

    check()
