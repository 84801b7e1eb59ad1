import itertools
import json
import math

import numpy as np
import pytest
import torch
import transformers

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.questions import QUESTIONS, QuestionExample
from bertsmith.finetune.datasets.questions import Answer as TrueAnswer
from bertsmith.finetune.metrics.spans import squad_scores
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.answer import AnsweringTask
from bertsmith.inference.answer import Answer, AnswerCandidate, Answered
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import BertConfig, BertForQuestionAnswering, BertForSequenceClassification
from bertsmith.model.heads import SpanScores
from bertsmith.tokenizer import WordPieceTokenizer

CONTEXT = "the man eats bread . the woman reads a book !"


def make_example(question, answer, context=CONTEXT, identity=None):
    """A question with its answer at the first place where it stands; None for no answer."""
    answers = () if answer is None else (TrueAnswer(answer, context.index(answer)),)
    return QuestionExample(identity or f"{question}|{context}", question, context, answers)


def make_prediction(text, margin, probability=0.5):
    """What a model with an untuned threshold says: its best span beats "no answer" by `margin`."""
    best = AnswerCandidate(text, 0, len(text), margin, probability)
    return Answered(text, 0, len(text), margin, probability, False, 0.0, 1 - probability, (best,))


class Taught(BertForQuestionAnswering):
    """Points at exactly what it was taught of each window; knows nothing else."""

    def learn(self, units):
        self.known = {tuple(unit.input_ids[0]): unit.label for unit in units}
        return self

    def forward(self, batch):
        scores = torch.zeros(2, batch.num_tokens)
        places = batch.cu_seqlens.tolist()
        for first, last in itertools.pairwise(places):
            label = self.known[tuple(batch.input_ids[first:last].tolist())]
            for side in (0, 1):
                scores[side, first + label[side]] = 1.0
        return SpanScores(*scores)


FILES = {
    # file: vocabulary, questions, answers that end inside a token
    "tasks/xquad/xquad.en.json": ("vocab-uncased-30522.txt", 1190, {"7,000,000 square kilometres (2,70": "0"}),
    "tasks/xquad/xquad.zh.json": ("vocab-chinese-21128.txt", 1190, {}),
    "tasks/cmrc2018/trial.json": ("vocab-chinese-21128.txt", 995, {}),
}


@pytest.mark.parametrize(
    ("file", "max_length", "cut"),
    [
        pytest.param("tasks/xquad/xquad.en.json", 160, 0, marks=pytest.mark.slow),
        ("tasks/xquad/xquad.zh.json", 384, 0),
        pytest.param("tasks/cmrc2018/trial.json", 384, 5, marks=pytest.mark.slow),
    ],
)
def test_labels_lead_back_to_every_answer(shared_data, file, max_length, cut):
    """From answers to windows, tokens, spans and back to characters: the pipeline reads what the task writes.

    `cut` answers are longer than what neighbouring windows share, and lie across the border of two: no window has them
    whole, as in the released code.
    """
    vocabulary, count, wider = FILES[file]
    tokenizer = WordPieceTokenizer.load(shared_data / vocabulary)
    examples = QUESTIONS.read(shared_data / file, ReadingOptions(faults="skip"))
    assert len(examples) == count
    model = Taught(BertConfig.named("1/64", vocab_size=tokenizer.vocab_size))
    never_whole = 0
    for example in examples:
        true = example.answers[0]
        size = len(tokenizer.encode(true.text))
        task = AnsweringTask.of([example], stride=64 if max_length == 160 else 128, max_answer_tokens=size + 1)
        model.learn(task.encode(tokenizer, [example], max_length))
        (got,) = task.predict(model, tokenizer, [example], InferenceConfig("cpu", "float32", max_length))
        if got.score < 2.0:
            never_whole += 1
            assert size > task.stride
            continue
        assert got.text == true.text.strip() + wider.get(true.text, "")
        assert got.start == true.start + len(true.text) - len(true.text.lstrip())
    assert never_whole == cut


def test_a_window_without_the_whole_answer_points_at_cls(tiny_model):
    """By hand: 11 words of a passage, windows of 6 that share 3, and the answer is words 5 and 6, counted from 0."""
    tokenizer = WordPieceTokenizer.load(tiny_model)
    assert len(tokenizer.encode(CONTEXT)) == 11
    units = AnsweringTask(stride=3).encode(tokenizer, [make_example("man", "the woman")], 10)
    # windows of words 0-5, 3-8 and 6-10: only the second has both; three tokens stand before the passage
    assert [unit.label for unit in units] == [(0, 0), (3 + 2, 3 + 3), (0, 0)]
    assert [len(unit.input_ids[0]) for unit in units] == [10, 10, 9]
    nothing = AnsweringTask(stride=3).encode(tokenizer, [make_example("man", None)], 10)
    assert [unit.label for unit in nothing] == [(0, 0)] * 3


def test_the_first_of_several_answers_is_learned(tiny_model):
    tokenizer = WordPieceTokenizer.load(tiny_model)
    example = QuestionExample("1", "man", CONTEXT, (TrueAnswer(" book ", 38), TrueAnswer("bread", 13)))
    unit = AnsweringTask().encode(tokenizer, [example], 32)[0]
    place = unit.label[0]
    assert unit.label == (place, place)
    assert tokenizer.vocab[unit.input_ids[0][place]] == "book"


def test_an_answer_inside_a_token_is_covered():
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "when", "in", "1990", "##s"])
    example = QuestionExample("1", "when", "in 1990s", (TrueAnswer("90", 5),))
    unit = AnsweringTask().encode(tokenizer, [example], 32)[0]
    assert unit.label == (4, 4)


def test_batches_have_starts_and_ends(tiny_model):
    tokenizer = WordPieceTokenizer.load(tiny_model)
    task = AnsweringTask()
    units = task.encode(tokenizer, [make_example("man", "bread"), make_example("a book", None)], 32)
    batch = task.batch(units)
    assert batch.labels.tolist() == [list(unit.label) for unit in units]
    assert batch.labels.dtype == torch.int64
    assert batch.tokens.token_type_ids.tolist() == units[0].token_type_ids[0] + units[1].token_type_ids[0]


HANDFUL = [
    make_example("eats", "bread"),
    make_example("reads", "a book"),
    make_example("man", "the woman", "the woman reads . the man eats a book !"),
    make_example("woman", "eats", "bread . a man reads , the woman eats"),
    make_example("bread", "reads the", "the book reads the man . a woman"),
]

OVERFIT = FineTuningSettings(epochs=20, batch_size=5, learning_rate=1e-3, dropout=0.0, precision="float32")


def test_a_reader_learns_a_handful_and_is_saved_for_everybody(tiny_model, tmp_path):
    examples = HANDFUL
    task = AnsweringTask.of(examples)
    result = fine_tune(task, tiny_model, examples * 20, examples, tmp_path / "run", OVERFIT)
    assert result.dev.metrics == {"f1": 1.0, "exact_match": 1.0}
    folder = tmp_path / "run" / "model"
    pipeline = Answer.load(folder)
    assert pipeline.null_threshold is None
    got = pipeline([e.question for e in examples], [e.context for e in examples])
    assert [answer.text for answer in got] == [e.answers[0].text for e in examples]
    assert [answer.start for answer in got] == [e.answers[0].start for e in examples]
    assert logits_differ_by(folder, examples) < 1e-4


def logits_differ_by(folder, examples):
    """The largest difference of any start or end score from the folder's in `transformers`, its tokenizer included."""
    reference = transformers.BertForQuestionAnswering.from_pretrained(folder).eval()
    encoder = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [e.question for e in examples], [e.context for e in examples]
    inputs = encoder(*texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = reference(**inputs)
    units = AnsweringTask().encode(WordPieceTokenizer.load(folder), examples, 32)
    batch = AnsweringTask().batch(units)
    model = BertForQuestionAnswering.from_pretrained(folder).eval()
    with torch.no_grad():
        ours = model(batch.tokens)
    real = inputs["attention_mask"].bool()
    return max(
        float((mine - theirs[real]).abs().max())
        for mine, theirs in zip(ours, (output.start_logits, output.end_logits), strict=True)
    )


def test_long_passages_are_learned_in_windows(tiny_model, tmp_path):
    """The answer is in one of several windows; the others learn to point at nothing."""
    filler = "the man reads . " * 6
    examples = [
        make_example("eats", thing, f"{filler[: 16 * place]}the woman eats {thing} . {filler[16 * place :]}")
        for place in range(7)
        for thing in ("bread", "a book")
    ]
    task = AnsweringTask.of(examples, stride=6)
    settings = FineTuningSettings(
        epochs=3, batch_size=8, learning_rate=3e-3, dropout=0.0, max_length=20, precision="float32"
    )
    units = task.encode(WordPieceTokenizer.load(tiny_model), examples, 20)
    assert len(units) > 2 * len(examples)
    assert {unit.label == (0, 0) for unit in units} == {True, False}
    result = fine_tune(task, tiny_model, examples * 10, examples, tmp_path / "run", settings)
    assert result.dev.metrics["f1"] == 1.0


def test_a_dev_file_without_answers_cannot_choose(tiny_model, tmp_path):
    answered, unanswerable = (make_example("the man", answer, "the man eats bread .") for answer in ("eats", None))
    train = [answered, unanswerable]
    with pytest.raises(InputError, match="the dev file: no question has an answer; no epoch can be chosen"):
        fine_tune(AnsweringTask.of(train), tiny_model, train, [unanswerable], tmp_path / "run", OVERFIT)


@pytest.mark.slow
def test_unanswerable_questions_are_left_unanswered(tiny_model, tmp_path):
    contexts = ["the man eats bread .", "the woman eats bread !", "a book . a man eats", "a woman reads"]
    examples = [
        make_example(asked, None if asked == "book" else context.split()[1], context)
        for context in contexts
        for asked in ("the man", "book", "eats bread")
    ]
    task = AnsweringTask.of(examples)
    assert task.null_threshold == 0.0
    result = fine_tune(task, tiny_model, examples * 20, examples, tmp_path / "run", OVERFIT)
    assert list(result.dev.metrics) == [
        "f1",
        "exact_match",
        "has_answer_f1",
        "has_answer_exact_match",
        "no_answer_exact_match",
    ]
    assert set(result.dev.metrics.values()) == {1.0}
    stored = json.loads((tmp_path / "run" / "model" / "task.json").read_text())
    pipeline = Answer.load(tmp_path / "run" / "model")
    assert pipeline.null_threshold == stored["null_threshold"] != 0.0
    got = pipeline([e.question for e in examples], [e.context for e in examples])
    assert [answer.no_answer for answer in got] == [e.is_impossible for e in examples]
    assert [answer.text for answer in got] == [e.answers[0].text if e.answers else "" for e in examples]
    assert all(answer.candidates for answer in got)


def figures_at(task, threshold, examples, predictions):
    """The official reading: texts at a threshold, scored as SQuAD 2.0 scores them."""
    texts = [p.candidates[0].text if p.candidates[0].score - p.null_score > threshold else "" for p in predictions]
    return squad_scores(texts, [[a.text for a in e.answers] for e in examples], unanswerable=True)


@pytest.mark.parametrize("seed", range(60))
def test_the_tuned_threshold_is_the_best_there_is(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 15))
    shares = [0.0, 1.0, 0.3, 0.7]
    impossible = rng.random(size) < shares[seed % 4]
    examples = [make_example(f"q{i}", None if impossible[i] else "the man eats bread") for i in range(size)]
    texts = rng.choice(["bread", "man eats bread", "woman", "a book !"], size).tolist()
    margins = rng.integers(-3, 4, size) / 2
    predictions = [make_prediction(text, margin) for text, margin in zip(texts, margins.tolist(), strict=True)]
    task = AnsweringTask(null_threshold=0.0)
    tuned = task.with_best_threshold(examples, predictions)
    assert math.isfinite(tuned.null_threshold)
    # no margin is near the threshold: rounding elsewhere must not change a decision
    assert np.abs(margins - tuned.null_threshold).min() >= 0.25
    figures = tuned.metrics(examples, predictions)
    candidates = [-math.inf, math.inf, *(margins - 0.1), *(margins + 0.1)]
    best = max(figures_at(task, threshold, examples, predictions).f1 for threshold in candidates)
    assert figures["f1"] == pytest.approx(best)
    scores = figures_at(task, tuned.null_threshold, examples, predictions)
    assert (figures["f1"], figures["exact_match"]) == pytest.approx((scores.f1, scores.exact_match))
    if 0 < impossible.sum() < size:
        kept = tuned.metrics(
            *([x for x, no in zip(column, impossible, strict=True) if not no] for column in (examples, predictions))
        )
        assert figures["has_answer_f1"] == pytest.approx(kept["f1"])
        assert figures["has_answer_exact_match"] == pytest.approx(kept["exact_match"])
        silent = [p.margin <= tuned.null_threshold for p, no in zip(predictions, impossible, strict=True) if no]
        assert figures["no_answer_exact_match"] == pytest.approx(np.mean(silent))
    else:
        assert list(figures) == ["f1", "exact_match"]


def test_without_unanswerable_questions_nothing_is_tuned_and_all_are_answered():
    examples = [make_example("q", "bread"), make_example("r", None)]
    predictions = [make_prediction("bread", -50.0), make_prediction("book", -50.0)]
    task = AnsweringTask.of(examples[:1])
    assert task.null_threshold is None
    assert task.with_best_threshold(examples, predictions) is task
    # a test file may have unanswerable questions all the same: they are wrong, and counted
    assert task.metrics(examples, predictions) == {
        "f1": 0.5,
        "exact_match": 0.5,
        "has_answer_f1": 1.0,
        "has_answer_exact_match": 1.0,
        "no_answer_exact_match": 0.0,
    }


def test_chinese_answers_are_scored_by_the_character():
    context = "北京是中国的首都，人口两千万。"
    examples = [make_example("哪里", "中国的首都", context), make_example("多少", "两千万", context)]
    task = AnsweringTask.of(examples)
    assert task.scoring == "cmrc"
    assert AnsweringTask.of(examples, scoring="squad").scoring == "squad"
    english = AnsweringTask.of([make_example("who", "man")])
    assert (english.scoring, english.max_answer_tokens, task.max_answer_tokens) == ("squad", 30, 100)
    assert AnsweringTask.of(examples, max_answer_tokens=7).max_answer_tokens == 7
    # 中国 of 中国的首都: 2 common characters of 2 and of 5; the other is exact but for its full stop
    figures = task.metrics(examples, [make_prediction("中国", 1.0), make_prediction("两千万。", 1.0)])
    assert figures == pytest.approx({"f1": (2 * 2 / 7 + 1) / 2, "exact_match": 0.5})


def test_silence_is_right_where_there_is_no_chinese_answer():
    context = "北京是中国的首都。"
    examples = [
        make_example("哪里", "北京", context),
        make_example("为何", None, context),
        make_example("谁", None, context),
    ]
    predictions = [make_prediction("北京", 2.0), make_prediction("首都", -2.0), make_prediction("中国", 3.0)]
    task = AnsweringTask.of(examples)
    assert task.scoring == "cmrc"
    assert task.metrics(examples, predictions) == pytest.approx(
        {
            "f1": 2 / 3,
            "exact_match": 2 / 3,
            "has_answer_f1": 1.0,
            "has_answer_exact_match": 1.0,
            "no_answer_exact_match": 0.5,
        }
    )


def test_an_evaluation_shows_what_is_far_off_and_sure():
    examples = [
        make_example("right", "bread"),
        make_example("near", "reads a book"),
        make_example("far", "the man"),
        make_example("farther", "woman"),
        make_example("silent", "man eats"),
        make_example("talkative", None),
    ]
    predictions = [
        make_prediction("bread", 5.0),
        make_prediction("a book", 5.0, 0.99),
        make_prediction("bread", 5.0, 0.6),
        make_prediction("book", 5.0, 0.9),
        make_prediction("man", -5.0, 0.2),
        make_prediction("woman", 5.0, 0.7),
    ]
    task = AnsweringTask(null_threshold=0.0)
    scores = task.evaluate(examples, predictions)
    assert scores.metrics == task.metrics(examples, predictions)
    assert list(scores.intervals) == ["f1", "exact_match"]
    for name, interval in scores.intervals.items():
        assert interval.estimate == pytest.approx(scores.metrics[name])
        assert interval.low <= interval.estimate <= interval.high
    shown = [(m.text, m.expected, m.predicted, pytest.approx(m.confidence)) for m in scores.mistakes]
    # all wrong ones by how sure they are ("no answer" is 0.8 likely where the span is 0.2), then the half right one
    assert shown == [
        ("farther", "woman", "book", 0.9),
        ("silent", "man eats", "(no answer)", 0.8),
        ("talkative", "(no answer)", "woman", 0.7),
        ("far", "the man", "bread", 0.6),
        ("near", "reads a book", "a book", 0.99),
    ]


def test_all_true_answers_count_and_are_shown():
    example = QuestionExample("1", "q", CONTEXT, (TrueAnswer("man", 4), TrueAnswer("bread", 13), TrueAnswer("man", 4)))
    task = AnsweringTask()
    assert task.metrics([example], [make_prediction("bread", 1.0)])["exact_match"] == 1.0
    assert task.evaluate([example], [make_prediction("book", 1.0)]).mistakes[0].expected == "man / bread"


def test_a_description_says_all():
    task = AnsweringTask(64, 12, "cmrc", -1.25)
    assert AnsweringTask.from_description(json.loads(json.dumps(task.describe()))) == task
    assert AnsweringTask.from_description(json.loads(json.dumps(AnsweringTask().describe()))) == AnsweringTask()


@pytest.mark.parametrize(
    "changes",
    [{"stride": -1}, {"max_answer_tokens": 0}, {"scoring": "bleu"}, {"null_threshold": math.nan}],
)
def test_impossible_settings_are_refused(changes):
    with pytest.raises(ConfigError):
        AnsweringTask(**changes)


def test_examples_that_cannot_be_learned_from_are_refused(tiny_model):
    tokenizer = WordPieceTokenizer.load(tiny_model)
    with pytest.raises(InputError, match="no question of the training file has an answer"):
        AnsweringTask.of([make_example("man", None)])
    dropped = make_example("man", "\u200b", "the man \u200b eats", identity="q17")
    with pytest.raises(InputError, match="question 'q17': its answer .* characters that the tokenizer drops"):
        AnsweringTask().encode(tokenizer, [dropped], 32)
    with pytest.raises(InputError, match="leaves no room for its passage among the 8"):
        AnsweringTask().encode(tokenizer, [make_example("the man eats bread .", "bread")], 8)


def test_a_classifier_to_start_from_leaves_no_labels_behind(tiny_model, tmp_path):
    """Another library builds as many outputs as there are labels; a span reader has two."""
    names = {"id2label": {0: "a", 1: "b", 2: "c"}, "problem_type": "single_label_classification"}
    BertForSequenceClassification.from_pretrained(tiny_model, new_heads=True, **names).save_pretrained(tmp_path / "nli")
    model = AnsweringTask().build(tmp_path / "nli", FineTuningSettings())
    model.save_pretrained(tmp_path / "reader")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "reader")
    assert theirs.qa_outputs.weight.shape == (2, model.config.hidden_size)
    assert model.config.problem_type is None
