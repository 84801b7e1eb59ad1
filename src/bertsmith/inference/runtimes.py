"""The libraries that run a compiled graph, ONNX Runtime and OpenVINO, behind one protocol. Nothing here imports torch.

A runtime prepares the ONNX file of a network for itself once, in a folder that is kept; from there it opens it, with
the weights mapped into memory. What it computes is held to the network itself when the graph is made.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

FEW_TEXTS, FEW_TOKENS = 16, 64
"""What counts as a short request: at most so many texts, and so many tokens together."""
GRAPH_FILE, WEIGHTS_FILE = "graph.onnx", "graph.bin"
_EXPORT = ("onnx", "onnxruntime", "onnxscript")

Given = Mapping[str, NDArray[np.int64]]


class Graph(Protocol):
    """A network that is ready to run; several threads may call it.

    Its `inputs` are among `input_ids`, `attention_mask` and `token_type_ids`, all [N, S].
    """

    inputs: tuple[str, ...]

    def run(self, given: Given) -> dict[str, NDArray[np.float32]]:
        """Computes `last_hidden_state` [N, S, H], and `pooler_output` [N, H] where the network has a pooler."""
        ...


class Runtime(ABC):
    """A library that runs graphs in `precisions`; `extra` of this package installs `packages` for it and the export."""

    packages: ClassVar[tuple[str, ...]]
    extra: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]]

    @abstractmethod
    def prepare(self, plain: Path, folder: Path) -> None:
        """Writes what `open` reads into a folder that is there, from the ONNX file of a network."""

    @abstractmethod
    def open(self, folder: Path, precision: str, threads: int, at_once: int = 1) -> Graph:
        """Opens a graph that computes `at_once` calls at the same time, which divide the threads.

        A damaged file raises one of the libraries' many errors.
        """


class OnnxRuntime(Runtime):
    """ONNX Runtime, in float32."""

    packages = _EXPORT
    extra = "onnx"
    precisions = ("float32",)

    def prepare(self, plain: Path, folder: Path) -> None:
        """Optimizes the graph for this processor once, and keeps what came out."""
        import onnxruntime

        options = self._options(1)
        options.optimized_model_filepath = str(folder / GRAPH_FILE)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])

    def open(self, folder: Path, precision: str, threads: int, at_once: int = 1) -> Graph:  # noqa: ARG002
        """Opens a graph."""
        import onnxruntime

        # 每次调用都用上调用者自己的线程：库里的线程只补足其余的核心
        options = self._options(threads - at_once + 1)
        # 图已经优化过，权重在旁边的文件里：不再优化，权重映射进内存而不是读进来
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return _Session(
            onnxruntime.InferenceSession(str(folder / GRAPH_FILE), options, providers=["CPUExecutionProvider"])
        )

    @staticmethod
    def _options(threads: int) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # 一次请求之内空转等活（不空转要慢一半），答完立刻停：别的库的线程要用同样的核心
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        return options


class _Session:
    def __init__(self, session: Any) -> None:
        self._session = session
        self.inputs = tuple(each.name for each in session.get_inputs())
        self.outputs = tuple(each.name for each in session.get_outputs())

    def run(self, given: Given) -> dict[str, NDArray[np.float32]]:
        return dict(zip(self.outputs, self._session.run(self.outputs, given), strict=True))


class OpenVino(Runtime):
    """OpenVINO, in float32 or bf16."""

    packages = (*_EXPORT, "openvino")
    extra = "fast"
    precisions = ("float32", "bf16")

    def prepare(self, plain: Path, folder: Path) -> None:
        """Writes the network in the library's own format, which opens faster than ONNX."""
        import openvino

        openvino.save_model(_openvino_core().read_model(plain), folder / "graph.xml", compress_to_fp16=False)

    def open(self, folder: Path, precision: str, threads: int, at_once: int = 1) -> Graph:
        """Opens a graph."""
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            "INFERENCE_NUM_THREADS": threads,
            # 几批并排，每批只用自己的一份核心：不必每步互相等待，一批排版时另一批照算
            "NUM_STREAMS": at_once,
            # 服务器与训练常把进程限制在几个核心上：不由这个库再去绑定核心
            "ENABLE_CPU_PINNING": False,
        }
        return _Compiled(_openvino_core().compile_model(folder / "graph.xml", "CPU", settings))


@functools.cache
def _openvino_core() -> Any:
    import openvino

    # 每个 Core 会换掉信号的备用栈，释放时再还原：几个 Core 先后释放，还原的就是已释放的栈，
    # 下一个信号会使进程崩溃。全进程只用一个，不释放
    return openvino.Core()


class _Compiled:
    def __init__(self, compiled: Any) -> None:
        self._compiled, self._own = compiled, threading.local()
        self.inputs = tuple(each.any_name for each in compiled.inputs)
        self.outputs = tuple(each.any_name for each in compiled.outputs)

    def run(self, given: Given) -> dict[str, NDArray[np.float32]]:
        # 一个请求对象同时只能算一次：每个线程各有一个
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        found = self._own.request.infer(given, share_inputs=True)
        return {name: found[number] for number, name in enumerate(self.outputs)}


RUNTIMES: dict[str, Runtime] = {"onnxruntime": OnnxRuntime(), "openvino": OpenVino()}
"""The engines besides torch, by their names; the first of equally fast ones is taken."""


def is_installed(kind: str) -> bool:
    """Tells whether all packages of an engine are there."""
    return all(util.find_spec(name) is not None for name in RUNTIMES[kind].packages)


def versions() -> dict[str, str]:
    """Returns the version of every package on which graphs depend, besides the processor."""
    found = {}
    for name in dict.fromkeys(("torch", *(name for runtime in RUNTIMES.values() for name in runtime.packages))):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found
