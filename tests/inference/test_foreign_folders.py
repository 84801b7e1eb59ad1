"""What a folder of another tool says of lengths, prompts, activation and width is followed, by every pipeline.

The oracles are called with nothing but the folder: its own values are their defaults.
"""

import json
import warnings

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers

from bertsmith.cli import main
from bertsmith.errors import CheckpointError
from bertsmith.inference import load_pipeline
from bertsmith.inference.embed import SentenceFolder, read_sentence_folder, write_sentence_folder
from bertsmith.inference.graph_cache import TOLD
from bertsmith.inference.pipeline import all_pipelines
from bertsmith.inference.runtimes import is_installed
from bertsmith.interop.onnx import export_onnx
from bertsmith.model import Backbone, BertConfig
from bertsmith.model.architectures import ModelForSequenceClassification
from bertsmith.tokenizer import WordPieceTokenizer

WORDS = "the man eats bread . the woman reads a book !"
LONG = [f"{begin} " + f"{WORDS} " * 4 + end for begin, end in (("a book", "bread"), ("man eats !", "a book"))]


def save(path, model, **changes):
    torch.manual_seed(1)
    tokenizer = WordPieceTokenizer.train([WORDS] * 3, vocab_size=200)
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, initializer_range=0.5, **changes)
    model(config).save_pretrained(path)
    tokenizer.save(path, model_max_length=512)
    return path


@pytest.mark.parametrize("activation", [torch.nn.Sigmoid(), torch.nn.Identity()])
@pytest.mark.parametrize("prompt", ["", "a book "])
def test_a_saved_cross_encoder_scores_as_it_did(activation, prompt, tmp_path):
    save(tmp_path / "base", ModelForSequenceClassification, id2label={0: "LABEL_0"})
    named = {"prompts": {"q": prompt}, "default_prompt_name": "q"} if prompt else {}
    theirs = sentence_transformers.CrossEncoder(
        str(tmp_path / "base"), max_length=16, activation_fn=activation, device="cpu", **named
    )
    theirs.save_pretrained(str(tmp_path / "theirs"))
    reference = sentence_transformers.CrossEncoder(str(tmp_path / "theirs"), device="cpu")
    rank = load_pipeline("rank", tmp_path / "theirs", precision="float32")
    assert rank.max_length == 16
    expected = reference.predict([("the man", text) for text in LONG])
    np.testing.assert_allclose(rank.scores(["the man"] * 2, LONG), expected, atol=1e-5, rtol=1e-5)
    order = [each["corpus_id"] for each in reference.rank("the man", LONG)]
    assert [each.index for each in rank("the man", LONG)] == order


def test_older_places_of_the_activation_are_read_and_an_unknown_one_is_refused(tmp_path):
    folder = save(tmp_path, ModelForSequenceClassification, id2label={0: "LABEL_0"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    identity = "torch.nn.modules.linear.Identity"
    for said in (
        {"sbert_ce_default_activation_function": identity},
        {"sentence_transformers": {"activation_fn": identity}},
    ):
        (folder / "config.json").write_text(json.dumps(config | said), encoding="utf-8")
        assert load_pipeline("rank", folder, precision="float32").activation == "Identity"
    said = {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"}
    (folder / "config.json").write_text(json.dumps(config | said), encoding="utf-8")
    with pytest.raises(CheckpointError, match="Tanh"):
        load_pipeline("rank", folder, precision="float32")


def test_a_classifier_reads_as_much_as_its_tokenizer_says(tmp_path):
    folder = save(tmp_path, ModelForSequenceClassification, id2label={0: "a", 1: "b"})
    WordPieceTokenizer.load(folder).save(folder, model_max_length=8)
    reference = transformers.pipeline("text-classification", str(folder), device="cpu", top_k=None)
    for text, found in zip(LONG, load_pipeline("classify", folder, precision="float32")(LONG), strict=True):
        expected = {each["label"]: each["score"] for each in reference([text], truncation=True)[0]}
        assert found.probabilities == pytest.approx(expected, abs=1e-5)


SAYS = {
    "classify": {"id2label": {0: "a", 1: "b"}},
    "multilabel": {"id2label": {0: "a", 1: "b"}, "problem_type": "multi_label_classification"},
    "regress": {"id2label": {0: "score"}, "problem_type": "regression"},
    "rank": {"id2label": {0: "LABEL_0"}},
    "tag": {"id2label": {0: "a", 1: "b"}},
    "generate": {"is_decoder": True},
}
"""What the configuration of a folder says, by its pipeline."""
# 别的测试也可能登记了自己的流水线
OURS = sorted(name for name, one in all_pipelines().items() if one.__module__.startswith("bertsmith."))


@pytest.mark.filterwarnings("ignore:.*never trained for vectors")
@pytest.mark.parametrize("name", [name for name in OURS if name != "features"])
def test_every_pipeline_follows_the_length_of_a_folder(name, tmp_path):
    """All but the one whose folders are never another tool's."""
    model = next(one for one in all_pipelines()[name].architectures if one is not Backbone)
    folder = save(tmp_path, model, **SAYS.get(name, {}))
    WordPieceTokenizer.load(folder).save(folder, model_max_length=24)
    pipeline = load_pipeline(name, folder)
    assert pipeline.max_length == 24
    # 长文章切成的窗口也一样长
    assert name != "answer" or pipeline.cutter.max_length == 24


def test_a_folder_that_cuts_its_vectors_is_followed(tiny_model, tmp_path):
    write_sentence_folder(tiny_model, SentenceFolder(max_length=16, normalize=True, dims=8), 64)
    assert read_sentence_folder(tiny_model).dims == 8
    texts = ["the man eats bread .", "a book"]
    reference = sentence_transformers.SentenceTransformer(str(tiny_model), device="cpu")
    expected = reference.encode(texts, normalize_embeddings=True)
    embed = load_pipeline("embed", tiny_model, precision="float32")
    assert expected.shape == embed(texts).shape == (2, 8)
    np.testing.assert_allclose(embed(texts), expected, atol=1e-5, rtol=1e-5)
    assert embed(texts, dims=4).shape == (2, 4)
    assert embed.compare(texts).shape == (2, 2)
    export_onnx(tiny_model, tmp_path / "onnx")
    assert read_sentence_folder(tmp_path / "onnx").dims == 8


@pytest.mark.parametrize("dims", [-1, "x", 1.5, True])
def test_an_impossible_width_is_refused(dims, tiny_model):
    write_sentence_folder(tiny_model, SentenceFolder(max_length=16), 64)
    path = tiny_model / "config_sentence_transformers.json"
    values = json.loads(path.read_text(encoding="utf-8")) | {"truncate_dim": dims}
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match="truncate_dim"):
        load_pipeline("embed", tiny_model, precision="float32")


def test_vectors_of_a_model_that_never_learned_any_are_told_once(tiny_model):
    with pytest.warns(UserWarning, match=r"never trained for vectors of texts.*bertsmith finetune embed"):
        load_pipeline("embed", tiny_model, precision="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_pipeline("embed", tiny_model, precision="float32")


ENGINES = ("onnxruntime", "openvino")
ASKING = {
    "embed --compare": ["embed --model model --compare bread text.txt"],
    "embed --json": ["embed text.txt --model model --json"],
    "embed": ["embed text.txt --model model --out v.npy"],
    "embed --workers": ["embed text.txt texts/a.txt --model model --out v.npy --workers 2"],
    "index, search": ["index texts --model model --out index", "search index bread"],
    "topics": ["topics texts --model model --out topics"],
    "mine": ["mine pairs.tsv --model model --out mined.jsonl"],
    "evaluate": ["evaluate --model model --file pairs.tsv"],
    # 第二次不载入模型，只凭缓存里的卡片
    **{f"embed --engine {kind}": [f"embed text.txt --model model --json --engine {kind}"] * 2 for kind in ENGINES},
    "embed --compare --engine": [f"embed --model model --compare bread text.txt --engine {ENGINES[0]}"] * 2,
}


@pytest.mark.parametrize("commands", ASKING.values(), ids=ASKING.keys())
def test_every_command_that_asks_for_vectors_says_it_once(commands, tiny_model, tmp_path, capfd, monkeypatch):
    missing = [kind for kind in ENGINES if kind in commands[0] and not is_installed(kind)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    tiny_model.rename(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    lines = ["the man eats bread .", "the woman reads a book !", "a book", "bread"] * 5
    (tmp_path / "texts/a.txt").write_text("\n\n".join(lines))
    (tmp_path / "text.txt").write_text("\n".join(lines[:2]) + "\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"{line} {n}\t{line}\n" for n, line in enumerate(lines)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    # 每条命令都像一个新的进程：Python 自己也不替它去重
    warnings.simplefilter("always")
    for words in commands:
        TOLD.clear()
        with pytest.raises(SystemExit) as ended:
            main(words.split())
        said = capfd.readouterr().err
        assert not ended.value.code, said
        assert said.count("never trained for vectors") == 1


def test_vectors_of_a_model_that_learned_them_are_not_told(tiny_model, minilm_folder):
    write_sentence_folder(tiny_model, SentenceFolder(max_length=16), 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_pipeline("embed", tiny_model, precision="float32")
        load_pipeline("embed", minilm_folder, precision="float32")
