"""LSTMs both ways: their states and loss beside torch's own, what they cannot see, a killed run, the command."""

import pytest
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.stream import PreTrainingStream, StreamNeeds, StreamSettings
from bertsmith.errors import CheckpointError, ConfigError, RunFolderError
from bertsmith_school.neighbours import LstmOptions, TwoWayLSTM, learn_two_ways, lstm, runs
from typed_command import typed

OPTIONS = LstmOptions(layers=2, size=12, dropout=0.0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TwoWayLSTM(50, OPTIONS).eval()


def test_the_states_are_those_of_each_sequence_by_itself(model):
    sequences = [[3, 7, 9, 4], [5, 6], [8, 1, 2, 9, 9, 4, 3]]
    layers = model(RaggedBatch.from_sequences(sequences))
    start = 0
    for ids in sequences:
        left = model.word(torch.tensor([ids]))
        right = left.flip(1)
        for number, found in enumerate(layers):
            if number:
                read = model.forwards[number - 1](left)[0], model.backwards[number - 1](right)[0]
                left, right = read if number == 1 else (left + read[0], right + read[1])
            expected = torch.cat([left, right.flip(1)], 2)[0]
            torch.testing.assert_close(found[start : start + len(ids)], expected, atol=1e-6, rtol=0)
        start += len(ids)


def test_neither_direction_sees_what_it_predicts(model):
    ids = [3, 7, 9, 4, 8, 2]
    base = model(RaggedBatch.from_sequences([ids]))[-1]
    other = model(RaggedBatch.from_sequences([[*ids[:3], 11, *ids[4:]]]))[-1]
    changed = (base != other).view(len(ids), 2, -1).any(2)
    assert changed[:, 0].tolist() == [False] * 3 + [True] * 3
    assert changed[:, 1].tolist() == [True] * 4 + [False] * 2


def test_the_loss_by_hand(model, village):
    corpus, tokenizer = village
    torch.manual_seed(0)
    model = TwoWayLSTM(len(tokenizer), OPTIONS)
    reading = StreamSettings(sequence_length=16, batch_size=3)
    batch = next(PreTrainingStream(corpus, tokenizer, reading, StreamNeeds("none", "next_token"), seed=1))
    output = lstm.two_way_loss(model, batch)
    states = model(batch.tokens)[-1].split(batch.tokens.lengths)
    total = count = 0
    for rows, ids in zip(states, batch.tokens.input_ids.split(batch.tokens.lengths), strict=True):
        odds = [(half @ model.word.weight.T + model.bias).log_softmax(1) for half in rows.chunk(2, 1)]
        for place in range(len(ids) - 1):
            total -= odds[0][place, ids[place + 1]] + odds[1][place + 1, ids[place]]
            count += 2
    assert output.loss.item() == pytest.approx(total.item() / count, rel=1e-5)
    assert output.sums["loss"] == (pytest.approx(total.item(), rel=1e-5), count)
    assert sum(output.sums[f"{way}_loss"][0] for way in ("ahead", "behind")) == pytest.approx(total.item(), rel=1e-5)


@pytest.mark.slow
def test_a_run_that_dies_goes_on_bit_for_bit_and_is_read_when_finished(village, tmp_path, monkeypatch):
    corpus, tokenizer = village
    options = LstmOptions(layers=1, size=16, epochs=1, batch_size=64)
    whole, figures = learn_two_ways(tmp_path / "whole", corpus, tokenizer, options)
    monkeypatch.setattr(runs, "SAVE_EVERY", 0.0)
    train, taken = lstm.BertTrainer.train_batch, []

    def dying(self, *parts):
        taken.append(self.step)
        if len(taken) == 5:
            raise ConnectionError("the process dies here")
        return train(self, *parts)

    monkeypatch.setattr(lstm.BertTrainer, "train_batch", dying)
    with pytest.raises(ConnectionError):
        learn_two_ways(tmp_path / "killed", corpus, tokenizer, options)
    again, same = learn_two_ways(tmp_path / "killed", corpus, tokenizer, options)
    assert taken[4:6] == [4, 4]
    assert same == figures
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in whole.state_dict().items())
    monkeypatch.setattr(lstm, "train_to_the_end", None)
    assert learn_two_ways(tmp_path / "killed", corpus, tokenizer, options)[1] == figures
    with pytest.raises(RunFolderError, match="another size"):
        learn_two_ways(tmp_path / "killed", corpus, tokenizer, LstmOptions(layers=1, size=8, epochs=1, batch_size=64))
    (tmp_path / "killed" / lstm.TENSOR_FILE).write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match=lstm.TENSOR_FILE):
        learn_two_ways(tmp_path / "killed", corpus, tokenizer, options)


@pytest.mark.parametrize(
    "change", [{"layers": 0}, {"epochs": 0}, {"dropout": 1.0}, {"learning_rate": 0.0}, {"size": 0}], ids=str
)
def test_settings_that_cannot_work(change):
    with pytest.raises(ConfigError):
        LstmOptions(**change)


@pytest.mark.slow
def test_the_command_learns_the_village_and_probes_its_layers(village, tmp_path, capsys):
    corpus, _ = village
    given = ["--corpus", corpus.folder, "--tokenizer", corpus.folder.parent / "vocab", "--out", tmp_path / "run"]
    shown = typed(
        capsys,
        "compare",
        "lstm",
        *given,
        "--size",
        "48",
        "--epochs",
        "2",
        "--learning-rate",
        "0.01",
        "--batch-size",
        "8",
    )
    losses = [float(line.split(":")[1].split()[0]) for line in shown.splitlines() if line.startswith("held out")]
    # 只数词频是 4.2 左右：两个方向都该远低于它
    assert len(losses) == 2
    assert max(losses) < corpus.unigram_entropy - 2.0
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if "layer" in line or "embeddings" in line]
    tags = [float(row[1]) for row in rows if len(row) == 3 and row[0].strip() != ""]
    assert len(tags) == 3
    assert max(tags[1:]) >= tags[0] > 0.5
    bad = tmp_path / "bad.conll"
    bad.write_text("word\n\n", encoding="utf-8")
    assert len(typed(capsys, "compare", "lstm", *given, "--tagged", bad, code=2).strip().splitlines()) == 1
