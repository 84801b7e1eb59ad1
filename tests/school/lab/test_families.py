"""What the tabs compute with models of other families, without a browser: each tab works, or says what is missing."""

import numpy as np
import pytest
import torch

pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[school]'")

import transformers

from bertsmith.inference.task_file import write_task_file
from bertsmith.model import (
    ModelForMaskedLM,
    ModelForMultipleChoice,
    ModelForPreTraining,
    ModelForQuestionAnswering,
    ModelForReplacedTokenDetection,
    ModelForSequenceClassification,
    ModelForTokenClassification,
    family_named,
)
from bertsmith.serve.app import build_app
from bertsmith.serve.guard import ApiKeys
from bertsmith.serve.settings import ServeSettings
from bertsmith.tokenizer import learn_tokenizer
from bertsmith_school.lab import attention, fill_mask, my_task, next_sentence, similarity, tokens
from bertsmith_school.lab.models import LabError, LabModels

SENTENCES = ["the man eats bread .", "the woman reads a book !", "where is the market ?"] * 5
FAMILIES = ("modernbert", "electra", "roberta", "distilbert", "albert")
TASKS = {
    "classify": (ModelForSequenceClassification, ("the man eats bread .", "where is the woman ?", "")),
    "tag": (ModelForTokenClassification, ("the woman reads a book !", "", "")),
    "answer": (ModelForQuestionAnswering, ("where is bread ?", "the man eats bread . where is the market ?", "")),
    "choose": (ModelForMultipleChoice, ("the man", "", "eats bread .\n\nreads a book !")),
}
LABELS = {"classify": {0: "bad", 1: "good"}, "tag": {0: "O", 1: "B-PER"}}
LAYERS = 2


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """Models as the tabs see them, by family, and by family and task: `electra`, `electra-tag`."""
    root, kinds = tmp_path_factory.mktemp("families"), ("wordpiece", "bpe", "unigram")
    tokenizers = {kind: learn_tokenizer(SENTENCES, kind=kind, vocab_size=300) for kind in kinds}
    torch.manual_seed(0)
    for name in FAMILIES:
        family = family_named(name)
        tokenizer = tokenizers[family.tokenizer]
        config = family.config.named(
            f"{LAYERS}/64", vocab_size=tokenizer.vocab_size, pad_token_id=tokenizer.pad_token_id, initializer_range=0.1
        ).with_position_limit(128)
        if name == "electra":
            made = {"electra": ModelForReplacedTokenDetection(config), "electra/generator": ModelForMaskedLM(config)}
        else:
            made = {name: ModelForPreTraining(config, pair_head="next_sentence" in family.heads)}
        for task, (architecture, _) in TASKS.items():
            made[f"{name}-{task}"] = architecture(config.changed(id2label=LABELS.get(task, {})))
        for folder, model in made.items():
            model.save_pretrained(root / folder)
            tokenizer.save(root / folder)
        reader = {"task": "answer", "max_length": 40, "stride": 8, "max_answer_tokens": 5, "null_threshold": None}
        write_task_file(root / f"{name}-answer", reader)
    folders = {path.name: str(path) for path in sorted(root.iterdir())}
    folders["generator"] = str(root / "electra/generator")
    settings = ServeSettings(models=tuple(folders.items()), threads=1, drain=0.0, deadline=120.0, precision="float32")
    app = build_app(settings, keys=ApiKeys())
    models = LabModels(list(app.state.models), settings)
    yield {name: models.named(name) for name in models.names}
    app.state.admission.close()
    app.state.admission.batcher.close()


@pytest.mark.parametrize("name", ["modernbert", "generator", "roberta", "distilbert", "albert"])
def test_masks_are_filled_as_transformers_fills_them(families, name):
    model = families[name]
    # the page writes [MASK] for every model; RoBERTa's own is <mask>
    (found,) = fill_mask.fill(model, "the [MASK] eats bread .").masks
    text = f"the {model.tokenizer.special_tokens.mask} eats bread ."
    ids = torch.tensor([model.tokenizer(text, parse_special=True)["input_ids"]])
    with torch.no_grad():
        logits = transformers.AutoModelForMaskedLM.from_pretrained(model.served.folder).eval()(ids).logits[0]
    (place,) = (ids[0] == model.tokenizer.mask_token_id).nonzero()
    best = logits[place[0]].softmax(-1).topk(len(found))
    assert [one.probability for one in found] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert found[0].piece == model.tokenizer.piece_text(int(best.indices[0]))
    written = fill_mask.inserted(model, "the [MASK] eats [MASK] .", 0, "woman")
    assert written == f"the woman eats {model.tokenizer.special_tokens.mask} ."


def test_a_discriminator_sends_to_its_generator(families):
    with pytest.raises(LabError, match="folder `generator` inside it") as caught:
        fill_mask.fill(families["electra"], "the [MASK] eats bread .")
    assert "`generator`" in caught.value.text.zh


@pytest.mark.parametrize("name", FAMILIES)
def test_maps_of_a_pair_are_those_of_transformers(families, name):
    model, texts = families[name], ("the man eats", "the woman reads a book !")
    view = attention.look(model, *texts, LAYERS, "1")
    encoded = model.tokenizer(*texts)
    theirs = transformers.AutoModel.from_pretrained(model.served.folder, attn_implementation="eager").eval()
    inputs = {"input_ids": torch.tensor([encoded["input_ids"]])}
    if name in ("electra", "albert"):
        inputs["token_type_ids"] = torch.tensor([encoded["token_type_ids"]])
    with torch.no_grad():
        expected = theirs(**inputs, output_attentions=True).attentions[LAYERS - 1][0, 0]
    np.testing.assert_allclose(view.weights, expected.numpy(), atol=1e-5)
    # whatever a family knows of segments, the page tells the two texts apart
    assert view.attention.is_pair
    ids = encoded["input_ids"]
    second = len(model.tokenizer.encode(texts[1])) + len(model.tokenizer.template.after)
    assert view.attention.sequence_ids == [0] * (len(ids) - second) + [1] * second


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_of_a_pair_lead_back_to_their_own_text(families, name):
    found = tokens.tokens_of(families[name], "the man", "the woman reads")
    assert found.texts == ("the man", "the woman reads")
    places = zip(found.sequence_ids, found.offsets, strict=True)
    second = "".join(found.texts[1][slice(*place)] for text, place in places if text == 1)
    assert second.replace(" ", "").endswith("reads")
    parts = {"modernbert": {"token"}, "distilbert": {"token", "position"}}
    assert set(found.norms) - {"sum", "normed"} == parts.get(name, {"token", "segment", "position"})


@pytest.mark.parametrize("name", ["modernbert", "electra", "roberta", "distilbert"])
def test_a_family_without_a_pair_head_says_so(families, name):
    with pytest.raises(LabError, match="next-sentence head"):
        next_sentence.follows(families[name], "the man", "bread !")


@pytest.mark.parametrize("name", FAMILIES)
def test_lines_of_text_become_points(families, name):
    found = similarity.similarity_map(families[name], "the man eats bread .\nbread\na book")
    assert found.points.shape == (3, 2)
    np.testing.assert_allclose(np.diag(found.matrix), 1.0, atol=1e-5)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_fine_tuned_head_predicts_and_is_explained(families, name, task):
    model = families[f"{name}-{task}"]
    texts = my_task.texts_of(model, *TASKS[task][1])
    assert my_task.predict(model, texts) is not None
    attribution = my_task.explain(model, texts)
    assert attribution.completeness.holds
    # each word is coloured in its own text
    scored = attribution.scored
    for (start, end), source in zip(scored.offsets, scored.sequence_ids, strict=True):
        assert 0 <= start <= end <= len(scored.texts[source])
    assert len(set(scored.sequence_ids)) == len(scored.texts)
