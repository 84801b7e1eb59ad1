"""The feature-based approach: a frozen encoder that runs once, a top that learns, folders that go both ways."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.run import FineTuningRun, fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.features import FeatureTaggingTask
from bertsmith.model import BertConfig, BertForPreTraining, BertModel
from bertsmith.model.features import FeatureTagger
from bertsmith.tokenizer import WordPieceTokenizer

SETTINGS = FineTuningSettings(epochs=3, batch_size=8, learning_rate=1e-2, precision="float32")
SEQUENCES = [[2, 7, 20, 3], [2, 3], [2, 5, 6, 7, 19, 9, 3]]
TAGS = {"the": "DET", "a": "DET", "man": "NOUN", "woman": "NOUN", "bread": "NOUN", "book": "NOUN",
        "eats": "VERB", "reads": "VERB"}  # fmt: skip


@pytest.fixture
def backbone(tmp_path):
    """Four layers, enough for every choice of layers."""
    torch.manual_seed(0)
    tokenizer = WordPieceTokenizer.train(["the man eats bread . the woman reads a book !"] * 3, vocab_size=200)
    config = BertConfig.named("4/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=32)
    model = BertForPreTraining(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(tmp_path / "backbone")
    tokenizer.save(tmp_path / "backbone")
    return tmp_path / "backbone"


def sentences(count, start=0):
    """Different sentences of known words, of 3 to 8; the same number gives the same one."""
    made = []
    for number in range(start, start + count):
        words = random.Random(number).choices(list(TAGS), k=3 + number % 6)
        made.append(TaggedWords(tuple(words), tuple(TAGS[word] for word in words)))
    return made


def hidden_states(folder):
    """The L+1 states [T, H] of the reference, of all sequences."""
    reference = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = [reference(torch.tensor([ids]), output_hidden_states=True).hidden_states for ids in SEQUENCES]
    return [torch.cat([layers[number][0] for layers in states]) for number in range(5)]


@pytest.mark.parametrize("layers", ["concat-last-four", "weighted-sum-all", "second-to-last", 1])
@pytest.mark.parametrize("top", ["linear", "bilstm"])
def test_the_saved_folder_is_a_plain_encoder_and_the_top_over_it(layers, top, backbone, tmp_path):
    task = FeatureTaggingTask(("A", "B", "C"), layers, top, 6 if top == "bilstm" else 0)
    model = task.build(backbone, FineTuningSettings())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(tmp_path / "saved")
    batch = RaggedBatch.from_sequences(SEQUENCES)
    with torch.no_grad():
        expected = model.eval()(batch)
        assert task.load(tmp_path / "saved").eval()(batch).equal(expected)
    # rebuilt from the files: states by transformers, the top by hand
    states, tensors = hidden_states(tmp_path / "saved"), load_file(tmp_path / "saved" / "features.safetensors")
    if layers == "concat-last-four":
        features = torch.cat(states[1:], 1)
    elif layers == "weighted-sum-all":
        shares = tensors["features.weights"].softmax(0)
        features = sum(share * layer for share, layer in zip(shares, states[1:], strict=True))
    else:
        features = states[3 if layers == "second-to-last" else layers]
    if top == "bilstm":
        lstm = torch.nn.LSTM(features.shape[1], 6, num_layers=2, bidirectional=True)
        lstm.load_state_dict({n.removeprefix("top.lstm."): t for n, t in tensors.items() if "lstm" in n})
        with torch.no_grad():
            features = torch.cat([lstm(one)[0] for one in features.split([len(ids) for ids in SEQUENCES])])
    logits = features @ tensors["top.classifier.weight"].T + tensors["top.classifier.bias"]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("top", "size"), [("bilstm", 16), ("linear", 0)])
def test_the_top_learns_and_the_encoder_stays_as_it_was(top, size, backbone, tmp_path):
    train, dev = sentences(60), sentences(12, start=100)
    task = FeatureTaggingTask.of(train, layers="weighted-sum-last-four", tagger_head=top, tagger_head_size=size)
    result = fine_tune(task, backbone, train, dev, tmp_path / "run", replace(SETTINGS, epochs=12), test=dev)
    assert result.dev.metrics["accuracy"] == result.test.metrics["accuracy"] == 1.0
    before, after = (load_file(folder / "model.safetensors") for folder in (backbone, tmp_path / "run" / "model"))
    assert all(value.equal(before[f"bert.{name}"]) for name, value in after.items())
    assert load_file(tmp_path / "run" / "model" / "features.safetensors")["features.weights"].abs().max() > 0
    # all that is needed later is in the folder
    description = json.loads((tmp_path / "run" / "model" / "task.json").read_text())
    assert description["task"] == "features"
    again = FeatureTaggingTask.from_description(description)
    assert again == task
    model = again.load(tmp_path / "run" / "model")
    assert model.config.id2label == {0: "DET", 1: "NOUN", 2: "VERB"}
    assert (
        BertModel.from_pretrained(tmp_path / "run" / "model", need_pooler=False).config.id2label
        == model.config.id2label
    )


def test_the_encoder_learns_too_where_it_is_asked_to(backbone, tmp_path):
    """§5.1's "+ BiLSTM": both learn, lower layers more slowly, and the folder predicts what was trained."""
    train, dev = sentences(60), sentences(12, start=100)
    task = FeatureTaggingTask.of(train, layers="last", tagger_head_size=16, train_encoder=True)
    settings = replace(SETTINGS, epochs=6, layer_decay=0.5)
    result = fine_tune(task, backbone, train, dev, tmp_path / "run", settings, test=dev)
    # 测试分数来自重新读入的文件夹：与训练中的一样，说明编码器也存下了
    assert result.dev.metrics == result.test.metrics
    assert result.dev.metrics["accuracy"] > 0.9
    before, after = (load_file(folder / "model.safetensors") for folder in (backbone, tmp_path / "run" / "model"))
    moved = {name: (value - before[f"bert.{name}"]).abs().mean().item() for name, value in after.items()}
    low, high = (moved[f"encoder.layer.{layer}.output.dense.weight"] for layer in (0, 3))
    assert 0 < low < high
    frozen = FeatureTaggingTask.of(train, layers="last")
    with pytest.raises(ConfigError, match="layer decay"):
        fine_tune(frozen, backbone, train, dev, tmp_path / "frozen", settings)


def test_each_sentence_is_encoded_once_for_all_epochs(backbone, tmp_path, monkeypatch):
    encoded = []
    whole = BertModel.forward

    def counting(self, batch, **options):
        encoded.extend(row.tobytes() for row in (ids.numpy() for ids in batch.input_ids.split(batch.lengths)))
        return whole(self, batch, **options)

    monkeypatch.setattr(BertModel, "forward", counting)
    train = list(dict.fromkeys(sentences(40)))
    dev = [example for example in dict.fromkeys(sentences(8, start=100)) if example not in train]
    task = FeatureTaggingTask.of(train, layers="last", tagger_head="linear")
    fine_tune(task, backbone, train, dev, tmp_path / "run", SETTINGS)
    # three epochs in training; the dev sentences once in training, and once more in the best model as it was saved
    times = Counter(encoded)
    counts = Counter(times.values())
    assert counts == {1: len(train), 2: len(dev)}


def test_a_killed_run_goes_on_bit_for_bit(backbone, tmp_path, monkeypatch):
    train, dev = sentences(40), sentences(8, start=100)
    options = {"layers": "concat-last-four", "tagger_head": "bilstm", "tagger_head_size": 8}
    fine_tune(FeatureTaggingTask.of(train, **options), backbone, train, dev, tmp_path / "whole", SETTINGS)
    save = FineTuningRun._save

    def save_and_die(self):
        save(self)
        raise KeyboardInterrupt

    killed = (FeatureTaggingTask.of(train, **options), backbone, train, dev, tmp_path / "killed", SETTINGS)
    with monkeypatch.context() as patched:
        patched.setattr(FineTuningRun, "_save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            fine_tune(*killed)
    assert (tmp_path / "killed" / "state").is_dir()
    fine_tune(FeatureTaggingTask.of(train, **options), backbone, train, dev, tmp_path / "killed", SETTINGS)
    for name in ("model/features.safetensors", "model/model.safetensors", "model/config.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("whole", "killed")]
    assert [result.pop("seconds") > 0 and result.pop("checksum of the rest") != "" for result in results] == [
        True,
        True,
    ]
    assert results[0] == results[1]


def test_what_is_remembered_is_what_would_be_computed(backbone):
    train = sentences(30)
    task = FeatureTaggingTask.of(train, layers="weighted-sum-all", tagger_head="linear")
    tokenizer = WordPieceTokenizer.load(backbone)
    units = task.encode(tokenizer, train, 32)
    remembering, plain = (task.build(backbone, SETTINGS) for _ in range(2))
    plain.packs = None
    batches = [task.batch(units[start : start + 7]).tokens for start in range(0, len(units), 7)]
    batches.append(RaggedBatch.from_sequences([[2, 9, 3], units[0].input_ids[0]]))  # one that nobody planned
    for model in (remembering, plain):
        model.train()
        assert not model.backbone.training
        model.eval()
    for batch in batches * 2:
        with torch.inference_mode():
            assert (remembering(batch) - plain(batch)).abs().max() < 1e-5
        remembering(batch).sum().backward()  # states first met in inference mode can be learned from
    assert all(parameter.grad is None for parameter in remembering.backbone.parameters())
    assert remembering.features.weights.grad is not None


def test_what_cannot_be_done_is_said(backbone, tiny_model, tmp_path):
    with pytest.raises(ConfigError, match="tagger_head 'gru' is unknown; use bilstm, linear"):
        FeatureTaggingTask(("A", "B"), "last", "gru")
    with pytest.raises(ConfigError, match="linear tagger head has no size"):
        FeatureTaggingTask(("A", "B"), "last", "linear", 5)
    with pytest.raises(ConfigError, match="tagger_head_size is -1; give at least 0"):
        FeatureTaggingTask(("A", "B"), "last", "bilstm", -1)
    with pytest.raises(ConfigError, match="layers 'top' unknown"):
        FeatureTaggingTask(("A", "B"), "top").build(backbone, SETTINGS)
    with pytest.raises(ConfigError, match="concat-last-four needs 4 layers, the model has 1"):
        FeatureTaggingTask(("A", "B")).build(tiny_model, SETTINGS)
    with pytest.raises(ConfigError, match="random weights are no use frozen"):
        FeatureTaggingTask(("A", "B")).build(backbone, FineTuningSettings(from_random=True))
    with pytest.raises(InputError, match="no more than one tag"):
        FeatureTaggingTask.of([TaggedWords(("a",), ("X",))])
    assert FeatureTaggingTask.of(sentences(6), layers="3", tagger_head="linear").layers == 3
    assert FeatureTaggingTask(("A", "B")).tagger_head_size == 768

    task = FeatureTaggingTask(("A", "B"), "last", "linear")
    with pytest.raises(CheckpointError, match=r"features.safetensors: is not there; copy the whole folder"):
        task.load(backbone)
    task.build(backbone, SETTINGS).save_pretrained(tmp_path / "saved")
    other = FeatureTaggingTask(("A", "B"), "concat-last-four", "linear")
    with pytest.raises(CheckpointError, match=r"top.classifier.weight has shape \[2, 64\], the model needs \[2, 256\]"):
        other.load(tmp_path / "saved")
    path = tmp_path / "saved" / "features.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "top.classifier.bias": torch.full((2,), torch.inf)}, path)
    with pytest.raises(CheckpointError, match="top.classifier.bias holds NaN or infinity"):
        task.load(tmp_path / "saved")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        task.load(tmp_path / "saved")


def test_dropout_is_the_tops(backbone):
    model = FeatureTaggingTask(("A", "B"), "last").build(backbone, FineTuningSettings(dropout=0.3))
    assert isinstance(model, FeatureTagger)
    assert (model.top.dropout.probability, model.top.lstm.dropout) == (0.3, 0.3)
    model.train()
    batch = RaggedBatch.from_sequences(SEQUENCES)
    assert not model(batch).equal(model(batch))
    assert all(
        parameter.requires_grad == (not name.startswith("backbone.")) for name, parameter in model.named_parameters()
    )
