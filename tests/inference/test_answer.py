"""The oracle is a literal reading of the rules: every span of every window, one after the other."""

import itertools
import json
import math

import pytest
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference import answer
from bertsmith.inference.answer import Answer, BestSpans
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import BertConfig, BertForQuestionAnswering, best_spans
from bertsmith.model.heads import SpanScores
from bertsmith.tokenizer import WordPieceTokenizer

WORDS = ["the", "man", "eats", "bread", "woman", "reads", "a", "book", "in", "café", "north"]
FLOAT32 = InferenceConfig("cpu", "float32")


@pytest.fixture(scope="module")
def tokenizer():
    pieces = [word.replace("é", "e") for word in WORDS]
    return WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "!", "##s", "##er", *pieces])


def config_for(tokenizer, max_length):
    return BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=max_length)


def score_of(token, position, side, values):
    """A score that looks random and takes one of a few values, so that there are many ties."""
    return values[(token * 7 + position * position * 3 + position * 5 + side * 11) % 13 % len(values)]


class Scripted(BertForQuestionAnswering):
    """Scores by `score_of` instead of by weights."""

    values = (-1.5, -0.25, -0.0, 0.5, 2.0)

    def forward(self, batch):
        return SpanScores(
            *(
                torch.tensor(
                    [
                        score_of(token, position, side, self.values)
                        for token, position in zip(batch.input_ids.tolist(), batch.position_ids.tolist(), strict=True)
                    ]
                )
                for side in (0, 1)
            )
        )


def answers_by_loops(tokenizer, question, context, max_length, stride, max_answer_tokens, n_best, values):
    """All candidates (text, start, end, score), best first, and the null score."""
    rows = tokenizer(
        [question], [context], max_length=max_length, truncation="only_second", stride=stride, return_overflowing=True
    )
    nulls, found = [], {}
    for ids, types, offsets in zip(rows["input_ids"], rows["token_type_ids"], rows["offsets"], strict=True):
        start = [score_of(token, place, 0, values) for place, token in enumerate(ids)]
        end = [score_of(token, place, 1, values) for place, token in enumerate(ids)]
        nulls.append(start[0] + end[0])
        spans = []
        for first in range(len(ids)):
            for last in range(first, len(ids)):
                passage = all(types[place] == 1 and place < len(ids) - 1 for place in range(first, last + 1))
                if passage and last - first + 1 <= max_answer_tokens:
                    spans.append((-(start[first] + end[last]), first, last))
        for score, first, last in sorted(spans)[:n_best]:
            place = (score, offsets[first][0], offsets[last][1])
            text = context[place[1] : place[2]]
            if text not in found or place < found[text]:
                found[text] = place
    ranked = sorted((place, text) for text, place in found.items())[:n_best]
    return [(text, start, end, -score) for (score, start, end), text in ranked], min(nulls)


def draw_context(seed, size):
    generator = torch.Generator().manual_seed(seed)
    picked = torch.randint(0, len(WORDS), (size,), generator=generator).tolist()
    return " ".join(WORDS[i].upper() if i % 3 else WORDS[i] + ("s," if i % 2 else "") for i in picked)


@pytest.mark.parametrize("max_length", [12, 24, 64])
@pytest.mark.parametrize(("max_answer_tokens", "n_best"), [(1, 1), (3, 5), (30, 20), (200, 50)])
@pytest.mark.parametrize("threshold", [None, 0.0, 4.0])
def test_answers_are_those_of_loops_over_windows_and_spans(
    tokenizer, monkeypatch, max_length, max_answer_tokens, n_best, threshold
):
    # blocks end in the middle of questions
    monkeypatch.setattr(answer, "WINDOWS_AT_ONCE", 5)
    pipeline = Answer(
        Scripted(config_for(tokenizer, max_length)),
        tokenizer,
        FLOAT32,
        stride=3,
        max_answer_tokens=max_answer_tokens,
        n_best=n_best,
        null_threshold=threshold,
    )
    questions = ["the man", "reads", "a book in", "north!"]
    contexts = [draw_context(seed, size) for seed, size in enumerate([30, 1, 7, 55])]
    for question, context, got in zip(questions, contexts, pipeline(questions, contexts), strict=True):
        settings = (max_length, 3, max_answer_tokens, n_best, Scripted.values)
        expected, null = answers_by_loops(tokenizer, question, context, *settings)
        assert [(c.text, c.start, c.end, c.score) for c in got.candidates] == expected
        assert got.null_score == null
        weights = [math.exp(score) for *_, score in expected]
        total = sum(weights) + (0 if threshold is None else math.exp(null))
        assert [c.probability for c in got.candidates] == pytest.approx([weight / total for weight in weights])
        if threshold is not None and not expected[0][3] > null + threshold:
            assert (got.text, got.start, got.end, got.score, got.no_answer) == ("", 0, 0, null, True)
            assert got.probability == got.null_probability == pytest.approx(math.exp(null) / total)
        else:
            assert (got.text, got.start, got.end, got.score) == expected[0]
            assert not got.no_answer
            assert got.probability == pytest.approx(weights[0] / total)


@pytest.mark.parametrize("lengths", [[3], [9, 9], [4, 30, 11]])
@pytest.mark.parametrize("count", [1, 20, 700])
@pytest.mark.parametrize("max_tokens", [1, 4, 30, 99])
def test_the_search_over_a_batch_is_the_one_over_each_sequence(lengths, count, max_tokens):
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([-1.5, -0.25, -0.0, 0.0, 1e-38, -3e30, 3e30])
    start, end = values[torch.randint(0, len(values), (2, sum(lengths)), generator=generator)]
    types = [[0] * 2 + [1] * (length - 2) for length in lengths]
    batch = RaggedBatch.from_sequences([[5] * length for length in lengths], types)
    rows = BestSpans(count, max_tokens)(lambda _: SpanScores(start, end), batch)
    assert rows.shape == (len(lengths), 1 + count, 3)
    parts = zip(rows.tolist(), start.split(lengths), end.split(lengths), types, strict=True)
    for row, first, last, kinds in parts:
        allowed = torch.tensor(kinds).bool()
        allowed[-1] = False
        scores = SpanScores(first[None], last[None])
        best = best_spans(scores, allowed[None], count=count, max_tokens=max_tokens)[0].tolist()
        assert row[0] == [0, 0, float(first[0] + last[0])]
        found, expected = ([span for span in spans if span[2] > -math.inf] for spans in (row[1:], best))
        assert found == expected


def pointing_model(tokenizer, first, last, max_length):
    """A model that scores the word `first` as start, the word `last` as end, and everything else alike."""
    model = BertForQuestionAnswering(config_for(tokenizer, max_length))
    with torch.no_grad():
        # everything but the norms is zero: the blocks add nothing, and a state is its word's embedding
        for name, parameter in model.named_parameters():
            parameter.fill_(float("norm" in name and name.endswith("weight")))
        for side, word in enumerate((first, last)):
            model.backbone.embedding.word.weight[tokenizer.piece_to_id[word], side] = 1.0
        model.spans.linear.weight[0, 0] = model.spans.linear.weight[1, 1] = 1.0
    return model


@pytest.mark.parametrize("place", [0, 1, 170, 171, 172, 173, 256, 700, 1234, 1997, 1998])
def test_an_answer_anywhere_in_two_thousand_words_is_found(tokenizer, place):
    words = ["the", "bread", "in"] * 667
    words[place : place + 2] = ["CAFÉ", "North!"]
    context = "  ".join(words)
    pipeline = Answer(pointing_model(tokenizer, "cafe", "north", 256), tokenizer, FLOAT32, stride=64)
    got = pipeline(["the man eats"], [context])[0]
    assert got.text == "CAFÉ  North"
    assert (got.start, got.end) == (context.index("CAFÉ"), context.index("North") + 5)
    assert got.text == context[got.start : got.end]
    # the words stand in two windows at most places; they are one candidate, and far ahead of the next
    assert got.candidates[1].score < got.score - 1
    assert [c.text for c in got.candidates].count("CAFÉ  North") == 1


def test_what_is_said_twice_is_one_candidate_at_its_first_place(tokenizer):
    pipeline = Answer(pointing_model(tokenizer, "book", "book", 64), tokenizer, FLOAT32)
    got = pipeline(["the man reads"], ["the book . a book"])[0]
    assert (got.text, got.start) == ("book", 4)
    assert [c.text for c in got.candidates].count("book") == 1


@pytest.mark.parametrize("text", ["cafe\u0301", "caf\u00e9", "cafe\u0301\u0323"])
def test_accents_stay_on_their_letters(tokenizer, text):
    """The tokenizer drops accents; the answer has them, also where they are characters of their own."""
    pipeline = Answer(pointing_model(tokenizer, "cafe", "cafe", 64), tokenizer, FLOAT32)
    context = f"the {text} in north"
    got = pipeline(["the man"], [context])[0]
    assert (got.text, got.start, got.end) == (text, 4, 4 + len(text))


def test_questions_are_read_only_a_little_ahead(tokenizer, monkeypatch):
    monkeypatch.setattr(answer, "WINDOWS_AT_ONCE", 8)
    pipeline = Answer(Scripted(config_for(tokenizer, 32)), tokenizer, FLOAT32)
    counter = itertools.count()
    endless = (("the man", f"a book in {'north ' * (next(counter) % 3)}!") for _ in itertools.repeat(None))
    got = list(itertools.islice(pipeline.stream(endless), 30))
    assert next(counter) <= 30 + 8 + 1
    whole = pipeline(["the man"] * 30, [f"a book in {'north ' * (number % 3)}!" for number in range(30)])
    assert got == whole


def test_company_does_not_change_an_answer(tokenizer):
    torch.manual_seed(1)
    model = BertForQuestionAnswering(config_for(tokenizer, 64))
    torch.nn.init.normal_(model.spans.linear.weight, std=1.0)
    pipeline = Answer(model, tokenizer, FLOAT32)
    contexts = [draw_context(seed, 20 + 9 * seed) for seed in range(12)]
    together = pipeline(["the man eats"] * 12, contexts)
    for context, among in zip(contexts, together, strict=True):
        alone = pipeline(["the man eats"], [context])[0]
        assert (alone.text, alone.start) == (among.text, among.start)
        assert alone.score == pytest.approx(among.score, abs=1e-5)


@pytest.mark.parametrize(
    ("questions", "contexts", "message"),
    [
        ("the man", ["a book"], "not a string"),
        (["the man"], "a book", "not a single string"),
        (["the man"], ["a", "book"], "1 texts and 2"),
        (["the man", " "], ["a", "book"], "question ' ' holds no word"),
        (["the man"], ["\n"], r"question 'the man': its passage '\\n' holds no word"),
        (["the man " * 15], ["a book"], "has 30 tokens, which leaves no room for its passage among the 32"),
    ],
)
def test_impossible_questions_are_refused(tokenizer, questions, contexts, message):
    pipeline = Answer(Scripted(config_for(tokenizer, 32)), tokenizer, FLOAT32)
    with pytest.raises(InputError, match=message):
        pipeline(questions, contexts)


def test_a_question_may_leave_room_for_a_single_token(tokenizer):
    pipeline = Answer(Scripted(config_for(tokenizer, 32)), tokenizer, FLOAT32)
    got = pipeline(["the man eats a book in the north . " * 3 + "the"], ["bread in north"])[0]
    assert {c.text for c in got.candidates} == {"bread", "in", "north"}


@pytest.mark.parametrize(
    "changes", [{"stride": -1}, {"max_answer_tokens": 0}, {"n_best": 0}, {"null_threshold": math.inf}]
)
def test_impossible_settings_are_refused(tokenizer, changes):
    with pytest.raises(ConfigError):
        Answer(Scripted(config_for(tokenizer, 32)), tokenizer, **changes)


@pytest.fixture
def folder(tokenizer, tmp_path):
    BertForQuestionAnswering(config_for(tokenizer, 64)).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    return tmp_path


TASK = {
    "task": "answer",
    "max_length": 24,
    "stride": 5,
    "max_answer_tokens": 2,
    "scoring": "squad",
    "null_threshold": -1e9,
}


def test_a_folder_brings_its_threshold_and_its_windows(folder):
    (folder / "task.json").write_text(json.dumps(TASK))
    pipeline = Answer.load(folder)
    assert (pipeline.cutter.max_length, pipeline.cutter.stride) == (24, 5)
    context = draw_context(0, 40)
    got = pipeline(["the man"], [context])[0]
    assert not got.no_answer
    assert len(got.text.split()) <= 2
    (folder / "task.json").write_text(json.dumps({**TASK, "null_threshold": 1e9}))
    assert Answer.load(folder)(["the man"], [context])[0].no_answer


def test_a_foreign_folder_answers_always(folder):
    pipeline = Answer.load(folder)
    assert pipeline.null_threshold is None
    assert pipeline.cutter.max_length == 64
    assert pipeline(["the man"], ["a book"])[0].text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "task.json: damaged"),
        ("[]", "task.json: damaged"),
        (json.dumps({"task": "answer", "max_length": 24}), "task.json: damaged .*null_threshold"),
        (json.dumps({**TASK, "stride": "wide"}), "task.json: damaged .*wide"),
        (json.dumps({"task": "tag", "max_length": 24, "labels": ["O"]}), "fine-tuned for 'tag', not for 'answer'"),
    ],
)
def test_a_damaged_description_is_refused(folder, content, message):
    (folder / "task.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        Answer.load(folder)
