"""What is exported computes what the model computes, in every runtime's padded world; and nothing half-done is left."""

import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import sentence_transformers
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic

from bertsmith.batch import RaggedBatch
from bertsmith.cli import main
from bertsmith.errors import CheckpointError
from bertsmith.inference import load_pipeline
from bertsmith.inference.task_file import write_task_file
from bertsmith.interop import onnx as export
from bertsmith.interop.huggingface import export_huggingface
from bertsmith.interop.onnx import export_onnx
from bertsmith.model import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ModelForSequenceClassification,
    architectures_by_name,
    family_named,
    graph,
)
from bertsmith.model.features import FeatureTagger
from bertsmith.tokenizer import WordPieceTokenizer

VOCAB = 120
BERTS = [name for name in architectures_by_name() if name.startswith("Bert")]
LABELLED = ("BertForSequenceClassification", "BertForTokenClassification")
# a row of padding beyond the longest sequence too
SHAPES = {"1x1": ([1], 1), "ragged with padding": ([3, 17, 1, 9, 30, 2], 33), "512 long": ([512, 200], 512)}


def save_model(name, folder, **changes):
    """A small random model, with every bias and norm moved from its initial 0 or 1."""
    torch.manual_seed(3)
    labels = {"id2label": {0: "a", 1: "b", 2: "c"}} if name in LABELLED else {}
    model = architectures_by_name()[name](
        BertConfig.named("1/64", vocab_size=VOCAB, num_attention_heads=4, **labels, **changes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model.eval()


def run(file, inputs):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {k: v.numpy() for k, v in inputs.items()}), strict=True))


def draw(lengths, width, num_choices=None):
    generator = torch.Generator().manual_seed(len(lengths))
    ids = torch.randint(1, VOCAB, (len(lengths), width), generator=generator)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    types = (torch.arange(width) * 2 > torch.tensor(lengths)[:, None]).long()
    rows = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return rows if num_choices is None else {k: v.view(-1, num_choices, width) for k, v in rows.items()}


def own_outputs(name, model, rows):
    """Sequence by sequence through the ragged model: no padding anywhere."""
    outputs = []
    for ids, mask, types in zip(*(tensor.flatten(0, -2) for tensor in rows.values()), strict=True):
        length = int(mask.sum())
        batch = RaggedBatch.from_sequences([ids[:length].tolist()], [types[:length].tolist()])
        everywhere = torch.arange(length)
        if name == "BertModel":
            output = model(batch)
            outputs.append({"last_hidden_state": output.hidden_states, "pooler_output": output.pooled[0]})
        elif name == "BertForPreTraining":
            output = model(batch, everywhere)
            outputs.append({"prediction_logits": output.mlm_logits, "seq_relationship_logits": output.nsp_logits[0]})
        elif name == "BertForMaskedLM":
            outputs.append({"logits": model(batch, everywhere)})
        elif name == "BertForQuestionAnswering":
            start, end = model(batch)
            outputs.append({"start_logits": start, "end_logits": end})
        elif name == "BertForMultipleChoice":
            outputs.append({"logits": model(batch, 1)[0, 0]})
        elif name in ("BertForSequenceClassification", "BertForNextSentencePrediction"):
            outputs.append({"logits": model(batch)[0]})
        else:
            outputs.append({"logits": model(batch)})
    return outputs


QUICK = "BertForSequenceClassification"
"""Exported in the quick tests; the others are slow ones."""


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in BERTS]
)
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(request.param, folder / "model")
    largest = export_onnx(folder / "model", folder / "x.onnx")
    assert 0 <= largest < 1e-4
    assert sorted(path.name for path in folder.iterdir()) == ["model", "x.onnx"]
    return request.param, model, folder


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_onnx_runtime_gives_our_outputs(exported, shape):
    name, model, folder = exported
    lengths, width = SHAPES[shape]
    is_choice = name == "BertForMultipleChoice"
    rows = draw(lengths, width, (1 if len(lengths) == 1 else 2) if is_choice else None)
    found = run(folder / "x.onnx", rows)
    expected = own_outputs(name, model, rows)
    assert found.keys() == expected[0].keys()
    for output, values in found.items():
        if is_choice:
            assert values.shape == rows["input_ids"].shape[:2]
            values = values.reshape(-1)
        assert len(values) == len(lengths)
        for value, own, length in zip(values, expected, lengths, strict=True):
            own = own[output].numpy()
            per_token = value.ndim > 0 and value.shape[0] == width and own.shape[:1] == (length,)
            np.testing.assert_allclose(value[:length] if per_token else value, own, atol=1e-4, rtol=0)


@torch.no_grad()
def test_names_and_numbers_are_those_of_the_reference(exported):
    name, _, folder = exported
    rows = draw([12, 5, 9, 1, 7, 12], 12, 3 if name == "BertForMultipleChoice" else None)
    reference = getattr(transformers, name).from_pretrained(folder / "model").eval()
    expected = reference(**rows)
    found = run(folder / "x.onnx", rows)
    assert list(found) == list(expected.keys())
    real = rows["attention_mask"].bool().numpy()
    for output, value in found.items():
        theirs = expected[output].numpy()
        assert value.shape == theirs.shape
        if value.shape[:2] == real.shape and name != "BertForMultipleChoice":
            value, theirs = value[real], theirs[real]
        np.testing.assert_allclose(value, theirs, atol=1e-4, rtol=0)


def test_batch_and_sequence_are_free_and_all_is_int64_in_float32_out(exported):
    name, _, folder = exported
    graph = onnx.load(folder / "x.onnx").graph
    axes = ["batch", "choices", "sequence"] if name == "BertForMultipleChoice" else ["batch", "sequence"]
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    for value in graph.input:
        assert value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        assert [axis.dim_param for axis in value.type.tensor_type.shape.dim] == axes
    for value in graph.output:
        assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_the_file_says_nothing_about_the_machine_that_wrote_it(exported):
    _, _, folder = exported
    content = (folder / "x.onnx").read_bytes()
    assert b"stack_trace" not in content
    assert str(folder).encode() not in content
    assert export.__file__.encode() not in content


@pytest.mark.parametrize("exported", [QUICK], indirect=True)
def test_what_stands_in_the_padding_changes_nothing(exported):
    _, _, folder = exported
    rows = draw([4, 9], 11)
    other = dict(rows, input_ids=torch.where(rows["attention_mask"].bool(), rows["input_ids"], 7))
    np.testing.assert_array_equal(run(folder / "x.onnx", rows)["logits"], run(folder / "x.onnx", other)["logits"])
    # a batch filled up with empty rows, as servers with fixed shapes send it
    rows["attention_mask"][1] = 0
    assert np.isfinite(run(folder / "x.onnx", rows)["logits"]).all()


@torch.no_grad()
@pytest.mark.slow
def test_unusual_shapes_of_a_model(tmp_path):
    model = save_model(
        "BertForMaskedLM",
        tmp_path / "model",
        tie_word_embeddings=False,
        hidden_act="gelu_new",
        pruned_heads={0: (1, 3)},
        max_position_embeddings=10,
        type_vocab_size=1,
    )
    export_onnx(tmp_path / "model", tmp_path / "x.onnx")
    rows = draw([10, 3], 10)
    rows["token_type_ids"].zero_()
    logits = run(tmp_path / "x.onnx", rows)["logits"]
    for n, own in enumerate(own_outputs("BertForMaskedLM", model, rows)):
        np.testing.assert_allclose(logits[n, : len(own["logits"])], own["logits"], atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.slow
def test_a_folder_has_what_tools_look_for_and_the_real_checkpoint_gives_the_same_states(says, minilm_folder, tmp_path):
    code, printed = says("export", "onnx", minilm_folder, "--out", tmp_path / "out")
    assert code == 0
    assert float(printed.split()[-1]) < 1e-4
    there = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert ", ".join(there) in printed
    assert there == [
        "1_Pooling",
        "config.json",
        "config_sentence_transformers.json",
        "model.onnx",
        "modules.json",
        "sentence_bert_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").architectures == ["BertModel"]
    texts = ["Hello, how are you?", "x", "The man eats the bread and reads a book about whales."]
    rows = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(texts, padding=True, return_tensors="pt")
    found = run(tmp_path / "out" / "model.onnx", dict(rows))
    model = BertModel.from_pretrained(minilm_folder).eval()
    own = model(RaggedBatch.from_sequences(WordPieceTokenizer.load(minilm_folder)(texts)["input_ids"]))
    states = found["last_hidden_state"][rows["attention_mask"].bool().numpy()]
    np.testing.assert_allclose(states, own.hidden_states.numpy(), atol=1e-4, rtol=0)
    vectors = load_pipeline("embed", minilm_folder, precision="float32")(texts)
    np.testing.assert_allclose(found["sentence_embedding"], vectors, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.slow
def test_weights_beyond_one_file_lie_beside_it_and_a_model_without_pooler_has_one_output(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = BertModel(BertConfig.named("1/64", vocab_size=VOCAB), need_pooler=False).eval()
    model.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(export, "LARGEST_FILE", 1000)
    export_onnx(tmp_path / "model", tmp_path / "out")
    size, rest = ((tmp_path / "out" / name).stat().st_size for name in ("model.onnx", "model.onnx.data"))
    assert size < 100_000 < rest
    rows = draw([6], 6)
    found = run(tmp_path / "out" / "model.onnx", rows)
    own = model(RaggedBatch.from_sequences(rows["input_ids"].tolist(), rows["token_type_ids"].tolist()))
    assert list(found) == ["last_hidden_state"]
    np.testing.assert_allclose(found["last_hidden_state"][0], own.hidden_states.numpy(), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_an_export_that_computes_something_else_is_refused(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(graph.PaddedBatch, "padding_mask", property(lambda batch: batch.attention_mask >= 0))
    with pytest.raises(CheckpointError, match=r"is off by .* nothing was written"):
        export_onnx(tiny_model, tmp_path / "out" / "x.onnx")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def says(capsys):
    """Runs a command and returns its exit code and what it printed: the output, or the one line of an error."""

    def run_command(*words):
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        assert len(printed.err.splitlines()) == (1 if caught.value.code else 0), printed.err
        return caught.value.code, printed.err if caught.value.code else printed.out

    return run_command


def test_bad_input_ends_with_one_line_and_nothing_written(says, tiny_model, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "there.onnx").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for source, out, message in (
        ("empty", "a.onnx", "this is not a model folder"),
        ("nowhere", "a.onnx", "there is no such folder"),
        ("there.onnx", "a.onnx", "there.onnx"),
        ("tiny-model", "there.onnx", "is there already"),
        ("tiny-model", "full", "is there already"),
        ("tiny-model", "there.onnx/a.onnx", "a file stands where a folder is needed"),
    ):
        code, line = says("export", "onnx", tmp_path / source, "--out", tmp_path / out)
        assert code == 2
        assert message in line
    monkeypatch.setattr(export, "LARGEST_FILE", 1000)
    code, line = says("export", "onnx", tiny_model, "--out", tmp_path / "a.onnx")
    assert code == 2
    assert f"give a folder, --out {tmp_path / 'a'}" in line
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.onnx").read_text() == "mine"


def test_an_encoder_that_answers_with_words_is_not_exported_alone(tiny_model, tmp_path):
    (tiny_model / "words.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"its answer counts words\.safetensors too"):
        export_onnx(tiny_model, tmp_path / "a.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_the_way_to_install_it(says, tiny_model, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    code, line = says("export", "onnx", tiny_model, "--out", tmp_path / "a.onnx")
    assert code == 2
    assert f"needs {package}" in line
    assert "pip install 'bertsmith[onnx]'" in line


@torch.no_grad()
def test_the_copy_of_a_folder_is_what_the_reference_loads(says, tiny_model, tmp_path):
    (tiny_model / "optimizer.bin").write_text("left behind")
    code, output = says("export", "huggingface", tiny_model, "--out", tmp_path / "copy")
    assert code == 0
    assert "left aside" not in output
    assert not (tmp_path / "copy" / "optimizer.bin").exists()
    copy, info = transformers.BertForPreTraining.from_pretrained(tmp_path / "copy", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = torch.tensor([transformers.AutoTokenizer.from_pretrained(tmp_path / "copy").encode("the man eats bread")])
    source = transformers.BertForPreTraining.from_pretrained(tiny_model).eval()
    assert torch.equal(copy.eval()(ids).prediction_logits, source(ids).prediction_logits)


def test_the_copy_tells_what_it_leaves_aside(says, tiny_model, tmp_path):
    config = BertConfig.load(tiny_model)
    config.save(tiny_model / "config.json", architecture="BertForMaskedLM")
    code, output = says("export", "huggingface", tiny_model, "--out", tmp_path / "copy")
    assert code == 0
    assert "left aside" in output
    assert "cls.seq_relationship.weight" in output


def test_a_folder_that_does_not_load_in_full_is_not_copied(says, tiny_model, tmp_path):
    config = BertConfig.load(tiny_model)
    for architecture, changes, message in (
        ("BertForQuestionAnswering", {}, "qa_outputs.weight"),
        ("BertForPreTraining", {"num_hidden_layers": 2}, "encoder.layer.1"),
        ("BertForPreTraining", {"vocab_size": 10}, "word_embeddings"),
        ("BertLMHeadModel", {}, "BertLMHeadModel"),
    ):
        config.changed(**changes).save(tiny_model / "config.json", architecture=architecture)
        code, line = says("export", "huggingface", tiny_model, "--out", tmp_path / "copy")
        assert code == 2
        assert message in line
    text = (tiny_model / "config.json").read_text().replace("architectures", "no_architectures")
    (tiny_model / "config.json").write_text(text)
    code, line = says("export", "huggingface", tiny_model, "--out", tmp_path / "copy")
    assert code == 2
    assert '"architectures"' in line
    config.save(tiny_model / "config.json", architecture="BertForPreTraining")
    with (tiny_model / "vocab.txt").open("a") as vocabulary:
        vocabulary.write("another\n")
    (tiny_model / "tokenizer.json").unlink()
    code, line = says("export", "huggingface", tiny_model, "--out", tmp_path / "copy")
    assert code == 2
    assert "another model's" in line
    assert not (tmp_path / "copy").exists()


def test_the_copy_predicts_as_the_fine_tuned_folder_does(tiny_model, tmp_path):
    config = BertConfig.load(tiny_model).changed(id2label={0: "a", 1: "b"}, problem_type="multi_label_classification")
    BertForSequenceClassification(config).save_pretrained(tiny_model)
    write_task_file(tiny_model, {"task": "multilabel", "max_length": 12, "threshold": 0.9})
    export_huggingface(tiny_model, tmp_path / "copy")
    copy = load_pipeline("multilabel", tmp_path / "copy")
    assert (copy.threshold, copy.max_length) == (0.9, 12)


def test_a_tagger_over_a_frozen_encoder_is_copied_whole_and_has_no_graph(tiny_model, tmp_path):
    bert = BertModel.from_pretrained(tiny_model, need_pooler=False, id2label={0: "O", 1: "X"})
    FeatureTagger(bert, "last", "linear", 8).save_pretrained(tiny_model)
    task = {
        "task": "features",
        "max_length": 0,
        "labels": ["O", "X"],
        "layers": "last",
        "tagger_head": "linear",
        "tagger_head_size": 8,
    }
    write_task_file(tiny_model, task)
    export_huggingface(tiny_model, tmp_path / "copy")
    words = [["the", "man"], ["a", "book", "!"]]
    own, copy = (load_pipeline("features", folder) for folder in (tiny_model, tmp_path / "copy"))
    assert own.tag_words(words) == copy.tag_words(words)
    with pytest.raises(CheckpointError, match="no ONNX form"):
        export_onnx(tiny_model, tmp_path / "x.onnx")
    (tiny_model / "features.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="features.safetensors"):
        export_huggingface(tiny_model, tmp_path / "other")


@pytest.mark.parametrize(
    ("pooling", "normalize", "dims"),
    [("mean", True, 0), ("mean", True, 8), ("mean", False, 8), ("cls", False, 0), ("max", False, 0)],
)
def test_sentence_vectors_are_an_output_of_the_graph(pooling, normalize, dims, tiny_model, tmp_path):
    """As `sentence-transformers` gives them, for texts of different lengths side by side."""
    from bertsmith.inference.embed import SentenceFolder, write_sentence_folder

    says = SentenceFolder(pooling=pooling, max_length=16, normalize=normalize, dims=dims)
    write_sentence_folder(tiny_model, says, 64)
    export_onnx(tiny_model, tmp_path / "onnx")
    assert (tmp_path / "onnx" / "1_Pooling" / "config.json").is_file()
    theirs = sentence_transformers.SentenceTransformer(str(tiny_model), device="cpu")
    texts = ["the man eats bread .", "a book", "the woman reads a book ! the man reads ."]
    tokens = theirs.tokenizer(texts, padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    inputs = {each.name: tokens[each.name] for each in session.get_inputs()}
    (found,) = session.run(["sentence_embedding"], inputs)
    assert found.shape == (3, dims or 64)
    np.testing.assert_allclose(found, theirs.encode(texts), atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "changes"), [("modernbert", {"classifier_pooling": "mean"}), ("bert", {"is_decoder": True})], ids=str
)
def test_a_classifier_reads_no_padding(family, changes):
    """Of the mean over a text, and of the last token of a model that reads from left to right."""
    torch.manual_seed(0)
    kind = family_named(family).config
    model = ModelForSequenceClassification(
        kind.named(
            "1/64", vocab_size=VOCAB, initializer_range=0.5, id2label={0: "a", 1: "b"}, pad_token_id=0, **changes
        )
    ).eval()
    rows = draw([3, 9, 1], 11).values()
    (found,) = graph.PaddedModel(model)(*rows)
    torch.testing.assert_close(found, model(RaggedBatch.from_padded(*rows)), atol=1e-4, rtol=1e-4)


def test_an_exported_file_can_be_quantised_by_the_runtime(tmp_path):
    save_model("BertModel", tmp_path / "model")
    export_onnx(tmp_path / "model", tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
    inputs = draw([9, 4], 9)
    whole, small = (run(tmp_path / name, inputs)["last_hidden_state"] for name in ("model.onnx", "int8.onnx"))
    real = inputs["attention_mask"].bool().numpy()
    cosines = (whole * small).sum(-1) / np.linalg.norm(whole, axis=-1) / np.linalg.norm(small, axis=-1)
    assert cosines[real].min() > 0.99
