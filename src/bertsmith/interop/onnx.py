"""Exports a model to ONNX, the exchange format of C++, C#, Java, JavaScript and mobile runtimes.

Notable:
- those runtimes take rectangles with padding, not ragged batches; the padded forward lives here and nowhere else, runs
  the same modules over the same parameters, and keeps padding out of every softmax
- inputs and outputs have the names and shapes of `transformers`, with every axis but the last of an output dynamic
- a file counts as exported only after ONNX Runtime has run it and given the logits of the model itself
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, InputError
from bertsmith.files import atomic_path
from bertsmith.inference.sentence_folder import length_limit
from bertsmith.inference.task_file import read_task_file
from bertsmith.interop.huggingface import load_tokenizer, load_whole_model, refuse_existing
from bertsmith.model import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertModel,
    MultiHeadSelfAttention,
    PretrainedBert,
    TransformerBlock,
)

INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")

OPSET = 18
"""Version of the ONNX operators: the oldest that the exporter writes, for the sake of older runtimes."""

TOLERANCE = 1e-4
"""Largest difference between exported and own outputs, relative to the largest own value where that is above 1."""

LONGEST_CHECKED = 512
"""Tokens of the longest sequence that an exported file is tried on."""

LARGEST_FILE = 2**31 - 2**24
"""Most bytes of weights in one file: a protobuf message holds 2 GiB, of which 16 MiB are left for the graph."""


def export_onnx(source: str | Path, out: str | Path) -> float:
    """Writes a model as ONNX, and checks with ONNX Runtime that it computes what the model computes.

    Where `out` ends in `.onnx`, that file is written and nothing else. Otherwise `out` is a folder, which then has what
    tools look for beside the graph: `model.onnx`, `config.json` and the files of the tokenizer, if the source has one.
    Weights of more than 2 GiB do not fit into one file; a folder then also has `model.onnx.data`.

    The inputs are `input_ids`, `attention_mask` and `token_type_ids`, int64 [N, S] ([N, choices, S] for multiple
    choice), N and S of any size up to the model's positions. The outputs are float32, for each architecture:

    - `BertModel`: `last_hidden_state` [N, S, H], `pooler_output` [N, H] (not where the model has no pooler)
    - `BertForPreTraining`: `prediction_logits` [N, S, V], `seq_relationship_logits` [N, 2]
    - `BertForMaskedLM`: `logits` [N, S, V]
    - `BertForNextSentencePrediction`: `logits` [N, 2]
    - `BertForSequenceClassification`: `logits` [N, num_labels]
    - `BertForTokenClassification`: `logits` [N, S, num_labels]
    - `BertForQuestionAnswering`: `start_logits`, `end_logits` [N, S]
    - `BertForMultipleChoice`: `logits` [N, choices]

    What stands at the places of padding in an output means nothing.

    Args:
        source: a model folder of any of the eight architectures.
        out: a file that is not there yet, or a folder that is empty or not there yet.

    Returns:
        The largest absolute difference from our own outputs that was seen.

    Raises:
        InputError: a package that this needs is not installed, the weights do not fit into the file, or a tokenizer
            file cannot be used.
        CheckpointError: the source is no model folder, or a file is missing, damaged or of another model; or the
            exported model computes something else.
        RunFolderError: something is at `out`, or it cannot be written.
    """
    source, out = Path(source), Path(out)
    _require_packages()
    refuse_existing(out)
    if read_task_file(source).get("task") == "features":
        raise CheckpointError(f"{source}: a tagger over a frozen encoder has no ONNX form; use one of `finetune tag`")
    model = load_whole_model(source)
    is_file = out.suffix == ".onnx"
    tokenizer = None if is_file else load_tokenizer(source, model.config)
    weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if is_file and weight_bytes > LARGEST_FILE:
        raise InputError(
            f"{source}: {weight_bytes / 2**30:.1f} GiB of weights, but an ONNX file holds 2 GiB; give a folder,"
            f" --out {out.with_suffix('')}"
        )
    with atomic_path(out) as temporary:
        # 先占住位置：导出要花十几秒，写不进去的地方应当立刻报错
        temporary.touch() if is_file else temporary.mkdir()
        file = temporary if is_file else temporary / "model.onnx"
        _write_graph(model, file, external_data=weight_bytes > LARGEST_FILE)
        difference = _largest_difference(model, file, source)
        if not is_file:
            model.config.save(temporary / "config.json", architecture=model.architecture)
        if tokenizer is not None:
            tokenizer.save(temporary, model_max_length=length_limit(source, model.config))
    return difference


class PaddedBert(nn.Module):
    """A whole model over rectangles: the modules of a `PretrainedBert`, called with padding.

    `attention_mask` is 1 on real tokens and 0 on padding. Positions count from the left, so padding belongs on the
    right. The outputs at padding are whatever comes out.
    """

    def __init__(self, model: PretrainedBert) -> None:
        super().__init__()
        self.model = model

    @property
    def bert(self) -> BertModel:
        """The encoder below the head, or the model itself where there is no head."""
        bert = self.model if isinstance(self.model, BertModel) else self.model.bert
        assert isinstance(bert, BertModel)
        return bert

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the outputs are called, in the order of `forward`."""
        match self.model:
            case BertModel():
                return ("last_hidden_state",) if self.bert.pooler is None else ("last_hidden_state", "pooler_output")
            case BertForPreTraining():
                return ("prediction_logits", "seq_relationship_logits")
            case BertForQuestionAnswering():
                return ("start_logits", "end_logits")
            case _:
                return ("logits",)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Computes the outputs that `export_onnx` lists, from int64 tensors [N, S] or [N, choices, S]."""
        model = self.model
        if isinstance(model, BertForMultipleChoice):
            # 每个选项是一条独立的序列：先摊平成 [N * choices, S]，最后再把得分排回去
            rows = (tensor.flatten(0, 1) for tensor in (input_ids, attention_mask, token_type_ids))
            scores = model.classifier(self.pool(self.encode(*rows)))
            return (scores.view(input_ids.shape[0], input_ids.shape[1]),)
        states = self.encode(input_ids, attention_mask, token_type_ids)
        match model:
            case BertModel():
                return (states,) if model.pooler is None else (states, self.pool(states))
            case BertForPreTraining():
                word_embedding = model.bert.embedding.word.weight
                return model.masked_lm(states, word_embedding), model.next_sentence(self.pool(states))
            case BertForMaskedLM():
                return (model.masked_lm(states, model.bert.embedding.word.weight),)
            case BertForNextSentencePrediction():
                return (model.next_sentence(self.pool(states)),)
            case BertForTokenClassification():
                return (model.classifier(states),)
            case BertForQuestionAnswering():
                return tuple(model.spans(states))
            case _:
                assert isinstance(model.classifier, nn.Module)
                return (model.classifier(self.pool(states)),)

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Returns the last layer's states [N, S, H]."""
        embedding = self.bert.embedding
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden: Tensor = embedding.norm(
            F.embedding(input_ids, embedding.word.weight)
            + F.embedding(position_ids, embedding.position.weight)
            + F.embedding(token_type_ids, embedding.token_type.weight)
        )
        is_padding = (attention_mask == 0)[:, None, None, :]
        for block in self.bert.encoder.blocks:
            assert isinstance(block, TransformerBlock)
            mixed = self.attend(block.attention, hidden, is_padding)
            hidden = block.attention_norm(hidden + block.attention_output(mixed))
            hidden = block.output_norm(hidden + block.contract(block.activation(block.expand(hidden))))
        return hidden

    @staticmethod
    def attend(attention: MultiHeadSelfAttention, hidden: Tensor, is_padding: Tensor) -> Tensor:
        """Mixes [N, S, H] along S, leaving out the keys where `is_padding` [N, 1, 1, S]; returns [N, S, A D]."""
        num_sequences, length, _ = hidden.shape
        projected: Tensor = attention.project(hidden)
        projected = projected.view(num_sequences, length, 3, attention.num_heads, attention.head_size)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)  # each [N, A, S, D]
        scores = query @ (key * attention.head_size**-0.5).transpose(-1, -2)
        # 用最小的有限数而不是 -inf：exp 后同样精确为 0，而整行都是填充时也不会出现 NaN
        scores = scores.masked_fill(is_padding, torch.finfo(torch.float32).min)
        mixed: Tensor = scores.softmax(dim=-1) @ value
        return mixed.transpose(1, 2).flatten(2)

    def pool(self, states: Tensor) -> Tensor:
        """Returns the pooled `[CLS]` [N, H] of states [N, S, H]."""
        assert self.bert.pooler is not None
        return torch.tanh(self.bert.pooler(states[:, 0]))


def _require_packages() -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(f"the export to ONNX needs {name} ({error}); pip install 'bertsmith[onnx]'") from None


def _write_graph(model: PretrainedBert, file: Path, *, external_data: bool) -> None:
    """Traces the padded forward and writes it to a file, with the weights inside or in `FILE.data` beside it."""
    import onnx
    from onnxscript import ir

    padded = PaddedBert(model).eval()
    has_choices = isinstance(model, BertForMultipleChoice)
    axes = ("batch", "choices", "sequence") if has_choices else ("batch", "sequence")
    # 样例的各维都大于 1 且互不相同：大小为 1 的维会被当成常量，相同的维会被当成同一个
    sample = torch.zeros((2, 3, 5) if has_choices else (2, 5), dtype=torch.int64)
    with _quiet_exporter():
        program = torch.onnx.export(
            padded,
            (sample, torch.ones_like(sample), torch.zeros_like(sample)),
            dynamo=True,
            input_names=INPUT_NAMES,
            output_names=padded.output_names,
            dynamic_shapes=[dict(enumerate(axes))] * len(INPUT_NAMES),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    # 导出器在每个节点里记下源码的绝对路径和调用栈：与使用者无关，不应带出这台机器
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.model.graph.metadata_props.clear()
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


def _largest_difference(model: PretrainedBert, file: Path, source: Path) -> float:
    """Runs random batches through the file and through the model itself, and returns how far apart they are.

    Raises:
        CheckpointError: further than `TOLERANCE`.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = PaddedBert(model).output_names
    longest = min(model.config.max_position_embeddings, LONGEST_CHECKED)
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    # 最短、最长、长短不齐（连最长的一行也有填充）：任何一维被固定成常量都会在这里暴露
    for lengths, width in (([1], 1), ([7, 1, 4, 12], 13), ([longest], longest)):
        lengths = [min(length, longest) for length in lengths]
        batch, inputs = _random_batch(model, lengths, min(width, longest), generator)
        exported = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        for name, values, own in zip(names, exported, _own_outputs(model, batch), strict=True):
            padded = torch.from_numpy(values)
            is_per_token = padded.dim() > own.dim()
            difference = float(
                ((padded[inputs["attention_mask"].bool()] if is_per_token else padded) - own).abs().max()
            )
            # 写成「不满足」而不是「超过」：NaN 与任何数比较都为假，必须算作失败
            if not difference <= TOLERANCE * max(1.0, float(own.abs().max())):
                raise CheckpointError(
                    f"{source}: exported to ONNX, {name} is off by {difference:.1e} for sequences of {lengths} tokens;"
                    " nothing was written, please report this with the versions of torch, onnxscript and onnxruntime"
                )
            largest = max(largest, difference)
    return largest


def _random_batch(
    model: PretrainedBert, lengths: list[int], width: int, generator: torch.Generator
) -> tuple[RaggedBatch, dict[str, Tensor]]:
    """Draws the same batch twice: ragged, and as a rectangle of `width` with random ids in its padding too."""
    shape = (len(lengths), width)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    types = torch.randint(model.config.type_vocab_size, shape, generator=generator)
    batch = RaggedBatch.from_padded(ids, mask, types)
    if isinstance(model, BertForMultipleChoice):
        ids, mask, types = (tensor.view(-1, _num_choices(batch), width) for tensor in (ids, mask, types))
    return batch, dict(zip(INPUT_NAMES, (ids, mask, types), strict=True))


def _num_choices(batch: RaggedBatch) -> int:
    """Two choices where the batch divides into questions of two, else one."""
    return 2 - batch.num_sequences % 2


@torch.no_grad()
def _own_outputs(model: PretrainedBert, batch: RaggedBatch) -> tuple[Tensor, ...]:
    """Returns what the model itself computes, in the order of `PaddedBert.output_names`, [T, ...] or [N, ...]."""
    everywhere = torch.arange(batch.num_tokens)
    match model:
        case BertModel():
            output = model(batch)
            return (output.hidden_states,) if model.pooler is None else (output.hidden_states, output.pooled)
        case BertForPreTraining():
            output = model(batch, everywhere)
            return output.mlm_logits, output.nsp_logits
        case BertForMaskedLM():
            return (model(batch, everywhere),)
        case BertForQuestionAnswering():
            return tuple(model(batch))
        case BertForMultipleChoice():
            return (model(batch, _num_choices(batch)),)
        case _:
            return (model(batch),)
