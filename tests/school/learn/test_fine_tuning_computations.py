"""Query, key and value, tags, choices and whole examples: by hand, by the real heads, by torch."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.model import BertForMultipleChoice
from bertsmith.tinyworld.tasks import TaggedSentence
from bertsmith_school.learn import Study, compute
from bertsmith_school.learn.computations.experiments import TABLES
from bertsmith_school.learn.computations.finetuning import IGNORED, TAGS, tagged_pieces


@pytest.fixture(scope="module")
def study():
    return Study.village()


def test_she_is_anna_the_baker():
    """The scores of `she` are 4, 0, 0; over √2 and through a softmax: e^2.83 / (e^2.83 + 2)."""
    found = compute("looking_up").values
    share = math.exp(4 / math.sqrt(2)) / (math.exp(4 / math.sqrt(2)) + 2)
    np.testing.assert_array_equal(found["scores"][2], [4, 0, 0])
    np.testing.assert_allclose(found["weights"][2], [share, (1 - share) / 2, (1 - share) / 2])
    np.testing.assert_allclose(found["z"][2], [share, (1 - share) / 2])
    assert (found["found"], found["told"]) == ("Anna", "baker")


def test_another_pronoun_finds_the_other_person():
    he = [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 1, 1, 0, 0]]
    found = compute("looking_up", x=he, language="zh").values
    assert (found["found"], found["told"]) == ("Tom", "水手")
    with pytest.raises(InputError, match=r"query is \[1, 2\]; this example needs \[5, 2\]"):
        compute("looking_up", query=[[1, 2]])


def test_reading_from_the_right_is_reading_from_the_left_mirrored(study):
    found = compute("both_sides", study=study, first="the man reads", second="the woman reads").values
    # [CLS] the X reads [SEP]: from the left X and two more, from the right X and two before it
    assert (found["changed_left"], found["changed_right"], found["changed_both"]) == (3, 3, 5)


def test_the_heads_of_the_village_know_object_and_subject(study):
    found = compute("trained_heads", study=study)
    read = {row[2] for row in found.steps[0].value if float(row[3].rstrip("%")) > 50}
    assert {"cow", "farmer"} <= read
    for shares in (found.values["shares"],):
        assert sum(shares) == pytest.approx(1, abs=1e-5)
    with pytest.raises(InputError, match="'sheep' is not in"):
        compute("trained_heads", study=study, word="sheep")


def test_both_losses_of_an_example_by_torch(study):
    found = compute("one_example", study=study).values
    encoded = study.tokenizer("In the morning the man eats the bread.", "At noon he sweeps the floor at the shop.")
    ids, (first, second) = list(encoded["input_ids"]), found["positions"]
    assert [study.pieces([ids[n]])[0] for n in (first, second)] == ["eats", "floor"]
    truth = torch.tensor([ids[first], ids[second]])
    ids[first] = ids[second] = study.tokenizer.mask_token_id
    with torch.inference_mode():
        batch = RaggedBatch.from_sequences([ids], [encoded["token_type_ids"]])
        output = study.model(batch, torch.tensor([first, second]))
        words = float(F.cross_entropy(output.mlm_logits, truth))
        pair = float(F.cross_entropy(output.nsp_logits, torch.tensor([0])))
    assert found["words_loss"] == pytest.approx(words, abs=1e-5)
    assert found["loss"] == pytest.approx(words + pair, abs=1e-5)
    with pytest.raises(InputError, match="'floor' is not in 'the man"):
        compute("one_example", study=study, first="the man eats", hidden="floor")


def test_a_choice_is_what_the_real_head_says(study):
    """A multiple-choice model whose one vector is the difference of the next-sentence rows."""
    found = compute("choose_ending", study=study).values
    model = BertForMultipleChoice.from_pretrained(study.folder, new_heads=True).eval()
    linear = study.model.next_sentence.linear
    with torch.inference_mode():
        model.classifier.linear.weight.copy_((linear.weight[0] - linear.weight[1])[None])
        model.classifier.linear.bias.copy_((linear.bias[0] - linear.bias[1])[None])
        context = "Anna the baker lives at the bakery. The day is sunny."
        endings = ("In the morning Anna eats the wonderful bread.", "At noon Leo climbs the ridge.")
        pairs = [study.encode(context, ending) for ending in (*endings, "In the evening Greta casts the net.")]
        scores = model(RaggedBatch.from_sequences(*map(list, zip(*pairs, strict=True))), num_choices=3).flatten()
    np.testing.assert_allclose(found["scores"], scores.numpy(), atol=1e-4)
    np.testing.assert_allclose(found["probabilities"], scores.softmax(0).numpy(), atol=1e-5)
    assert found["best"] == endings[0]


def test_a_tag_stands_at_the_first_piece_of_its_word(study):
    sentence = TaggedSentence(("Anna", "hedgehogs", "."), ("B-person", "B-animal", "O"))
    row = tagged_pieces(study.tokenizer, sentence)
    assert study.pieces(row.ids) == ("[CLS]", "anna", "hedgehog", "##s", ".", "[SEP]")
    tags = [TAGS[label] if label != IGNORED else "" for label in row.labels]
    assert tags == ["", "B-person", "B-animal", "", "O", ""]
    assert row.words == [-1, 0, 1, 1, 2, -1]


def test_pre_training_tells_words_that_no_label_showed():
    found = compute("tag_words")
    values = found.values
    assert values["unseen"] > 0.7 > 0.3 > values["random_unseen"]
    assert values["unseen_words"] > 100
    losses = [row[-1] for row in found.steps[1].value]
    assert values["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    # both starts fit what they were shown
    assert all(row[2] < 0.2 for row in found.steps[3].value)


def test_the_two_largest_scores_are_no_span_and_leave_cls_out():
    values = compute("answer_span", start=[9, 0, 3, 2], end=[9, 4, 0, 2]).values
    assert (values["crossed"], values["crossed_start"], values["crossed_end"]) == (7, 2, 1)
    assert values["null"] == 18


def test_published_tables_are_whole_and_the_averages_are_theirs():
    """The average of GLUE is over its nine test sets: MNLI has two."""
    assert [table.number for table in TABLES.values()] == list(range(1, 9))
    for table in TABLES.values():
        assert {len(row) for row in table.rows} == {len(table.columns) + 1}
    for row in TABLES["glue"].rows[1:]:
        scores = [*map(float, row[1].split("/")), *row[2:-1]]
        assert row[-1] == pytest.approx(sum(scores) / len(scores), abs=0.06)
    assert len(compute("published").steps) == len(TABLES)
    # tables 5 and 6 both hold BERT base
    sizes, ablation = TABLES["sizes"].rows[3], TABLES["ablation"].rows[0]
    assert sizes[2:4] == (ablation[1], ablation[3])
    assert compute("published", table="squad").values["squad_large"] == 93.2
