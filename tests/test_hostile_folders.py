"""A model folder comes from anywhere: whatever its files say, loading it ends soon, with a model or one clear line."""

import copy
import json
import os
import re
import resource
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertsmith import files
from bertsmith.errors import BertsmithError
from bertsmith.inference.embed import SentenceFolder, write_sentence_folder
from bertsmith.inference.pipeline import pipeline_named, pipelines_of_folder
from bertsmith.inference.task_file import write_task_file
from bertsmith.interop import import_checkpoint
from bertsmith.model import ModelConfig, families
from bertsmith.model.architectures import ModelForMaskedLM, load_any
from bertsmith.retrieval import load_index
from bertsmith.retrieval.build import IndexSettings, build_index
from bertsmith.retrieval.stored import CLAIM, CURRENT
from bertsmith.tokenizer import load_tokenizer

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
@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "", "nul", "[1, 2]", "7", '{"a": 1e999}', "\x00"])
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
def sound(tmp_path_factory, request):
    import torch

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


@pytest.fixture
def little_memory():
    """Lets the process grow by 4 GiB at most: where a number is believed before it is checked, memory ends."""
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def imported(folder):
    """Imports a folder as a foreign checkpoint; returns what was told instead."""
    out = folder.with_name("imported")
    shutil.rmtree(out, ignore_errors=True)
    try:
        import_checkpoint(folder, out)
    except BertsmithError as error:
        return str(error)
    return ""


def opened(folder):
    """Opens an index and asks it; returns what was told instead."""
    try:
        load_index(folder).search("bread")
    except BertsmithError as error:
        return str(error)
    return ""


READERS = {
    **{name: (use, "sound", name) for name in [*FILES, "task.json"]},
    **{f"import, {name}": (imported, "sound", name) for name in ("config.json", "tokenizer_config.json")},
    **{f"index, {name}": (opened, "indexed", name) for name in (CLAIM, CURRENT)},
}


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
