"""One family against `transformers`, model by model: the oracle that the tests of all families share.

`check` makes random weights there, loads them here, and compares states, outputs and the gradient of every parameter;
then it saves here and loads there. A family's own test is a list of models:

    @pytest.mark.parametrize("suffix", MODELS)
    def test_it_is_the_reference(suffix, tmp_path):
        check(transformers.RobertaConfig(**SHAPE), suffix, tmp_path)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.model import ModelConfig, PretrainedModel, architectures_by_name, load_any
from bertsmith.model.folder import published_names

LENGTHS = (1, 7, 64, 512)
"""Ragged on purpose: from a single token to the longest that most families read; even in number, for choices."""

CHOICES = 2
TOLERANCE = 1e-5
LABELS = {0: "a", 1: "b", 2: "c"}
HEADS = (
    *("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    "ForMultipleChoice",
)
"""The architectures that every family has."""


def check(
    config: transformers.PreTrainedConfig,
    suffix: str,
    folder: Path,
    *,
    reads_segments: bool = False,
    lengths: Sequence[int] = LENGTHS,
    gradient_tolerance: float = TOLERANCE,
    attention: str | None = None,
) -> PretrainedModel:
    """Compares one architecture of a family with its `transformers` class, on random weights.

    Args:
        config: the tiny shape, of the `transformers` class for the family; `num_labels` as the head needs them.
        suffix: of the architecture: `Model`, `ForMaskedLM` …
        folder: empty; both models are saved below it.
        reads_segments: whether the reference is given the token types; if not, ours gets some and must ignore them.
        lengths: of the sequences of the batch; an even number of them.
        gradient_tolerance: largest difference of a gradient, as a share of the largest number in that tensor.
        attention: how the reference attends, `eager` or `sdpa`; None as it does by itself.

    Returns:
        Our model, in evaluation mode, filled with the reference's weights.
    """
    theirs = random_reference(config, suffix)
    theirs.save_pretrained(folder / "theirs")
    # `architectures` 由 config.json 说出：load_any 找到哪个类，也在检查之列
    ours = load_any(folder / "theirs").eval()
    assert ours.architecture == type(theirs).__name__
    if attention:
        theirs.set_attn_implementation(attention)
    same_outputs_and_gradients(
        ours, theirs, reads_segments=reads_segments, lengths=lengths, gradient_tolerance=gradient_tolerance
    )
    same_folder(ours, theirs, folder)
    return ours


def random_reference(config: transformers.PreTrainedConfig, suffix: str) -> Any:
    """Makes a model of `transformers` in evaluation mode, in which no bias is 0 and no scale is 1."""
    torch.manual_seed(0)
    return disturbed(getattr(transformers, type(config).__name__.removesuffix("Config") + suffix)(config).eval())


def random_model(
    kind: type[ModelConfig], shape: dict[str, Any], suffix: str = "ForMaskedLM", **changes: Any
) -> PretrainedModel:
    """Makes such a model of ours, with labels where the head needs some."""
    torch.manual_seed(0)
    labels = {"id2label": LABELS} if "Classification" in suffix else {}
    config = kind(**{**shape, **labels, **changes})
    return disturbed(architectures_by_name()[config.family.name + suffix](config).eval())


def disturbed(model: Any) -> Any:
    """Moves every parameter away from its neutral start."""
    with torch.no_grad():
        # 初始化时偏置为 0、归一化为 1：打乱它们，否则名字对应错了也看不出来
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def same_outputs_and_gradients(
    ours: PretrainedModel,
    theirs: Any,
    *,
    reads_segments: bool,
    lengths: Sequence[int] = LENGTHS,
    gradient_tolerance: float = TOLERANCE,
) -> None:
    """Runs one ragged batch through both, and back from a random combination of all outputs."""
    batch = random_batch(ours, lengths, segments=2 if not reads_segments else ours.config.type_vocab_size)
    inputs = {"input_ids": batch.pad(batch.input_ids, ours.config.pad_token_id), "attention_mask": batch.padding_mask}
    inputs["attention_mask"] = inputs["attention_mask"].long()
    if reads_segments:
        inputs["token_type_ids"] = batch.pad(batch.token_type_ids)
    with torch.no_grad():
        states = theirs.base_model(**inputs).last_hidden_state
        _close("last hidden state", ours.backbone(batch).hidden_states, batch.unpad(states))

    outputs = ours.published(batch)
    if theirs.__class__.__name__.endswith("MultipleChoice"):
        inputs = {name: value.view(-1, CHOICES, value.shape[1]) for name, value in inputs.items()}
    expected = theirs(**inputs)
    generator = torch.Generator().manual_seed(2)
    our_loss = their_loss = torch.zeros(())
    for name, value in outputs.items():
        wanted = expected[name]
        wanted = batch.unpad(wanted) if name in ours.token_outputs else wanted.reshape(value.shape)
        _close(name, value, wanted)
        weights = torch.randn(value.shape, generator=generator)
        our_loss, their_loss = our_loss + (value * weights).sum(), their_loss + (wanted * weights).sum()
    our_loss.backward()
    their_loss.backward()
    same_gradients(ours, theirs, gradient_tolerance)


def same_gradients(ours: PretrainedModel, theirs: nn.Module, tolerance: float) -> None:
    """Compares the gradient of every parameter, relative to the largest number in it."""
    names = ours.family.names
    # 共享的张量有几个名字：每个都能找到它
    reference = dict(theirs.named_parameters(remove_duplicate=False))
    left = {parameter: name for name, parameter in reference.items()}
    for name, parameter in ours.named_parameters():
        # 融合的矩阵在对方那里是几个：按行拼起来比
        sources = [each if each in reference else names.same_bias[each] for each in published_names(name, names)]
        for source in sources:
            left.pop(reference[source], None)
        found = _gradient(parameter)
        wanted = torch.cat([_gradient(reference[source]) for source in sources])
        largest = max(float(wanted.abs().max()), 1e-3)
        torch.testing.assert_close(
            found, wanted, rtol=0, atol=tolerance * largest, msg=lambda text, name=name: f"gradient of {name}: {text}"
        )
    assert not left, f"parameters of the reference that ours does not have: {list(left.values())}"


def same_folder(ours: PretrainedModel, theirs: Any, folder: Path) -> None:
    """Saves ours: there it loads without a remark, every tensor is the same to the bit, and so is the shape."""
    ours.save_pretrained(folder / "ours")
    again, info = type(theirs).from_pretrained(folder / "ours", output_loading_info=True)
    assert not any(info.values()), info
    for name, value in theirs.state_dict().items():
        assert again.state_dict()[name].equal(value), name
    stored, written = (load_file(folder / each / "model.safetensors") for each in ("theirs", "ours"))
    for name in stored.keys() & written.keys():
        assert stored[name].equal(written[name]), name
    wanted = theirs.config.to_dict()
    values = json.loads((folder / "ours" / "config.json").read_text())
    for name in values.keys() & wanted.keys() - {"id2label"}:
        assert getattr(again.config, name) == wanted[name], name
    # 同样的字节：再读再写一遍，什么也不变
    load_any(folder / "ours").save_pretrained(folder / "again")
    for name in ("config.json", "model.safetensors"):
        assert (folder / "again" / name).read_bytes() == (folder / "ours" / name).read_bytes(), name


def random_batch(model: PretrainedModel, lengths: Sequence[int], *, segments: int) -> RaggedBatch:
    """Draws sequences without `[PAD]`, which the reference would not count as a position, in segments."""
    generator = torch.Generator().manual_seed(1)
    first = model.config.pad_token_id + 1
    ids = [torch.randint(first, model.config.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    types = [[int(place * segments >= length) for place in range(length)] for length in lengths]
    return RaggedBatch.from_sequences(ids, types if segments > 1 else None)


def _gradient(parameter: Tensor) -> Tensor:
    """A parameter that took no part has no gradient in one package and a zero in the other."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _close(what: str, found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text: f"{what}: {text}")
