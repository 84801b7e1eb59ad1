"""A model as an ONNX graph over rectangles with padding, checked against the model itself.

The runtimes that read such graphs know no ragged batches; `PaddedBatch` lets the model's own modules run over a
rectangle, and keeps padding out of every softmax.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, InputError
from bertsmith.files import atomic_path
from bertsmith.model.architectures import ModelForMultipleChoice
from bertsmith.model.backbone import Backbone, PretrainedModel

INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")

OPSET = 18
"""Version of the ONNX operators: the oldest that the exporter writes, for the sake of older runtimes."""

TOLERANCE = 1e-4
"""Largest difference between exported and own outputs, relative to the largest own value where that is above 1."""

LONGEST_CHECKED = 512
"""Tokens of the longest sequence that an exported file is tried on."""

LARGEST_FILE = 2**31 - 2**24
"""Most bytes of weights in one file: a protobuf message holds 2 GiB, of which 16 MiB are left for the graph."""


def write_backbone(backbone: Backbone, file: Path) -> None:
    """Writes the graph of a float32 network without heads, with its weights inside; checked like every export."""
    require_packages()
    weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in backbone.parameters())
    if weight_bytes > LARGEST_FILE:
        raise InputError(f"{weight_bytes / 2**30:.1f} GiB of weights, but an ONNX file holds 2 GiB; use --engine torch")
    with atomic_path(file) as temporary:
        write_graph(backbone, temporary, external_data=False)
        largest_difference(backbone, temporary, file)


@dataclass(frozen=True)
class PaddedBatch(RaggedBatch):
    """A rectangle that passes for a ragged batch: padding counts as tokens that no other reads, with arbitrary outputs.

    Attributes:
        attention_mask: [N, S] int64, 1 on real tokens; each row is ones followed by zeros.
    """

    attention_mask: Tensor

    @classmethod
    def of(cls, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> PaddedBatch:
        """Wraps tensors [N, S]; positions count from the left, so padding belongs on the right."""
        num_sequences, length = input_ids.shape
        position_ids = torch.arange(length, device=input_ids.device).expand(num_sequences, length)
        starts = torch.arange(num_sequences + 1, device=input_ids.device) * length
        return cls(
            input_ids.reshape(-1), token_type_ids.reshape(-1), position_ids.reshape(-1), starts, length, attention_mask
        )

    @property
    def has_equal_lengths(self) -> bool:
        """False: there is padding to be hidden, or may be."""
        return False

    @property
    def padding_mask(self) -> Tensor:
        """[N, S] bool, True where a token may be read."""
        # 每行第一个词永远可读：整行都是填充时，softmax 也不会对着空集得出 NaN
        return (self.attention_mask != 0) | (torch.arange(self.max_seqlen, device=self.attention_mask.device) == 0)

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:  # noqa: ARG002
        """Views [N S, ...] as [N, S, ...]: the padding is in its place already."""
        return values.view(-1, self.max_seqlen, *values.shape[1:])

    def unpad(self, rectangle: Tensor) -> Tensor:
        """Views [N, S, ...] as [N S, ...]."""
        return rectangle.reshape(-1, *rectangle.shape[2:])


class PaddedModel(nn.Module):
    """A whole model over rectangles, with the inputs and outputs of its `transformers` class."""

    def __init__(self, model: PretrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Computes the outputs that `export_onnx` lists, from int64 tensors [N, S] or [N, choices, S]."""
        # 多项选择：每个选项是一条独立的序列，先摊平成 [N * choices, S]，最后再把得分排回去
        rows = (each.flatten(0, -2) for each in (input_ids, attention_mask, token_type_ids))
        outputs = self.model.published(PaddedBatch.of(*rows))
        per_token = self.model.token_outputs
        return tuple(
            value.reshape(*(input_ids.shape if name in per_token else input_ids.shape[:-1]), *value.shape[1:])
            for name, value in outputs.items()
        )


def require_packages() -> None:
    """Makes sure that what writes and runs graphs is installed; InputError where a package is missing."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(f"the export to ONNX needs {name} ({error}); pip install 'bertsmith[onnx]'") from None


def write_graph(model: PretrainedModel, file: Path, *, external_data: bool) -> None:
    """Traces the padded forward and writes it to a file, with the weights inside or in `FILE.data` beside it."""
    import onnx
    from onnxscript import ir

    padded = PaddedModel(model).eval()
    has_choices = isinstance(model, ModelForMultipleChoice)
    axes = ("batch", "choices", "sequence") if has_choices else ("batch", "sequence")
    # 样例的各维都大于 1 且互不相同：大小为 1 的维会被当成常量，相同的维会被当成同一个
    sample = torch.zeros((2, 3, 5) if has_choices else (2, 5), dtype=torch.int64)
    with _quiet_exporter():
        program = torch.onnx.export(
            padded,
            (sample, torch.ones_like(sample), torch.zeros_like(sample)),
            dynamo=True,
            input_names=INPUT_NAMES,
            output_names=list(model.published(RaggedBatch.from_sequences([[0]]))),
            dynamic_shapes=[dict(enumerate(axes))] * len(INPUT_NAMES),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    # 导出器在每个节点里记下源码的绝对路径和调用栈：与使用者无关，不应带出这台机器
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.model.graph.metadata_props.clear()
    # 没有节点读的输入不留：不分片段的家族，别的工具也不会送 token_type_ids 进来
    for unread in [each for each in program.model.graph.inputs if not each.uses()]:
        program.model.graph.inputs.remove(unread)
    for weight in program.model.graph.initializers.values():
        # 权重的形状张量自己带着；另记一份会让量化工具转置权重之后报「形状不符」
        weight.shape = weight.type = None
    ir.save(program.model, file, external_data=f"{file.name}.data" if external_data else None)
    onnx.checker.check_model(str(file), full_check=True)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keeps the exporter's remarks on its own deprecations and on other packages from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@torch.no_grad()
def largest_difference(model: PretrainedModel, file: Path, source: Path) -> float:
    """Runs random batches through the file and through the model itself, and returns how far apart they are."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    longest = min(model.config.position_limit, LONGEST_CHECKED)
    generator = torch.Generator().manual_seed(0)
    read = [each.name for each in session.get_inputs()]
    largest = 0.0
    # 最短、最长、长短不齐（连最长的一行也有填充）：任何一维被固定成常量都会在这里暴露
    for lengths, width in (([1], 1), ([7, 1, 4, 12], 13), ([longest], longest)):
        lengths = [min(length, longest) for length in lengths]
        batch, inputs = _random_batch(model, lengths, min(width, longest), generator)
        own_outputs = model.published(batch)
        exported = session.run(list(own_outputs), {name: inputs[name].numpy() for name in read})
        for (name, own), values in zip(own_outputs.items(), exported, strict=True):
            padded = torch.from_numpy(values)
            if name in model.token_outputs:
                padded = padded[inputs["attention_mask"].bool()]
            difference = float((padded.reshape(own.shape) - own).abs().max())
            # 写成「不满足」而不是「超过」：NaN 与任何数比较都为假，必须算作失败
            if not difference <= TOLERANCE * max(1.0, float(own.abs().max())):
                raise CheckpointError(
                    f"{source}: exported to ONNX, {name} is off by {difference:.1e} for sequences of {lengths} tokens;"
                    " nothing was written, please report this with the versions of torch, onnxscript and onnxruntime"
                )
            largest = max(largest, difference)
    return largest


def _random_batch(
    model: PretrainedModel, lengths: list[int], width: int, generator: torch.Generator
) -> tuple[RaggedBatch, dict[str, Tensor]]:
    """Draws the same batch twice: ragged, and as a rectangle of `width` with random ids in its padding too."""
    shape = (len(lengths), width)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    types = torch.randint(model.config.type_vocab_size, shape, generator=generator)
    batch = RaggedBatch.from_padded(ids, mask, types)
    if isinstance(model, ModelForMultipleChoice):
        # 两条一组；只有一条时一题一个选项
        choices = 2 - batch.num_sequences % 2
        ids, mask, types = (tensor.view(-1, choices, width) for tensor in (ids, mask, types))
    return batch, dict(zip(INPUT_NAMES, (ids, mask, types), strict=True))
