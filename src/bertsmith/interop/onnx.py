"""Exports a model to ONNX, the exchange format of C++, C#, Java, JavaScript and mobile runtimes.

- the graph is that of `model.graph`: the model's own modules over rectangles with padding, and the pooling where a
  model gives sentence vectors
- inputs and outputs have the names and shapes of `transformers`, with every axis but the last of an output dynamic
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, InputError
from bertsmith.files import atomic_path
from bertsmith.hub import model_folder
from bertsmith.inference.embed import (
    Embed,
    SentenceFolder,
    copy_sentence_files,
    length_limit,
    read_sentence_folder,
)
from bertsmith.inference.linear import WORDS_FILE
from bertsmith.inference.task_file import read_task_file
from bertsmith.interop.huggingface import load_tokenizer, load_whole_model, refuse_existing
from bertsmith.model import Backbone, PretrainedModel
from bertsmith.model.graph import LARGEST_FILE, largest_difference, require_packages, write_graph


def export_onnx(source: str | Path, out: str | Path) -> float:
    """Writes a model as ONNX, and checks with ONNX Runtime that it computes what the model computes.

    Where `out` ends in `.onnx`, that file is written and nothing else. Otherwise `out` is a folder, which then has what
    tools look for beside the graph: `model.onnx`, `config.json` and the files of the tokenizer, if the source has one.
    Weights of more than 2 GiB do not fit into one file; a folder then also has `model.onnx.data`.

    The inputs are `input_ids`, `attention_mask` and `token_type_ids`, int64 [N, S] ([N, choices, S] for multiple
    choice), N and S of any size up to the model's positions. The outputs are float32, for each architecture of BERT,
    and for the same one of another family; at places of padding they mean nothing:

    - `BertModel`: `last_hidden_state` [N, S, H], `pooler_output` [N, H] (not where the model has no pooler)
    - a folder of sentence vectors: `last_hidden_state` [N, S, H] and `sentence_embedding` [N, H], pooled; scaled to
      length 1, and then cut to [N, dims], where the folder does so
    - `BertForPreTraining`: `prediction_logits` [N, S, V], `seq_relationship_logits` [N, 2] (`sop_logits` in ALBERT)
    - `BertForMaskedLM`: `logits` [N, S, V]; `ElectraForPreTraining`: `logits` [N, S]
    - `BertForNextSentencePrediction`: `logits` [N, 2]
    - `BertForSequenceClassification`: `logits` [N, num_labels]
    - `BertForTokenClassification`: `logits` [N, S, num_labels]
    - `BertForQuestionAnswering`: `start_logits`, `end_logits` [N, S]
    - `BertForMultipleChoice`: `logits` [N, choices]

    Args:
        source: a model folder of any of the eight architectures.
        out: a file that is not there yet, or a folder that is empty or not there yet.

    Returns:
        The largest absolute difference from our own outputs that was seen.

    Raises:
        InputError: a package is missing, the weights do not fit into the file, or a tokenizer file cannot be used.
        CheckpointError: the source is no model folder, or answers by more than its encoder; a file is missing, damaged
            or of another model; or the exported model computes something else.
        RunFolderError: something is at `out`, or it cannot be written.
    """
    source, out = model_folder(source), Path(out)
    require_packages()
    refuse_existing(out)
    if read_task_file(source).get("task") == "features":
        raise CheckpointError(f"{source}: a tagger over a frozen encoder has no ONNX form; use one of `finetune tag`")
    if (source / WORDS_FILE).exists():
        raise CheckpointError(
            f"{source}: its answer counts {WORDS_FILE} too, which has no ONNX form; name a folder without, such as one"
            " in parts/"
        )
    model = load_whole_model(source)
    # 重排模型的文件夹也有 modules.json：它给的是分数，不是向量
    if (source / "modules.json").is_file() and isinstance(model, Embed.architectures):
        model = SentenceModel(model.backbone, read_sentence_folder(source))
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
        write_graph(model, file, external_data=weight_bytes > LARGEST_FILE)
        difference = largest_difference(model, file, source)
        if not is_file:
            model.config.save(temporary / "config.json", architecture=model.architecture)
            copy_sentence_files(source, temporary)
        if tokenizer is not None:
            tokenizer.save(temporary, model_max_length=length_limit(source, model.config))
    return difference


class SentenceModel(PretrainedModel):
    """An encoder with the vector of each sequence beside its states, see `inference.embed`."""

    suffix = "Model"
    token_outputs = ("last_hidden_state",)
    sequence_outputs = ("sentence_embedding",)

    def __init__(self, backbone: Backbone, says: SentenceFolder) -> None:
        super().__init__()
        self.config, self.backbone, self.says = backbone.config, backbone, says

    def published(self, batch: RaggedBatch) -> dict[str, Tensor]:
        """Returns the states [T, H], and the vectors [N, H]."""
        states = self.backbone(batch).hidden_states
        rows, real = batch.pad(states), batch.padding_mask[:, :, None]
        # 图里只有带填充的矩形：填充处既不进平均，也不进最大值
        if self.says.pooling == "mean":
            pooled = rows.masked_fill(~real, 0.0).sum(1) / real.sum(1)
        elif self.says.pooling == "max":
            pooled = rows.masked_fill(~real, -torch.inf).amax(1)
        else:
            pooled = rows[:, 0]
        vectors = normalize(pooled, dim=-1) if self.says.normalize else pooled
        # 先归一再截短，与 sentence-transformers 的次序一样
        return {"last_hidden_state": states, "sentence_embedding": vectors[:, : self.says.dims or None]}
