"""The computations that show an idea each: stages, readers, paths, sizes, ablations, a curve, swapped parts."""

import itertools
import math

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith_school.learn import COMPUTATIONS, compute
from bertsmith_school.learn.computations.experiments import MODELS, trained_minibert
from bertsmith_school.learn.minibert import simple_sentences


def test_fine_tuning_begins_with_the_published_weights_and_adds_few():
    found = compute("two_stages").values
    assert (found["words"], found["carried"]) == (3_300_000_000, 109_482_240)
    assert found["tasks"] == [
        ("MNLI", "392k", 3 * 768 + 3),
        ("SST-2", "67k", 2 * 768 + 2),
        ("RTE", "2.5k", 2 * 768 + 2),
    ]
    assert (found["least"], found["new"]) == ("2.5k", 1538)
    assert compute("two_stages", size="large").values["carried"] == 335_141_888


def test_who_reads_whom_by_hand():
    """[CLS] the man reads the book [SEP]: 7 tokens, and so 1 + 2 + … + 7 pairs from one side."""
    found = compute("who_reads_whom")
    assert (found.values["tokens"], found.values["one_side"], found.values["all"]) == (7, 28, 49)
    elmo, gpt, bert = ([row[-1].split() for row in step.cells()] for step in found.steps[:3])
    assert gpt[2] == ["■"] * 3 + ["·"] * 4
    assert elmo[2] == ["←", "←", "↔", "→", "→", "→", "→"]
    assert bert == [["■"] * 7] * 7
    with pytest.raises(InputError, match="16 at most"):
        compute("who_reads_whom", text="the man reads " * 6)


def test_paths_of_a_word_to_itself_counted_one_by_one():
    found = compute("own_answer", layers=3)
    place, count = found.values["place"], len(found.values["pieces"])
    for layer, left, both, masked in found.steps[0].value:
        ways = [
            way
            for middle in itertools.product(range(count), repeat=layer - 1)
            for way in [(place, *middle, place)]
            if all(one != other for one, other in itertools.pairwise(way))
        ]
        assert both == len(ways)
        # 从左往右：每一步都只能往后走，回不到自己
        assert left == sum(all(one < other for one, other in itertools.pairwise(way)) for way in ways) == 0
        assert masked == 0
    assert (found.values["others"], found.values["both"], found.values["word"]) == (6, 30, "reads")


def test_the_networks_of_table_6_are_counted():
    found = compute("larger_networks")
    counts = {row[:3]: row[3] for row in found.steps[0].value}
    assert (counts[12, 768, 12], counts[24, 1024, 16]) == (109_482_240, 335_141_888)
    assert counts[6, 768, 3] == counts[6, 768, 12]
    values = found.values
    assert (values["smallest_layers"], values["smallest_score"]) == (3, "79.8")
    assert (values["largest_layers"], values["largest_score"], values["examples"]) == (24, "87.8", "3.5k")


def test_points_lost_are_those_of_table_5():
    scores, lost = compute("paper_ablation").steps
    assert [row[1:] for row in lost.value][1] == ("2.3", "4.1", "9.2", "0.6", "10.7")
    assert scores.value[0][1:] == ("84.4", "88.4", "86.7", "92.7", "88.5")


def test_the_curve_goes_from_the_data_to_below_word_frequencies():
    found = compute("learning_curve")
    values = found.values
    words = [word for sentence in simple_sentences() for word in sentence.split()]
    shares = np.unique(words, return_counts=True)[1] / len(words)
    assert values["entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert values["blind"] == pytest.approx(math.log(len(set(words)) + 1))
    assert len(values["losses"]) == values["steps"] == 80
    assert values["last"] < values["entropy"] < values["blind"] < values["first"]
    assert values["perplexity"] == pytest.approx(math.exp(np.mean(values["losses"][-10:])))
    for sentence, read in found.steps[0].value:
        changed = [
            (before, after) for before, after in zip(sentence.split(), read.split(), strict=True) if before != after
        ]
        assert len(changed) <= 1
    assert len(compute("learning_curve", steps=7).values["losses"]) == 7


def test_the_ablation_holds_with_other_seeds():
    values = compute("several_seeds", seeds=3).values
    assert values["agree"] == values["seeds"] == 3
    assert {name: len(pairs) for name, pairs in values["shares"].items()} == {"whole": 3, "bag": 3, "left": 3}
    one = compute("ablation", seed=2).values
    assert values["shares"]["bag"][2] == pytest.approx((one["bag_verbs"], one["bag_reads"]))


def test_networks_of_the_most_seeds_are_kept_for_the_next_reading():
    (seeds,) = COMPUTATIONS["several_seeds"].inputs
    assert trained_minibert.cache_parameters()["maxsize"] >= seeds.largest * len(MODELS)


def test_the_derived_gradient_is_the_slope_of_the_curve_that_is_drawn():
    values = compute("gradient_check").values
    moves, losses = np.array(values["curve"]).T
    middle = len(moves) // 2
    assert moves[middle] == pytest.approx(0, abs=1e-12)
    slope = (losses[middle + 1] - losses[middle - 1]) / (moves[middle + 1] - moves[middle - 1])
    assert slope == pytest.approx(values["derived"], rel=0.1)


def test_what_the_families_swap():
    found = compute("swapped_modules")
    values = found.values
    swapped = {
        family: {name for name, row in zip(values["modules"], values["kinds"], strict=True) if row[place] != "bert"}
        for place, family in enumerate(values["families"])
    }
    assert {"embedding", "encoder"} <= swapped["ALBERT"]
    assert "block" not in swapped["ALBERT"]
    assert "pooler" in swapped["DistilBERT"] & swapped["ELECTRA"] & swapped["ModernBERT"]
    assert {"block", "embedding"} <= swapped["ModernBERT"]
    assert "block" not in swapped["RoBERTa"]
    # ELECTRA small 的嵌入比隐藏宽度窄；RoBERTa 的分类器不读 pooler
    assert "embedding" in swapped["ELECTRA"]
    left_out = {row[0] for row in found.steps[0].value if row[1 + 1 + values["families"].index("RoBERTa")] == "–"}
    assert left_out == {"pooler"}
    assert values["swapped"] == [len(swapped[family]) for family in values["families"]]
