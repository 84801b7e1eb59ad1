"""The model against `transformers`: same weights, same numbers."""

import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig, BertForPreTraining, BertForSequenceClassification, BertModel
from bertsmith.model.architectures import ModelForMaskedLM
from bertsmith.model.family import family_named
from bertsmith.tokenizer import WordPieceTokenizer

RAGGED_LENGTHS = [1, 2, 3, 17, 64, 127, 128, 300, 511, 512]


@pytest.fixture(scope="module", params=["tiny", "mini", "3/192"])
def pair(request, tmp_path_factory):
    """Our model with random weights and the reference loaded from our folder."""
    torch.manual_seed(0)
    ours = BertForPreTraining(BertConfig.named(request.param, vocab_size=500)).eval()
    # 初始化时偏置为 0、归一化为 1：打乱它们，否则名字对应错了也看不出来
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path_factory.mktemp("model")
    ours.save_pretrained(folder)
    reference, info = transformers.BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return ours, reference.eval(), folder


def random_batch(lengths, vocab_size=500):
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]
    types = [[0] * (length // 2) + [1] * (length - length // 2) for length in lengths]
    return sequences, types, RaggedBatch.from_sequences(sequences, types)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [RAGGED_LENGTHS, [32] * 4, [512]])
def test_hidden_states_pooled_and_logits_equal_the_reference(pair, lengths):
    ours, reference, _ = pair
    sequences, types, batch = random_batch(lengths)
    output = ours(batch, torch.arange(batch.num_tokens))
    for n, (ids, segments) in enumerate(zip(sequences, types, strict=True)):
        span = slice(int(batch.cu_seqlens[n]), int(batch.cu_seqlens[n + 1]))
        expected = reference.bert(torch.tensor([ids]), token_type_ids=torch.tensor([segments]))
        logits = reference(torch.tensor([ids]), token_type_ids=torch.tensor([segments]))
        torch.testing.assert_close(output.encoded.hidden_states[span], expected.last_hidden_state[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(output.encoded.pooled[n], expected.pooler_output[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(output.mlm_logits[span], logits.prediction_logits[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(output.nsp_logits[n], logits.seq_relationship_logits[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_encoder_equals_the_reference_encoder_on_padded_batches(pair):
    ours, reference, _ = pair
    sequences, types, batch = random_batch(RAGGED_LENGTHS)
    expected = reference.bert(
        input_ids=batch.pad(batch.input_ids),
        attention_mask=batch.padding_mask.long(),
        token_type_ids=batch.pad(batch.token_type_ids),
    ).last_hidden_state
    states = ours.backbone(batch).hidden_states
    torch.testing.assert_close(states, batch.unpad(expected), atol=1e-5, rtol=0)
    assert len(sequences) == len(types) == batch.num_sequences


@torch.no_grad()
def test_every_layer_and_every_attention_map_equals_the_reference(pair):
    ours, _, folder = pair
    reference = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    sequences, types, batch = random_batch([5, 40, 12])
    output = ours.backbone(batch, need_layers=True, need_maps=True)
    for n, (ids, segments) in enumerate(zip(sequences, types, strict=True)):
        span = slice(int(batch.cu_seqlens[n]), int(batch.cu_seqlens[n + 1]))
        expected = reference(
            torch.tensor([ids]),
            token_type_ids=torch.tensor([segments]),
            output_hidden_states=True,
            output_attentions=True,
        )
        for layer, states in zip(output.layers, expected.hidden_states, strict=True):
            torch.testing.assert_close(layer[span], states[0], atol=1e-5, rtol=0)
        for maps, attention in zip(output.attentions, expected.attentions, strict=True):
            torch.testing.assert_close(maps[n], attention[0], atol=1e-5, rtol=0)


def test_gradients_equal_the_reference(pair):
    ours, reference, _ = pair
    sequences, types, batch = random_batch([20, 20])
    labels = torch.randint(0, 500, (batch.num_tokens,), generator=torch.Generator().manual_seed(2))
    output = ours(batch, torch.arange(batch.num_tokens))
    next_labels = torch.tensor([0, 1])
    cross_entropy = torch.nn.functional.cross_entropy
    (cross_entropy(output.mlm_logits, labels) + cross_entropy(output.nsp_logits, next_labels)).backward()
    reference(
        torch.tensor(sequences),
        token_type_ids=torch.tensor(types),
        labels=labels.view(2, 20),
        next_sentence_label=next_labels,
    ).loss.backward()
    expected = dict(reference.named_parameters())
    word = expected["bert.embeddings.word_embeddings.weight"].grad
    torch.testing.assert_close(ours.backbone.embedding.word.weight.grad, word, atol=1e-6, rtol=1e-4)
    query = torch.cat(
        [expected[f"bert.encoder.layer.0.attention.self.{name}.weight"].grad for name in ("query", "key", "value")]
    )
    first = ours.backbone.encoder.blocks[0].attention.qkv.weight.grad
    torch.testing.assert_close(first, query, atol=1e-6, rtol=1e-4)
    ours.zero_grad()
    reference.zero_grad()


def test_what_the_reference_saves_we_load_and_the_other_way_round(pair, tmp_path):
    ours, reference, folder = pair
    reference.save_pretrained(tmp_path / "theirs")
    loaded = BertForPreTraining.from_pretrained(tmp_path / "theirs")
    for (name, value), other in zip(ours.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    loaded.save_pretrained(tmp_path / "again")
    first, second = load_file(folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@torch.no_grad()
def test_a_classifier_equals_the_reference(tmp_path):
    torch.manual_seed(0)
    config = BertConfig.named("tiny", vocab_size=300, id2label={0: "bad", 1: "good", 2: "mixed"})
    ours = BertForSequenceClassification(config).eval()
    ours.save_pretrained(tmp_path)
    reference = transformers.BertForSequenceClassification.from_pretrained(tmp_path).eval()
    assert reference.config.id2label == {0: "bad", 1: "good", 2: "mixed"}
    sequences, types, batch = random_batch([4, 30, 9], vocab_size=300)
    for n, (ids, segments) in enumerate(zip(sequences, types, strict=True)):
        expected = reference(torch.tensor([ids]), token_type_ids=torch.tensor([segments])).logits[0]
        torch.testing.assert_close(ours(batch)[n], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_bf16_stays_close_to_float32():
    torch.manual_seed(0)
    model = BertModel(BertConfig.named("mini", vocab_size=500)).eval()
    _, _, batch = random_batch([7, 64, 128, 33])
    expected = model(batch).hidden_states
    model.set_compute_dtype(torch.bfloat16)
    states = model(batch).hidden_states.float()
    assert torch.nn.functional.cosine_similarity(states, expected, dim=-1).min() > 0.999


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_gradients_in_bf16_stay_close_to_those_in_float32(family):
    """Within 5 % of the norm of a matrix's gradient, 10 % of a vector's, whose terms cancel; a step of bf16 is 2^-8."""
    torch.manual_seed(0)
    config = family_named(family).config.named("mini", vocab_size=500, pad_token_id=0)
    model = ModelForMaskedLM(config).eval()
    _, _, batch = random_batch([7, 64, 128, 33])
    places = torch.arange(0, batch.num_tokens, 7)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model.set_compute_dtype(dtype)
        model.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(batch, places).float(), batch.input_ids[places])
        loss.backward()
        found.append({name: each.grad.float() for name, each in model.named_parameters() if each.grad is not None})
    exact, rounded = found
    assert exact.keys() == rounded.keys()
    largest = max(float(each.norm()) for each in exact.values())
    for name, expected in exact.items():
        # a bias before a softmax has a gradient of rounding alone
        if float(expected.norm()) > 1e-3 * largest:
            assert float((rounded[name] - expected).norm() / expected.norm()) < (0.05 if expected.dim() > 1 else 0.1), (
                name
            )


@torch.no_grad()
def test_the_real_checkpoint_gives_the_reference_states(minilm_folder):
    ours = BertModel.from_pretrained(minilm_folder).eval()
    reference = transformers.BertModel.from_pretrained(minilm_folder).eval()
    tokenizer = WordPieceTokenizer.load(minilm_folder)
    texts = ["Hello, how are you?", "A BERT is a pre-trained encoder.", "x", "The man eats the bread. " * 20]
    sequences = tokenizer(texts)["input_ids"]
    batch = RaggedBatch.from_sequences(sequences)
    states = ours(batch).hidden_states
    for n, ids in enumerate(sequences):
        span = slice(int(batch.cu_seqlens[n]), int(batch.cu_seqlens[n + 1]))
        expected = reference(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(states[span], expected, atol=1e-5, rtol=0)
