"""Clients of Text Embeddings Inference get from this server what they get from TEI."""

import json
import shutil

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from bertsmith.inference import load_pipeline

TEXTS = ["the man eats bread .", "the woman reads a book !", ""]


def ask(server, path, **body):
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_hubs_client_gets_vectors_from_a_real_process(run_server, models):
    process = run_server("--model", models["base"], "--model", models["rank"], "--port", 0, "--threads", 1)
    url = process.wait_ready()
    pipeline = load_pipeline("embed", models["base"])
    # TEI 的文档里客户端指向根地址，也有人指向 /embed
    for address in (url, f"{url}/embed"):
        client = InferenceClient(model=address)
        np.testing.assert_allclose(client.feature_extraction(TEXTS), pipeline(TEXTS), atol=1e-5)
        one = client.feature_extraction(TEXTS[0], normalize=False, truncate=True, dimensions=8)
        np.testing.assert_allclose(one, pipeline(TEXTS[:1], normalize=False, dims=8), atol=1e-5)
        with pytest.raises(HfHubHTTPError, match="no prompt"):
            client.feature_extraction("a", prompt_name="nothing")
    body = {"query": "who eats ?", "texts": TEXTS, "raw_scores": False, "return_text": True, "truncate": True}
    ranked = httpx.post(f"{url}/rerank", json=body).raise_for_status().json()
    expected = load_pipeline("rank", models["rank"])("who eats ?", TEXTS)
    assert [(row["index"], row["text"]) for row in ranked] == [(row.index, row.text) for row in expected]
    assert [row["score"] for row in ranked] == pytest.approx([row.score for row in expected], abs=1e-5)


def test_rerank_with_raw_scores_and_without_texts(server, models):
    pipeline = load_pipeline("rank", models["rank"])
    logits = pipeline.logits(["who ?"] * len(TEXTS), TEXTS)[:, 0].tolist()
    ranked = ask(server, "/rerank", query="who ?", texts=TEXTS, raw_scores=True, model="rank")
    assert [row["score"] for row in ranked] == pytest.approx(sorted(logits, reverse=True), abs=1e-4)
    assert all(row.keys() == {"index", "score"} for row in ranked)


EMBEDDERS = {
    # langchain-ai/langchain-community 0c065920, embeddings/huggingface.py, embed_documents
    "LangChain's HuggingFaceInferenceAPIEmbeddings": (
        "/embed",
        {"inputs": TEXTS, "options": {"wait_for_model": True, "use_cache": True}},
    ),
    # langchain-ai/langchain 34647250, huggingface_endpoint.py, which calls huggingface_hub 2.4.0, feature_extraction
    "LangChain's HuggingFaceEndpointEmbeddings": ("/", {"inputs": TEXTS}),
    # BerriAI/litellm 011db2df, llms/huggingface/embedding/handler.py, _process_optional_params
    "LiteLLM's huggingface/ embedding": (
        "/embed",
        {"inputs": TEXTS, "options": {"use_cache": False}, "parameters": {"top_k": 3}, "user": "ann"},
    ),
}
QUERY = {"query": "who eats ?", "texts": TEXTS}
RERANKERS = {
    # run-llama/llama_index 18b5f1b4, postprocessor-tei-rerank, TextEmbeddingInference._call_api
    "LlamaIndex's TEI reranker": ("/rerank", QUERY),
    # infiniflow/ragflow 5b404a91, rag/llm/rerank_model.py, HuggingfaceRerank.post
    "RAGFlow": ("/rerank", {**QUERY, "raw_scores": False, "truncate": True}),
    # BerriAI/litellm 0647d5ba, llms/huggingface/rerank/transformation.py, transform_rerank_request
    "LiteLLM's huggingface/": (
        "/rerank",
        {"raw_scores": False, "truncate": False, "truncation_direction": "Right"}
        | {**QUERY, "top_n": 2, "return_text": True},
    ),
    # open-webui/open-webui 0668cb7f, retrieval/models/external.py, ExternalReranker.predict
    "Open WebUI": ("/v1/rerank", {"model": "rank", "query": QUERY["query"], "documents": TEXTS, "top_n": 3}),
    "the client of another version": ("/rerank", {**QUERY, "unknown": 1, "soon": {"a": [1]}}),
}


@pytest.mark.parametrize(("path", "body"), EMBEDDERS.values(), ids=EMBEDDERS.keys())
def test_a_client_gets_the_vectors_of_its_texts(start, models, path, body):
    expected = load_pipeline("embed", models["base"])(TEXTS)
    np.testing.assert_allclose(ask(start(), path, **body), expected, atol=1e-5)


@pytest.mark.parametrize(("path", "body"), RERANKERS.values(), ids=RERANKERS.keys())
def test_a_client_gets_its_texts_in_their_order(server, models, path, body):
    answer = ask(server, path, **body)
    rows = answer if path == "/rerank" else answer["results"]
    expected = load_pipeline("rank", models["rank"])(QUERY["query"], TEXTS)[: body.get("top_n")]
    assert [row["index"] for row in rows] == [one.index for one in expected]
    score = "score" if path == "/rerank" else "relevance_score"
    assert [row[score] for row in rows] == pytest.approx([one.score for one in expected], abs=1e-4)
    if body.get("return_text"):
        assert [row["text"] for row in rows] == [one.text for one in expected]


@pytest.mark.parametrize("path", ["/embed", "/rerank"])
def test_a_prompt_counts_as_what_the_model_reads(start, models, tmp_path, path):
    """With `"truncate": false` a text that fits without it alone is refused, and never cut in silence."""
    folder = tmp_path / "prompted"
    shutil.copytree(models["base" if path == "/embed" else "rank"], folder)
    says = {"prompts": {"query": "the man eats bread . "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(says))
    server = start({"prompted": folder})
    # 模型读 64 个：两三个特殊符号，五个提示词，问题一个
    for words, status in ((55, 200), (60, 413)):
        text = "bread " * words
        body = {"inputs": [text]} if path == "/embed" else {"query": "bread", "texts": [text]}
        assert server.post(path, {**body, "truncate": False}).status_code == status
        assert server.post(path, body).status_code == 200


def test_predict_takes_a_text_a_pair_and_a_batch(server, models):
    pipeline = load_pipeline("classify", models["classify"])

    def expected(text, pair=None):
        found = pipeline([text], None if pair is None else [pair])[0].probabilities
        return sorted(found.items(), key=lambda one: -one[1])

    def shown(rows):
        return [(row["label"], pytest.approx(row["score"], abs=1e-5)) for row in rows]

    assert expected(TEXTS[0]) == shown(ask(server, "/predict", inputs=TEXTS[0], model="classify", soon={"a": [1]}))
    assert expected(*TEXTS[:2]) == shown(ask(server, "/predict", inputs=TEXTS[:2], model="classify"))
    mixed = ask(server, "/predict", inputs=[TEXTS[:1], TEXTS[:2], [TEXTS[1]]], model="classify")
    assert [expected(TEXTS[0]), expected(*TEXTS[:2]), expected(TEXTS[1])] == [shown(row) for row in mixed]
    raw = ask(server, "/predict", inputs=TEXTS[0], raw_scores=True, model="classify")
    assert sorted(row["score"] for row in raw) == pytest.approx(
        sorted(pipeline.logits(TEXTS[:1], None)[0].tolist()), abs=1e-4
    )
    client = InferenceClient(model=server.url)
    # 根地址做第一个模型的事；这台服务器的第一个是分类器
    assert [one.label for one in client.text_classification(TEXTS[0])] == [label for label, _ in expected(TEXTS[0])]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/embed", {"inputs": ["bread " * 99], "truncate": False, "model": "base"}, 413, "the model reads 64"),
        ("/embed", {"inputs": [1, 2], "model": "base"}, 422, "inputs"),
        ("/embed", {"inputs": ["a"], "texts": ["a"], "model": "base"}, 422, "inputs"),
        ("/embed", {"texts": ["a"], "options": {}, "model": "base"}, 422, "options"),
        ("/embed", {"inputs": [], "model": "base"}, 422, "inputs"),
        ("/predict", {"inputs": [["a", "b", "c"]], "model": "classify"}, 422, "inputs"),
        ("/predict", {"inputs": "a", "model": "base"}, 422, "not made for this endpoint"),
        ("/rerank", {"query": "a", "texts": ["a"], "truncate": "yes", "model": "rank"}, 422, "truncate"),
        ("/embed", {"inputs": "a", "truncation_direction": "left", "model": "base"}, 422, "truncation_direction"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_place(server, path, body, status, words):
    response = server.post(path, body)
    assert response.status_code == status
    assert words in response.text


def test_info_has_the_fields_that_clients_of_tei_read(start, models):
    said = start().client.get("/info").json()
    assert said["model_id"] == "base"
    assert said["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (said["max_input_length"], said["max_client_batch_size"], said["auto_truncate"]) == (64, 2048, True)
    said = start({"classify": models["classify"]}).client.get("/info").json()
    assert said["model_type"]["classifier"]["label2id"] == {"bad": 0, "fair": 1, "good": 2}
    assert "reranker" in start({"rank": models["rank"]}).client.get("/info").json()["model_type"]
