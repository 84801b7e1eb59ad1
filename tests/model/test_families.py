"""A family is one file: one from outside the package is trained, saved, loaded, changed, fine-tuned and used."""

import json
from importlib import metadata

import pytest
import torch
from prenorm import FAMILY, PreNormBlock, PreNormConfig, PreNormModel
from torch import nn

from bertsmith import RaggedBatch, WordPieceTokenizer, load_pipeline
from bertsmith.errors import CheckpointError
from bertsmith.kernels.layers import Linear
from bertsmith.model import BertForPreTraining, family, load_any, prune_heads
from bertsmith.model.architectures import ModelForPreTraining, architectures_by_name
from bertsmith.model.peft import AdapterSettings, add_adapter
from bertsmith.objectives import objective_named
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from typed_command import typed

TEXTS = ["the man eats bread .", "the woman reads a book !"]


def forget():
    family.families.cache_clear()
    architectures_by_name.cache_clear()


@pytest.fixture
def prenorm(monkeypatch):
    """The family as an installed package names it."""
    found = metadata.entry_points
    entries = [metadata.EntryPoint("prenorm", "prenorm:FAMILY", "bertsmith.families")]
    entries.append(metadata.EntryPoint("broken", "nowhere_at_all", "bertsmith.families"))
    monkeypatch.setattr(
        metadata, "entry_points", lambda *, group: entries if group == "bertsmith.families" else found(group=group)
    )
    forget()
    with pytest.warns(UserWarning, match="nowhere_at_all, an entry point bertsmith.families, cannot be used"):
        assert family.families()[FAMILY.model_type] is FAMILY
    yield FAMILY
    entries.clear()
    forget()


@pytest.fixture
def folder(prenorm, tmp_path):
    torch.manual_seed(0)
    tokenizer = WordPieceTokenizer.train(TEXTS * 3, vocab_size=200)
    config = PreNormConfig.named("2/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=32)
    ModelForPreTraining(config).save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    return tmp_path / "model"


def batch_of(folder):
    tokenizer = WordPieceTokenizer.load(folder)
    return RaggedBatch.from_sequences([tokenizer(text)["input_ids"] for text in TEXTS])


def test_its_block_is_the_one_of_torch(prenorm):
    torch.manual_seed(0)
    config = PreNormConfig.named("1/64", vocab_size=50)
    ours = PreNormBlock(config).eval()
    theirs = nn.TransformerEncoderLayer(64, 1, 256, activation="gelu", norm_first=True, batch_first=True).eval()
    theirs.load_state_dict(
        {
            "self_attn.in_proj_weight": ours.attention.qkv.weight,
            "self_attn.in_proj_bias": ours.attention.qkv.bias,
            "self_attn.out_proj.weight": ours.attention.output.weight,
            "self_attn.out_proj.bias": ours.attention.output.bias,
            "linear1.weight": ours.intermediate.weight,
            "linear1.bias": ours.intermediate.bias,
            "linear2.weight": ours.output.weight,
            "linear2.bias": ours.output.bias,
            **{f"norm1.{name}": value for name, value in ours.attention_norm.state_dict().items()},
            **{f"norm2.{name}": value for name, value in ours.output_norm.state_dict().items()},
        }
    )
    theirs.layer_norm_eps = config.layer_norm_eps
    theirs.norm1.eps = theirs.norm2.eps = config.layer_norm_eps
    hidden = torch.randn(7, 64)
    batch = RaggedBatch.from_sequences([[1] * 7])
    with torch.no_grad():
        torch.testing.assert_close(ours(hidden, batch).states, theirs(hidden[None])[0], rtol=1e-5, atol=1e-5)


def test_its_folder_says_what_it_is(folder, prenorm):
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("prenorm", ["PreNormForPreTraining"])
    model = load_any(folder)
    assert isinstance(model.backbone, PreNormModel)
    batch, positions = batch_of(folder), torch.tensor([1, 9])
    model.save_pretrained(folder.parent / "again")
    with torch.no_grad():
        torch.testing.assert_close(
            load_any(folder.parent / "again").eval()(batch, positions).mlm_logits,
            model.eval()(batch, positions).mlm_logits,
            rtol=0,
            atol=0,
        )


def test_it_is_pretrained(folder, prenorm, village_small):
    corpus, tokenizer = village_small
    torch.manual_seed(0)
    config = PreNormConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=64)
    objective = objective_named("mlm+nsp")
    trainer = BertTrainer(
        objective.build_model(config), objective, TrainerSettings(total_steps=30, learning_rate=3e-3), seed=0
    )
    from bertsmith.data.stream.stream import PreTrainingStream, StreamSettings

    settings = StreamSettings(sequence_length=64, batch_size=16)
    stream = PreTrainingStream(corpus, tokenizer, settings, objective.needs, seed=0)
    losses = [float(trainer.train_batch(next(stream)).loss) for _ in range(30)]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_everything_else_knows_its_layers(folder, prenorm):
    model = load_any(folder)
    model.set_int8(True)
    assert sum(module.int8 for module in model.modules() if isinstance(module, Linear)) == 4 * 2
    wider = PreNormConfig.named("2/128", vocab_size=50)
    pruned = ModelForPreTraining(wider)
    prune_heads(pruned, {1: [0]})
    assert pruned.backbone.encoder.blocks[1].attention.num_heads == 1
    names = set(dict(model.named_parameters()))
    add_adapter(model, AdapterSettings("lora", 2))
    new = set(dict(model.named_parameters())) - names
    assert new
    assert all(name.startswith("backbone.encoder.blocks.") for name in new)


def test_it_is_fine_tuned_and_used(folder, prenorm, tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\n" + f"{TEXTS[0]}\tfood\n{TEXTS[1]}\tbook\n" * 12, encoding="utf-8")
    words = f"finetune classify --model {folder} --train {data} --dev {data} --out {tmp_path / 'run'} --epochs 6"
    typed(capsys, *words.split(), "--batch-size", "8", "--learning-rate", "1e-3", "--precision", "float32")
    found = load_pipeline("classify", tmp_path / "run" / "model")(TEXTS)
    assert [one.label for one in found] == ["food", "book"]
    assert load_pipeline("embed", folder)(TEXTS).shape == (2, 64)


def test_a_folder_of_an_unknown_family_is_refused(tmp_path, tiny_model):
    values = json.loads((tiny_model / "config.json").read_text())
    (tiny_model / "config.json").write_text(json.dumps({**values, "model_type": "prenorm"}))
    with pytest.raises(CheckpointError, match="prenorm"):
        BertForPreTraining.from_pretrained(tiny_model)
