"""Importing: what the original code computed, what `transformers` computes, and what must be refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertsmith.batch import RaggedBatch
from bertsmith.cli import main
from bertsmith.errors import CheckpointError, InputError, RunFolderError
from bertsmith.interop import convert, import_checkpoint
from bertsmith.interop.tensorflow import TensorBundle
from bertsmith.model import BertForPreTraining, BertForSequenceClassification, BertModel
from bertsmith.tokenizer import WordPieceTokenizer

GOOGLE = Path(__file__).parent / "google_tiny"
SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
}


@pytest.fixture(scope="module")
def expected():
    with np.load(GOOGLE / "expected.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file}


@pytest.fixture
def release(tmp_path):
    """A release folder to damage."""
    for name in ("bert_config.json", "vocab.txt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        (tmp_path / "release").mkdir(exist_ok=True)
        shutil.copy(GOOGLE / name, tmp_path / "release")
    return tmp_path / "release"


def change_json(path, **changes):
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


@torch.no_grad()
def run_ours(folder, expected):
    """Hidden states, masked-LM logits and next-sentence logits of all real tokens."""
    batch = RaggedBatch.from_padded(*(expected[n] for n in ("input_ids", "attention_mask", "token_type_ids")))
    model = BertForPreTraining.from_pretrained(folder).eval()
    output = model(batch, torch.arange(len(batch.input_ids)))
    return model.backbone(batch).hidden_states, output.mlm_logits, output.nsp_logits


def test_the_numbers_are_those_of_the_original_code(tmp_path, expected):
    """The original computes `gelu` by its tanh approximation, whatever its paper says."""
    import_checkpoint(GOOGLE, tmp_path / "model")
    change_json(tmp_path / "model" / "config.json", hidden_act="gelu_new")
    hidden, mlm, nsp = run_ours(tmp_path / "model", expected)
    real = expected["attention_mask"].bool()
    torch.testing.assert_close(hidden, expected["google_hidden_states"].view(2, 12, 16)[real], atol=1e-5, rtol=0)
    offsets = torch.tensor([[0], [12]])
    in_padded = torch.full((2, 12), -1)
    in_padded[real] = torch.arange(len(mlm))
    masked = in_padded.view(-1)[(expected["masked_positions"] + offsets).view(-1)]
    assert (masked >= 0).all()
    ours = mlm[masked].log_softmax(-1)
    torch.testing.assert_close(ours, expected["google_mlm_log_probs"], atol=1e-5, rtol=0)
    torch.testing.assert_close(nsp.log_softmax(-1), expected["google_nsp_log_probs"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("parts", ["one part", "two parts"])
@torch.no_grad()
def test_the_numbers_are_those_of_transformers(tmp_path, release, expected, parts):
    """Their converter and model of version 4 made `expected`; the version installed here reads our folder."""
    if parts == "two parts":
        for file in release.glob("*.ckpt.*"):
            file.unlink()
        for file in (GOOGLE / "two_parts").iterdir():
            shutil.copy(file, release)
    found = import_checkpoint(release, tmp_path / "model")
    assert (found.kind, found.architecture, found.num_tensors) == ("TensorFlow checkpoint", "BertForPreTraining", 46)
    wanted = [expected[f"transformers_{name}"] for name in ("hidden_states", "mlm_logits", "nsp_logits")]
    real = expected["attention_mask"].bool()
    for ours, theirs in zip(run_ours(tmp_path / "model", expected), wanted, strict=True):
        torch.testing.assert_close(ours, theirs[real] if theirs.dim() == 3 else theirs, atol=1e-5, rtol=0)
    theirs, report = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values()), report
    inputs = {name: expected[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    output = theirs.eval()(**inputs, output_hidden_states=True)
    for ours, known in zip(
        (output.hidden_states[-1], output.prediction_logits, output.seq_relationship_logits), wanted, strict=True
    ):
        chosen = real if known.dim() == 3 else slice(None)
        torch.testing.assert_close(ours[chosen], known[chosen], atol=1e-5, rtol=0)


def test_the_tokenizer_comes_along(tmp_path, release):
    import_checkpoint(release, tmp_path / "model")
    ours = WordPieceTokenizer.load(tmp_path / "model")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "Abc, bad Éa!"
    assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.lowercase


@pytest.mark.parametrize(
    ("name", "piece", "asked", "lowercase", "reason"),
    [
        ("uncased_L-2_H-16_A-2", "Z", None, True, "folder's name"),
        ("multi_cased_L-2", "z", None, False, "folder's name"),
        ("bert-base-german-Cased", "z", None, False, "folder's name"),
        ("showcased", "Q", None, False, "capital letters, as in Q"),
        ("chinese_L-2", "<S>", None, True, "no piece"),
        ("cased_L-2", "z", True, True, "as asked"),
        ("uncased_L-2", "z", False, False, "as asked"),
    ],
)
def test_who_decides_about_capitals(tmp_path, release, name, piece, asked, lowercase, reason):
    vocab = release / "vocab.txt"
    vocab.write_text(vocab.read_text().replace("\nz\n", f"\n{piece}\n"))
    release.rename(tmp_path / name)
    found = import_checkpoint(tmp_path / name, tmp_path / "model", lowercase=asked)
    assert found.lowercase is lowercase
    assert reason in found.lowercase_reason
    assert WordPieceTokenizer.load(tmp_path / "model").lowercase is lowercase


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 32}, r"word_embeddings.weight has shape \[60, 16\], its configuration says \[60, 32\]"),
        ({"intermediate_size": 64}, r"intermediate.dense.weight has shape \[32, 16\].* says \[64, 16\]"),
        ({"num_hidden_layers": 3}, "layer.2.attention.self.query.weight is missing.* and 11 more"),
        ({"num_hidden_layers": 1}, "layer.1.* is unexpected"),
        ({"num_hidden_layers": 10**12}, "no model has more than"),
        ({"max_position_embeddings": 10**15}, "max_position_embeddings .*no model has more than"),
        ({"vocab_size": None}, r"bert_config\.json: has no vocab_size"),
        ({"hidden_size": "16"}, r"bert_config\.json: impossible value .*hidden_size"),
        ({"hidden_dropout_prob": "0.1"}, r"bert_config\.json: impossible value"),
        ({"num_attention_heads": 3}, "not a multiple"),
    ],
)
def test_a_configuration_of_another_model_is_refused(tmp_path, release, change, message):
    change_json(release / "bert_config.json", **change)
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(release, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_damaged_configuration_is_named(tmp_path, release, content):
    (release / "bert_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"bert_config\.json"):
        import_checkpoint(release, tmp_path / "model")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"pooler", b"poolex", r"bert.pooler.dense.* is missing.*bert.poolex.dense.bias is unexpected"),
        (b"cls/seq_relationship", b"cls/seq_relatiomship", "cls.seq_relatiomship.bias is unexpected"),
    ],
)
def test_missing_and_unknown_variables_are_named(tmp_path, release, monkeypatch, old, new, message):
    original = convert.TensorBundle

    def renamed(prefix):
        bundle = original(prefix)
        bundle.entries = {name.replace(old.decode(), new.decode()): e for name, e in bundle.entries.items()}
        return bundle

    monkeypatch.setattr(convert, "TensorBundle", renamed)
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(release, tmp_path / "model")


def test_a_scope_before_all_variables_is_taken_off(tmp_path, release, monkeypatch):
    import_checkpoint(release, tmp_path / "plain")
    original = convert.TensorBundle

    def scoped(prefix):
        bundle = original(prefix)
        bundle.entries = {f"module/{name}": entry for name, entry in bundle.entries.items()}
        return bundle

    monkeypatch.setattr(convert, "TensorBundle", scoped)
    with pytest.warns(UserWarning, match="every tensor's name begins with module/"):
        import_checkpoint(release, tmp_path / "model")
    plain, found = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "model"))
    assert plain.keys() == found.keys()
    assert all(torch.equal(plain[name], found[name]) for name in plain)


def test_damaged_numbers_are_named_and_the_optimizer_s_are_not_read(tmp_path, release):
    data = release / "bert_model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    entries = TensorBundle(release / "bert_model.ckpt").entries

    def flip(name):
        content = bytearray(whole)
        content[entries[name].offset + 2] ^= 1
        data.write_bytes(content)

    flip("bert/pooler/dense/kernel/adam_m")
    import_checkpoint(release, tmp_path / "model")
    flip("bert/pooler/dense/kernel")
    with pytest.raises(CheckpointError, match="data-00000-of-00001: tensor bert/pooler/dense/kernel is damaged"):
        import_checkpoint(release, tmp_path / "again")


@pytest.mark.parametrize(
    ("gone", "architecture"),
    [
        ("cls/seq_relationship", "BertForMaskedLM"),
        ("cls/predictions", "BertForNextSentencePrediction"),
        ("cls", "BertModel"),
    ],
)
def test_releases_without_a_head(tmp_path, release, monkeypatch, gone, architecture):
    original = convert.TensorBundle

    def without(prefix):
        bundle = original(prefix)
        bundle.entries = {name: e for name, e in bundle.entries.items() if not name.startswith(gone)}
        return bundle

    monkeypatch.setattr(convert, "TensorBundle", without)
    assert import_checkpoint(release, tmp_path / "model").architecture == architecture
    kind = getattr(transformers, architecture)
    theirs, report = kind.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"] | report["mismatched_keys"]
    # their masked LM has no pooler; ours may be fine-tuned and keeps it
    assert report["unexpected_keys"] <= {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    word = BertModel.from_pretrained(tmp_path / "model").embedding.word.weight
    assert word.equal(theirs.base_model.embeddings.word_embeddings.weight)


@pytest.mark.parametrize(
    ("remove", "error", "message"),
    [
        ("bert_config.json", CheckpointError, "has no bert_config.json"),
        ("vocab.txt", InputError, "neither vocab.txt nor tokenizer.json"),
        ("bert_model.ckpt.index", InputError, "neither bert_model.ckpt.index.* nor pytorch_model.bin"),
        ("bert_model.ckpt.data-00000-of-00001", CheckpointError, "data-00000-of-00001: cannot be read"),
    ],
)
def test_a_missing_file_is_named(tmp_path, release, remove, error, message):
    (release / remove).unlink()
    with pytest.raises(error, match=message):
        import_checkpoint(release, tmp_path / "model")


def test_a_vocabulary_of_another_model_is_refused(tmp_path, release):
    with (release / "vocab.txt").open("a") as file:
        file.write("one\nmore\n")
    with pytest.raises(CheckpointError, match="62 pieces, the model 60"):
        import_checkpoint(release, tmp_path / "model")


def test_several_checkpoints_in_a_folder(tmp_path, release):
    for file in list(release.glob("bert_model*")):
        file.rename(release / file.name.replace("bert_model.ckpt", "model.ckpt-1000"))
    assert import_checkpoint(release, tmp_path / "a").num_tensors == 46
    shutil.copy(release / "model.ckpt-1000.index", release / "model.ckpt-2000.index")
    with pytest.raises(InputError, match=r"several checkpoints \(model.ckpt-1000.index, model.ckpt-2000.index\)"):
        import_checkpoint(release, tmp_path / "b")


# ---- pickled PyTorch weights


def save_pickled(folder, model, *, state=None, **options):
    """What `save_pretrained(safe_serialization=False)` wrote: `config.json` and a pickle of the state dict."""
    folder.mkdir()
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    torch.save(model.state_dict() if state is None else state, folder / "pytorch_model.bin", **options)
    return folder


def random_model(kind=transformers.BertForPreTraining, **fields):
    torch.manual_seed(0)
    model = kind(transformers.BertConfig(**SMALL, **fields)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 2020"])
def test_pickled_weights_equal_the_safetensors_of_transformers(tmp_path, expected, zipped):
    model = random_model()
    source = save_pickled(tmp_path / "pickled", model, _use_new_zipfile_serialization=zipped)
    assert "cls.predictions.decoder.weight" in torch.load(source / "pytorch_model.bin")
    found = import_checkpoint(source, tmp_path / "model")
    assert (found.kind, found.lowercase) == ("PyTorch weights", None)
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(value.equal(theirs[name]) for name, value in ours.items())
    for a, b in zip(run_ours(tmp_path / "model", expected), run_ours(tmp_path / "theirs", expected), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)
    _, report = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values()), report


def test_the_configuration_keeps_its_own_fields(tmp_path):
    source = save_pickled(tmp_path / "pickled", random_model())
    change_json(source / "config.json", my_note="kept", auto_map={"AutoModel": "x.py"}, layer_norm_eps=1e-6)
    import_checkpoint(source, tmp_path / "model")
    values = json.loads((tmp_path / "model" / "config.json").read_text())
    assert values["my_note"] == "kept"
    assert values["layer_norm_eps"] == 1e-6
    assert values["model_type"] == "bert"
    assert "auto_map" not in values


def test_shards_are_joined(tmp_path):
    model = random_model()
    source = save_pickled(tmp_path / "pickled", model)
    state = torch.load(source / "pytorch_model.bin")
    (source / "pytorch_model.bin").unlink()
    places = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(state)}
    for shard in set(places.values()):
        torch.save({name: value for name, value in state.items() if places[name] == shard}, source / shard)
    index = source / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    import_checkpoint(source, tmp_path / "model")
    ours = load_file(tmp_path / "model" / "model.safetensors")
    assert all(value.equal(state[name]) for name, value in ours.items())
    (source / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(CheckpointError, match="names pytorch_model-00002-of-00002.bin, which is not in the folder"):
        import_checkpoint(source, tmp_path / "again")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(state, "../pickled/pytorch_model-00001-of-00002.bin")}))
    with pytest.raises(CheckpointError, match="which is not in the folder"):
        import_checkpoint(source, tmp_path / "again")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(state, "pytorch_model-00001-of-00002.bin")}))
    with pytest.raises(CheckpointError, match="is missing"):
        import_checkpoint(source, tmp_path / "again")
    index.write_text("[]")
    with pytest.raises(CheckpointError, match="not an index"):
        import_checkpoint(source, tmp_path / "again")


def test_early_spellings_counters_and_a_missing_prefix(tmp_path, expected):
    """The first published conversions: `gamma` and `beta`, a stored counter, no `model_type`, `bert_config.json`."""
    model = random_model()
    early = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in model.state_dict().items()
    }
    early["bert.embeddings.position_ids"] = torch.arange(24)[None]
    source = save_pickled(tmp_path / "early", model, state=early)
    (source / "config.json").unlink()
    shutil.copy(GOOGLE / "bert_config.json", source)
    assert import_checkpoint(source, tmp_path / "a").architecture == "BertForPreTraining"
    model.save_pretrained(tmp_path / "theirs")
    for a, b in zip(run_ours(tmp_path / "a", expected), run_ours(tmp_path / "theirs", expected), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)
    bare = save_pickled(tmp_path / "bare", model.bert)
    import_checkpoint(bare, tmp_path / "b")
    ours = BertModel.from_pretrained(tmp_path / "b", need_pooler=False)
    assert ours.embedding.word.weight.equal(model.bert.embeddings.word_embeddings.weight)


def test_a_classifier_gets_the_labels_transformers_would_give(tmp_path, expected):
    """`transformers` leaves two default labels out of `config.json`."""
    model = random_model(transformers.BertForSequenceClassification)
    source = save_pickled(tmp_path / "pickled", model)
    assert "id2label" not in json.loads((source / "config.json").read_text())
    import_checkpoint(source, tmp_path / "model")
    ours = BertForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert ours.config.id2label == model.config.id2label
    inputs = [expected[n] for n in ("input_ids", "attention_mask", "token_type_ids")]
    with torch.no_grad():
        theirs = model(*inputs).logits
        torch.testing.assert_close(ours(RaggedBatch.from_padded(*inputs)), theirs, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("left_out", [None, "cls.predictions.bias", "cls.predictions.decoder.bias"])
def test_a_decoder_of_its_own_is_kept(tmp_path, expected, left_out):
    model = random_model(tie_word_embeddings=False)
    model.cls.predictions.bias.copy_(model.cls.predictions.decoder.bias)
    state = {name: value for name, value in model.state_dict().items() if name != left_out}
    import_checkpoint(save_pickled(tmp_path / "pickled", model, state=state), tmp_path / "model")
    inputs = [expected[n] for n in ("input_ids", "attention_mask", "token_type_ids")]
    known = model(inputs[0], inputs[1], inputs[2]).prediction_logits
    theirs, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values()), report
    torch.testing.assert_close(theirs.eval()(*inputs).prediction_logits, known)
    real = expected["attention_mask"].bool()
    torch.testing.assert_close(run_ours(tmp_path / "model", expected)[1], known[real], atol=1e-5, rtol=0)


def test_half_precision_and_shared_layers(tmp_path):
    model = random_model()
    state = {name: value.half() for name, value in model.state_dict().items()}
    for name in [name for name in state if ".layer.1." in name]:
        state[name] = state[name.replace(".layer.1.", ".layer.0.")]
    import_checkpoint(save_pickled(tmp_path / "pickled", model, state=state), tmp_path / "model")
    ours = load_file(tmp_path / "model" / "model.safetensors")
    assert all(value.dtype == torch.float16 and value.equal(state[name]) for name, value in ours.items())


def test_the_pickled_folder_s_tokenizer_comes_along(tmp_path):
    source = save_pickled(tmp_path / "pickled-uncased", random_model())
    shutil.copy(GOOGLE / "vocab.txt", source)
    assert import_checkpoint(source, tmp_path / "a").lowercase is True
    (source / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    found = import_checkpoint(source, tmp_path / "b")
    assert (found.lowercase, found.lowercase_reason) == (False, "as the tokenizer's files say")
    assert import_checkpoint(source, tmp_path / "c", lowercase=True).lowercase is True
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    assert theirs("ab Ab")["input_ids"] == WordPieceTokenizer.load(tmp_path / "b")("ab Ab")["input_ids"]


class Payload:
    """Pickled, it is the instruction to create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("hidden", [False, True], ids=["alone", "among tensors"])
def test_code_inside_pickled_weights_does_not_run(tmp_path, hidden, zipped):
    trace = tmp_path / "it-ran"
    model = random_model()
    state = {**model.state_dict(), "extra": Payload(trace)} if hidden else Payload(trace)
    source = save_pickled(tmp_path / "pickled", model, state=state, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: holds something other than tensors"):
        import_checkpoint(source, tmp_path / "model")
    assert not trace.exists()
    # the payload is live: an unguarded reader does create the file
    torch.load(source / "pytorch_model.bin", weights_only=False)
    assert trace.exists()


def with_changes(**changes):
    state = {**random_model().state_dict(), **changes}
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bert.pooler.dense.bias": None}, "bert.pooler.dense.bias is missing"),
        ({"bert.pooler.dense.weight": None, "bert.pooler.dense.bias": None}, "bert.pooler.dense.weight is missing"),
        ({"bert.pooler.dense.bias": torch.ones(3)}, r"bias has shape \[3\], its configuration says \[16\]"),
        ({"bert.surprise": torch.ones(3)}, "bert.surprise is unexpected"),
        ({"bert.pooler.dense.bias": torch.ones(16).int()}, "bert.pooler.dense.bias is not a plain tensor"),
        ({"bert.pooler.dense.bias": torch.ones(16).to_sparse()}, "bert.pooler.dense.bias is not a plain tensor"),
        ({"classifier.weight": torch.ones(1).expand(10**12, 16)}, "classifier.weight has more numbers"),
        ({"cls.predictions.decoder.weight": torch.ones(60, 16)}, "decoder.weight differs from bert.embeddings.word"),
        ({"cls.predictions.decoder.weight": torch.ones(60, 16).half()}, "decoder.weight differs from bert.embeddings"),
        ({"cls.predictions.decoder.bias": torch.ones(60)}, "decoder.bias differs from cls.predictions.bias"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, changes, message):
    source = save_pickled(tmp_path / "pickled", random_model(), state=with_changes(**changes))
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("state", [[1, 2], {"a": 1}, {1: torch.ones(2)}, torch.ones(2)])
def test_pickles_of_something_else_are_named(tmp_path, state):
    source = save_pickled(tmp_path / "pickled", random_model(), state=state)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: is not a table of names and tensors"):
        import_checkpoint(source, tmp_path / "model")


def test_damaged_pickles_end_in_one_error(tmp_path):
    source = save_pickled(tmp_path / "pickled", random_model())
    path = source / "pytorch_model.bin"
    whole = path.read_bytes()
    for content in (b"", b"not weights", whole[:100], whole[: len(whole) // 2], whole[:-1], whole[: len(whole) - 30]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            import_checkpoint(source, tmp_path / "model")


# ---- folders and the command


def test_folders_that_cannot_be_imported(tmp_path, release):
    with pytest.raises(InputError, match="no such folder"):
        import_checkpoint(tmp_path / "nothing", tmp_path / "model")
    with pytest.raises(InputError, match="is a file; give the folder"):
        import_checkpoint(release / "vocab.txt", tmp_path / "model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="neither bert_model.ckpt.index"):
        import_checkpoint(tmp_path / "empty", tmp_path / "model")
    import_checkpoint(release, tmp_path / "model")
    with pytest.raises(InputError, match="is a model folder already"):
        import_checkpoint(tmp_path / "model", tmp_path / "again")


def test_only_an_empty_folder_is_filled_and_only_as_a_whole(tmp_path, release, monkeypatch):
    before = {path: path.read_bytes() for path in release.iterdir()}
    for out in (release, release / "vocab.txt"):
        with pytest.raises(RunFolderError, match="choose another --out"):
            import_checkpoint(release, out)
    assert before == {path: path.read_bytes() for path in release.iterdir()}
    out = tmp_path / "models" / "model"
    with monkeypatch.context() as patch:

        def fail(*_, **__):
            raise OSError(28, "No space left on device")

        patch.setattr(convert, "save_file", fail)
        with pytest.raises(RunFolderError, match="the disk is full"):
            import_checkpoint(release, out)
    assert list(out.parent.iterdir()) == []
    out.mkdir()
    import_checkpoint(release, out)
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json"} <= {p.name for p in out.iterdir()}
    assert [p.name for p in out.parent.iterdir()] == ["model"]


def run(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    output = capsys.readouterr()
    return caught.value.code, output.out, output.err


def test_the_command(tmp_path, release, capsys):
    code, out, _ = run(capsys, "import", release, "--out", tmp_path / "model", "--no-lowercase")
    assert code == 0
    assert "TensorFlow checkpoint: BertForPreTraining, 2 layers of 16, 60 pieces, 46 tensors" in out
    assert "keeps capitals: as asked" in out
    code, out, _ = run(capsys, "fill-mask", "--model", tmp_path / "model", "a [MASK] b", "--top-k", 2)
    assert code == 0
    assert out.count("%") == 2


def test_the_command_says_what_is_wrong_in_one_line(tmp_path, release, capsys):
    (release / "bert_model.ckpt.index").write_bytes(b"x" * 100)
    code, out, err = run(capsys, "import", release, "--out", tmp_path / "model")
    assert (code, out) == (2, "")
    assert err.startswith("bertsmith: ")
    assert "bert_model.ckpt.index: not a readable index" in err
    assert err.count("\n") == 1
