import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import bertsmith
from bertsmith.train.trainer import BertTrainer


def test_every_public_name_is_there():
    for name in bertsmith.__all__:
        assert callable(getattr(bertsmith, name))


def test_importing_costs_no_torch():
    code = "import sys, bertsmith, bertsmith.tokenizer; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_make_clean_leaves_the_runs_of_users():
    command = ["make", "--dry-run", "--always-make", "clean"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert {word for word in done.stdout.split() if word.startswith("runs")} == {"runs/quickstart"}


def test_a_command_that_fails_or_ends_early_is_no_way_whose_files_are_counted(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    files_of = runpy.run_path(str(Path(__file__).parents[1] / ".ci/trace.py"))["files_of"]
    with pytest.raises(SystemExit, match="2"):
        files_of(f"look {tmp_path}/nothing.tsv")
    with pytest.raises(SystemExit, match="ended before its way did"):
        files_of("--version", (BertTrainer, "train_batch"))
    assert files_of("--version")


def test_the_contract_of_the_guide_holds(tmp_path):
    """The lines that other tools rely on."""
    from bertsmith import BertConfig, BertModel, RaggedBatch, WordPieceTokenizer

    tokenizer = WordPieceTokenizer.train(["hello , how are you ?"] * 3, vocab_size=100, lowercase=True)
    tokenizer.save(tmp_path)
    assert WordPieceTokenizer.load(tmp_path).encode("Hello") == tokenizer.encode("hello")
    encoded = tokenizer("how", "are you", max_length=384, truncation="only_second", padding=False)
    assert len(encoded["input_ids"]) == len(encoded["token_type_ids"]) == len(encoded["offsets"]) == 6
    model = BertModel(BertConfig.named("tiny", vocab_size=len(tokenizer)))
    output = model(RaggedBatch.from_sequences([[2, 5, 3], [2, 3]]), need_maps=True)
    assert output.hidden_states.shape == (5, 128)
    assert output.cls.shape == output.pooled.shape == (2, 128)
    assert len(output.attentions) == 2
