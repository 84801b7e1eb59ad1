"""Short batches through a compiled graph: ONNX Runtime behind the same pipelines.

For a dozen tokens the time is in starting forty small operations and in reading the weights. ONNX Runtime starts fewer
and reads them better; for long batches the ragged kernels of this package are faster, and they stay. So the backbone
of a model keeps its own forward, and hands batches of few tokens to the graph. Heads and pooling are the model's own:
every pipeline works, with the same results to rounding.

The graph is made once (some ten seconds) and kept in a cache folder, under a name that tells the weights, the shape and
the versions of everything that wrote it: another version never reads it. A file that does not load is made again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from dataclasses import asdict
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertsmith import __version__
from bertsmith.batch import AttentionMask, RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.files import make_folder
from bertsmith.inference.engine import EngineKind
from bertsmith.model import Backbone, BackboneOutput

FEW_TOKENS = 64
"""Batches of at most so many tokens go through the graph."""

_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
_TIMED_TOKENS, _ROUNDS, _WORTH = 12, 15, 0.9


def is_installed() -> bool:
    """Tells whether the packages of the extra `onnx` are there."""
    return all(util.find_spec(name) is not None for name in _PACKAGES)


def compile_backbone(backbone: Backbone, kind: EngineKind) -> str:
    """Gives a backbone the engine for short batches that is asked for.

    Args:
        backbone: in evaluation mode, on the CPU, in float32.
        kind: `onnxruntime`; `auto` takes it where it is installed and by a tenth faster; `torch` changes nothing.

    Returns:
        `torch` or `onnxruntime`: what short batches run on from now on.

    Raises:
        ConfigError: a package is missing.
    """
    if kind == "torch" or (kind == "auto" and not is_installed()):
        return "torch"
    if not is_installed():
        raise ConfigError("engine onnxruntime needs onnx, onnxruntime and onnxscript; pip install 'bertsmith[onnx]'")
    graph = CompiledForward(backbone, _session(backbone))
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

    def __init__(self, backbone: Backbone, session: Any) -> None:
        self.own = backbone.forward
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


def cache_folder() -> Path:
    """Returns where graphs are kept: `BERTSMITH_CACHE`, else `bertsmith` in the user's cache folder."""
    told = os.environ.get("BERTSMITH_CACHE")
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertsmith"


def graph_name(backbone: Backbone) -> str:
    """Returns the name of a backbone's graph: a digest of its weights, its shape, and all versions concerned."""
    digest = hashlib.blake2b(digest_size=16)
    versions = {name: metadata.version(name) for name in ("torch", *_PACKAGES)}
    digest.update(json.dumps([__version__, versions, asdict(backbone.config)], sort_keys=True, default=str).encode())
    for name, tensor in backbone.state_dict().items():
        digest.update(name.encode())
        digest.update(memoryview(tensor.detach().contiguous().numpy()).cast("B"))
    return f"{digest.hexdigest()}.onnx"


def _session(backbone: Backbone) -> Any:
    """Returns a session of the backbone's graph, from the cache where it is there and whole."""
    import onnxruntime

    from bertsmith.model.graph import write_backbone

    file = make_folder(cache_folder()) / graph_name(backbone)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # 等待时不空转：别的库的线程要用同样的核心
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    opened = functools.partial(onnxruntime.InferenceSession, str(file), options, providers=["CPUExecutionProvider"])
    if file.exists():
        try:
            return opened()
        except Exception:
            file.unlink()
    write_backbone(backbone, file)
    return opened()


@torch.inference_mode()
def _seconds(forward: Any, batch: RaggedBatch) -> float:
    """Returns the time of a call, the median of several after a few that warm up."""
    taken = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        forward(batch)
        taken.append(time.perf_counter() - begun)
    return sorted(taken[5:])[len(taken[5:]) // 2]
