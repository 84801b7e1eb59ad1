"""Every path that only a GPU takes, against the CPU in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertsmith.batch import FULL, AttentionMask, RaggedBatch
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.kernels.layers import best_compute_dtype
from bertsmith.kernels.ragged_attention import ragged_attention
from bertsmith.model import BertConfig, MultiHeadSelfAttention, family_named
from bertsmith.objectives import objective_named
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.trainer import BertTrainer, TrainerSettings

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
LENGTHS = (3, 40, 17, 128, 1)
PIECES = 500
needs_bf16 = pytest.mark.skipif(
    torch.cuda.is_available() and best_compute_dtype("cuda") != torch.bfloat16, reason="needs a GPU with bf16"
)


def attended(device: str, dtype: torch.dtype, mask: AttentionMask) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the states and the gradient of attention over the same ragged batch, in float32 on the CPU."""
    config = BertConfig(hidden_size=64, num_attention_heads=4, intermediate_size=64)
    # 短的矩形走方程本身，它带着自己的 dropout：比较时要关掉
    attention = MultiHeadSelfAttention(config).eval()
    batch = RaggedBatch.from_sequences([[2] * length for length in LENGTHS]).to(device)
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(LENGTHS), 3, 4, 16, generator=draw).to(device, dtype).requires_grad_()
    states = ragged_attention(qkv, batch, mask, attention.attend, training=True, dropout=0.0)
    weights = torch.randn(states.shape, generator=draw).to(device)
    (states.float() * weights).sum().backward()
    assert qkv.grad is not None
    return states.detach().float().cpu(), qkv.grad.float().cpu()


@needs_bf16
@pytest.mark.parametrize(
    "mask",
    [FULL, AttentionMask(window=8), AttentionMask(is_causal=True), AttentionMask(is_causal=True, window=8)],
    ids=str,
)
def test_attention_without_padding_is_that_of_the_cpu_forward_and_backward(mask):
    for found, wanted in zip(attended("cuda", torch.bfloat16, mask), attended("cpu", torch.float32, mask), strict=True):
        torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("mask", [FULL, AttentionMask(window=8), AttentionMask(is_causal=True)], ids=str)
def test_padded_attention_in_float32_is_that_of_the_cpu(mask):
    for found, wanted in zip(attended("cuda", torch.float32, mask), attended("cpu", torch.float32, mask), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def batch_of(seed: int) -> PreTrainingBatch:
    rng = np.random.default_rng(seed)
    lengths = np.array([30, 64 - seed % 3, 12, 50])[: 4 - seed % 2]
    # 十个词轮流出现：几十步就学得会
    ids = (np.arange(lengths.sum()) + rng.integers(0, 10)) % 10 + 5
    starts = np.cumsum([0, *lengths[:-1]])
    positions = np.sort(np.concatenate([starts + 3, starts + 7]))
    labels = ids[positions].copy()
    ids[positions] = 4
    return PreTrainingBatch(
        RaggedBatch.from_flat(ids, lengths),
        torch.from_numpy(positions),
        torch.from_numpy(labels),
        torch.from_numpy(rng.integers(0, 2, len(lengths))),
    )


def trainer_on(device: str, family: str, optimizer: str, dtype: torch.dtype) -> BertTrainer:
    torch.manual_seed(0)
    config = family_named(family).config.named("tiny", vocab_size=PIECES, pad_token_id=0)
    objective = objective_named("mlm+nsp" if family == "bert" else "mlm")
    model = objective.build_model(config.changed(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    model.set_compute_dtype(dtype)
    settings = TrainerSettings(60, 2e-3, optimizer=optimizer)
    return BertTrainer(model, objective, settings, device=device)


@pytest.mark.parametrize(("family", "optimizer"), [("bert", "adamw"), ("roberta", "lamb"), ("modernbert", "muon")])
def test_training_in_float32_goes_as_on_the_cpu(family, optimizer):
    on_gpu, on_cpu = (trainer_on(device, family, optimizer, torch.float32) for device in ("cuda", "cpu"))
    losses = [[float(each.train_batch(batch_of(seed)).loss) for seed in range(5)] for each in (on_gpu, on_cpu)]
    np.testing.assert_allclose(*losses, rtol=2e-2)


@needs_bf16
@pytest.mark.parametrize(("family", "optimizer"), [("bert", "adamw"), ("modernbert", "muon")])
def test_training_in_bf16_learns(family, optimizer):
    trainer = trainer_on("cuda", family, optimizer, torch.bfloat16)
    losses = [float(trainer.train_batch(batch_of(seed)).loss) for seed in range(60)]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


@needs_bf16
@pytest.mark.parametrize(("family", "optimizer"), [("bert", "adamw"), ("modernbert", "muon")])
def test_compiled_blocks_learn_what_plain_ones_do_from_batches_of_any_lengths(family, optimizer):
    compiled, plain = (trainer_on("cuda", family, optimizer, torch.bfloat16) for _ in range(2))
    compiled.model.compile_blocks()
    losses = [[float(each.train_batch(batch_of(seed)).loss) for seed in range(20)] for each in (compiled, plain)]
    np.testing.assert_allclose(*losses, rtol=5e-2)
    heldout = [each.evaluate([batch_of(20), batch_of(21)])["mlm_loss"] for each in (compiled, plain)]
    np.testing.assert_allclose(*heldout, rtol=5e-2)


@needs_bf16
@pytest.mark.parametrize(("family", "optimizer"), [("bert", "adamw"), ("modernbert", "muon"), ("roberta", "lamb")])
def test_a_step_does_not_wait_for_the_device(family, optimizer):
    trainer = trainer_on("cuda", family, optimizer, torch.bfloat16)
    for seed in range(3):
        trainer.train_batch(batch_of(seed))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.train_batch(batch_of(3))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lamb"])
def test_a_run_resumes_on_the_gpu(tmp_path, optimizer):
    whole, broken, resumed = (trainer_on("cuda", "modernbert", optimizer, torch.float32) for _ in range(3))
    for seed in range(3):
        for trainer in (whole, broken):
            trainer.train_batch(batch_of(seed))
    save_state(tmp_path, broken, {}, keep=1)
    load_latest_state(tmp_path, resumed)
    losses = [float(each.train_batch(batch_of(3)).loss) for each in (whole, resumed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lamb"])
def test_a_batch_that_is_not_finite_leaves_the_weights_as_they_are(optimizer):
    trainer = trainer_on("cuda", "modernbert", optimizer, torch.float32)
    trainer.train_batch(batch_of(0))
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.loss_limit = -1.0
    trainer.train_batch(batch_of(1))
    trainer.read_skips()
    assert (trainer.skipped, trainer.skipped_in_a_row) == (1, 1)
    assert all(map(torch.equal, before, trainer.model.parameters()))


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "albert", "distilbert"])
def test_states_of_every_family_are_those_of_the_cpu(family):
    torch.manual_seed(0)
    model = family_named(family).backbone(family_named(family).config.named("tiny", vocab_size=PIECES, pad_token_id=0))
    batch = RaggedBatch.from_sequences([[7 + n for n in range(length)] for length in LENGTHS])
    with torch.inference_mode():
        wanted = model.eval()(batch).hidden_states
        model.to("cuda")
        found = model(batch.to("cuda")).hidden_states.cpu()
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        if best_compute_dtype("cuda") == torch.bfloat16:
            model.set_compute_dtype(torch.bfloat16)
            rough = model(batch.to("cuda")).hidden_states.float().cpu()
            assert torch.cosine_similarity(rough, wanted, dim=-1).min() > 0.99
