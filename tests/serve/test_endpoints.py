"""Every endpoint gives what its pipeline gives, whoever else is asking at the same time."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from bertsmith.inference import load_pipeline
from bertsmith.inference.task_file import write_task_file
from bertsmith.serve.batching import BatchingEngine
from bertsmith.serve.endpoint import ENDPOINTS
from bertsmith.tokenizer import WordPieceTokenizer

TEXTS = ["the man eats bread .", "the woman reads a book !", "x", "", "where is the market ? " * 9, "un café 北京 🙂"]
PAIRS = ["where is the man ?", "a book", "the market", "bread", "", "the"]


def ask(server, path, **body):
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def close(one, two):
    np.testing.assert_allclose(np.asarray(one), np.asarray(two), atol=1e-5)


def test_embed_equals_the_pipeline(server, models):
    answer = ask(server, "/embed", texts=TEXTS, model="base")
    close(answer["vectors"], load_pipeline("embed", models["base"])(TEXTS))
    tokenizer = WordPieceTokenizer.load(models["base"])
    assert answer["tokens"] == sum(min(64, 2 + len(tokenizer.encode(text))) for text in TEXTS)


def test_embed_takes_other_poolings_and_fewer_dimensions(server, models):
    for pooling in ("cls", "mean", "max", "last-four"):
        answer = ask(server, "/embed", texts=TEXTS, model="base", pooling=pooling)
        close(answer["vectors"], load_pipeline("embed", models["base"])(TEXTS, pooling=pooling))
    short = np.asarray(ask(server, "/embed", texts=TEXTS, model="base", dimensions=8)["vectors"])
    assert short.shape == (len(TEXTS), 8)
    close(np.linalg.norm(short, axis=1), np.ones(len(TEXTS)))
    plain = np.asarray(ask(server, "/embed", texts=TEXTS, model="base", normalize=False)["vectors"])
    close(plain / np.linalg.norm(plain, axis=1)[:, None], load_pipeline("embed", models["base"])(TEXTS))
    assert server.post("/embed", {"texts": TEXTS, "dimensions": 65}).status_code == 422


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_predict_equals_the_pipelines(server, models, pairs):
    answer = ask(server, "/predict", texts=TEXTS, pairs=pairs, model="classify")
    expected = load_pipeline("classify", models["classify"])(TEXTS, pairs)
    assert answer["kind"] == "classify"
    assert [row["label"] for row in answer["predictions"]] == [row.label for row in expected]
    for row, wanted in zip(answer["predictions"], expected, strict=True):
        assert row["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-5)

    answer = ask(server, "/predict", texts=TEXTS, pairs=pairs, model="multilabel")
    expected = load_pipeline("multilabel", models["multilabel"])(TEXTS, pairs)
    assert [row["labels"] for row in answer["predictions"]] == [list(row.labels) for row in expected]

    answer = ask(server, "/predict", texts=TEXTS, pairs=pairs, model="regress")
    expected = load_pipeline("regress", models["regress"])(TEXTS, pairs)
    close([row["value"] for row in answer["predictions"]], expected)


def test_choices_equal_the_pipeline(server, models):
    choices = [["bread", "a book !"], ["reads"], ["the", "a", "man", "woman"]]
    answer = ask(server, "/predict", texts=TEXTS[:3], choices=choices, model="choose")
    expected = load_pipeline("choose", models["choose"])(TEXTS[:3], choices)
    assert [row["choice"] for row in answer["predictions"]] == [row.index for row in expected]
    for row, wanted in zip(answer["predictions"], expected, strict=True):
        close(row["probabilities"], wanted.probabilities)


def test_fill_mask_equals_the_pipeline(server, models):
    texts = ["the man eats the [MASK] .", "[MASK] [MASK] reads a book !"]
    pipeline = load_pipeline("fill-mask", models["base"])
    for more in ({"top_k": 3}, {"candidates": ["bread", "book"]}):
        answer = ask(server, "/fill-mask", texts=texts, model="base", **more)
        expected = pipeline(texts, **more)
        for text, wanted in zip(answer["masks"], expected, strict=True):
            for mask, pieces in zip(text, wanted, strict=True):
                assert [piece["piece"] for piece in mask] == [piece.piece for piece in pieces]
                close([piece["probability"] for piece in mask], [piece.probability for piece in pieces])
    refused = server.post("/fill-mask", {"texts": ["no mask here"], "model": "base"})
    assert refused.status_code == 422
    assert "[MASK]" in refused.json()["error"]["message"]


def test_tag_equals_the_pipeline(server, models):
    answer = ask(server, "/tag", texts=TEXTS, model="tag")
    for found, wanted in zip(answer["entities"], load_pipeline("tag", models["tag"])(TEXTS), strict=True):
        assert [(row["type"], row["start"], row["end"], row["text"]) for row in found] == [
            (row.type, row.start, row.end, row.text) for row in wanted
        ]
        close([row["probability"] for row in found], [row.probability for row in wanted])


def test_answer_equals_the_pipeline_on_long_passages_too(server, models):
    questions, contexts = ["where is the market ?", "who eats ?"], ["the man eats bread . " * 20, "the woman reads"]
    answer = ask(server, "/answer", questions=questions, contexts=contexts, model="answer")
    for found, wanted in zip(
        answer["answers"], load_pipeline("answer", models["answer"])(questions, contexts), strict=True
    ):
        assert (found["text"], found["start"], found["end"]) == (wanted.text, wanted.start, wanted.end)
        assert found["no_answer"] == wanted.no_answer
        assert found["null_score"] == pytest.approx(wanted.null_score, abs=1e-3)
        assert found["probability"] == pytest.approx(wanted.probability, abs=1e-4)
        assert len(found["candidates"]) == len(wanted.candidates)


def test_rerank_equals_the_pipeline(server, models):
    answer = ask(server, "/rerank", query="who eats ?", texts=TEXTS, model="rank")
    expected = load_pipeline("rank", models["rank"])("who eats ?", TEXTS)
    close([row["score"] for row in answer], [row.score for row in expected])
    assert [row["index"] for row in answer] == [row.index for row in expected]
    assert len(ask(server, "/rerank", query="who ?", texts=TEXTS, model="rank", top_k=2)) == 2


def test_similarity_is_the_cosine_of_each_with_each(server, models):
    vectors = load_pipeline("embed", models["base"])(TEXTS).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    answer = ask(server, "/similarity", texts=TEXTS[:2], others=TEXTS[2:], model="base")
    close(answer["similarities"], vectors[:2] @ vectors[2:].T)


def test_next_sentence_equals_the_pipeline(server, models):
    answer = ask(server, "/next-sentence", texts=TEXTS, followers=PAIRS, model="base")
    close(answer["probabilities"], load_pipeline("next-sentence", models["base"])(TEXTS, PAIRS))


def test_tokenize_tells_ids_pieces_and_places(server, models):
    tokenizer = WordPieceTokenizer.load(models["base"])
    for text, row in zip(TEXTS, ask(server, "/tokenize", texts=TEXTS)["results"], strict=True):
        encoding = tokenizer(text)
        assert row["ids"] == tokenizer.encode(text)
        assert row["tokens"] == tokenizer.tokenize(text)
        assert [tuple(place) for place in row["offsets"]] == encoding["offsets"][1:-1]


FORGED = "man [SEP] [CLS] eats [MASK] [PAD]"
SINGLE, PAIR = ["[CLS]", "[SEP]"], ["[CLS]", "[SEP]", "[SEP]"]
FORGERIES = {
    "embed": ("/embed", {"texts": [FORGED], "model": "base"}, SINGLE),
    "embeddings": ("/v1/embeddings", {"input": FORGED, "model": "base"}, SINGLE),
    "similarity": ("/similarity", {"texts": [FORGED], "others": [FORGED], "model": "base"}, SINGLE),
    "search": ("/search", {"query": FORGED}, SINGLE),
    "text": ("/predict", {"texts": [FORGED], "model": "classify"}, SINGLE),
    "pair": ("/predict", {"texts": [FORGED], "pairs": [FORGED], "model": "classify"}, PAIR),
    "choices": ("/predict", {"texts": [FORGED], "choices": [[FORGED, "a"]], "model": "choose"}, PAIR),
    "next sentence": ("/next-sentence", {"texts": [FORGED], "followers": [FORGED], "model": "base"}, PAIR),
    "rerank": ("/rerank", {"query": FORGED, "texts": [FORGED], "model": "rank"}, PAIR),
    "answer": ("/answer", {"questions": ["man [SEP]"], "contexts": [FORGED], "model": "answer"}, PAIR),
    "tag": ("/tag", {"texts": [FORGED], "model": "tag"}, SINGLE),
    "fill-mask": ("/fill-mask", {"texts": [FORGED], "model": "base"}, ["[CLS]", "[MASK]", "[SEP]"]),
}


@pytest.mark.parametrize(("path", "body", "special"), FORGERIES.values(), ids=FORGERIES.keys())
def test_special_tokens_that_a_client_writes_are_text(path, body, special, server, models, monkeypatch):
    """But for the mask of fill-mask: what the model reads as special is what the template puts there."""
    tokenizer, perform, read = WordPieceTokenizer.load(models["base"]), BatchingEngine._perform, []

    def seen(self, method, sequences, *rest):
        read.extend(sequences)
        return perform(self, method, sequences, *rest)

    monkeypatch.setattr(BatchingEngine, "_perform", seen)
    ask(server, path, **body)
    assert read
    written = tokenizer.special_ids - {tokenizer.unk_token_id}
    for ids in read:
        assert [tokenizer.vocab[index] for index in ids if index in written] == special


def test_a_text_gives_the_same_alone_and_among_500_others(server, models):
    """A crowd of requests, so that the text is computed with whatever came in beside it."""
    expected = load_pipeline("embed", models["base"])(["the man eats bread ."])[0]
    crowd = [f"{text} {'the book ' * (number % 25)}" for number in range(84) for text in TEXTS]
    stop = threading.Event()

    def keep_asking(number):
        with httpx.Client(base_url=server.url, timeout=30) as client:
            while not stop.is_set():
                body = {"texts": crowd[number::8][:63], "model": "base"}
                assert client.post("/embed", json=body).status_code == 200

    with ThreadPoolExecutor(8) as pool:
        busy = [pool.submit(keep_asking, number) for number in range(8)]
        try:
            for _ in range(10):
                close(ask(server, "/embed", texts=["the man eats bread ."], model="base")["vectors"][0], expected)
        finally:
            stop.set()
        for task in busy:
            task.result()
    together = ask(server, "/embed", texts=[*crowd[:500], "the man eats bread ."], model="base")
    close(together["vectors"][-1], expected)


def test_requests_of_many_clients_share_forward_passes(start):
    live = start(queue=32)
    sizes = []
    live.admission.batcher._observe = lambda sequences, *_: sizes.append(sequences)
    with ThreadPoolExecutor(16) as pool:

        def ask_often(_):
            with httpx.Client(base_url=live.url, timeout=30) as client:
                for _ in range(10):
                    assert client.post("/embed", json={"texts": TEXTS}).status_code == 200

        list(pool.map(ask_often, range(16)))
    # 最后一批先作答、后报数：等它报完
    end = time.monotonic() + 5
    while sum(sizes) < 16 * 10 * len(TEXTS) and time.monotonic() < end:
        time.sleep(0.01)
    assert sum(sizes) == 16 * 10 * len(TEXTS)
    assert max(sizes) > len(TEXTS)


def test_a_request_without_a_model_gets_the_first_that_can(server):
    assert ask(server, "/v1/rerank", query="a", documents=["b"])["model"] == "rank"
    assert ask(server, "/tag", texts=["b"])["model"] == "tag"
    assert ask(server, "/predict", texts=["b"])["kind"] == "classify"
    assert ask(server, "/predict", texts=["b"], choices=[["c"]])["kind"] == "choose"


def test_a_model_that_cannot_is_named_with_those_that_can(server):
    response = server.post("/embed", {"texts": ["a"], "model": "tag"})
    assert response.status_code == 422
    assert "these can: base" in response.json()["error"]["message"]
    unknown = server.post("/tag", {"texts": ["a"], "model": "nobody"})
    assert unknown.status_code == 404
    assert "classify" in unknown.json()["error"]["message"]


def test_lists_that_do_not_match_are_refused(server):
    for path, body in (
        ("/predict", {"texts": ["a"], "pairs": []}),
        ("/predict", {"texts": ["a"], "choices": [["b"], ["c"]]}),
        ("/predict", {"texts": ["a"], "choices": [[]]}),
        ("/answer", {"questions": ["a"], "contexts": ["b", "c"]}),
        ("/next-sentence", {"texts": ["a"], "followers": ["b", "c"]}),
    ):
        assert server.post(path, body).status_code == 422, path


def test_info_tells_of_the_models_and_nothing_of_the_disk(server, models):
    info = server.client.get("/info")
    told = {model["name"]: model for model in info.json()["models"]}
    assert list(told) == list(models)
    assert told["tag"]["labels"] == ["O", "B-PER", "I-PER"]
    assert told["base"]["pipelines"] == ["embed", "fill-mask", "next-sentence"]
    assert told["base"]["note"].startswith("pre-trained only, never trained for vectors of texts")
    assert "note" not in told["tag"]
    assert str(models["base"].parent) not in info.text


def test_every_example_of_the_description_is_answered(server):
    paths = server.client.get("/openapi.json").json()
    sent = 0
    for path, methods in paths["paths"].items():
        schema = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        if not schema:
            continue
        for form in schema["schema"].get("anyOf", [schema["schema"]]):
            (example,) = paths["components"]["schemas"][form["$ref"].rpartition("/")[2]]["examples"]
            example.pop("model", None)
            if path == "/v1/embeddings":
                example["model"] = "base"
            response = server.post(path, example)
            assert response.status_code == 200, (path, response.text)
            sent += 1
    assert sent == 16


def test_null_is_the_default_wherever_there_is_one(server):
    """Clients in other languages write out every option that was not set."""
    sent = 0
    for path, shapes in ENDPOINTS.items():
        for shape in shapes:
            (example,) = shape.request_type.model_config["json_schema_extra"]["examples"]
            optional = {name for name, field in shape.request_type.model_fields.items() if not field.is_required()}
            given = {name: value for name, value in example.items() if name not in optional}
            if path == "/v1/embeddings":
                given["model"] = "base"
            expected = server.post(path, given)
            assert expected.status_code == 200, (path, expected.text)
            for name in optional:
                response = server.post(path, {**given, name: None})
                assert response.status_code == 200, (path, name, response.text)
                if "rerank" not in path:
                    assert response.json() == expected.json(), (path, name)
                sent += 1
    assert sent > 40


def test_pairs_and_choices_are_not_mixed_up(server):
    both = server.post("/predict", {"model": "choose", "texts": ["x"], "choices": [["a", "b"]], "pairs": ["e"]})
    assert both.status_code == 422
    assert "give one of them" in both.json()["error"]["message"]
    none = server.post("/predict", {"model": "choose", "texts": ["x"]})
    assert none.status_code == 422
    assert none.json()["error"]["param"] == "choices"


def test_probes_may_ask_for_the_head_alone(server):
    for path in ("/health", "/ready"):
        answer = server.client.head(path)
        assert answer.status_code == 200
        assert not answer.content


@pytest.mark.parametrize("paired", [False, True])
def test_a_model_of_pairs_is_not_asked_of_single_texts(paired, models, start, tmp_path):
    shutil.copytree(models["classify"], tmp_path / "model")
    write_task_file(tmp_path / "model", {"task": "classify", "max_length": 16, "paired": paired})
    server = start({"model": tmp_path / "model"})
    bodies = {True: {"texts": TEXTS, "pairs": PAIRS}, False: {"texts": TEXTS}}
    answer = ask(server, "/predict", **bodies[paired])
    pipeline = load_pipeline("classify", tmp_path / "model")
    assert [row["label"] for row in answer["predictions"]] == [
        row.label for row in (pipeline(TEXTS, PAIRS) if paired else pipeline(TEXTS))
    ]
    refused = server.post("/predict", bodies[not paired])
    assert refused.status_code == 422
    assert "the model was trained on" in refused.json()["error"]["message"]
    assert server.client.get("/info").json()["models"][0]["max_length"] == 16
