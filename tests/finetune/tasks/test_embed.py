"""Sentence vectors: batches, learning, metrics, folders that sentence-transformers reads, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import sentence_transformers.models
import torch
from scipy import stats
from sklearn import metrics as reference

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.related import CorpusPassage, JudgedQuery, RelatedTexts
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.job import evaluate
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import load_task
from bertsmith.finetune.tasks.embed import EmbeddingTask
from bertsmith.inference import load_pipeline
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model.family import families
from bertsmith.seeding import generator
from bertsmith.tokenizer import WordPieceTokenizer
from typed_command import typed

SETTINGS = FineTuningSettings(epochs=24, batch_size=4, learning_rate=2e-3, precision="float32")
CPU = InferenceConfig("cpu", "float32")
WORDS = {"man": "eats bread", "woman": "the book", "book": "a bread !", "bread": "reads ."}
PAIRS = [
    RelatedTexts(f"{before}{word}{after}", text)
    for word, text in WORDS.items()
    for before, after in (("the ", ""), ("a ", ""), ("the ", " !"), ("a ", " ."))
]


def test_queries_learn_to_find_their_texts(tiny_model, tmp_path):
    task = EmbeddingTask.of(PAIRS)
    result = fine_tune(task, tiny_model, PAIRS, PAIRS, tmp_path / "run", SETTINGS, test=PAIRS)
    before = task.predict(task.build(tiny_model, SETTINGS), WordPieceTokenizer.load(tiny_model), PAIRS, CPU)
    assert task.metrics(PAIRS, before)["mrr"] < 0.7 < 0.95 < result.test.metrics["mrr"]
    assert list(result.dev.metrics) == ["ndcg_at_10", "mrr", "recall_at_1", "recall_at_10", "map"]
    assert result.dev.intervals.keys() == result.dev.metrics.keys()
    again = fine_tune(task, tiny_model, PAIRS, PAIRS, tmp_path / "run", SETTINGS, test=PAIRS)
    assert again.dev == result.dev


def test_an_interrupted_run_ends_with_the_same_bits(tiny_model, tmp_path, monkeypatch):
    from bertsmith.train.trainer import BertTrainer

    task = EmbeddingTask.of(PAIRS, mini_batch_size=3)
    whole = fine_tune(task, tiny_model, PAIRS, PAIRS, tmp_path / "whole", SETTINGS)
    train_batch = BertTrainer.train_batch

    def dies(trainer, *parts):
        if trainer.step == 14:
            raise KeyboardInterrupt
        return train_batch(trainer, *parts)

    with monkeypatch.context() as patch:
        patch.setattr(BertTrainer, "train_batch", dies)
        with pytest.raises(KeyboardInterrupt):
            fine_tune(task, tiny_model, PAIRS, PAIRS, tmp_path / "killed", SETTINGS)
    resumed = fine_tune(task, tiny_model, PAIRS, PAIRS, tmp_path / "killed", SETTINGS)
    assert resumed.dev == whole.dev
    names = [path / "model" / "model.safetensors" for path in (tmp_path / "whole", tmp_path / "killed")]
    assert names[0].read_bytes() == names[1].read_bytes()


def encoded(examples, tiny_model, **options):
    task = EmbeddingTask.of(examples, **options)
    return task, task.encode(WordPieceTokenizer.load(tiny_model), examples, 32)


def test_no_batch_holds_two_copies_of_a_positive(tiny_model):
    task, rows = encoded(PAIRS, tiny_model)
    seen = []
    for epoch in range(20):
        batches = task.batches(rows, 3, generator(0, "test", epoch))
        assert sorted(number for batch in batches for number in batch) == list(range(16))
        assert len(batches) == 6
        for batch in batches:
            assert len({PAIRS[number].positive for number in batch}) == len(batch) <= 3
        seen.append(batches)
    assert seen[0] != seen[1]
    # four different positives at most, whatever is asked for
    assert max(map(len, task.batches(rows, 16, generator(0, "test")))) == 4


def test_texts_of_a_class_are_paired_and_no_negatives(tiny_model):
    examples = [LabelledText(f"the {word} {'eats ' * n}", None, word) for word in WORDS for n in range(5)]
    task, rows = encoded(examples, tiny_model)
    batches = task.batches(rows, 8, generator(0, "test"))
    assert len(batches) == 2
    assert len({number for batch in batches for number in batch}) == 16
    for numbers in batches:
        batch = task.batch([rows[number] for number in numbers])
        count = batch.num_queries
        assert count == len(numbers) // 2
        queries, positives = batch.identities[:count], batch.identities[count:]
        assert torch.equal(queries, positives)
        same = queries[:, None] == positives
        assert torch.equal(batch.false_negatives, same.fill_diagonal_(False))


def test_the_same_query_with_another_text_is_no_negative(tiny_model):
    examples = [
        RelatedTexts("a man", "eats"),
        RelatedTexts("a man", "reads", ("eats", "a book")),
        RelatedTexts("b", "c"),
    ]
    task, rows = encoded(examples, tiny_model)
    batch = task.batch(rows)
    assert batch.owners.tolist() == [1, 1]
    assert batch.false_negatives.int().tolist() == [[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("examples", "loss"),
    [
        (PAIRS, "info-nce"),
        ([ScoredText("a", "b", 0.0), ScoredText("a", "c", 4.0)], "cosent"),
        ([LabelledText(t, None, t[0]) for t in ("a b", "a c", "b c", "b d")], "info-nce"),
        ([RelatedTexts("a", "b", ("c",), (9.0, -3.0)), RelatedTexts("b", "c", ("a",), (1.0, 0.0))], "margin-mse"),
        (
            [CorpusPassage("1", "a"), CorpusPassage("2", "b"), JudgedQuery("q", "a b", (("1", 1.0), ("2", 1.0)))],
            "info-nce",
        ),
    ],
)
def test_the_kind_of_data_chooses_the_loss(examples, loss, tiny_model):
    task, rows = encoded(examples, tiny_model)
    assert task.loss_name == loss
    model = task.build(tiny_model, SETTINGS)
    for numbers in task.batches(rows, 4, generator(0, "test")):
        found = task.objective(model, task.batch([rows[number] for number in numbers])).loss
        assert torch.isfinite(found)
    assert EmbeddingTask.from_description(task.describe()) == task


def test_scores_are_brought_to_the_range_from_0_to_1(tiny_model):
    _, rows = encoded([ScoredText("a", "b", 1.0), ScoredText("a", "c", 5.0), ScoredText("b", "c", 2.0)], tiny_model)
    assert [row.label[1] for row in rows] == [[0.0], [1.0], [0.25]]
    _, rows = encoded([ScoredText("a", "b", 0.25), ScoredText("a", "c", 0.75)], tiny_model)
    assert [row.label[1] for row in rows] == [[0.25], [0.75]]


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def test_correlations_are_those_of_scipy():
    draws = np.random.default_rng(0)
    examples = [ScoredText("a", "b", float(score)) for score in draws.integers(0, 6, 80)]
    vectors = [unit(draws.standard_normal((2, 8))) for _ in examples]
    cosines = [float(pair[0] @ pair[1]) for pair in vectors]
    scores = [example.score for example in examples]
    found = EmbeddingTask().evaluate(examples, vectors)
    assert list(found.metrics) == ["spearman", "pearson"]
    assert found.metrics["spearman"] == pytest.approx(stats.spearmanr(scores, cosines).statistic)
    assert found.metrics["pearson"] == pytest.approx(stats.pearsonr(scores, cosines).statistic)

    binary = [ScoredText("a", "b", float(example.score > 2)) for example in examples]
    found = EmbeddingTask().metrics(binary, vectors)
    expected = reference.average_precision_score([example.score for example in binary], cosines)
    assert next(iter(found.items())) == ("average_precision", pytest.approx(expected))


def test_retrieval_is_over_all_texts_of_the_file():
    """Texts x, y, z on the axes; one query twice, with two right texts. By hand."""
    axes = np.eye(3, dtype=np.float32)
    examples = [RelatedTexts("q", "x"), RelatedTexts("q", "y"), RelatedTexts("r", "z", ("x",))]
    q, r = unit(np.array([0.5, 0.2, 0.9])), unit(np.array([0.9, 0.0, 0.8]))
    vectors = [np.stack([q, axes[0]]), np.stack([q, axes[1]]), np.stack([r, axes[2], axes[0]])]
    found = EmbeddingTask().evaluate(examples, vectors)
    assert found.metrics["mrr"] == pytest.approx(1 / 2)
    assert found.metrics["recall_at_1"] == 0.0
    assert found.metrics["map"] == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1 / 2) / 2)
    assert [(m.text, m.expected, m.predicted) for m in found.mistakes] == [("q", "x", "z"), ("r", "z", "x")]


def test_grades_of_a_corpus_count():
    axes = np.eye(2, dtype=np.float32)
    examples = [CorpusPassage("1", "a"), CorpusPassage("2", "b"), JudgedQuery("q", "c", (("1", 1.0), ("2", 3.0)))]
    vectors = [axes[:1], axes[1:], unit(np.array([[0.9, 0.1]]))]
    found = EmbeddingTask().metrics(examples, vectors)
    assert found["ndcg_at_10"] == pytest.approx((1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3)))
    with pytest.raises(InputError, match="no query has a right text"):
        EmbeddingTask().metrics([examples[0], JudgedQuery("q", "c", (("1", 0.0),))], [axes[:1], axes[1:]])


def test_queries_of_a_corpus_are_told_apart_by_their_ids_and_do_not_find_themselves():
    """Two queries of the same words with different answers; the second also stands in the corpus. By hand."""
    axes = np.eye(3, dtype=np.float32)
    corpus = [CorpusPassage("1", "a"), CorpusPassage("2", "b"), CorpusPassage("r", "c")]
    judged = [JudgedQuery("q", "c", (("1", 1.0),)), JudgedQuery("r", "c", (("2", 1.0),))]
    vectors = [*(axis[None] for axis in axes), *[unit(np.array([[0.5, 0.2, 0.9]]))] * 2]
    found = EmbeddingTask().evaluate([*corpus, *judged], vectors)
    assert found.metrics["mrr"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert [(m.text, m.expected, m.predicted) for m in found.mistakes] == [("c", "a", "c"), ("c", "b", "a")]
    # 判定为答案的，即使就是查询自己，也照常算
    itself = JudgedQuery("r", "c", (("r", 1.0),))
    assert EmbeddingTask().metrics([*corpus, itself], vectors[:4])["recall_at_1"] == 1.0


def test_classes_are_scored_by_their_clusters():
    axes = np.eye(3, dtype=np.float32)
    examples = [LabelledText(f"{n} {axis}", None, str(axis)) for n in range(4) for axis in range(3)]
    vectors = [axes[int(example.label)][None] for example in examples]
    assert EmbeddingTask().metrics(examples, vectors) == {"v_measure": pytest.approx(1.0)}


@pytest.mark.parametrize("name", sorted(families()))
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_gives_the_same_vectors(name, pooling, tiny_model, tmp_path):
    """Every family; short and long texts, and with the prompts that the folder names."""
    family = families()[name]
    tokenizer = WordPieceTokenizer.load(tiny_model)
    torch.manual_seed(1)
    config = family.config.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=40, pad_token_id=0)
    start = tmp_path / "start"
    family.backbone(config, need_pooler=False).save_pretrained(start)
    tokenizer.save(start)
    task = EmbeddingTask.of(PAIRS, pooling=pooling, query_prompt="read : ", passage_prompt="a book ! ")
    settings = FineTuningSettings(epochs=1, batch_size=8, max_length=16, precision="float32")
    fine_tune(task, start, PAIRS, PAIRS, tmp_path / "run", settings)
    folder = tmp_path / "run" / "model"
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    ours = load_pipeline("embed", folder, precision="float32", device="cpu")
    assert theirs.max_seq_length == ours.max_length == 16
    assert theirs.similarity_fn_name == ours.similarity == "cosine"
    texts = ["the man eats", "a book", "the woman reads a book . " * 9]
    np.testing.assert_allclose(ours(texts), theirs.encode(texts), atol=1e-5)
    for prompt in ("query", "passage"):
        np.testing.assert_allclose(ours(texts, prompt=prompt), theirs.encode(texts, prompt_name=prompt), atol=1e-5)
    np.testing.assert_allclose(ours(texts, prompt="query"), theirs.encode_query(texts), atol=1e-5)
    np.testing.assert_allclose(ours(texts, prompt="passage"), theirs.encode_document(texts), atol=1e-5)
    np.testing.assert_allclose(ours.compare(texts), theirs.similarity(*[theirs.encode(texts)] * 2), atol=1e-5)


def test_a_folder_of_sentence_transformers_is_trained_on_with_its_pooling_and_prompts(tiny_model, tmp_path):
    parts = sentence_transformers.models
    encoder = parts.Transformer(str(tiny_model))
    pooling = parts.Pooling(encoder.get_word_embedding_dimension(), pooling_mode="cls")
    theirs = sentence_transformers.SentenceTransformer(
        modules=[encoder, pooling], device="cpu", prompts={"query": "read : ", "passage": "a book ! "}
    )
    theirs.save(str(tmp_path / "theirs"))
    task = EmbeddingTask.of(PAIRS, query_prompt="").starting_from(tmp_path / "theirs")
    assert (task.pooling, task.query_prompt, task.passage_prompt) == ("cls", "", "a book ! ")
    ours = load_pipeline("embed", tmp_path / "theirs", precision="float32")
    texts = ["the man eats", "a book"]
    expected = theirs.encode(texts, prompt_name="passage", normalize_embeddings=True)
    np.testing.assert_allclose(ours(texts, prompt="passage"), expected, atol=1e-5)


def test_training_keeps_what_a_folder_says_of_limits_prompts_and_numbers(tiny_model, tmp_path):
    """`sentence-transformers` cuts, prompts and truncates the trained folder as it did the one before."""
    encoder = sentence_transformers.models.Transformer(str(tiny_model), max_seq_length=9)
    pooling = sentence_transformers.models.Pooling(encoder.get_word_embedding_dimension())
    asked = {"prompts": {"any": "a book ! "}, "default_prompt_name": "any", "truncate_dim": 16}
    theirs = sentence_transformers.SentenceTransformer(modules=[encoder, pooling], device="cpu", **asked)
    theirs.save(str(tmp_path / "theirs"))
    usage = tmp_path / "theirs" / "config_sentence_transformers.json"
    usage.write_text(json.dumps({**json.loads(usage.read_text()), "truncate_dim": 16}), encoding="utf-8")
    run_folder, once = tmp_path / "run", FineTuningSettings(epochs=1, precision="float32")
    found = fine_tune(EmbeddingTask.of(PAIRS), tmp_path / "theirs", PAIRS, PAIRS, run_folder, once)
    assert json.loads((run_folder / "model" / "task.json").read_text())["max_length"] == 9
    trained = sentence_transformers.SentenceTransformer(str(run_folder / "model"), device="cpu")
    assert (trained.max_seq_length, trained.prompts[trained.default_prompt_name]) == (9, "a book ! ")
    texts = ["the man eats bread . the woman reads a book !", "a book"]
    ours = load_pipeline("embed", run_folder / "model", precision="float32")(texts)
    assert ours.shape == (2, 16)
    expected = trained.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    again = evaluate(run_folder / "model", [{"query": one.query, "text": one.positive} for one in PAIRS])
    assert again.metrics["ndcg_at_10"] == pytest.approx(found.dev.metrics["ndcg_at_10"], abs=1e-6)
    plain = fine_tune(EmbeddingTask.of(PAIRS), tiny_model, PAIRS, PAIRS, tmp_path / "plain", once)
    assert plain.epoch == 1
    assert "dims" not in json.loads((tmp_path / "plain" / "model" / "task.json").read_text())


def test_the_commands(tiny_model, tmp_path, capsys):
    data, out = tmp_path / "pairs.tsv", tmp_path / "run"
    data.write_text("".join(f"{pair.query}\t{pair.positive}\n" for pair in PAIRS), encoding="utf-8")
    recipe = ["--epochs", 24, "--batch-size", 4, "--learning-rate", 2e-3, "--precision", "float32"]
    command = ["finetune", "embed", "--model", tiny_model, "--train", data, "--dev", data, "--out", out, *recipe]
    reading = ["--pair-column", 1]
    assert "dev: ndcg_at_10" in typed(capsys, *command, *reading, "--query-prompt", "read ", "--matryoshka", 16)
    model = out / "model"
    assert "turns a text into a vector" in (model / "README.md").read_text(encoding="utf-8")
    assert load_task(model)[0].matryoshka == (16,)
    assert "map 1.000" in typed(capsys, "evaluate", "--model", model, "--file", data, *reading)
    vectors, text = tmp_path / "v.npy", tmp_path / "text.txt"
    lines = [pair.query for pair in PAIRS]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    typed(capsys, "embed", text, "--model", model, "--out", vectors, "--prompt", "query")
    np.testing.assert_allclose(np.load(vectors), load_pipeline("embed", model)(lines, prompt="query"), atol=1e-5)
    said = typed(capsys, "embed", text, "--model", model, "--out", tmp_path / "w.npy", "--prompt", "title", code=2)
    assert "names no prompt 'title'; it has query" in said
    record = json.loads(typed(capsys, "predict", "--model", model, "the man").partition("\t")[0])
    np.testing.assert_allclose(record, load_pipeline("embed", model)(["the man"])[0], atol=1e-5)


def test_an_encoder_that_was_never_fine_tuned_is_scored(minilm_folder, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("sentence1,sentence2,score\na cat,a kitten,4.5\na cat,the law,0\na car,a truck,3\n")
    assert evaluate(minilm_folder, path).metrics["spearman"] == pytest.approx(1.0)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_an_encoder_is_scored_as_its_folder_compares(tiny_model, tmp_path, similarity):
    says = {"similarity_fn_name": similarity}
    (tiny_model / "config_sentence_transformers.json").write_text(json.dumps(says))
    pairs, scored = tmp_path / "pairs.jsonl", tmp_path / "scored.tsv"
    given = [(pair.query, pair.positive) for pair in PAIRS]
    pairs.write_text("".join(json.dumps({"query": query, "text": text}) + "\n" for query, text in given))
    scored.write_text("text\tpair\tscore\n" + "".join(f"{a}\t{b}\t{n}\n" for n, (a, b) in enumerate(given)))
    pipeline = load_pipeline("embed", tiny_model, precision="float32")
    texts = list(dict.fromkeys(text for _, text in given))
    compared = pipeline.compare([query for query, _ in given], texts)
    right = [texts.index(text) for _, text in given]
    first = np.mean([row.argmax() == place for row, place in zip(compared, right, strict=True)])
    found = evaluate(tiny_model, pairs, precision="float32").metrics
    assert found["recall_at_1"] == pytest.approx(first)
    expected = stats.spearmanr([row[place] for row, place in zip(compared, right, strict=True)], range(len(given)))
    assert evaluate(tiny_model, scored, precision="float32").metrics["spearman"] == pytest.approx(expected.statistic)


@pytest.mark.parametrize("kind", ["lora", "bottleneck"])
def test_adapters_learn_vectors_too(kind, tiny_model, tmp_path):
    settings = FineTuningSettings(epochs=2, batch_size=4, learning_rate=1e-2, precision="float32", adapter=kind)
    result = fine_tune(EmbeddingTask.of(PAIRS), tiny_model, PAIRS, PAIRS, tmp_path / "run", settings)
    path = tmp_path / "pairs.tsv"
    path.write_text("query\tpositive\n" + "".join(f"{pair.query}\t{pair.positive}\n" for pair in PAIRS))
    found = evaluate(tiny_model, path, adapter=tmp_path / "run" / "adapter", precision="float32").details
    assert found.metrics == pytest.approx(result.dev.metrics)
    assert Path(tmp_path / "run" / "model").is_dir() == (kind == "lora")


def test_what_cannot_be_learned_from_is_refused(tiny_model):
    scored = [ScoredText("a", "b", 1.0), ScoredText("a", "c", 1.0)]
    for examples, options, error, message in (
        ([RelatedTexts("a", "b"), RelatedTexts("c", "b")], {}, InputError, "one positive only"),
        (scored, {}, InputError, "scores are all the same"),
        ([LabelledText("a", None, "x"), LabelledText("b", None, "x")], {}, InputError, "one class only"),
        ([LabelledText("a", None, "x"), LabelledText("b", None, "y")], {}, InputError, "one text of each"),
        (PAIRS, {"loss": "cosent"}, ConfigError, "cosent does not learn from pairs of a query and a text"),
        (PAIRS, {"loss": "margin-mse"}, ConfigError, "margin-mse does not learn from"),
        (PAIRS, {"loss": "triplet"}, ConfigError, "loss 'triplet' is unknown"),
        (PAIRS, {"temperature": 0.0}, ConfigError, "temperature 0.0 must be"),
        (PAIRS, {"matryoshka": (0,)}, ConfigError, "different positive numbers"),
    ):
        with pytest.raises(error, match=message):
            EmbeddingTask.of(examples, **options)
    with pytest.raises(ConfigError, match="--matryoshka 65: a vector of this model has 64 numbers"):
        EmbeddingTask.of(PAIRS, matryoshka=(65,)).build(tiny_model, SETTINGS)
    with pytest.raises(InputError, match="the dev file: all scores are the same"):
        EmbeddingTask.of(PAIRS).check_dev(scored)


def test_a_teacher_is_learned_from(tiny_model, minilm_folder, tmp_path):
    """Its cosines, whatever its width; only the training texts are shown to it."""
    task = EmbeddingTask.of(PAIRS, teacher=str(minilm_folder))
    assert task.loss_name == "similarities"
    rows = task.encode(WordPieceTokenizer.load(tiny_model), PAIRS, 32)
    rows = task.add_targets(rows, PAIRS, CPU)
    batch = task.batch(rows)
    teacher = load_pipeline("embed", minilm_folder, device="cpu")
    expected = teacher([*(pair.query for pair in PAIRS), *(pair.positive for pair in PAIRS)])
    np.testing.assert_allclose(batch.targets, expected, atol=1e-5)
    result = fine_tune(task, tiny_model, PAIRS, PAIRS, tmp_path / "run", SETTINGS)
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in log if row["kind"] == "train"]
    assert losses[-1] < 0.5 * losses[0]
    assert result.dev.metrics


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_a_ranker_teaches_margins(tiny_model, tmp_path, activation):
    from bertsmith.model import BertForSequenceClassification

    torch.manual_seed(0)
    ranker = BertForSequenceClassification.from_pretrained(tiny_model, new_heads=True, id2label={0: "relevance"})
    ranker.save_pretrained(tmp_path / "ranker")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "ranker")
    said = {"activation_fn": f"torch.nn.{activation}"}
    (tmp_path / "ranker" / "config_sentence_transformers.json").write_text(json.dumps(said))
    examples = [RelatedTexts("the man", "eats", ("reads", "a book")), RelatedTexts("a woman", "reads")]
    task = EmbeddingTask.of(examples, teacher=str(tmp_path / "ranker"))
    assert task.loss_name == "margin-mse"
    rows = task.add_targets(task.encode(WordPieceTokenizer.load(tiny_model), examples, 32), examples, CPU)
    pipeline = load_pipeline("rank", tmp_path / "ranker")
    assert pipeline.activation == activation
    # 差距是 [0, 1] 里两个分数之差，不论老师的分数经不经 sigmoid
    scores = pipeline.logits(["the man"] * 3, ["eats", "reads", "a book"])[:, 0].sigmoid().tolist()
    assert rows[0].label[1] == pytest.approx([scores[0] - scores[1], scores[0] - scores[2]], abs=1e-5)
    assert rows[1].label[1] == []
    with pytest.raises(ConfigError, match="has no negatives for it to judge"):
        EmbeddingTask.of(PAIRS, teacher=str(tmp_path / "ranker"))
    with pytest.raises(ConfigError, match="info-nce does not learn from the teacher"):
        EmbeddingTask.of(PAIRS, teacher=str(tiny_model), loss="info-nce")


def test_text_without_labels_is_learned_from(tiny_model, tmp_path, capsys):
    texts, out = tmp_path / "texts", tmp_path / "run"
    texts.mkdir()
    words = ["man", "woman", "book", "bread"]
    for number in range(40):
        story = [
            f"The {words[number % 4]} {verb} {number}." for verb in ("eats", "reads", "reads a book", "eats bread")
        ]
        (texts / f"{number}.txt").write_text(" ".join(story) + "\n")
    command = ["finetune", "embed", "--model", tiny_model, "--out", out, "--epochs", 1, "--precision", "float32"]
    said = typed(capsys, *command, "--unlabelled", texts)
    assert "dev: ndcg_at_10" in said
    assert said.splitlines()[0] == f"{texts}: 40 .txt; 0.0 MB; utf-8; documents: a file is one"
    assert "texts" in (out / "model" / "README.md").read_text(encoding="utf-8")
    assert "What was read" not in (out / "report.html").read_text(encoding="utf-8")
    for more, message in (
        ([], "give --train, with --dev where you have it, or --unlabelled"),
        (["--train", "a.tsv", "--unlabelled", texts], "give --train, with --dev where you have it, or --unlabelled"),
    ):
        assert message in typed(capsys, *command[:5], tmp_path / "other", *more, code=2)
    data = tmp_path / "pairs.tsv"
    data.write_text("query\tpositive\na\tb\nc\td\n")
    labelled = [*command[:5], tmp_path / "other", "--train", data, "--dev", data]
    assert "give --unlabelled, or leave --positives out" in typed(capsys, *labelled, "--positives", "same", code=2)
    classify = ["finetune", "classify", *command[2:5], tmp_path / "other", "--unlabelled", texts]
    assert "classify learns from labels" in typed(capsys, *classify, code=2)
