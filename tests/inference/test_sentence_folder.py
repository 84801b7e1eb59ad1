"""What a folder of sentence-transformers asks for is done, or refused: never left out in silence."""

import json
import shutil

import numpy as np
import pytest
import sentence_transformers
import transformers
from sentence_transformers import models as parts

from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.inference import load_pipeline
from bertsmith.inference.embed import SentenceFolder, read_sentence_folder
from bertsmith.tokenizer import WordPieceTokenizer

LONG = ["A long story about a man who eats bread. " * 60, "The market is closed. " * 100]
STEPS = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def write(folder, name, values):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")


def test_long_texts_are_cut_where_sentence_transformers_cuts_them(minilm_folder):
    reference = sentence_transformers.SentenceTransformer(str(minilm_folder), device="cpu")
    ours = load_pipeline("embed", minilm_folder, precision="float32")
    assert ours.max_length == reference.max_seq_length == 256
    np.testing.assert_allclose(ours(LONG), reference.encode(LONG, normalize_embeddings=True), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "tokenizer", "expected"),
    [
        ({"max_seq_length": 16}, {}, 16),
        ({"max_seq_length": None}, {"model_max_length": 20}, 20),
        ({}, {"model_max_length": int(1e30)}, 32),
        ({"max_seq_length": 4000}, {}, 32),
    ],
)
def test_the_length_is_what_the_folder_says_or_the_tokenizer(settings, tokenizer, expected, tiny_model):
    write(tiny_model, "sentence_bert_config.json", settings)
    path = tiny_model / "tokenizer_config.json"
    write(tiny_model, path.name, json.loads(path.read_text(encoding="utf-8")) | tokenizer)
    assert load_pipeline("embed", tiny_model).max_length == expected


def test_the_pooling_is_where_modules_json_says(tiny_model):
    write(tiny_model, "modules.json", [STEPS[0], STEPS[1] | {"path": "2_Pool"}])
    write(tiny_model, "2_Pool/config.json", {"pooling_mode": "cls"})
    assert read_sentence_folder(tiny_model) == SentenceFolder(pooling="cls")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "modules.json",
            [*STEPS, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}],
            "through a Dense",
        ),
        ("modules.json", [STEPS[0] | {"path": "0_Transformer"}], "the encoder lies in 0_Transformer"),
        ("modules.json", [{"path": ""}], "a step without a type"),
        ("modules.json", "{", "modules.json: damaged"),
        ("modules.json", {}, "holds no list"),
        ("sentence_bert_config.json", {"max_seq_length": "many"}, "sequences of 'many' ids"),
        ("sentence_bert_config.json", {"max_seq_length": 2}, "sequences of 2 ids"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default prompt 'query' is none of"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "prompts are not texts by name"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "jaccard"}, "compares vectors by 'jaccard'"),
    ],
)
def test_what_is_not_known_here_is_refused(name, values, message, tiny_model):
    write(tiny_model, name, values)
    with pytest.raises(CheckpointError, match=message):
        load_pipeline("embed", tiny_model)


def test_a_prompt_that_is_left_out_of_the_pooling_is_refused(tiny_model):
    write(tiny_model, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    assert load_pipeline("embed", tiny_model).pooling == "mean"
    write(tiny_model, "config_sentence_transformers.json", {"prompts": {"query": "query: "}})
    with pytest.raises(CheckpointError, match="leaves the prompt out of the pooling"):
        load_pipeline("embed", tiny_model)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("normalize", [True, False])
def test_prompts_and_similarity_are_those_of_the_folder(similarity, normalize, tiny_model, tmp_path):
    encoder = parts.Transformer(str(tiny_model))
    steps = [encoder, parts.Pooling(64), *([parts.Normalize()] if normalize else [])]
    theirs = sentence_transformers.SentenceTransformer(
        modules=steps,
        device="cpu",
        prompts={"query": "the man : ", "passage": "a book "},
        default_prompt_name="query",
        similarity_fn_name=similarity,
    )
    theirs.save(str(tmp_path / "saved"))
    ours = load_pipeline("embed", tmp_path / "saved", precision="float32")
    texts = ["the woman reads", "bread", "a book about bread"]
    for prompt in (None, "query", "passage", ""):
        before = "a book " if prompt == "passage" else "" if prompt == "" else "the man : "
        expected = theirs.encode([before + text for text in texts], prompt="", normalize_embeddings=True)
        np.testing.assert_allclose(ours(texts, prompt=prompt), expected, atol=1e-5)
    compared = theirs.similarity(*[theirs.encode(texts)] * 2)
    np.testing.assert_allclose(ours.compare(texts), compared, atol=1e-4)
    with pytest.raises(ConfigError, match="names no prompt 'title'; it has .*query"):
        ours(texts, prompt="title")


def test_lower_casing_that_the_tokenizer_does_not_do_is_refused(tiny_model):
    write(tiny_model, "sentence_bert_config.json", {"do_lower_case": True})
    assert load_pipeline("embed", tiny_model).pooling == "mean"
    WordPieceTokenizer(WordPieceTokenizer.load(tiny_model).vocab, lowercase=False).save(tiny_model)
    with pytest.raises(CheckpointError, match="lower-cases every text"):
        load_pipeline("embed", tiny_model)


@pytest.mark.parametrize("command", ["export", "import"])
def test_copies_keep_the_pooling(command, tiny_model, tmp_path):
    from bertsmith.interop.convert import import_checkpoint
    from bertsmith.interop.huggingface import export_huggingface

    source, copy = tmp_path / "source", tmp_path / "copy"
    shutil.copytree(tiny_model, source)
    scaled = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
    write(source, "modules.json", [*STEPS, scaled])
    write(source, "1_Pooling/config.json", {"word_embedding_dimension": 64, "pooling_mode_cls_token": True})
    write(source, "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False})
    # as in a cache of downloads: every file is a link to one elsewhere
    for path in [path for path in source.rglob("*") if path.is_file()]:
        blob = path.rename(tmp_path / f"blob-{path.parent.name}-{path.name}")
        path.symlink_to(blob)
    if command == "export":
        export_huggingface(source, copy)
    else:
        import torch

        model = transformers.BertForPreTraining.from_pretrained(source)
        torch.save(model.state_dict(), source / "pytorch_model.bin")
        (source / "model.safetensors").unlink()
        import_checkpoint(source, copy)
    ours = load_pipeline("embed", copy, precision="float32")
    assert (ours.pooling, ours.max_length) == ("cls", 12)
    texts = ["the man eats bread . " * 9, "a book"]
    reference = sentence_transformers.SentenceTransformer(str(copy), device="cpu")
    np.testing.assert_allclose(ours(texts), reference.encode(texts), atol=1e-5)


def test_a_copy_reads_as_much_of_a_text_as_its_source(tiny_model, tmp_path):
    """The version of sentence-transformers that is installed keeps the length with the tokenizer alone."""
    from bertsmith.interop.huggingface import export_huggingface

    transformer = parts.Transformer(str(tiny_model))
    whole = sentence_transformers.SentenceTransformer(
        modules=[transformer, parts.Pooling(transformer.get_word_embedding_dimension())], device="cpu"
    )
    whole.max_seq_length = 12
    whole.save(str(tmp_path / "source"))
    export_huggingface(tmp_path / "source", tmp_path / "copy")
    copy = sentence_transformers.SentenceTransformer(str(tmp_path / "copy"), device="cpu")
    ours = load_pipeline("embed", tmp_path / "copy", precision="float32")
    assert copy.max_seq_length == ours.max_length == 12
    texts = ["the man eats bread . " * 9]
    np.testing.assert_allclose(ours(texts), whole.encode(texts, normalize_embeddings=True), atol=1e-5)


def test_a_copy_keeps_what_was_checked(tiny_model, tmp_path):
    from bertsmith.interop.huggingface import export_huggingface

    write(tiny_model, "modules.json", [STEPS[0] | {"path": "./"}, STEPS[1]])
    config = json.loads((tiny_model / "config.json").read_text(encoding="utf-8"))
    write(tiny_model, "config.json", config | {"auto_map": {"AutoModel": "code.Model"}})
    export_huggingface(tiny_model, tmp_path / "copy")
    assert "auto_map" not in (tmp_path / "copy" / "config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "message"),
    [("2_Dense", "its weights are pickled"), ("../2_Dense", "lies outside"), ("/2", "lies outside")],
)
def test_a_copy_that_nothing_could_load_is_not_made(path, message, tiny_model, tmp_path):
    from bertsmith.interop.huggingface import export_huggingface

    write(tiny_model, "modules.json", [*STEPS, {"path": path, "type": "sentence_transformers.models.Dense"}])
    write(tiny_model, "2_Dense/config.json", {})
    (tiny_model / "2_Dense" / "pytorch_model.bin").write_bytes(b"weights")
    with pytest.raises(CheckpointError, match=message):
        export_huggingface(tiny_model, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_long_texts_are_cut_by_the_pipelines_of_transformers(tiny_model, tmp_path):
    from bertsmith.interop.huggingface import export_huggingface

    export_huggingface(tiny_model, tmp_path / "copy")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "copy").model_max_length == 32
    features = transformers.pipeline("feature-extraction", model=str(tmp_path / "copy"))
    assert len(features("the man eats bread . " * 50, truncation=True)[0]) == 32
