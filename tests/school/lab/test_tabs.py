"""The data behind each tab, without a browser."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bertsmith import load_pipeline
from bertsmith.errors import BertsmithError, InputError
from bertsmith.objectives.replaced_tokens import GENERATOR
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.looking.maps import load_for_maps, maps_of
from bertsmith_school.looking.probes import LayerScores, Probes, write_probes

pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[school]'")

from bertsmith.serve.settings import ServeSettings
from bertsmith_school.lab import attention, fill_mask, my_task, next_sentence, search, similarity, tokens, topics
from bertsmith_school.lab import models as lab_models
from bertsmith_school.lab.models import LabError, received, starting_text
from bertsmith_school.learn.lesson import Text

NAME = Text("Text", "文本")


@pytest.mark.parametrize("text", ["", "   \n", "a" * 20_001, None])
def test_unusable_texts_are_refused_in_both_languages(text):
    with pytest.raises(LabError) as caught:
        received(text, NAME)
    assert caught.value.text.en
    assert "文本" in caught.value.text.zh


def test_half_characters_are_replaced_and_the_rest_is_left_alone():
    assert received("caf\ud800é\x00", NAME) == "caf?é\x00"
    assert received("  两 ", NAME) == "  两 "
    assert received("", NAME, may_be_empty=True) == ""


def test_the_text_to_begin_with_is_one_that_the_vocabulary_knows():
    tokenizer = WordPieceTokenizer.train(["今天天气很好"] * 3, vocab_size=40)
    assert starting_text(tokenizer, ("the man eats .", "今天很好")) == "今天很好"


def test_masks_are_filled_as_the_pipeline_fills_them(lab, folders):
    text = "the [MASK] eats [MASK] ."
    filled = fill_mask.fill(lab["base"], text)
    assert filled.masks == load_pipeline("fill-mask", folders["base"])(text, top_k=10)
    assert [len(one) for one in filled.masks] == [10, 10]


@pytest.mark.parametrize(
    ("text", "number", "piece", "expected"),
    [
        ("the [MASK] eats [MASK] .", 0, "man", "the man eats [MASK] ."),
        ("the [MASK] eats [MASK] .", 1, "bread", "the [MASK] eats bread ."),
        ("the man [MASK] .", 0, "##s", "the mans ."),
        ("今天[MASK]好", 0, "很", "今天很好"),
        ("[mask] [MASK]", 0, "a", "[mask] a"),
    ],
)
def test_a_candidate_is_written_where_its_mask_stood(lab, text, number, piece, expected):
    assert fill_mask.inserted(lab["base"], text, number, piece) == expected


def test_a_mask_that_is_gone_cannot_be_filled(lab):
    with pytest.raises(LabError, match="has changed"):
        fill_mask.inserted(lab["base"], "the man .", 0, "a")


@pytest.mark.parametrize("text", ["", "no mask here", "[MASK] " * 200])
def test_what_cannot_be_filled_is_said(lab, text):
    with pytest.raises(InputError):
        fill_mask.fill(lab["base"], text)


def test_a_missing_head_is_said_with_the_models_name(lab):
    for call in (
        lambda: fill_mask.fill(lab["classify"], "a [MASK]"),
        lambda: next_sentence.follows(lab["tag"], "a", "b"),
    ):
        with pytest.raises(LabError, match="has no"):
            call()
    with pytest.raises(LabError, match="has not been fine-tuned"):
        my_task.predict(lab["base"], ["a"])


def test_a_folder_called_model_is_told_from_the_word(tmp_path):
    """In every message of the lab that names a model, and in the lead of a report on one."""
    model = SimpleNamespace(name="model", task=None, served=SimpleNamespace(folder=tmp_path))
    errors = [lab_models.missing_head(model, kind) for kind in ("fill-mask", "next-sentence", "tag")]
    (tmp_path / GENERATOR).mkdir()
    errors.append(lab_models.missing_head(model, "fill-mask"))
    with pytest.raises(LabError) as caught:
        my_task.task_of(model)
    for error in (*errors, caught.value):
        for said in (error.text.en, error.text.zh):
            assert "`model`" in said
            assert not re.search(r"\bmodel model\b|模型 ?model", said)
    write_probes(Probes({}, LayerScores([0.5], [0.5], 0.5, 0.5), None), tmp_path / "out", "model")
    (lead,) = re.findall(r'class="lead">(.*?)</p>', (tmp_path / "out/report.html").read_text(encoding="utf-8"))
    assert "the model in <code>model</code> knows" in lead


def test_next_sentence_is_the_pipelines_probability(lab, folders):
    expected = load_pipeline("next-sentence", folders["base"])(["the man ."], ["bread !"])[0]
    assert next_sentence.follows(lab["base"], "the man .", "bread !") == pytest.approx(expected, abs=1e-6)


def test_one_run_of_the_model_serves_every_layer_and_head(lab, folders, monkeypatch):
    runs = []

    def counted(*arguments):
        runs.append(arguments)
        return maps_of(*arguments)

    monkeypatch.setattr(lab_models, "maps_of", counted)
    text, pair = "the woman reads .", "where is the man ?"
    expected = maps_of(*load_for_maps(folders["base"]), text, pair).maps
    for layer in (1, 2):
        for head in range(1, 5):
            view = attention.look(lab["base"], text, pair, layer, str(head))
            np.testing.assert_allclose(view.weights, expected[layer - 1, head - 1], atol=1e-6)
        mean = attention.look(lab["base"], text, pair, layer, "mean").weights
        np.testing.assert_allclose(mean, expected[layer - 1].mean(0), atol=1e-6)
        reached = attention.look(lab["base"], text, pair, layer, "rollout").weights
        np.testing.assert_allclose(reached.sum(-1), 1.0, atol=1e-5)
    assert len(runs) == 1
    for number in range(4):
        attention.look(lab["base"], f"the man {number}", "", 1, "1")
    assert lab["base"]._maps.cache_info().currsize == 2


@pytest.mark.parametrize(("layer", "head"), [(0, "1"), (3, "1"), (1, "0"), (1, "5")])
def test_a_head_that_is_not_there_is_refused(lab, layer, head):
    with pytest.raises(LabError, match="2 layers of 4 heads"):
        attention.look(lab["base"], "the man", "", layer, head)


def test_tokens_are_the_sum_of_three_embeddings_as_transformers_has_them(lab, folders):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(folders["base"]).eval().embeddings
    found = tokens.tokens_of(lab["base"], "the woman reads", "bread !")
    ids = torch.tensor([found.ids])
    segments = torch.tensor([found.sequence_ids])
    places = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        parts = {
            "token": theirs.word_embeddings(ids),
            "segment": theirs.token_type_embeddings(segments),
            "position": theirs.position_embeddings(places),
            "normed": theirs(input_ids=ids, token_type_ids=segments),
        }
        parts["sum"] = parts["token"] + parts["segment"] + parts["position"]
    for name, vectors in parts.items():
        np.testing.assert_allclose(found.norms[name], vectors[0].norm(dim=-1).numpy(), rtol=1e-5)
    assert found.pieces[:2] == ["[CLS]", "the"]
    assert found.offsets[found.pieces.index("woman")] == (4, 9)
    assert (found.pieces[-2], found.sequence_ids[-2]) == ("!", 1)


def test_a_text_that_is_too_long_is_cut_and_counted(lab):
    found = tokens.tokens_of(lab["base"], "man " * 200, "")
    assert (len(found.pieces), found.dropped) == (128, 74)


def test_similarity_is_the_pipelines_and_the_map_is_a_principal_component_analysis(lab, folders):
    decomposition = pytest.importorskip("sklearn.decomposition")
    lines = ["the man eats bread .", "the woman reads a book !", "where is the market ?", "bread", "a book"]
    found = similarity.similarity_map(lab["base"], "\n\n".join(f"  {line} " for line in lines))
    assert (found.lines, found.untrained) == (lines, True)
    np.testing.assert_allclose(found.matrix, load_pipeline("embed", folders["base"]).compare(lines), atol=1e-5)
    theirs = decomposition.PCA(2).fit(load_pipeline("embed", folders["base"])(lines))
    points = theirs.transform(load_pipeline("embed", folders["base"])(lines))
    np.testing.assert_allclose(np.abs(found.points), np.abs(points), atol=1e-4)
    np.testing.assert_allclose(found.shares, theirs.explained_variance_ratio_, atol=1e-4)


def test_equal_lines_fall_on_one_point_without_a_division_by_zero(lab):
    found = similarity.similarity_map(lab["base"], "bread\nbread")
    np.testing.assert_allclose(found.points, 0.0, atol=1e-6)
    np.testing.assert_allclose(found.matrix, 1.0, atol=1e-5)
    assert all(math.isfinite(share) for share in found.shares)


@pytest.mark.parametrize("text", ["one line", "\n".join("a" * 201)])
def test_too_few_or_too_many_lines_are_refused(lab, text):
    with pytest.raises(LabError, match="2 to 200 lines"):
        similarity.similarity_map(lab["base"], text)


def test_a_fine_tuned_model_has_a_similarity_map_too(lab, folders):
    found = similarity.similarity_map(lab["tag"], "bread\na book")
    assert not found.untrained
    np.testing.assert_allclose(
        found.matrix, load_pipeline("embed", folders["tag"]).compare(["bread", "a book"]), atol=1e-5
    )


INPUTS = {
    "classify": ("the man eats bread .", "", ""),
    "multilabel": ("the man eats bread .", "", ""),
    "regress": ("the man eats bread .", "where is he ?", ""),
    "tag": ("the woman in the market", "", ""),
    "answer": ("where is bread ?", "the man eats bread . the market is where the woman is .", ""),
    "choose": ("the man", "", "eats bread .\n\nreads a book !"),
    "rank": ("bread", "", "the man eats bread .\nwhere is the market ?\na book !"),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_my_task_is_what_the_folders_own_pipeline_says(lab, folders, kind):
    texts = my_task.texts_of(lab[kind], *INPUTS[kind])
    found = my_task.predict(lab[kind], texts)
    pipeline = load_pipeline(kind, folders[kind])
    if kind == "rank":
        expected = pipeline(texts[0], texts[1:])
        assert [one.text for one in found] == [one.text for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-6)
    elif kind == "choose":
        (expected,) = pipeline([texts[0]], [texts[1:]])
        assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-6)
    elif kind == "regress":
        assert found == pytest.approx(pipeline([texts[0]], [texts[1]])[0], abs=1e-6)
    elif kind == "answer":
        (expected,) = pipeline([texts[0]], [texts[1]])
        assert (found.start, found.end) == (expected.start, expected.end)
    elif kind == "tag":
        (expected,) = pipeline([texts[0]])
        assert [(one.type, one.start, one.end) for one in found] == [(e.type, e.start, e.end) for e in expected]
    else:
        (expected,) = pipeline([texts[0]])
        assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-6)


@pytest.mark.parametrize("kind", INPUTS)
def test_the_words_a_head_goes_by_add_up(lab, kind):
    attribution = my_task.explain(lab[kind], my_task.texts_of(lab[kind], *INPUTS[kind]))
    assert attribution.completeness.holds
    # every kind of target has its Chinese words
    assert not re.match(
        r"\s|.*\b(class|label|word|choice|output|answer)\b", my_task.in_chinese(attribution.scored.target)
    )


@pytest.mark.parametrize(
    ("kind", "first", "second", "lines"),
    [
        ("answer", "where ?", "", ""),
        ("choose", "the man", "", " \n"),
        ("rank", "a", "", "b\n" * 101),
        ("tag", "", "", ""),
    ],
)
def test_fields_that_are_missing_or_overfull_are_named(lab, kind, first, second, lines):
    with pytest.raises(BertsmithError):
        my_task.texts_of(lab[kind], first, second, lines)


def stretches(found):
    return [(found.hit.text[mark.start : mark.end], mark.colour) for mark in sorted(found.marks)]


def test_a_search_marks_rare_words_and_the_nearest_sentence(folders, tmp_path):
    from bertsmith.retrieval import build_index, load_index
    from bertsmith_school.lab.models import LabModels

    (tmp_path / "texts").mkdir()
    texts = [
        "The man eats bread. The woman reads a book!\nWhere is the market?",
        *(f"the man eats {n}" for n in range(9)),
    ]
    texts.append("今天天气很好。男人读书。")
    for number, text in enumerate(texts):
        (tmp_path / "texts" / f"{number}.txt").write_text(text, encoding="utf-8")
    build_index(tmp_path / "texts", folders["base"], tmp_path / "index")
    index = load_index(tmp_path / "index", precision="float32")
    models = LabModels([], ServeSettings((("base", str(folders["base"])),)), {"notes": index})
    state = SimpleNamespace(models=models)
    query = "the reads BOOKS book"
    by_words = search.find(state, "notes", query, "lexical")
    assert [one.hit for one in by_words] == index.search(query, mode="lexical")
    assert stretches(by_words[0]) == [("reads", 0), ("book", 0)]
    by_both = next(one for one in search.find(state, "notes", query, "hybrid") if one.hit.file == "0.txt")
    sentences = ["The man eats bread.", "The woman reads a book!", "Where is the market?"]
    vectors = index.embed([query, *sentences])
    nearest = sentences[int((vectors[1:] @ vectors[0]).argmax())]
    assert "".join(text for text, colour in stretches(by_both) if colour == 1 or text in nearest) == nearest
    by_vectors = next(one for one in search.find(state, "notes", query, "dense") if one.hit.file == "0.txt")
    assert stretches(by_vectors) == [(nearest, 1)]
    (chinese,) = search.find(state, "notes", "天气", "lexical")
    assert stretches(chinese) == [("天天气", 0)]
    with pytest.raises(LabError, match="no such index"):
        search.find(state, "others", "bread", "hybrid")
    with pytest.raises(LabError, match="write something"):
        search.find(state, "notes", " ", "hybrid")
    (tmp_path / "texts" / "zebra.txt").write_text("a zebra")
    build_index(tmp_path / "texts", folders["base"], tmp_path / "index")
    assert [one.hit.file for one in search.find(state, "notes", "zebra", "lexical")] == ["zebra.txt"]


@pytest.mark.filterwarnings("ignore:.*never trained:UserWarning")
def test_topics_are_those_of_the_journey_and_a_dropped_file_is_taken_away(lab, folders, notes, tmp_path):
    from bertsmith.journeys.topics import find_topics
    from bertsmith.retrieval import load_index
    from bertsmith_school.lab.models import LabModels

    expected = find_topics(load_index(notes))
    settings = ServeSettings((("base", str(folders["base"])),))
    private = LabModels([], settings, {"notes": load_index(notes)}, load=lambda name: pytest.fail(name))
    for given in ("notes", str(notes)):
        found = topics.topics_of(private, lab["base"], given)
        assert found.topics == expected
        assert found.points.shape == (len(found.rows), 2)
    with pytest.raises(LabError, match="no such folder"):
        topics.topics_of(private, lab["base"], str(tmp_path / "none"))
    with pytest.raises(LabError, match="no such index"):
        topics.topics_of(LabModels([], settings), lab["base"], str(notes))
    dropped = tmp_path / "dated 2024-05-01.md"
    dropped.write_text("# Bread\n\nThe man eats bread.\n", encoding="utf-8")
    found = topics.topics_of_file(lab["base"], dropped)
    assert [list(topic.over_time) for topic in found.topics.topics] == [["2024-05-01"]]
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError) as caught:
        topics.topics_of_file(lab["base"], tmp_path / "empty.txt")
    assert "empty.txt" in str(caught.value)
    assert "bertsmith-topics" not in str(caught.value)
    assert not list(tmp_path.iterdir())
