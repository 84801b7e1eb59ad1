"""The examples run as their first lines say, and the model in forty lines is bertsmith's own."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.tinyworld import trained_model

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_the_example_runs():
    command = [sys.executable, str(EXAMPLES / "train_in_python.py"), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.endswith("%")]) == 5


def test_the_example_takes_ones_own_text_as_its_first_lines_say(tmp_path, monkeypatch, capsys):
    """Three files, a document each, put in where the village was; one step of training."""
    for eaten in ("bread", "fish", "cheese"):
        (tmp_path / f"{eaten}.txt").write_text(9 * f"The man eats the {eaten}. ", encoding="utf-8")
    code = (EXAMPLES / "train_in_python.py").read_text(encoding="utf-8")
    (own,) = re.findall(r"^ +(documents = .*)$", code, flags=re.MULTILINE)
    begin, end = code.index("documents = ["), code.index("with tempfile")
    finding = "from bertsmith.data.reading.sources import find_text_files"
    own = f"{finding}\nfrom bertsmith.data.reading.text import read_documents\n{own}\n"
    code = code[:begin] + own.replace("your/folder", str(tmp_path)) + code[end:]
    monkeypatch.setattr(sys, "argv", ["example", "1"])
    exec(compile(code, "example", "exec"), {})
    assert len([line for line in capsys.readouterr().out.splitlines() if line.endswith("%")]) == 5


@pytest.fixture
def run_minibert(monkeypatch, capsys):
    """Runs the example on a file, and returns what it printed and what it ended with."""

    def run(file):
        monkeypatch.setattr(sys, "argv", ["minibert.py", "1", str(file)])
        try:
            runpy.run_path(str(EXAMPLES / "minibert.py"), run_name="__main__")
        except SystemExit as ended:
            return capsys.readouterr().out, ended.code
        return capsys.readouterr().out, None

    return run


def test_minibert_fills_the_sentences_of_ones_own_file(tmp_path, run_minibert):
    file = tmp_path / "own.txt"
    file.write_text("the cat sat\nthe cat sat\n\na dog ran fast\nbirds\nthe dog sat\n")
    out, said = run_minibert(file)
    assert said is None
    probes = [line.split("  ")[1] for line in out.splitlines() if "[MASK]" in line]
    assert probes == 2 * ["the cat [MASK]", "a dog ran [MASK]", "[MASK]"]
    assert "verbs" not in out


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b" \n\n", "holds no sentence"), (b"\xff\xfe", "not UTF-8")]
)
def test_minibert_says_in_a_line_what_is_wrong_with_a_file(tmp_path, run_minibert, content, said):
    file = tmp_path / "own.txt"
    if content is not None:
        file.write_bytes(content)
    out, line = run_minibert(file)
    # sys.exit 收到一行文字：打印在标准错误上，以 1 结束
    assert out == ""
    assert said in line
    assert str(file) in line
    assert "\n" not in line


@pytest.fixture
def forty_lines():
    """The names of the example that is the model in forty lines."""
    return runpy.run_path(str(EXAMPLES / "bert_in_forty_lines.py"), run_name="example")


def test_the_model_in_forty_lines_gives_the_states_of_the_package(forty_lines, tmp_path):
    """Of the bundled model, and of a fresh one of another shape, in float32."""
    torch.manual_seed(0)
    config = BertConfig.named("3/128", vocab_size=90, max_position_embeddings=24, num_attention_heads=4)
    BertForPreTraining(config).save_pretrained(tmp_path / "fresh")
    ids, segments = torch.randint(5, 90, (17,)), torch.tensor([0] * 9 + [1] * 8)
    for folder in (trained_model(), tmp_path / "fresh"):
        theirs = BertForPreTraining.from_pretrained(folder).eval()
        written = forty_lines["Bert"](folder)
        with torch.inference_mode():
            batch = RaggedBatch.from_sequences([ids.tolist()], [segments.tolist()])
            output = theirs.backbone(batch, need_layers=True)
            expected = [*output.layers, output.pooled[0], theirs(batch).mlm_logits]
            states = written.states(ids, segments)
            found = [*states, written.pooled(states[-1]), written.masked_lm(states[-1])]
        assert len(found) == len(expected) == theirs.config.num_hidden_layers + 3
        for own, other in zip(found, expected, strict=True):
            torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-5)


def test_the_model_in_forty_lines_reads_the_names_of_the_published_bert(forty_lines, tmp_path):
    """`google-bert/bert-base-uncased` calls a norm's weight and bias gamma and beta."""
    shutil.copytree(trained_model(), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {re.sub("|".join(old), lambda found: old[found[0]], name): each for name, each in load_file(path).items()}
    assert "bert.embeddings.LayerNorm.gamma" in renamed
    save_file(renamed, path)
    ids = torch.arange(5, 17)
    before, now = (forty_lines["Bert"](folder).states(ids, 0 * ids)[-1] for folder in (trained_model(), path.parent))
    torch.testing.assert_close(now, before, atol=0, rtol=0)


def test_the_model_in_forty_lines_has_forty_lines_and_fills_a_mask(capsys, monkeypatch):
    path = EXAMPLES / "bert_in_forty_lines.py"
    model = path.read_text(encoding="utf-8").partition("class Bert:")[2].partition("if __name__")[0]
    lines = [line.strip() for line in model.splitlines()]
    assert len([line for line in lines if line and not line.startswith(("#", '"""'))]) <= 40
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "book" in words[:3]
