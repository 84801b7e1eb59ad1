"""BERT: every architecture beside that of `transformers`."""

import pytest
import transformers
from against_transformers import HEADS, check

SHAPE = {"vocab_size": 300, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize("suffix", [*HEADS, "ForPreTraining", "ForNextSentencePrediction"])
def test_it_is_the_one_of_transformers(suffix, tmp_path):
    labels = {"num_labels": 3} if "Classification" in suffix else {}
    config = transformers.BertConfig(**SHAPE, **labels, intermediate_size=512)
    assert check(config, suffix, tmp_path, reads_segments=True).load_report.left_aside == []
