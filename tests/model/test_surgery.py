import copy

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError, InputError
from bertsmith.model import (
    Backbone,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    architectures_by_name,
    families,
    load_any,
)
from bertsmith.model.surgery import (
    extend_positions,
    extend_vocabulary,
    freeze,
    keep_layers,
    prune_heads,
    resize_vocabulary,
)
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.optimizer import build_optimizer

SEQUENCES = [[2, 7, 30, 3], [2, 3], [2, 5, 6, 7, 39, 9, 3]]
PRUNED = {0: [0, 2], 2: [3]}


def random_model(architecture="BertForPreTraining", **changes):
    """Three layers of four heads of 16, with no weight at 0 or 1 that could hide a mistake."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    labels = {0: "a", 1: "b", 2: "c"}
    # 最长的前缀：ModernBertModel 不是 BertModel
    family = max(
        (each for each in families().values() if architecture.startswith(each.name)), key=lambda f: len(f.name)
    )
    settings = {**shape, "vocab_size": 40, "pad_token_id": 0, "id2label": labels, **changes}
    config = family.config(**settings).with_position_limit(16)
    model = architectures_by_name()[architecture](config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def outputs(model, sequences=SEQUENCES):
    """Runs any architecture; returns one tensor."""
    batch = RaggedBatch.from_sequences(sequences)
    with torch.no_grad():
        return torch.cat([value.flatten() for value in model.published(batch).values()])


def silenced(model, pruned):
    """The reference for pruning: the whole model in which these heads add nothing."""
    model = copy.deepcopy(model)
    encoder = model.encoder if isinstance(model, BertModel) else model.backbone.encoder
    size = model.config.head_size
    with torch.no_grad():
        for layer, heads in pruned.items():
            for head in heads:
                encoder.blocks[layer].attention.output.weight[:, head * size : (head + 1) * size] = 0.0
    return model


def reference_logits(folder, sequences=SEQUENCES):
    """What `transformers` makes of a folder with masked-LM head, sequence by sequence."""
    model, info = transformers.BertForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    model.eval()
    with torch.no_grad():
        return torch.cat([model(torch.tensor([ids])).logits[0] for ids in sequences])


CHANGES = {
    "prune_heads": lambda model: prune_heads(model, PRUNED),
    "keep_layers": lambda model: keep_layers(model, 2),
    "more positions": lambda model: extend_positions(model, 40),
    "fewer positions": lambda model: extend_positions(model, 9),
    "more pieces": lambda model: resize_vocabulary(model, 43),
    "sourced pieces": lambda model: resize_vocabulary(model, 42, sources=[[7, 8], [9]]),
    "as many pieces": lambda model: resize_vocabulary(model, 40),
}


@pytest.mark.parametrize("architecture", [name for name in architectures_by_name() if name.startswith("Bert")])
@pytest.mark.parametrize("change", list(CHANGES))
def test_a_changed_model_is_saved_and_loaded_as_it_is(architecture, change, tmp_path):
    model = random_model(architecture)
    CHANGES[change](model)
    expected = outputs(model)
    model.save_pretrained(tmp_path)
    loaded = load_any(tmp_path).eval()
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    for (name, value), other in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert value.equal(other), name
    torch.testing.assert_close(outputs(loaded), expected)
    inner = [module.config for module in model.modules() if isinstance(module, Backbone)]
    assert inner == [model.config]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("change", [name for name in CHANGES if name != "prune_heads"])
def test_a_changed_model_gives_the_same_logits_in_the_reference(change, tied, tmp_path):
    model = random_model("BertForMaskedLM", tie_word_embeddings=tied)
    CHANGES[change](model)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(outputs(model), reference_logits(tmp_path).flatten(), atol=1e-5, rtol=0)


# heads


@torch.no_grad()
@pytest.mark.parametrize("sequences", [SEQUENCES, [[2, 5, 3], [2, 6, 3]]])
@pytest.mark.parametrize("need_maps", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pruned_model_is_the_whole_one_with_those_heads_silent(sequences, need_maps, dtype):
    model = random_model("BertModel")
    expected = silenced(model, PRUNED)
    prune_heads(model, PRUNED)
    assert model.config.pruned_heads == {0: (0, 2), 2: (3,)}
    for both in (model, expected):
        both.set_compute_dtype(dtype)
    batch = RaggedBatch.from_sequences(sequences)
    ours, theirs = model(batch, need_maps=need_maps), expected(batch, need_maps=need_maps)
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(ours.hidden_states, theirs.hidden_states, atol=tolerance, rtol=0)
    if need_maps:
        for layer, kept in enumerate([[1, 3], [0, 1, 2, 3], [0, 1, 2]]):
            for map_, whole in zip(ours.attentions[layer], theirs.attentions[layer], strict=True):
                torch.testing.assert_close(map_, whole[kept], atol=tolerance, rtol=0)


def test_pruning_saves_the_parameters_of_the_heads_and_trains_on():
    model = random_model("BertModel", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    expected = silenced(model, PRUNED)
    before = sum(p.numel() for p in model.parameters())
    prune_heads(model, PRUNED)
    # of each head three [16, 64] with biases, and [64, 16] of the output
    assert before - sum(p.numel() for p in model.parameters()) == 3 * (3 * (16 * 64 + 16) + 64 * 16)
    batch = RaggedBatch.from_sequences(SEQUENCES)
    for both in (model, expected):
        both(batch).hidden_states[:, :5].sum().backward()
    kept = torch.cat([torch.arange(start + 16, start + 64) for start in (0, 64, 128)])  # without head 0
    kept = kept[(kept % 64 < 32) | (kept % 64 >= 48)]  # and without head 2
    ours, theirs = (both.encoder.blocks[0].attention.qkv.weight.grad for both in (model, expected))
    torch.testing.assert_close(ours, theirs[kept], atol=1e-5, rtol=1e-4)


def test_heads_are_pruned_little_by_little_and_counted_as_in_the_whole_model():
    once, twice = random_model(), random_model()
    prune_heads(once, PRUNED)
    prune_heads(twice, {np.int64(0): np.array([2])})
    prune_heads(twice, {2: {3}, 0: (2, 0), 1: []})
    assert twice.config == once.config
    assert [block.attention.num_heads for block in twice.backbone.encoder.blocks] == [2, 4, 3]
    for (name, value), other in zip(once.state_dict().items(), twice.state_dict().values(), strict=True):
        assert value.equal(other), name
    torch.testing.assert_close(outputs(twice), outputs(silenced(random_model(), PRUNED)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("heads", [{0: [0, 1, 2, 3]}, {3: [0]}, {0: [4]}, {-1: [0]}, {0: [-1]}])
def test_heads_that_cannot_be_pruned_change_nothing(heads):
    model = random_model()
    prune_heads(model, {0: [1]})
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConfigError, match="pruned_heads"):
        prune_heads(model, {1: [2], **heads})
    assert model.config.pruned_heads == {0: (1,)}
    for name, value in model.state_dict().items():
        assert value.equal(before[name]), name


# layers


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_layers_that_are_kept_give_the_states_they_gave(count):
    model = random_model("BertModel")
    prune_heads(model, PRUNED)
    batch = RaggedBatch.from_sequences(SEQUENCES)
    expected = model(batch, need_layers=True).layers[count]
    keep_layers(model, count)
    assert model(batch).hidden_states.equal(expected)
    assert model.config.num_hidden_layers == len(model.encoder.blocks) == count
    assert model.config.pruned_heads == ({0: (0, 2), 2: (3,)} if count == 3 else {0: (0, 2)})


@pytest.mark.parametrize("count", [0, 4, -1])
def test_a_number_of_layers_that_cannot_be_kept_is_refused(count):
    with pytest.raises(ConfigError, match=f"keep_layers {count}: the model has 3"):
        keep_layers(random_model(), count)


# positions


@pytest.mark.parametrize("num_positions", [17, 31, 40])
def test_more_positions_are_interpolated_as_numpy_does(num_positions):
    model = random_model()
    table = model.backbone.embedding.position.weight.detach().numpy().copy()
    extend_positions(model, num_positions)
    places = np.linspace(0, 15, num_positions)
    expected = np.stack([np.interp(places, np.arange(16), column) for column in table.T], axis=1)
    stretched = model.backbone.embedding.position.weight.detach().numpy()
    np.testing.assert_allclose(stretched, expected, atol=1e-6)
    assert np.array_equal(stretched[[0, -1]], table[[0, -1]])
    assert outputs(model, [[1] * num_positions]).isfinite().all()
    with pytest.raises(InputError, match=f"the model has {num_positions} positions"):
        outputs(model, [[1] * (num_positions + 1)])


def test_fewer_positions_leave_short_texts_as_they_were():
    model = random_model()
    expected = outputs(model)
    extend_positions(model, 7)
    assert outputs(model).equal(expected)
    with pytest.raises(InputError, match="8 tokens, but the model has 7 positions"):
        outputs(model, [[1] * 8])


def test_positions_must_be_positive():
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        extend_positions(random_model(), 0)


# vocabulary


@pytest.mark.parametrize("tied", [True, False])
def test_new_pieces_start_as_the_mean_of_all_or_of_their_sources(tied, tmp_path):
    model = random_model("BertForMaskedLM", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "old")
    resize_vocabulary(model, 43, sources=[[5, 6, 6], [], (11,)])
    model.save_pretrained(tmp_path / "new")
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("old", "new"))
    names = ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"]
    for name in names if tied else [*names, "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]:
        before, after = old[name].numpy().astype(np.float64), new[name].numpy()
        assert after.shape == (43, *before.shape[1:])
        assert np.array_equal(after[:40], old[name].numpy())
        expected = [(before[5] + 2 * before[6]) / 3, before.mean(0), before[11]]
        np.testing.assert_allclose(after[40:], np.stack(expected), atol=1e-6)
    unchanged = old.keys() - {*names, "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert all(old[name].equal(new[name]) for name in unchanged)


@pytest.mark.parametrize("new_size", [50, 40, 25])
@pytest.mark.parametrize("tied", [True, False])
def test_shapes_are_those_the_reference_resizes_to(new_size, tied, tmp_path):
    model = random_model("BertForPreTraining", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "whole")
    reference = transformers.BertForPreTraining.from_pretrained(tmp_path / "whole")
    reference.resize_token_embeddings(new_size, mean_resizing=False)
    reference.save_pretrained(tmp_path / "theirs")
    resize_vocabulary(model, new_size)
    model.save_pretrained(tmp_path / "ours")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert {name: ours[name].shape for name in theirs} == {name: value.shape for name, value in theirs.items()}
    rows = min(40, new_size)
    assert all(ours[name][:rows].equal(theirs[name][:rows]) for name in theirs)


def test_a_smaller_vocabulary_scores_the_pieces_that_are_left_as_before():
    model = random_model("BertForMaskedLM")
    sequences = [[2, 7, 3], [2, 19, 3]]
    expected = outputs(model, sequences).view(6, 40)[:, :20]
    resize_vocabulary(model, 20)
    torch.testing.assert_close(outputs(model, sequences).view(6, 20), expected)
    with pytest.raises(InputError, match="20 is outside 0 to 19"):
        outputs(model, [[20]])


@pytest.mark.parametrize(
    ("new_size", "sources", "error", "message"),
    [
        (0, None, ConfigError, "vocab_size is 0"),
        (5, None, ConfigError, "vocab_size 5 leaves no place for pad_token_id 5"),
        (42, [[1]], InputError, "1 sources for 2 new pieces"),
        (30, [[1]], InputError, "1 sources for 0 new pieces"),
        (41, [[40]], InputError, r"sources\[0\] \[40\]: an id is outside"),
        (42, [[1], [-1]], InputError, r"sources\[1\] \[-1\]"),
    ],
)
def test_impossible_vocabularies_are_refused_and_change_nothing(new_size, sources, error, message):
    model = random_model(pad_token_id=5)
    expected = outputs(model)
    with pytest.raises(error, match=message):
        resize_vocabulary(model, new_size, sources=sources)
    assert outputs(model).equal(expected)
    assert model.config.vocab_size == 40


VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cov", "##id", "##s", "##ation", "virus", "[", "]", "e", "##1"]


def test_words_are_added_as_the_mean_of_how_they_were_spelled(tmp_path):
    tokenizer = WordPieceTokenizer(VOCAB)
    # 模型的词表填充到 16：多出的两行不属于任何词，新词应从第 14 行开始
    model = random_model("BertForMaskedLM", vocab_size=16)
    table, bias = model.backbone.embedding.word.weight.detach().clone(), model.masked_lm.bias.detach().clone()
    larger = extend_vocabulary(model, tokenizer, ["covid", "##ids", "zebra", "##zz"], user_tokens=["[E1]"])
    assert larger.vocab == [*VOCAB, "covid", "##ids", "zebra", "##zz", "[E1]"]
    assert tokenizer.vocab == VOCAB
    expected = [[5, 6], [6, 7], range(14), range(14), [10, 12, 13, 11]]
    for place, ids in enumerate(expected, 14):
        torch.testing.assert_close(model.backbone.embedding.word.weight[place], table[list(ids)].mean(0))
        torch.testing.assert_close(model.masked_lm.bias[place], bias[list(ids)].mean(0))
    assert model.backbone.embedding.word.weight[:14].equal(table[:14])
    assert larger.tokenize("Covid covids virusids [E1] zebra") == [
        *("covid", "covid", "##s", "virus", "##ids", "[E1]", "zebra")
    ]
    larger.save(tmp_path)
    model.save_pretrained(tmp_path)
    again = WordPieceTokenizer.load(tmp_path)
    assert again.fingerprint == larger.fingerprint
    assert BertForMaskedLM.from_pretrained(tmp_path).config.vocab_size == len(again) == 19
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "covid virusids zebra [E1]"
    assert fast(text)["input_ids"][1:-1] == again.encode(text)


def test_settings_and_user_tokens_of_the_tokenizer_stay():
    vocab = [*VOCAB, "Cov", "<url>"]
    tokenizer = WordPieceTokenizer(vocab, lowercase=False, user_tokens=["<url>"], max_word_chars=9)
    larger = extend_vocabulary(random_model(vocab_size=16), tokenizer, ["Covid"])
    assert larger.tokenize("Covid <url> virusvirus") == ["Covid", "<url>", "[UNK]"]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (["virus"], "piece 'virus' is in the vocabulary already"),
        (["new", "new"], "piece 'new' is in the vocabulary already, or given twice"),
        (["Covid"], r"piece 'Covid': no text is ever cut into it, 'Covid' is read as the words \['covid'\]"),
        (["##Id"], r"'Id' is read as the words \['id'\]"),
        (["covid-19"], r"read as the words \['covid', '-', '19'\]"),
        (["two words"], r"read as the words \['two', 'words'\]"),
        (["##"], "piece '##'"),
        ([""], "piece ''"),
        (["a" * 101], "no text is ever cut into it"),
        ("virus", "is the single string 'virus'"),
    ],
)
def test_pieces_that_no_text_is_cut_into_are_refused_and_change_nothing(pieces, message):
    model = random_model(vocab_size=16)
    with pytest.raises(InputError, match=message):
        extend_vocabulary(model, WordPieceTokenizer(VOCAB), pieces)
    assert model.config.vocab_size == len(model.backbone.embedding.word.weight) == 16


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(InputError, match="the tokenizer has 14 pieces, the model 10"):
        extend_vocabulary(random_model(vocab_size=10), WordPieceTokenizer(VOCAB), ["new"])


# freezing


@pytest.mark.parametrize(("embeddings", "layers"), [(True, 0), (True, 2), (False, 1), (True, 3)])
def test_what_is_frozen_stays_and_the_rest_learns(embeddings, layers):
    model = random_model()
    freeze(model, embeddings=embeddings, layers=layers)
    frozen = [f"backbone.encoder.blocks.{layer}." for layer in range(layers)] + ["backbone.embedding."] * embeddings
    before = copy.deepcopy(model.state_dict())
    optimizer = build_optimizer(model, weight_decay=0.01)
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.1
    model.train()
    batch = RaggedBatch.from_sequences(SEQUENCES)
    output = model(batch, torch.tensor([1, 8]))
    (output.mlm_logits.sum() + output.nsp_logits[:, 0].sum()).backward()
    optimizer.step()
    for name, value in model.state_dict().items():
        assert value.equal(before[name]) == name.startswith(tuple(frozen)), name


def test_a_frozen_part_stays_frozen_when_it_changes_its_shape():
    model = random_model()
    freeze(model, embeddings=True, layers=1)
    resize_vocabulary(model, 50)
    extend_positions(model, 20)
    prune_heads(model, {0: [1], 1: [1]})
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith(("backbone.embedding.", "backbone.encoder.blocks.0.")) for name in learning)
    assert {"backbone.encoder.blocks.1.attention.qkv.weight", "masked_lm.bias"} <= learning


@pytest.mark.parametrize("layers", [-1, 4])
def test_layers_that_do_not_exist_cannot_be_frozen(layers):
    with pytest.raises(ConfigError, match=f"freeze layers {layers}: the model has 3"):
        freeze(random_model(), embeddings=True, layers=layers)


def test_changes_can_follow_one_another_and_the_model_trains(tmp_path):
    model = random_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    prune_heads(model, {2: [0], 0: [1]})
    keep_layers(model, 2)
    resize_vocabulary(model, 45)
    extend_positions(model, 30)
    prune_heads(model, {0: [3]})
    model.save_pretrained(tmp_path)
    model = BertForPreTraining.from_pretrained(tmp_path)
    assert model.config.pruned_heads == {0: (1, 3)}
    optimizer = build_optimizer(model, weight_decay=0.01)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    batch, targets = RaggedBatch.from_sequences(SEQUENCES), torch.tensor([44, 3, 8])
    losses = []
    for _ in range(10):
        output = model(batch, torch.tensor([1, 5, 9]))
        loss = torch.nn.functional.cross_entropy(output.mlm_logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
