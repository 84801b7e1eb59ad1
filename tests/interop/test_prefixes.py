"""What common tools put before all names of a checkpoint is taken off, wherever weights are read."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.cli import main
from bertsmith.errors import CheckpointError
from bertsmith.model import BertForPreTraining, ModelConfig, load_any
from bertsmith.model.architectures import ModelForMaskedLM
from bertsmith.model.families.modernbert import ModernBertConfig
from bertsmith.model.folder import WRAPPERS, stored_heads, without_wrapper

GUIDES = [Path(__file__).parents[2] / "docs" / language / "how-to" / "import.md" for language in ("en", "zh")]
ROWS = [re.findall(r"^\| `([\w./]+)` \|", guide.read_text(encoding="utf-8"), re.M) for guide in GUIDES]
PREFIXES = [prefix for prefix in ROWS[0] if prefix.endswith(".")]


def renamed(folder, prefix):
    path = folder / "model.safetensors"
    save_file({prefix + name: value for name, value in load_file(path).items()}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_wrapped_model_folder_is_the_model(prefix, tiny_model):
    expected = load_any(tiny_model).state_dict()
    renamed(tiny_model, prefix)
    with pytest.warns(UserWarning, match=f"begins with {prefix}; read without it"):
        found = load_any(tiny_model).state_dict()
    assert all(found[name].equal(value) for name, value in expected.items())
    with pytest.warns(UserWarning, match="read without it"):
        assert stored_heads(tiny_model) == {"masked_lm", "next_sentence"}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_wrapped_pickled_weights_are_imported(prefix, tiny_model, tmp_path, capsys):
    source = tmp_path / "source"
    shutil.copytree(tiny_model, source)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    torch.save({prefix + name: value for name, value in tensors.items()}, source / "pytorch_model.bin")
    with pytest.raises(SystemExit) as ended:
        main(["import", str(source), "--out", str(tmp_path / "out")])
    assert ended.value.code == 0
    assert f"begins with {prefix}; read without it" in capsys.readouterr().err
    expected, found = (load_any(folder).state_dict() for folder in (tiny_model, tmp_path / "out"))
    assert all(found[name].equal(value) for name, value in expected.items())


def test_a_prefix_of_some_names_is_structure(tiny_model):
    path = tiny_model / "model.safetensors"
    tensors = load_file(path)
    changed = {("module." if name.startswith("cls.") else "") + name: value for name, value in tensors.items()}
    save_file(changed, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="missing"):
        BertForPreTraining.from_pretrained(tiny_model)


def test_a_family_whose_own_prefix_is_one_of_them_is_read_as_before(tmp_path):
    torch.manual_seed(0)
    config = ModernBertConfig.named("1/64", vocab_size=20, pad_token_id=0)
    model = ModelForMaskedLM(config)
    model.save_pretrained(tmp_path)
    found = ModelForMaskedLM.from_pretrained(tmp_path).state_dict()
    assert all(found[name].equal(value) for name, value in model.state_dict().items())
    assert isinstance(ModelConfig.load(tmp_path), ModernBertConfig)


@pytest.mark.parametrize("scope", [row for row in ROWS[0] if row.endswith("/")])
def test_scopes_of_tensorflow_are_prefixes_too(scope):
    names = [f"{scope}bert/embeddings/word_embeddings", f"{scope}cls/predictions/output_bias"]
    with pytest.warns(UserWarning, match=f"a.index: every tensor's name begins with {scope}"):
        assert without_wrapper(names, "a.index", "/") == ({name.removeprefix(scope): name for name in names}, scope)
    assert without_wrapper([], "a.index") == ({}, "")


def test_both_guides_list_every_prefix():
    assert ROWS[0] == ROWS[1]
    assert {prefix.split(".")[0] for prefix in PREFIXES} == set(WRAPPERS)
