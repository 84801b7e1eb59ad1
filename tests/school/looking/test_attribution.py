import re

import numpy as np
import pytest
import torch
import transformers

from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.finetune.predict import Predictor
from bertsmith.inference import load_pipeline
from bertsmith.inference.task_file import write_task_file
from bertsmith.model import (
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.looking.attribution import attribute
from bertsmith_school.looking.coloured import attribution_page, coloured_runs, terminal_text, write_attribution
from bertsmith_school.looking.scored import Explainable

CLASSES = {"id2label": {0: "bad", 1: "good", 2: "neither"}}
HEADS = {
    "classify": (BertForSequenceClassification, CLASSES),
    "multilabel": (BertForSequenceClassification, {**CLASSES, "problem_type": "multi_label_classification"}),
    "regress": (BertForSequenceClassification, {"id2label": {0: "score"}, "problem_type": "regression"}),
    "rank": (BertForSequenceClassification, {"id2label": {0: "relevant"}}),
    "tag": (BertForTokenClassification, {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}}),
    "answer": (BertForQuestionAnswering, {}),
    "choose": (BertForMultipleChoice, {}),
}
TEXTS = {
    "classify": ["The man eats the bread!"],
    "multilabel": ["The man eats.", "the woman reads a book"],
    "regress": ["The man eats.", "the woman reads a book"],
    "rank": ["a book", "The woman reads a book."],
    "tag": ["The man reads a book"],
    "answer": ["the woman reads ?", "The man eats bread. The woman reads a book!"],
    "choose": ["The man", "eats bread", "reads a book"],
}


@pytest.fixture
def folder_for(tmp_path):
    """Makes a folder of a kind: small, random, and sharp, so that gradients change along the path."""

    def make(kind, **changes):
        torch.manual_seed(1)
        tokenizer = WordPieceTokenizer.train(["the man eats bread . the woman reads a book ! ?"] * 3, vocab_size=200)
        architecture, options = HEADS[kind]
        size = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 32, "initializer_range": 0.1}
        folder = tmp_path / kind
        architecture(BertConfig.named("2/64", **{**size, **options, **changes})).save_pretrained(folder)
        tokenizer.save(folder)
        return folder

    return make


@pytest.mark.parametrize("kind", HEADS)
def test_attributions_of_every_head_are_complete(folder_for, kind):
    scored = Explainable.load(folder_for(kind)).score(TEXTS[kind])
    found = attribute(scored)
    assert found.completeness.holds
    assert abs(found.values.sum() - found.completeness.difference) <= 0.01 * abs(found.completeness.difference)
    assert abs(found.completeness.difference) > 1e-3
    special = [start == end for start, end in scored.offsets]
    assert (found.values[special] == 0).all()
    assert "they agree within" in found.check
    assert attribute(scored, baseline="pad").completeness.holds


def test_what_is_explained_is_what_is_predicted(folder_for):
    folders = {kind: folder_for(kind) for kind in HEADS}
    scores = {kind: attribute(Explainable.load(folders[kind]).score(TEXTS[kind])) for kind in HEADS}

    def score(kind):
        return scores[kind].completeness.score

    predicted = load_pipeline("classify", folders["classify"], precision="float32")(TEXTS["classify"])[0]
    assert scores["classify"].scored.target == f"class {predicted.label!r}"
    values = load_pipeline("regress", folders["regress"], precision="float32")(*[[text] for text in TEXTS["regress"]])
    assert score("regress") == pytest.approx(values[0], abs=1e-5)
    relevance = load_pipeline("rank", folders["rank"], precision="float32").scores(*[[text] for text in TEXTS["rank"]])
    assert 1 / (1 + np.exp(-score("rank"))) == pytest.approx(relevance[0], abs=1e-5)
    probabilities = load_pipeline("multilabel", folders["multilabel"], precision="float32")(
        *[[t] for t in TEXTS["multilabel"]]
    )[0]
    assert 1 / (1 + np.exp(-score("multilabel"))) == pytest.approx(max(probabilities.probabilities.values()), abs=1e-5)
    answered = load_pipeline("answer", folders["answer"], precision="float32")(*[[text] for text in TEXTS["answer"]])[0]
    assert score("answer") == pytest.approx(answered.score, abs=1e-4)
    assert repr(answered.text) in scores["answer"].scored.target
    choice = load_pipeline("choose", folders["choose"], precision="float32")(
        [TEXTS["choose"][0]], [TEXTS["choose"][1:]]
    )[0]
    assert scores["choose"].scored.target == f"choice {choice.index + 1}"


def test_integrated_gradients_are_those_of_the_trapezoid_rule_in_transformers(folder_for):
    folder = folder_for("classify")
    scored = Explainable.load(folder).score(TEXTS["classify"], target="good")
    found = attribute(scored)
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.tensor([scored.input_ids])
    hidden = torch.where(torch.tensor([[s == e for s, e in scored.offsets]]), ids, scored.tokenizer.mask_token_id)
    with torch.no_grad():
        start, end = theirs.bert.embeddings(input_ids=hidden), theirs.bert.embeddings(input_ids=ids)
    gradients = []
    for alpha in torch.linspace(0, 1, 201):
        point = (start + alpha * (end - start)).requires_grad_()
        hook = theirs.bert.embeddings.register_forward_hook(lambda *_, point=point: point)
        gradients.append(torch.autograd.grad(theirs(ids).logits[0, 1], point)[0])
        hook.remove()
    mean = torch.trapezoid(torch.stack(gradients), dx=1 / 200, dim=0)
    expected = (mean * (end - start)).sum(-1)[0].numpy()
    np.testing.assert_allclose(found.values, expected, atol=0.01 * np.abs(expected).max())


def test_steps_are_raised_until_the_sum_is_right(folder_for, monkeypatch):
    monkeypatch.setattr("bertsmith_school.looking.attribution.FIRST_STEPS", 1)
    folder = folder_for("classify", initializer_range=0.3)
    found = attribute(Explainable.load(folder).score(TEXTS["classify"]))
    assert found.completeness.steps > 1
    assert found.completeness.holds
    assert f"after {found.completeness.steps} steps" in found.check


def test_a_sum_that_stays_wrong_is_said(folder_for, monkeypatch):
    monkeypatch.setattr("bertsmith_school.looking.attribution.FIRST_STEPS", 2)
    monkeypatch.setattr("bertsmith_school.looking.attribution.MOST_STEPS", 2)
    found = attribute(Explainable.load(folder_for("classify", initializer_range=0.3)).score(TEXTS["classify"]))
    assert not found.completeness.holds
    assert "even after 2 steps: do not rely on the values" in found.check


def test_attributions_of_a_real_encoder_are_complete(minilm_folder, tmp_path):
    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(minilm_folder, new_heads=True, **CLASSES)
    model.save_pretrained(tmp_path)
    WordPieceTokenizer.load(minilm_folder).save(tmp_path)
    scored = Explainable.load(tmp_path).score(["The film is wonderful, though it drags."], target="good")
    assert attribute(scored).completeness.holds


def test_the_model_is_as_before(folder_for):
    explained = Explainable.load(folder_for("classify"))
    explained.model.set_compute_dtype(torch.bfloat16)
    explained.model.train()
    found = attribute(explained.score(TEXTS["classify"]))
    assert found.completeness.holds
    assert explained.model.backbone.embedding.compute_dtype is torch.bfloat16
    assert not explained.model.backbone.embedding._forward_hooks
    assert all(parameter.grad is None for parameter in explained.model.parameters())


def test_a_tag_is_explained_at_its_word(folder_for):
    explained = Explainable.load(folder_for("tag"))
    by_word = explained.score(TEXTS["tag"], target="B-PER", word="man")
    assert by_word.target == "tag 'B-PER' of word 2, 'man'"
    assert explained.score(TEXTS["tag"], word="2").target.endswith("of word 2, 'man'")
    chosen = explained.score(TEXTS["tag"])
    tags = load_pipeline("tag", explained.folder, precision="float32").tag_words([TEXTS["tag"][0].split()])[0]
    place = int(re.search(r"of word (\d+)", chosen.target)[1]) - 1
    assert tags[place] != "O" or set(tags) == {"O"}


def test_a_word_far_into_a_long_text_is_explained_in_its_window(folder_for):
    explained = Explainable.load(folder_for("tag"))
    text = "the man eats bread . " * 20 + "the woman"
    scored = explained.score([text], word="woman")
    assert [text[start:end] for start, end in scored.offsets if end][-1] == "woman"
    assert "of the text are not in this sequence" in scored.note
    found = attribute(scored)
    assert found.completeness.holds
    assert "".join(run.text for run in coloured_runs(found)[0]) == text


def test_an_answer_far_into_a_long_passage(folder_for):
    explained = Explainable.load(folder_for("answer"))
    passage = "the man eats bread . " * 12 + "the woman reads a book !"
    answered = load_pipeline("answer", explained.folder, precision="float32")(["the woman ?"], [passage])[0]
    scored = explained.score(["the woman ?", passage])
    assert repr(answered.text) in scored.target
    found = attribute(scored)
    assert found.completeness.score == pytest.approx(answered.candidates[0].score, abs=1e-4)


def test_a_text_that_is_too_long_is_cut_like_the_pipeline_does(folder_for):
    scored = Explainable.load(folder_for("classify")).score(["the man " * 50])
    assert len(scored.input_ids) == 32
    assert scored.note == "The model reads 32 tokens at once; 70 of the text are not in this sequence."


@pytest.mark.parametrize(
    ("kind", "texts", "options", "message"),
    [
        ("classify", [""], {}, "text 1, '', holds no word"),
        ("classify", ["\x00"], {}, "holds no word"),
        ("classify", ["the man", " "], {}, "text 2, ' ', holds no word"),
        ("classify", ["the", "man", "eats"], {}, "classify reads 1 or 2 text"),
        ("classify", ["the man"], {"target": "great"}, "'great' is no label .* labels: bad, good, neither"),
        ("classify", ["the man"], {"word": "man"}, "a word is chosen for taggers only"),
        ("regress", ["the man"], {"target": "score"}, "leaves nothing to choose"),
        ("rank", ["the man"], {}, "rank reads 2 text"),
        ("tag", [" "], {}, "holds no word"),
        ("tag", ["the man"], {"word": "dog"}, "word 'dog' is not in the text"),
        ("tag", ["the man"], {"word": "3"}, "1 to 2"),
        ("tag", ["the man"], {"target": "PER"}, "no label"),
        ("answer", ["who", ""], {}, "holds no word"),
        ("answer", ["the man", "the book"], {"target": "start"}, "leaves nothing to choose"),
        ("choose", ["the man"], {}, "choose reads 2 or more text"),
        ("choose", ["the man", "eats", "reads"], {"target": "3"}, "1 to 2"),
    ],
)
def test_input_that_cannot_be_explained(folder_for, kind, texts, options, message):
    with pytest.raises(InputError, match=message):
        Explainable.load(folder_for(kind)).score(texts, **options)


def test_a_folder_says_whether_it_reads_pairs(folder_for):
    folder = folder_for("classify")
    write_task_file(folder, {"task": "classify", "max_length": 32, "paired": True})
    with pytest.raises(InputError, match=r"reads 2 text\(s\), and 1 were given"):
        Explainable.load(folder).score(["the man"])


def test_folders_without_a_head_that_predicts(tiny_model, monkeypatch):
    with pytest.raises(CheckpointError, match="predicts nothing here; fine-tune it first"):
        Explainable.load(tiny_model)
    monkeypatch.setattr(Predictor, "load", lambda *_, **__: Predictor("features", None))
    with pytest.raises(CheckpointError, match="reads frozen features"):
        Explainable.load(tiny_model)


def test_a_baseline_that_does_not_exist(folder_for):
    scored = Explainable.load(folder_for("classify")).score(["the man"])
    with pytest.raises(ConfigError, match="mask or pad"):
        attribute(scored, baseline="zero")


@pytest.fixture
def marked(folder_for):
    """An attribution of a text with everything that can go wrong in it."""
    text = "The <script>alert('man')</script> & ﬁ café \x1b[31m bread $x$ 书\n\n\ud800 the  book."
    return attribute(Explainable.load(folder_for("classify")).score([text, "a book"]))


def test_the_runs_joined_are_the_texts(marked):
    runs = coloured_runs(marked)
    assert tuple("".join(run.text for run in row) for row in runs) == marked.scored.texts
    covered = sum(run.value for row in runs for run in row if run.value is not None)
    assert covered == pytest.approx(marked.values.sum(), abs=1e-9)


def test_markup_and_control_characters_are_shown_not_obeyed(marked, tmp_path):
    page = attribution_page(marked)
    assert "<script" not in page
    assert "&lt;" in page
    assert "\x1b" not in page
    assert "\x1b" not in "".join(line.plain for line in terminal_text(marked))
    page.encode("utf-8")
    write_attribution(marked, tmp_path / "a.html", "--model", "a model")
    written = (tmp_path / "a.html").read_text(encoding="utf-8")
    strongest = max((run for row in coloured_runs(marked) for run in row), key=lambda run: run.value or 0.0)
    assert f"raises it most ({strongest.value:+.3f})" in written
    assert "bertsmith predict --model &#39;a model&#39; --file YOUR_FILE.txt" in written


def test_the_colour_says_the_sign(marked):
    for row, line in zip(coloured_runs(marked), terminal_text(marked), strict=True):
        styles = iter(span.style for span in line.spans)
        for run in row:
            if run.value is not None:
                red, _, blue = next(styles).bgcolor.get_truecolor()
                assert (blue >= red) == (run.value > 0) or red == blue


def test_a_folder_where_the_file_should_be(marked, tmp_path):
    with pytest.raises(RunFolderError, match="is a folder"):
        write_attribution(marked, tmp_path)


@pytest.mark.parametrize("passage", ["한국", "국한 한", "한 the 음식", "식음 국"])
def test_an_answer_of_letters_in_several_pieces(folder_for, passage):
    folder = folder_for("answer")
    # 一个谚文音节拆成两三个词片，它们的字符位置相同
    WordPieceTokenizer.train(["the 한 국 음 식"] * 9, vocab_size=25).save(folder)
    explained = Explainable.load(folder)
    answered = load_pipeline("answer", folder, precision="float32")(["the"], [passage])[0]
    found = attribute(explained.score(["the", passage]))
    assert found.completeness.score == pytest.approx(answered.candidates[0].score, abs=1e-4)
