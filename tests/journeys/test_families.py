"""The main job with each family: text, vocabulary of its kind, pre-training by its objective, report."""

import pytest
import transformers

import bertsmith
from bertsmith.inference import load_pipeline
from bertsmith.model import load_any
from bertsmith.model.family import families
from bertsmith.train.monitor import read_metrics

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", sorted(set(families()) - {"bert"}))
def test_each_family_goes_from_text_to_a_report(family, tmp_path):
    result = bertsmith.quickstart(out=tmp_path / "run", family=family, size="1/64", minutes=0.2, seed=0).details
    model = tmp_path / "run" / "model"
    assert load_any(model).config.model_type == family
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000
    first = next(row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "heldout")
    assert first["step"] == 0
    # six seconds teach ELECTRA's discriminator something and its small generator next to nothing
    losses = [f"{term.name}_loss" for term in result.pretraining.recipe.build_objective().terms]
    assert sum(result.pretraining.heldout[name] for name in losses) < sum(first[name] for name in losses)
    assert set(result.sentiment) == {"pretrained", "random"}
    pipeline = load_pipeline("fill-mask", model / "generator" if family == "electra" else model)
    mask = pipeline.tokenizer.vocab[pipeline.tokenizer.mask_token_id]
    assert len(pipeline(f"the man reads the {mask} .", top_k=5)[0]) == 5
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    text = "the man reads the book ."
    assert theirs(text, add_special_tokens=False)["input_ids"] == pipeline.tokenizer.encode(text)
    assert transformers.AutoModel.from_pretrained(model).config.model_type == family
