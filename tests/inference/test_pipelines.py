import json
import re
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import sentence_transformers.models
import torch
import transformers

import bertsmith.inference
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference import Answer, Choose, Classify, Embed, Rank, Tag, load_pipeline
from bertsmith.inference import pipeline as pipelines
from bertsmith.inference.engine import packs_by_length
from bertsmith.inference.pipeline import all_pipelines, pipelines_of_folder
from bertsmith.inference.task_file import write_task_file
from bertsmith.model import (
    BertConfig,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)
from bertsmith.tokenizer import WordPieceTokenizer

TEXTS = ["Hello, how are you?", "The man eats the bread.", "x", "A long story. " * 80, "Où est le café?", ""]


def test_fill_mask_equals_the_reference(tiny_model):
    ours = load_pipeline("fill-mask", tiny_model, precision="float32")("the man eats [MASK] .", top_k=7)
    reference = transformers.pipeline("fill-mask", str(tiny_model), top_k=7)("the man eats [MASK] .")
    assert len(ours) == 1
    assert [c.piece for c in ours[0]] == [row["token_str"] for row in reference]
    assert [c.probability for c in ours[0]] == pytest.approx([row["score"] for row in reference], abs=1e-5)


@pytest.mark.parametrize(
    ("problem_type", "pipeline"), [("regression", "regress"), ("multi_label_classification", "multilabel")]
)
def test_outputs_that_are_no_softmax_are_not_read_as_one(tiny_model, tmp_path, problem_type, pipeline):
    changes = {"id2label": {0: "score"}, "problem_type": problem_type}
    BertForSequenceClassification.from_pretrained(tiny_model, new_heads=True, **changes).save_pretrained(tmp_path)
    WordPieceTokenizer.load(tiny_model).save(tmp_path)
    with pytest.raises(ConfigError, match=f"the model is for the pipeline '{pipeline}', not 'classify'"):
        load_pipeline("classify", tmp_path)


@pytest.mark.parametrize("kind", [Choose, Rank, Tag])
def test_a_folder_without_the_head_is_refused(tiny_model, kind):
    with pytest.raises(CheckpointError, match="holds a BertForPreTraining"):
        kind.load(tiny_model)


def test_packs_hold_every_sequence_once_and_keep_the_budget():
    lengths = np.random.default_rng(0).integers(1, 300, 500).tolist()
    packs = list(packs_by_length(lengths, 1000))
    assert sorted(index for pack in packs for index in pack) == list(range(500))
    assert all(sum(lengths[index] for index in pack) <= 1000 for pack in packs)
    assert list(packs_by_length([5000, 1], 100)) == [[1], [0]]


@pytest.fixture(scope="module")
def real(minilm_folder):
    return load_pipeline("embed", minilm_folder, precision="float32", device="cpu")


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_every_pooling_equals_sentence_transformers(minilm_folder, real, pooling):
    words = sentence_transformers.models.Transformer(str(minilm_folder), max_seq_length=256)
    layers = [words, sentence_transformers.models.Pooling(384, pooling_mode=pooling)]
    reference = sentence_transformers.SentenceTransformer(modules=layers, device="cpu")
    np.testing.assert_allclose(real(TEXTS, pooling=pooling, normalize=False), reference.encode(TEXTS), atol=1e-5)


def test_the_last_four_layers_are_those_of_transformers(minilm_folder, real):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    model = transformers.BertModel.from_pretrained(minilm_folder).eval()
    for text in TEXTS[:3]:
        with torch.inference_mode():
            layers = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[-4:]
        means = [layer[0].mean(0).numpy() for layer in layers]
        (side_by_side,) = real([text], pooling="last-four", normalize=False)
        np.testing.assert_allclose(side_by_side, np.concatenate(means), atol=1e-4)
        (summed,) = real([text], pooling="last-four-sum", normalize=False)
        np.testing.assert_allclose(summed, np.sum(means, axis=0), atol=1e-4)


def test_truncated_vectors_equal_sentence_transformers(minilm_folder, real):
    reference = sentence_transformers.SentenceTransformer(str(minilm_folder), device="cpu", truncate_dim=100)
    texts = TEXTS[:3]
    np.testing.assert_allclose(real(texts, dims=100), reference.encode(texts, normalize_embeddings=True), atol=1e-5)


def test_a_text_is_the_same_alone_and_among_500(minilm_folder, real):
    text = "The man eats the bread and the cheese."
    draw = np.random.default_rng(0)
    others = [" ".join(draw.choice(["stone", "bread", "ship", "a", "walks"], draw.integers(1, 12))) for _ in range(500)]
    among = real([*others[:250], text, *others[250:]])
    reference = sentence_transformers.SentenceTransformer(str(minilm_folder), device="cpu")
    expected = reference.encode([text], normalize_embeddings=True)[0]
    np.testing.assert_allclose(real([text])[0], expected, atol=1e-5)
    np.testing.assert_allclose(among[250], expected, atol=1e-5)


def test_the_folder_says_how_it_pools(tiny_model):
    (tiny_model / "1_Pooling").mkdir()
    config = tiny_model / "1_Pooling" / "config.json"
    config.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}', encoding="utf-8")
    assert load_pipeline("embed", tiny_model).pooling == "cls"
    config.write_text('{"pooling_mode": "max"}', encoding="utf-8")
    assert load_pipeline("embed", tiny_model).pooling == "max"
    config.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"asks for pooling 'cls\+mean'"):
        load_pipeline("embed", tiny_model)
    config.write_text("[", encoding="utf-8")
    with pytest.raises(CheckpointError, match="damaged"):
        load_pipeline("embed", tiny_model)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dims": 0}, "dims 0 is outside 1 to 64"),
        ({"dims": 65}, "dims 65 is outside 1 to 64"),
        ({"pooling": "median"}, "pooling 'median' is unknown"),
        ({"pooling": "last-four"}, "needs 4 layers, the model has 1"),
    ],
)
def test_vectors_that_cannot_be_had(tiny_model, options, error):
    with pytest.raises((InputError, ConfigError), match=error):
        load_pipeline("embed", tiny_model)(["the man"], **options)


@pytest.mark.parametrize(
    "text", ["", " ", "\0", "\ud800", "a" * 300_000, "[MASK]", "\u200b\ufeff", "\U0001f600" * 5000]
)
def test_hostile_texts_have_unit_vectors(tiny_model, text):
    vectors = load_pipeline("embed", tiny_model)([text, "the man"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_similarity_is_the_cosine_of_sentence_transformers(minilm_folder):
    compare = load_pipeline("embed", minilm_folder, precision="float32", device="cpu").compare
    left, right = (
        ["The man eats bread.", "It rains."],
        ["A person is eating.", "Water falls from the sky.", "It rains."],
    )
    reference = sentence_transformers.SentenceTransformer(str(minilm_folder), device="cpu")
    expected = sentence_transformers.util.cos_sim(reference.encode(left), reference.encode(right)).numpy()
    got = compare(left, right)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert got.max() <= 1.0
    np.testing.assert_allclose(np.diag(compare(left)), 1.0, atol=1e-6)
    assert compare(left, []).shape == (2, 0)
    with pytest.raises(InputError, match="not a single string"):
        compare(left, "It rains.")


def test_next_sentence_equals_the_reference(tiny_model):
    first, second = ["the man eats bread .", "a book !", ""], ["the woman reads .", "the man " * 40, "bread"]
    model = transformers.BertForNextSentencePrediction.from_pretrained(tiny_model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    got = load_pipeline("next-sentence", tiny_model, precision="float32", device="cpu")(first, second)
    for one, two, probability in zip(first, second, got, strict=True):
        inputs = tokenizer(one, two, return_tensors="pt", truncation=True, max_length=32)
        with torch.inference_mode():
            expected = model(**inputs).logits.softmax(-1)[0, 0].item()
        assert probability == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InputError, match="1 texts and 2 second texts"):
        load_pipeline("next-sentence", tiny_model)(["a"], ["b", "c"])


def test_many_texts_are_filled_as_each_by_itself(tiny_model, monkeypatch):
    monkeypatch.setattr("bertsmith.inference.fill_mask.MASKS_AT_ONCE", 3)
    pipeline = load_pipeline("fill-mask", tiny_model, precision="float32", device="cpu")
    texts = ["the [MASK] eats [MASK] .", "[MASK]", "a [MASK] [MASK] [MASK] [MASK]", "the man reads a [MASK] !"]
    together = pipeline(texts, top_k=4)
    assert [len(masks) for masks in together] == [2, 1, 4, 1]
    for text, masks in zip(texts, together, strict=True):
        for got, wanted in zip(masks, pipeline(text, top_k=4), strict=True):
            assert [c.piece for c in got] == [c.piece for c in wanted]
            assert [c.probability for c in got] == pytest.approx([c.probability for c in wanted], abs=1e-6)
    assert pipeline([]) == []


def test_candidates_equal_the_targets_of_the_reference(tiny_model):
    words = ["bread", "book", "man"]
    ours = load_pipeline("fill-mask", tiny_model, precision="float32", device="cpu")
    (got,) = ours("the man eats [MASK] .", candidates=[*words, "Bread"])
    reference = transformers.pipeline("fill-mask", str(tiny_model))("the man eats [MASK] .", targets=words)
    assert [c.piece for c in got] == [row["token_str"] for row in reference]
    assert [c.probability for c in got] == pytest.approx([row["score"] for row in reference], abs=1e-6)
    assert len(ours("the man eats [MASK] .", candidates=words, top_k=1)[0]) == 1


@pytest.mark.parametrize(
    ("text", "options", "error"),
    [
        ("the man", {}, r"no \[MASK\]"),
        ("the " * 39 + "[MASK]", {}, "has 42 tokens, the model reads 32"),
        ("the [MASK]", {"top_k": 0}, "top_k 0"),
        ("the [MASK]", {"candidates": ["bread", "bread book"]}, "'bread book' is not one piece of .* but bread"),
        ("the [MASK]", {"candidates": [""]}, "candidate '' is not one piece"),
        ("the [MASK]", {"candidates": ["\u4e2d"]}, "is not one piece"),
        ("the [MASK]", {"candidates": []}, "give a list of candidates"),
        ("the [MASK]", {"candidates": "bread"}, "give a list of candidates"),
    ],
)
def test_what_no_mask_can_hold(tiny_model, text, options, error):
    with pytest.raises(InputError, match=error):
        load_pipeline("fill-mask", tiny_model)(text, **options)


class Recorder:
    """Stands in for an engine, as a server's does, and notes what it is asked to read."""

    def __init__(self, engine):
        self.engine = engine
        self.reads = []

    def __getattr__(self, method):
        def call(*arguments):
            self.reads.append(arguments[-1])
            return getattr(self.engine, method)(*arguments)

        return call


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("fill-mask", ("the [MASK] eats",)),
        ("next-sentence", (["the man"], ["a book"])),
        ("embed", (["the man"],)),
    ],
)
def test_another_engine_may_take_the_place(tiny_model, kind, arguments):
    pipelines = [load_pipeline(kind, tiny_model) for _ in range(2)]
    expected = pipelines[0](*arguments)
    for pipeline in pipelines:
        pipeline.engine = Recorder(pipeline.engine)
    np.testing.assert_equal(pipelines[0](*arguments), expected)
    pipelines[1](*arguments)
    first, second = (pipeline.engine.reads for pipeline in pipelines)
    # equal reads are what lets a server put the calls of many requests into one pass
    assert first
    assert first == second
    assert len({*first, *second}) == 1


def test_a_folder_with_the_next_sentence_head_alone_tells_next_sentences(tiny_model, tmp_path):
    whole = load_pipeline("next-sentence", tiny_model, precision="float32")
    BertForNextSentencePrediction.from_pretrained(tiny_model).save_pretrained(tmp_path / "head")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "head")
    assert pipelines_of_folder(tmp_path / "head") == ("embed", "next-sentence")
    alone = load_pipeline("next-sentence", tmp_path / "head", precision="float32")
    texts, followers = ["the man eats bread .", "the man"], ["the woman reads", "a book !"]
    np.testing.assert_array_equal(alone(texts, followers), whole(texts, followers))


def test_several_numbers_for_a_text_are_not_cut_to_one(tiny_model, tmp_path):
    config = BertConfig.load(tiny_model).changed(id2label={0: "a", 1: "b"}, problem_type="regression")
    BertForSequenceClassification(config).save_pretrained(tmp_path / "two")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "two")
    with pytest.raises(ConfigError, match="2 numbers for a text"):
        load_pipeline("regress", tmp_path / "two")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("features", {}),
        ("features", {"labels": ["a"], "layers": None, "top": "linear", "top_size": 8}),
        ("features", {"labels": "ab", "layers": "last", "top": "linear", "top_size": 8}),
        ("features", {"labels": ["a", "b"], "layers": "last", "top": "bilstm", "top_size": -3}),
        ("multilabel", {"threshold": 0.5, "max_length": float("inf")}),
        ("multilabel", {"threshold": None}),
        ("multilabel", {"threshold": "high"}),
    ],
)
def test_a_damaged_task_file_is_named(kind, values, tiny_model):
    write_task_file(tiny_model, {"task": kind, "max_length": 0, **values})
    with pytest.raises(CheckpointError, match=r"task\.json: damaged"):
        load_pipeline(kind, tiny_model)


@pytest.mark.parametrize("architectures", [5, "BertModel", {"a": 1}])
def test_an_architecture_that_is_no_list_is_named(architectures, tiny_model):
    path = tiny_model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": architectures}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="not a list of names"):
        pipelines_of_folder(tiny_model)
    with pytest.raises(CheckpointError, match="not a list of names"):
        load_pipeline("embed", tiny_model)


def test_a_model_of_one_segment_tells_no_next_sentences(tiny_model):
    config = BertConfig.load(tiny_model).changed(type_vocab_size=1)
    BertForPreTraining(config).save_pretrained(tiny_model)
    assert pipelines_of_folder(tiny_model) == ("embed", "fill-mask")
    with pytest.raises(ConfigError, match="a single segment"):
        load_pipeline("next-sentence", tiny_model)


def test_a_model_of_one_segment_reads_no_pairs(tiny_model):
    config, tokenizer = BertConfig.load(tiny_model).changed(type_vocab_size=1), WordPieceTokenizer.load(tiny_model)
    one, two = config.changed(id2label={0: "a"}), config.changed(id2label={0: "a", 1: "b"})
    for refused in (
        lambda: Answer(BertForQuestionAnswering(config), tokenizer),
        lambda: Choose(BertForMultipleChoice(config), tokenizer),
        lambda: Rank(BertForSequenceClassification(one), tokenizer),
        lambda: Classify(BertForSequenceClassification(two), tokenizer)(["the man"], ["the woman"]),
    ):
        with pytest.raises(ConfigError, match="a single segment; .* take two"):
            refused()
    assert Classify(BertForSequenceClassification(two), tokenizer)(["the man"])[0].label in "ab"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("fill-mask", (["the [MASK]", None],)),
        ("embed", (["a book", None],)),
        ("embed", (["a book", float("nan")],)),
        ("embed", (["a book", 3],)),
        ("next-sentence", (["the man", "a"], ["eats", None])),
    ],
)
def test_what_is_no_text_is_named_wherever_it_stands(kind, arguments, tiny_model):
    pipeline = load_pipeline(kind, tiny_model)
    with pytest.raises(InputError, match=r"text 1 of 2 is (None|nan|3), not a string"):
        pipeline(*arguments)
    if kind == "embed":
        with pytest.raises(InputError, match="text 1 of 2 is"):
            list(pipeline.stream(iter(*arguments)))
        with pytest.raises(InputError, match="not a single string"):
            list(pipeline.stream("the man"))


def test_an_endless_input_is_read_a_little_ahead_only(tiny_model, monkeypatch):
    monkeypatch.setattr("bertsmith.inference.embed.PART", 10)
    embed, read = load_pipeline("embed", tiny_model, precision="float32"), 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield "the man " * (read % 7)

    rows = embed.stream(endless())
    blocks = [next(rows) for _ in range(3)]
    assert [len(block) for block in blocks] == [10, 10, 10]
    assert read == 30
    whole = embed(["the man " * (number % 7) for number in range(1, 31)])
    np.testing.assert_allclose(np.concatenate(blocks), whole, atol=1e-5)
    assert list(embed.stream([])) == []


def test_arrays_and_columns_are_lists_of_texts_too(tiny_model):
    texts, others = np.array(["the man", "a book"]), np.array(["eats", "bread"])
    lists = (texts.tolist(), others.tolist())
    for call in (load_pipeline("next-sentence", tiny_model), load_pipeline("embed", tiny_model).compare):
        np.testing.assert_array_equal(call(texts, others), call(*lists))


def test_a_pipeline_from_elsewhere_is_found_by_its_name(tiny_model, monkeypatch):
    # 登记在副本里：别的测试会问登记表里有哪些流水线
    monkeypatch.setattr(pipelines, "_REGISTRY", dict(pipelines._REGISTRY))

    class Loudness(Embed, name="loudness"):
        """How long the raw vectors of texts are."""

        def __call__(self, texts):
            return np.linalg.norm(Embed.__call__(self, texts, normalize=False), axis=1)

    write_task_file(tiny_model, {"task": "loudness", "max_length": 0})
    assert pipelines_of_folder(tiny_model) == ("loudness",)
    raw = load_pipeline("embed", tiny_model, precision="float32")(["the man"], normalize=False)
    found = load_pipeline("loudness", tiny_model, precision="float32")(["the man"])
    np.testing.assert_allclose(found, np.linalg.norm(raw, axis=1), rtol=1e-6)


def test_two_pipelines_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="'embed' .*has one of that name"):

        class Other(Embed, name="embed"):
            """Another one."""


def test_an_unknown_pipeline_is_refused_with_those_there_are(tiny_model, monkeypatch):
    said = "'embd' is unknown; use one of .*embed"
    with pytest.raises(ConfigError, match=said):
        load_pipeline("embd", tiny_model)
    # 别人的包坏了，说的仍是这个名字
    broken = metadata.EntryPoint("loud", "nowhere_at_all", "bertsmith.pipelines")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [broken] if group == broken.group else [])
    warned = pytest.warns(UserWarning, match="nowhere_at_all, an entry point bertsmith.pipelines, cannot be used")
    with warned, pytest.raises(ConfigError, match=said):
        load_pipeline("embd", tiny_model)


def test_no_pipeline_is_left_out_of_the_package():
    known = {name for name, pipeline in all_pipelines().items() if pipeline.__module__.startswith("bertsmith.")}
    files = sorted(Path(bertsmith.inference.__file__).parent.glob("*.py"))
    written = {name for file in files for name in re.findall(r'^class .*, name="([a-z-]+)"\):', file.read_text(), re.M)}
    assert known == written
