"""A family is one file: everything else knows it by its description."""

import pytest
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig, BertForPreTraining, families, layer_numbers


def test_parameters_are_numbered_from_the_embeddings_up():
    with torch.device("meta"):
        numbers = layer_numbers(BertForPreTraining(BertConfig.named("2/64", vocab_size=20)))
    assert numbers["backbone.embedding.norm.bias"] == 0
    assert numbers["backbone.encoder.blocks.1.output.weight"] == 2
    assert numbers["backbone.pooler.weight"] == numbers["masked_lm.bias"] == 3


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert", "electra", "roberta", "modernbert"])
@pytest.mark.parametrize("checkpointing", ["none", "blocks"])
def test_the_states_of_chosen_tokens_are_those_among_all(family, checkpointing):
    torch.manual_seed(0)
    config = families()[family].config.named("3/64", vocab_size=50, pad_token_id=0)
    changed = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "is_decoder": family == "bert"}
    model = families()[family].backbone(config.changed(**changed), need_pooler=False)
    model.set_gradient_checkpointing(checkpointing)
    batch = RaggedBatch.from_sequences([[1, 7, 8, 9, 2], [1, 5, 2], [1, 3, 4, 6, 2]])
    places, rows = torch.tensor([9, 2, 6]), []
    model.encoder.blocks[-1].output.register_forward_hook(lambda *called: rows.append(len(called[-1])))
    found, whole = model(batch, places=places), model(batch)
    torch.testing.assert_close(found.hidden_states, whole.hidden_states[places])
    torch.testing.assert_close(found.cls, whole.cls)
    # 最后一层的前馈只算要读的三个位置和三条序列的摘要；ALBERT 的一块跑三次
    assert rows == ([13, 13, 6, 13, 13, 13] if family == "albert" else [6, 13])
    found.hidden_states.sum().backward()
    assert model.embedding.word.weight.grad is not None


def test_a_model_without_the_pair_head_is_a_masked_lm(tmp_path):
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig.named("1/64", vocab_size=20), pair_head=False)
    model.add_span_boundary()
    assert model.architecture == "BertForMaskedLM"
    assert model.backbone.pooler is None
    model.save_pretrained(tmp_path)
    again = BertForPreTraining.from_pretrained(tmp_path, pair_head=False)
    assert again.load_report.left_aside == []
    assert all(
        again.state_dict()[name].equal(value)
        for name, value in model.state_dict().items()
        if name in again.state_dict()
    )
