"""Steps on a device whose numbers the host does not read: on a GPU they would make it wait.

The fake device is torch's `meta`: its tensors have shapes and no numbers, so that whatever reads one fails. A step that
can be taken there needs no answer from the device.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.errors import TrainingError
from bertsmith.model import family_named
from bertsmith.objectives import LossOutput, RunningAverages, objective_named
from bertsmith.train.trainer import BertTrainer, TrainerSettings

PIECES = 60
READING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")


def batch_of(objective: str, seed: int = 0, lengths: tuple[int, ...] = (9, 14, 5)) -> PreTrainingBatch:
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, PIECES, sum(lengths))
    positions = np.cumsum([1, *lengths[:-1]]) + 1
    pairs = objective.endswith(("nsp", "sop"))
    return PreTrainingBatch(
        RaggedBatch.from_flat(ids, np.array(lengths)),
        torch.from_numpy(positions),
        torch.from_numpy(ids[positions]),
        torch.from_numpy(rng.integers(0, 2, len(lengths)) if pairs else np.full(len(lengths), NO_LABEL)),
        masked_draws=torch.from_numpy(rng.random(len(lengths)).astype(np.float32)),
    )


def trainer_of(
    objective_name: str, *, family: str = "bert", optimizer: str = "adamw", device: str = "cpu", bf16: bool = False
) -> BertTrainer:
    torch.manual_seed(0)
    objective = objective_named(objective_name)
    config = family_named(family).config.named("tiny", vocab_size=PIECES, pad_token_id=0)
    model = objective.build_model(config.changed(attention_probs_dropout_prob=0.0))
    for part in objective.models(model).values():
        part.set_compute_dtype(torch.bfloat16 if bf16 else torch.float32)
    settings = TrainerSettings(100, 1e-3, optimizer=optimizer, skips_in_a_row=3)
    return BertTrainer(model, Spoiling(objective), settings, device=device)


class Spoiling:
    """An objective whose loss is not finite while `spoils` is set."""

    def __init__(self, objective):
        self.objective, self.spoils = objective, False

    def __call__(self, model, batch):
        output = self.objective(model, batch)
        return LossOutput(output.loss * (float("nan") if self.spoils else 1.0), output.sums)


class Reads(TorchDispatchMode):
    """Counts the operations that tell the host a number of the device, or copy from the device to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.everything: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.everything.add(name)
        leaves = (
            name == "_to_copy" and args[0].device.type == "meta" and (kwargs or {}).get("device") == torch.device("cpu")
        )
        if leaves or (
            name in READING and any(isinstance(each, Tensor) and each.device.type == "meta" for each in args)
        ):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _fused_on_meta(monkeypatch):
    """Lets torch's fused optimizers run on the fake device: their kernels have shapes there, only the door is shut."""
    module = importlib.import_module("torch.optim.optimizer")
    supported = module._get_fused_kernels_supported_devices()
    monkeypatch.setattr(module, "_get_fused_kernels_supported_devices", lambda: [*supported, "meta"])


@pytest.mark.parametrize(
    ("objective", "family", "optimizer"),
    [
        ("mlm+nsp", "bert", "adamw"),
        ("mlm", "modernbert", "muon"),
        ("mlm+sop", "albert", "lamb"),
        ("rtd", "electra", "adamw"),
    ],
)
def test_a_pre_training_step_reads_nothing_back_from_the_device(objective, family, optimizer):
    trainer = trainer_of(objective, family=family, optimizer=optimizer, device="meta", bf16=True)
    window = RunningAverages()
    with Reads() as reads:
        for seed in range(2):
            batch = batch_of(objective, seed)
            window.add(trainer.train_batch(*batch.split(1 + seed)).sums)
    assert reads.names == []
    # 没有填充：注意力走变长内核
    assert any("varlen" in name for name in reads.everything)
    assert trainer.step == 2
    assert all(each.device.type == "meta" for pair in window.totals.values() for each in pair)
    with pytest.raises((RuntimeError, NotImplementedError)):
        window.averages()


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lamb"])
def test_a_state_that_is_read_back_lies_on_the_device(optimizer):
    trainer = trainer_of("mlm", optimizer=optimizer, device="meta", bf16=True)
    trainer.train_batch(batch_of("mlm"))
    state = trainer.optimizer.state_dict()
    stored = {
        number: {name: torch.zeros(value.shape) for name, value in moments.items()}
        for number, moments in state["state"].items()
    }
    trainer.optimizer.load_state_dict({**state, "state": stored})
    moments = trainer.optimizer.state.values()
    assert {value.device.type for each in moments for value in each.values()} == {"meta"}
    trainer.train_batch(batch_of("mlm"))


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lamb"])
def test_unread_steps_move_the_weights_as_read_ones_do_and_skip_the_same_batches(optimizer):
    read, late = trainer_of("mlm", optimizer=optimizer), trainer_of("mlm", optimizer=optimizer)
    late.reads_late = True
    for number in range(5):
        for trainer in (read, late):
            trainer.objective.spoils = number in (1, 2)
            trainer.train_batch(batch_of("mlm", number))
    late.read_skips()
    assert (read.skipped, read.skipped_in_a_row) == (late.skipped, late.skipped_in_a_row) == (2, 0)
    for (name, one), other in zip(read.model.named_parameters(), late.model.parameters(), strict=True):
        assert torch.isfinite(other).all()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7, msg=name)


def test_a_skipped_batch_has_no_share_in_the_averages_of_unread_steps():
    trainer = trainer_of("mlm")
    trainer.reads_late = True
    window = RunningAverages()
    trainer.objective.spoils = True
    window.add(trainer.train_batch(batch_of("mlm")).sums)
    assert window.averages() == {}


def test_too_many_skips_end_a_run_of_unread_steps_too():
    trainer = trainer_of("mlm")
    trainer.reads_late = trainer.objective.spoils = True
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    for _ in range(2):
        trainer.train_batch(batch_of("mlm"))
    with pytest.raises(TrainingError, match="3 of them in a row"):
        trainer.train_batch(batch_of("mlm"))
    assert all(map(torch.equal, before, trainer.model.parameters()))
