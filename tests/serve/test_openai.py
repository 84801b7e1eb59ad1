"""OpenAI's own client against a server process with a real model."""

import base64

import numpy as np
import openai
import pytest
import sentence_transformers

from bertsmith.inference import load_pipeline

KEY = "a-key-for-the-tests-0001"
TEXTS = ["The cat sat on the mat.", "Stocks fell sharply on Monday.", "Ünïcode, 北京 and 🙂", "word " * 600, ""]


@pytest.fixture(scope="module")
def client(minilm_folder, process_class, tmp_path_factory):
    """A client of `bertsmith serve --model minilm=...`, a process of its own, at the precision of the reference."""
    process = process_class(
        *("--model", f"minilm={minilm_folder}", "--port", "0", "--threads", "1", "--precision", "float32"),
        log=tmp_path_factory.mktemp("log") / "server.log",
        BERTSMITH_API_KEYS=KEY,
    )
    try:
        yield openai.OpenAI(base_url=f"{process.wait_ready()}/v1", api_key=KEY, max_retries=0)
    finally:
        process.close()


@pytest.fixture(scope="module")
def expected(minilm_folder):
    reference = sentence_transformers.SentenceTransformer(str(minilm_folder), device="cpu")
    return reference.encode(TEXTS, normalize_embeddings=True)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings_equal_sentence_transformers(client, expected, encoding):
    more = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model="minilm", input=TEXTS, **more)
    assert [row.index for row in answer.data] == list(range(len(TEXTS)))
    if encoding == "base64":
        vectors = [np.frombuffer(base64.b64decode(row.embedding), "<f4") for row in answer.data]
    else:
        vectors = [row.embedding for row in answer.data]
    np.testing.assert_allclose(np.asarray(vectors), expected, atol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 256


def test_token_ids_are_refused_with_the_way_out(client):
    """LangChain sends those of tiktoken: in this vocabulary they are other words, and their vector says nothing."""
    for ids in ([15339, 1917], [[15339, 1917], [5]], [30522], [-1]):
        with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
            client.embeddings.create(model="minilm", input=ids)
    single = client.embeddings.create(model="minilm", input=TEXTS[0])
    assert len(single.data) == 1


def test_fewer_dimensions_are_scaled_to_length_one_again(client, expected):
    answer = client.embeddings.create(model="minilm", input=TEXTS, dimensions=64)
    cut = expected[:, :64] / np.linalg.norm(expected[:, :64], axis=1, keepdims=True)
    np.testing.assert_allclose([row.embedding for row in answer.data], cut, atol=1e-5)


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("minilm", "model", "bertsmith")
    assert client.models.retrieve("minilm") == model
    with pytest.raises(openai.NotFoundError, match="minilm"):
        client.models.retrieve("gpt")


def test_refusals_are_the_errors_of_the_client(client):
    with pytest.raises(openai.NotFoundError, match="minilm"):
        client.embeddings.create(model="text-embedding-3-small", input="a")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").embeddings.create(model="minilm", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match="dimensions"):
        client.embeddings.create(model="minilm", input="a", dimensions=0)
    for nothing in ([], [[]]):
        with pytest.raises(openai.UnprocessableEntityError):
            client.embeddings.create(model="minilm", input=nothing)
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model="minilm", input=["a"] * 3000)
    assert caught.value.status_code == 413


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_rerank_in_the_words_of_jina_and_cohere(server, models, path):
    query, texts = "who eats ?", ["the man eats bread .", "the woman reads a book !", ""]
    expected = load_pipeline("rank", models["rank"])(query, texts)
    body = {"model": "rank", "query": query, "documents": [texts[0], {"text": texts[1], "id": 7}, texts[2]]}
    answer = server.post(path, body | {"max_tokens_per_doc": 512, "rank_fields": None}).raise_for_status().json()
    found = [(row["index"], row["document"]["text"]) for row in answer["results"]]
    assert found == [(row.index, row.text) for row in expected]
    assert [row["relevance_score"] for row in answer["results"]] == pytest.approx([row.score for row in expected])
    assert (answer["model"], answer["usage"]["total_tokens"] > 9) == ("rank", True)
    answer = server.post(path, body | {"top_n": 1, "return_documents": False}).json()
    assert answer["results"] == [{"index": expected[0].index, "relevance_score": pytest.approx(expected[0].score)}]
    for wrong in ({"documents": []}, {"top_n": 0}, {"documents": [{"title": "a"}]}, {"query": None}):
        assert server.post(path, body | wrong).status_code == 422
