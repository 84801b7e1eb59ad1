"""`bertsmith push`: what goes up comes down the same, and nothing goes up that should not."""

from pathlib import Path

import pytest
from hub_server import files_of

from bertsmith.hub import model_folder


@pytest.fixture
def published(tiny_model):
    """A model folder with what else may lie in one."""
    (tiny_model / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    for name in ("pytorch_model.bin", "optimizer.pt", "state/000.safetensors", ".lock", "1_Pooling/config.json"):
        (tiny_model / name).parent.mkdir(exist_ok=True)
        (tiny_model / name).write_bytes(b"{}")
    return tiny_model


def test_what_was_pushed_loads_back_byte_for_byte(hub, token, published, run):
    assert run("push", published, "org/mine", "--private", "--message", "first").strip() == f"{hub.address}/org/mine"
    repository = hub.model("org/mine")
    assert repository.private
    assert hub.messages == ["first"]
    there = repository.commits[repository.branches["main"]]
    left_here = {"pytorch_model.bin", "optimizer.pt", "state/000.safetensors", ".lock"}
    ours = {name: content for name, content in files_of(published).items() if name not in left_here}
    assert {name: content for name, content in there.items() if name != ".gitattributes"} == ours
    back = files_of(model_folder("org/mine"))
    assert back == {name: content for name, content in ours.items() if name != "README.md"}
    assert "piece" in run("fill-mask", "the [MASK]", "--model", "org/mine")


def test_parts_of_a_model_that_are_no_longer_there_leave_the_repository(hub, token, published, run):
    parts = ("model-00001-of-00001.safetensors", "model.safetensors.index.json", "task.json", "modules.json")
    parts += ("2_Dense/config.json", "2_Dense/model.safetensors", "generator/config.json", "merges.txt", "spiece.model")
    others = ("a.md", "LICENSE.txt", "eval_results.json", "onnx/config.json")
    hub.add("org/mine", dict.fromkeys((*parts, *others), b"{}"))
    run("push", published, "org/mine")
    repository = hub.model("org/mine")
    there = set(repository.commits[repository.branches["main"]])
    assert set(others) <= there
    assert not there & set(parts)


def test_a_branch_and_a_card_under_its_other_name(hub, token, published, run):
    (published / "README.md").rename(published / "card.md")
    hub.add("org/mine", {"README.md": b"old"})
    assert run("push", published, "org/mine", "--branch", "dev").strip().endswith("/org/mine/tree/dev")
    repository = hub.model("org/mine")
    assert repository.commits[repository.branches["main"]] == {"README.md": b"old"}
    there = repository.commits[repository.branches["dev"]]
    assert there["README.md"].startswith(b"---\nlicense")
    assert "card.md" not in there


def test_what_push_refuses(hub, published, fails, monkeypatch, tmp_path):
    assert "HF_TOKEN" in fails("push", published, "org/mine")
    assert "no such folder" in fails("push", tmp_path / "none", "org/mine")
    Path("empty").mkdir()
    assert "no config.json" in fails("push", "empty", "org/mine")
    Path("run").mkdir()
    published.rename("run/model")
    assert "upload its model: run/model" in fails("push", "run", "org/mine")
    assert "org/name" in fails("push", "run/model", "mine")
    assert not hub.requests
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "set HF_TOKEN" in fails("push", "run/model", "org/mine")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    hub.add("org/mine", {"a.md": b"x"})
    assert "public" in fails("push", "run/model", "org/mine", "--private")
    assert len(hub.model("org/mine").commits) == 1
    weights = Path("run/model/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:500])
    assert "damaged" in fails("push", "run/model", "org/mine")


def test_push_without_network(hub, token, published, fails, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in fails("push", published, "org/mine")
