"""Short batches through a compiled graph: ONNX Runtime behind the same pipelines.

For a dozen tokens the time is in starting forty small operations and in reading the weights. ONNX Runtime starts fewer
and reads them better; for long batches the ragged kernels of this package are faster, and they stay. So the backbone
of a model keeps its own forward, and hands batches of few tokens to the graph. Heads and pooling are the model's own:
every pipeline works, with the same results to rounding.

The graph is made once (some ten seconds) and kept, see `bertsmith.inference.graph_cache`. A file that does not load is
made again.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from bertsmith.batch import AttentionMask, RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.files import held, make_folder
from bertsmith.inference.graph_cache import (
    FEW_TOKENS,
    EngineKind,
    cache_folder,
    circumstances,
    digest_of,
    is_installed,
    open_graph,
    write_optimized,
)
from bertsmith.model import Backbone, BackboneOutput

_TIMED_TOKENS, _ROUNDS, _WORTH = 12, 15, 0.9


def graph_of(backbone: Backbone, kind: EngineKind) -> CompiledForward | None:
    """Returns the graph of a float32 backbone on the CPU; None for `torch`, or `auto` without the packages."""
    if kind == "torch" or (kind == "auto" and not is_installed()):
        return None
    if not is_installed():
        raise ConfigError("engine onnxruntime needs onnx, onnxruntime and onnxscript; pip install 'bertsmith[onnx]'")
    name = graph_name(backbone)
    return CompiledForward(backbone, _session(backbone, name), name)


def use_graph(backbone: Backbone, graph: CompiledForward | None, kind: EngineKind) -> str:
    """Lets a graph compute the short batches of a backbone; for `auto`, where it is by a tenth faster.

    Returns:
        `torch` or `onnxruntime`: what short batches run on from now on.
    """
    if graph is None:
        return "torch"
    if kind == "auto":
        batch = RaggedBatch.from_sequences([[backbone.config.pad_token_id] * _TIMED_TOKENS])
        own, other = _seconds(backbone, batch), _seconds(graph, batch)
        if other > _WORTH * own:
            return "torch"
    # 只换这一个实例的 forward：类和别的模型不受影响，长批次仍走原来的路
    vars(backbone)["forward"] = graph
    return "onnxruntime"


class CompiledForward:
    """A backbone's forward: short batches through the graph, all others as before."""

    def __init__(self, backbone: Backbone, session: Any, name: str) -> None:
        self.own = backbone.forward
        self.name = name
        self.session = session
        self.inputs = [each.name for each in session.get_inputs()]
        self.outputs = [each.name for each in session.get_outputs()]
        self.limit = backbone.config.position_limit
        self.mask = backbone.config.mask
        self.pieces = backbone.config.vocab_size
        self.segments = backbone.config.type_vocab_size

    def __call__(self, batch: RaggedBatch, *, mask: AttentionMask | None = None, **asked: Any) -> BackboneOutput:
        """Encodes a batch, see `Backbone`; what the graph does not give, the model's own forward does."""
        few = batch.num_tokens <= FEW_TOKENS and batch.max_seqlen <= self.limit
        if not few or any(asked.values()) or mask is not None or torch.is_grad_enabled() or not self._in_range(batch):
            # 超出范围的编号也交给原来的路：它会说清楚哪个编号不对
            output: BackboneOutput = self.own(batch, mask=mask, **asked)
            return output
        found = self.session.run(self.outputs, self._rectangle(batch))
        named = {name: torch.from_numpy(values) for name, values in zip(self.outputs, found, strict=True)}
        rows = named["last_hidden_state"]  # [N, S, H]
        states = rows.flatten(0, 1) if batch.has_equal_lengths else batch.unpad(rows)
        cls = states.index_select(0, self.mask.summary_positions(batch))
        return BackboneOutput(states, cls, named.get("pooler_output"), batch)

    def _in_range(self, batch: RaggedBatch) -> bool:
        ids, types = batch.input_ids, batch.token_type_ids
        return bool(ids.min() >= 0 and ids.max() < self.pieces and types.min() >= 0 and types.max() < self.segments)

    def _rectangle(self, batch: RaggedBatch) -> dict[str, Any]:
        def padded(values: Tensor) -> Any:
            return batch.pad(values[:, None]).squeeze(-1).numpy()

        made = {
            "input_ids": lambda: padded(batch.input_ids),
            "token_type_ids": lambda: padded(batch.token_type_ids),
            "attention_mask": lambda: padded(torch.ones_like(batch.input_ids)),
        }
        return {name: made[name]() for name in self.inputs}


def graph_name(backbone: Backbone) -> str:
    """Returns the name of a backbone's graph: a digest of its weights, its shape, all versions, and the processor."""
    weights = hashlib.blake2b(digest_size=16)
    for name, tensor in backbone.state_dict().items():
        weights.update(name.encode())
        weights.update(memoryview(tensor.detach().contiguous().numpy()).cast("B"))
    return digest_of(circumstances(), asdict(backbone.config), weights.hexdigest())


def _session(backbone: Backbone, name: str) -> Any:
    """Returns a session of the backbone's graph, from the cache where it is there and whole."""
    from bertsmith.model.graph import write_backbone

    folder = make_folder(cache_folder()) / name
    # 两个进程同时要同一张图：后到的等先到的做好，而不是各做一份、互相清掉半成品
    with held(folder):
        if folder.exists():
            try:
                return open_graph(folder, torch.get_num_threads())
            except Exception:
                shutil.rmtree(folder, ignore_errors=True)
        write_optimized(folder, lambda file: write_backbone(backbone, file))
        return open_graph(folder, torch.get_num_threads())


@torch.inference_mode()
def _seconds(forward: Any, batch: RaggedBatch) -> float:
    """Returns the time of a call, the median of several after a few that warm up."""
    taken = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        forward(batch)
        taken.append(time.perf_counter() - begun)
    return sorted(taken[5:])[len(taken[5:]) // 2]
