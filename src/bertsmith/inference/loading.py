"""`load_pipeline`: a model folder for one use. What it needs of torch is imported only where torch is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertsmith.inference.engine import EngineKind
    from bertsmith.inference.pipeline import Device
    from bertsmith.inference.precision import Precision


def load_pipeline(
    name: str,
    folder: str | Path,
    *,
    precision: Precision | None = None,
    device: Device = None,
    batch_tokens: int = 0,
    engine: EngineKind = "torch",
) -> Any:
    """Loads a model folder for one use.

    Args:
        name: of the pipeline, such as `fill-mask`; see `all_pipelines`.
        folder: a model folder with its tokenizer.
        precision: `float32`, `bf16`, `int8`, or `auto` for the fastest that is faithful on this machine; None takes
            bf16 where the hardware multiplies it faster, else float32.
        device: None takes the GPU where there is one.
        batch_tokens: tokens of a forward pass; 0 takes what suits the device.
        engine: what short batches run on: `torch`, `onnxruntime` (float32 on the CPU; made once, then kept in a cache),
            or `auto` for the faster of the two, measured once. `embed` then needs no torch for a short request.

    Returns:
        The pipeline, such as `FillMask`; its class says what it is called with.

    Raises:
        ConfigError: no pipeline has that name, the folder is for another one, or the precision is not available here.
        CheckpointError: the folder does not hold such a model.
    """

    def load() -> Any:
        from bertsmith.inference.pipeline import pipeline_named

        kind = pipeline_named(name)
        return kind.load(folder, precision=precision, device=device, batch_tokens=batch_tokens, engine=engine)

    # 显卡上没有图；指明了设备而不是 CPU 的，照常载入
    if name != "embed" or engine not in ("onnxruntime", "auto") or str(device or "cpu") != "cpu":
        return load()
    from bertsmith.inference.quick import load_quick

    return load_quick(folder, f"{engine} {precision or ''} {device or ''}", load)
