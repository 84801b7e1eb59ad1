"""Adapters inside a model: nothing changes at first, the right thing is computed after, and only they learn."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers

from bertsmith.batch import CAUSAL, RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import Linear
from bertsmith.model import BertConfig, BertForPreTraining, BertForSequenceClassification, BertModel, prune_heads
from bertsmith.model.family import BlockLayers
from bertsmith.model.peft import (
    AdapterSettings,
    activate,
    active_name,
    adapter_names,
    add_adapter,
    merge_adapter,
)
from bertsmith.train.optimizer import parameter_groups
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.trainer import BertTrainer, TrainerSettings

SEQUENCES = [[2, 7, 30, 3], [2, 3], [2, 5, 6, 7, 39, 9, 3], [2, 11, 3]]
EVERYTHING = ("query", "key", "value", "attention_output", "intermediate", "output")
BOTTLENECK = AdapterSettings("bottleneck", size=5)
LORA = AdapterSettings("lora", size=3, alpha=5)
WIDE_LORA = AdapterSettings("lora", size=3, targets=EVERYTHING)
KINDS = [BOTTLENECK, LORA, WIDE_LORA, AdapterSettings("lora", size=2, targets=("key", "intermediate"))]


def make_model(layers=2, labels=3, dropout=0.0):
    torch.manual_seed(0)
    config = BertConfig.named(
        f"{layers}/128",
        vocab_size=40,
        max_position_embeddings=16,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        id2label={index: f"label {index}" for index in range(labels)},
    )
    return BertForSequenceClassification(config)


def batch():
    return RaggedBatch.from_sequences(SEQUENCES)


def stir(model, seed=1):
    """Gives what learns random values, as if it had."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def loss_of(model, given, labels=(0, 1, 2, 0)):
    return F.cross_entropy(model(given).float(), torch.tensor(labels))


def reference_logits(folder, hooks=()):
    """The logits of transformers, one sequence at a time; hooks: (path, function of input and output)."""
    reference = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    for path, change in hooks:
        reference.get_submodule(path).register_forward_hook(lambda m, read, gave, change=change: change(read[0], gave))
    with torch.no_grad():
        return torch.cat([reference(torch.tensor([ids])).logits for ids in SEQUENCES])


@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fresh_adapter_changes_nothing_to_the_bit(settings, dtype):
    model = make_model().eval()
    model.set_compute_dtype(dtype)
    before = model(batch())
    add_adapter(model, settings)
    assert model(batch()).equal(before)


def test_a_bottleneck_computes_what_the_paper_says(tmp_path):
    model = make_model().eval()
    model.save_pretrained(tmp_path)
    add_adapter(model, BOTTLENECK)
    for head in (model.classifier, model.backbone.pooler):
        head.requires_grad_(False)  # the reference keeps the heads of the folder
    stir(model)
    hooks = []
    for number, block in enumerate(model.backbone.encoder.blocks):
        for layer, path in ((block.attention.output, "attention.output.dense"), (block.output, "output.dense")):
            down, up = copy.deepcopy(layer.adapter.down), copy.deepcopy(layer.adapter.up)

            def after(read, gave, down=down, up=up):
                narrow = F.gelu(gave @ down.weight.T + down.bias)
                return gave + narrow @ up.weight.T + up.bias

            hooks.append((f"bert.encoder.layer.{number}.{path}", after))
    with torch.no_grad():
        ours = model(batch())
    torch.testing.assert_close(ours, reference_logits(tmp_path, hooks), atol=1e-5, rtol=0)
    assert (ours - reference_logits(tmp_path)).abs().max() > 0.01


@pytest.mark.parametrize("settings", [LORA, WIDE_LORA], ids=["query-value", "all"])
def test_lora_computes_what_the_paper_says_and_merges_into_a_plain_folder(settings, tmp_path):
    model = make_model().eval()
    model.save_pretrained(tmp_path / "before")
    add_adapter(model, settings)
    for head in (model.classifier, model.backbone.pooler):
        head.requires_grad_(False)
    stir(model)
    scale = settings.alpha / 3
    paths = dict(
        zip(
            EVERYTHING,
            (*(f"attention.self.{part}" for part in ("query", "key", "value")),
             "attention.output.dense", "intermediate.dense", "output.dense"),
            strict=True,
        )
    )  # fmt: skip
    hooks = []
    for number, block in enumerate(model.backbone.encoder.blocks):
        fused = [target for target in settings.targets if target in EVERYTHING[:3]]
        for target in settings.targets:
            if target in fused:
                place, adapter = fused.index(target), block.attention.qkv.adapter
            else:
                place, adapter = 0, block.get_submodule(getattr(BlockLayers(), target)).adapter
            a, b = adapter.down.weight.detach()[3 * place : 3 * place + 3], adapter.up.detach()[place]
            hooks.append(
                (
                    f"bert.encoder.layer.{number}.{paths[target]}",
                    lambda read, gave, a=a, b=b: gave + scale * (read @ a.T) @ b.T,
                )
            )
    with torch.no_grad():
        ours = model(batch())
    torch.testing.assert_close(ours, reference_logits(tmp_path / "before", hooks), atol=1e-5, rtol=0)

    merge_adapter(model)
    model.save_pretrained(tmp_path / "merged")
    with torch.no_grad():
        torch.testing.assert_close(model(batch()), ours, atol=1e-5, rtol=0)
    torch.testing.assert_close(reference_logits(tmp_path / "merged"), ours, atol=1e-4, rtol=0)
    assert (reference_logits(tmp_path / "before") - ours).abs().max() > 0.01
    assert adapter_names(model) == []
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_only_the_adapter_and_its_heads_learn(settings):
    model = make_model()
    add_adapter(model, settings)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = BertTrainer(model, _objective, TrainerSettings(10, 1e-2, warmup_share=0))
    for _ in range(2):
        trainer.train_batch(batch())
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    ours = {name for name in before if ".adapter." in name or name.startswith(("classifier.", "backbone.pooler."))}
    assert changed == ours
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == ours
    grouped = [parameter for group in parameter_groups(model, 1e-3, layer_decay=0.5) for parameter in group["params"]]
    assert sum(parameter.numel() for parameter in grouped) == sum(before[name].numel() for name in ours)


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_every_way_of_running_a_block_runs_the_adapter(settings):
    model = make_model(dropout=0.1)
    add_adapter(model, settings)
    stir(model)

    def gradients(what):
        model.set_gradient_checkpointing(what)
        model.zero_grad()
        torch.manual_seed(5)
        loss_of(model, batch()).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients("none")
    for checkpointed in (gradients("attention"), gradients("blocks")):
        assert plain.keys() == checkpointed.keys()
        assert all(plain[name].equal(checkpointed[name]) for name in plain)
    model.eval()
    with torch.no_grad():
        states = model.backbone(batch()).hidden_states
        torch.testing.assert_close(model.backbone(batch(), need_maps=True).hidden_states, states, atol=1e-5, rtol=1e-5)
        causal = model.backbone(batch(), mask=CAUSAL).hidden_states
        torch.testing.assert_close(
            model.backbone(batch(), mask=CAUSAL, need_maps=True).hidden_states, causal, atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("settings", [BOTTLENECK, LORA], ids=["bottleneck", "lora"])
def test_packed_weights_never_go_stale(settings):
    model = make_model().eval()
    model.set_compute_dtype(torch.bfloat16)
    add_adapter(model, settings)
    for seed in (1, 2):
        with torch.no_grad():
            model(batch())  # packs a bf16 copy of every weight
        stir(model, seed)
        with torch.no_grad():
            packed = model(batch())
        torch.testing.assert_close(packed, model(batch()).detach(), atol=0.03, rtol=0.03)
    with torch.no_grad():
        activate(model, None)
        assert (model(batch()) - packed).abs().max() > 0.1
        activate(model, "default")
        assert model(batch()).equal(packed)


def kept_for_backward(model, given):
    """The bytes of activations that autograd keeps: tensors that are no weight, each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = loss_of(model, given)
    return sum(sizes.values()), loss


def test_frozen_layers_keep_less_and_the_lowest_need_no_backward():
    long = RaggedBatch.from_sequences([[2, *range(4, 17), 3]] * 4)
    kept = {}
    for name, settings in (("full", None), ("lora", LORA), ("bottleneck", BOTTLENECK)):
        model = make_model(layers=4)
        if settings:
            add_adapter(model, settings)
        model.set_compute_dtype(torch.bfloat16)
        seen = []
        model.backbone.encoder.blocks[0].attention.qkv.register_forward_hook(
            lambda m, read, gave, seen=seen: seen.append((read[0].requires_grad, gave.requires_grad))
        )
        kept[name], loss = kept_for_backward(model, long)
        loss.backward()
        # below the lowest adapter nothing asks for a gradient: LoRA begins in the query, the bottleneck after it
        assert seen == [{"full": (True, True), "lora": (False, True), "bottleneck": (False, False)}[name]]
    assert kept["lora"] < 0.85 * kept["full"]
    assert kept["bottleneck"] < 0.85 * kept["full"]


def test_adapters_take_turns_with_their_heads():
    model = make_model(labels=3).eval()
    original = model(batch()).detach()
    add_adapter(model, BOTTLENECK, "first")
    stir(model, 1)
    first = model(batch()).detach()
    add_adapter(model, LORA, "second")  # its heads start as those of the first
    stir(model, 2)
    second = model(batch()).detach()
    assert adapter_names(model) == ["first", "second"]
    assert active_name(model) == "second"
    for name, expected in (("first", first), (None, original), ("second", second), ("first", first)):
        activate(model, name)
        assert model(batch()).equal(expected)
        assert active_name(model) == name
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        assert bool(learning) == (name is not None)
    assert not any(original.equal(other) for other in (first, second))
    activate(model.train(), None)
    activate(model.eval(), "second")
    assert not any(module.training for module in model.modules())


def test_an_adapted_layer_holds_as_many_matrices_and_multiplies_in_8_bits_as_before():
    model = make_model()
    model.set_int8(True)

    def layers():
        return {name: each for name, each in model.named_modules() if isinstance(each, Linear)}

    before = {name: (each.stacked, each.int8) for name, each in layers().items()}
    assert (3, True) in before.values()
    add_adapter(model, WIDE_LORA)
    adapted = layers()
    assert {name: (adapted[name].stacked, adapted[name].int8) for name in before} == before
    merge_adapter(model)
    assert {name: (each.stacked, each.int8) for name, each in layers().items()} == before


def test_a_copy_of_a_model_has_adapters_of_its_own():
    model = make_model().eval()
    add_adapter(model, LORA)
    twin = copy.deepcopy(model)
    expected = model(batch()).detach()
    stir(twin)
    activate(twin, None)
    activate(twin, "default")
    assert model(batch()).equal(expected)
    assert not twin(batch()).equal(expected)


def test_training_goes_on_bit_for_bit_from_a_state(tmp_path):
    def trainer():
        model = make_model(dropout=0.1)
        add_adapter(model, LORA)
        return BertTrainer(model, _objective, TrainerSettings(6, 1e-2))

    whole, killed = trainer(), trainer()
    for step in range(6):
        whole.train_batch(batch())
        if step < 3:
            killed.train_batch(batch())
    save_state(tmp_path, killed, {}, keep=1)
    resumed = trainer()
    assert load_latest_state(tmp_path, resumed) == {}
    for _ in range(3):
        resumed.train_batch(batch())
    expected = whole.model.state_dict()
    assert all(value.equal(expected[name]) for name, value in resumed.model.state_dict().items())


def test_models_without_labels_and_with_pruned_heads_take_adapters():
    pretraining = BertForPreTraining(BertConfig.named("1/64", vocab_size=40))
    add_adapter(pretraining, LORA)
    learning = {name.split(".")[0] for name, p in pretraining.named_parameters() if p.requires_grad}
    assert learning == {"backbone", "masked_lm", "next_sentence"}
    assert not pretraining.backbone.embedding.word.weight.requires_grad

    model = make_model().eval()
    prune_heads(model, {0: [1]})
    before = model(batch()).detach()
    add_adapter(model, WIDE_LORA)
    assert model(batch()).equal(before)
    stir(model)
    changed = model(batch()).detach()
    merge_adapter(model)
    torch.testing.assert_close(model(batch()).detach(), changed, atol=1e-5, rtol=0)

    without_pooler = BertModel(BertConfig.named("1/64", vocab_size=40), need_pooler=False)
    add_adapter(without_pooler, BOTTLENECK)
    assert all(".adapter." in name for name, p in without_pooler.named_parameters() if p.requires_grad)


def test_what_cannot_be_done_is_said():
    model = make_model()
    with pytest.raises(ConfigError, match="nothing to merge"):
        merge_adapter(model)
    with pytest.raises(ConfigError, match="no adapter 'default'; the model has none"):
        activate(model, "default")
    add_adapter(model, BOTTLENECK)
    with pytest.raises(ConfigError, match="has an adapter 'default' already"):
        add_adapter(model, LORA)
    with pytest.raises(ConfigError, match="no adapter 'other'; the model has default"):
        activate(model, "other")
    with pytest.raises(ConfigError, match="bottleneck is not linear"):
        merge_adapter(model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "prefix"}, "kind 'prefix' is unknown; use bottleneck, lora"),
        ({"size": -1}, "size is -1; give at least 0"),
        ({"size": 2.5}, "size is 2.5, not a whole number"),
        ({"dropout": 1.0}, "dropout is 1.0; give at least 0 and less than 1"),
        ({"alpha": -1.0}, "alpha is -1.0; give at least 0"),
        ({"targets": ("query", "dense")}, r"""targets\[1\] is "dense", not 'query' or 'key'"""),
        ({"targets": ("query", "query")}, "give each once"),
        ({"kind": "bottleneck", "alpha": 8.0}, "alpha and targets belong to LoRA"),
        ({"kind": "bottleneck", "targets": ("query",)}, "alpha and targets belong to LoRA"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        AdapterSettings(**settings)


def test_defaults_are_those_of_the_papers():
    assert AdapterSettings("bottleneck").size == 64
    lora = AdapterSettings("lora")
    assert (lora.size, lora.alpha, lora.targets) == (8, 16.0, ("query", "value"))
    assert AdapterSettings(targets=("value", "query")) == lora


def _objective(model, given):
    from bertsmith.objectives import LossOutput

    return LossOutput(loss_of(model, given), {})


@pytest.mark.parametrize("settings", [BOTTLENECK, LORA], ids=["bottleneck", "lora"])
def test_a_model_folder_has_no_place_for_an_adapter(settings, tmp_path):
    model = make_model()
    add_adapter(model, settings)
    with pytest.raises(ConfigError, match="merge it, or use save_adapter"):
        model.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder" / "model.safetensors").exists()
