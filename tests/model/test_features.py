"""Features of a frozen encoder, against the hidden states of the reference (Devlin et al. 2019, table 7)."""

import pytest
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError, InputError
from bertsmith.model import BertConfig, BertModel, LayerFeatures

SEQUENCES = [[2, 7, 30, 3], [2, 3], [2, 5, 6, 7, 39, 9, 3]]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """Our output on a ragged batch, and the L+1 states [T, H] of the reference."""
    torch.manual_seed(0)
    model = BertModel(BertConfig.named("5/64", vocab_size=40, max_position_embeddings=16)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path_factory.mktemp("features")
    model.save_pretrained(folder)
    reference = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        output = model(RaggedBatch.from_sequences(SEQUENCES), need_layers=True)
        states = [reference(torch.tensor([ids]), output_hidden_states=True).hidden_states for ids in SEQUENCES]
    return model.config, output, [torch.cat([layers[n][0] for layers in states]) for n in range(6)]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("embeddings", lambda h: h[0]),
        ("second-to-last", lambda h: h[4]),
        ("last", lambda h: h[5]),
        ("weighted-sum-last-four", lambda h: (h[2] + h[3] + h[4] + h[5]) / 4),
        ("concat-last-four", lambda h: torch.cat([h[2], h[3], h[4], h[5]], dim=1)),
        ("weighted-sum-all", lambda h: (h[1] + h[2] + h[3] + h[4] + h[5]) / 5),
        (0, lambda h: h[0]),
        (3, lambda h: h[3]),
        (5, lambda h: h[5]),
    ],
)
def test_every_choice_equals_the_states_of_the_reference(encoded, choice, expected):
    config, output, states = encoded
    features = LayerFeatures(config, choice)
    vectors = features(output)
    torch.testing.assert_close(vectors, expected(states), atol=1e-5, rtol=0)
    assert features.size == vectors.shape[1] == (256 if choice == "concat-last-four" else 64)


def test_a_weighted_sum_follows_its_weights_and_learns_them(encoded):
    config, output, states = encoded
    features = LayerFeatures(config, "weighted-sum-last-four")
    with torch.no_grad():
        features.weights.copy_(torch.tensor([0.0, 1.0, 2.0, 3.0]).log())  # a layer that is left out, and thirds
    torch.testing.assert_close(
        features(output).detach(), (states[3] + 2 * states[4] + 3 * states[5]) / 6, atol=1e-5, rtol=0
    )
    features = LayerFeatures(config, "weighted-sum-all")
    optimizer = torch.optim.SGD(features.parameters(), lr=1.0)
    for _ in range(50):
        loss = torch.nn.functional.mse_loss(features(output), states[2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert features.weights.argmax() == 1  # the second of layers 1 to 5


def test_only_the_weighted_sums_have_something_to_learn(encoded):
    config = encoded[0]
    counts = {choice: sum(p.numel() for p in LayerFeatures(config, choice).parameters()) for choice in
              ("embeddings", "second-to-last", "last", "weighted-sum-last-four", "concat-last-four",
               "weighted-sum-all", 2)}  # fmt: skip
    assert [name for name, count in counts.items() if count] == ["weighted-sum-last-four", "weighted-sum-all"]
    assert (counts["weighted-sum-last-four"], counts["weighted-sum-all"]) == (4, 5)


@torch.no_grad()
def test_features_of_bf16_states_are_float32():
    model = BertModel(BertConfig.named("4/64", vocab_size=40)).eval()
    model.set_compute_dtype(torch.bfloat16)
    output = model(RaggedBatch.from_sequences(SEQUENCES), need_layers=True)
    for choice in ("last", "concat-last-four", "weighted-sum-all"):
        assert LayerFeatures(model.config, choice)(output).dtype == torch.float32


@pytest.mark.parametrize(
    ("choice", "layers", "message"),
    [
        ("last-but-three", 5, "layers 'last-but-three' unknown; use a number or one of embeddings, second-to-last"),
        (6, 5, r"layer 6 is outside 0 \(the embeddings\) to 5"),
        (-1, 5, "layer -1 is outside"),
        ("concat-last-four", 3, "concat-last-four needs 4 layers, the model has 3"),
        ("weighted-sum-last-four", 2, "needs 4 layers"),
    ],
)
def test_choices_the_model_cannot_give_are_refused(choice, layers, message):
    with pytest.raises(ConfigError, match=message):
        LayerFeatures(BertConfig.named(f"{layers}/64"), choice)


def test_an_output_without_layers_is_refused(encoded):
    model = BertModel(encoded[0])
    output = model(RaggedBatch.from_sequences(SEQUENCES))
    with pytest.raises(InputError, match="need_layers=True"):
        LayerFeatures(encoded[0], "last")(output)


@torch.no_grad()
def test_second_to_last_of_a_single_layer_is_the_embeddings():
    model = BertModel(BertConfig.named("1/64", vocab_size=40)).eval()
    output = model(RaggedBatch.from_sequences(SEQUENCES), need_layers=True)
    assert LayerFeatures(model.config, "second-to-last")(output).equal(output.layers[0])
