"""The settings of a fine-tuning run; the defaults are the paper's (Devlin et al. 2019, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import best_compute_dtype
from bertsmith.model.attention import Checkpointing
from bertsmith.model.peft import AdapterKind, AdapterSettings
from bertsmith.settings import Checked, option

Precision = Literal["auto", "bf16", "float32"]


@dataclass(frozen=True)
class FineTuningSettings(Checked):
    """How a model is fine-tuned.

    `gradient_checkpointing` as in `PretrainedModel`; `auto` is `attention` with an adapter, which is chosen for little
    memory, else `none`. `from_random` starts from random weights, to see what pre-training bought.
    """

    panel: ClassVar[str] = "Training"

    epochs: int = option(3, min=1, help="Passes over the training file.")
    batch_size: int = option(16, min=1, help="Examples in a step.", shown_default="16; embed 64")
    learning_rate: float = option(
        5e-5, above=0, help="Peak learning rate.", shown_default="5e-5; small models to 6e-4; adapters, features 1e-3"
    )
    warmup_share: float = option(0.1, min=0.0, max=1.0, help="Share of the steps for the warm-up.")
    weight_decay: float = option(0.01, min=0.0, help="Weight decay of matrices.")
    layer_decay: float = option(1.0, above=0, max=1, help="A layer's rate is that of the layer above times this.")
    freeze_layers: int = option(0, min=0, help="Number of lowest layers to freeze.")
    dropout: float | None = option(None, min=0.0, max=0.9, help="Dropout rate; default: the model's own.")
    average: float = option(
        0.1, min=0.0, max=1.0, help="Share of the steps over which the weights that are kept are averaged; 0: none."
    )
    patience: int = option(0, min=0, help="Stop after this many epochs without gain; 0: never.")
    max_length: int = option(0, min=0, help="Maximum tokens of a sequence; 0: the limit of the model.")
    precision: Precision = option("auto", help="Precision of matrix multiplications; auto: bf16 where native.")
    gradient_checkpointing: Literal["auto", Checkpointing] = option(
        "auto", help="Recompute activations to save memory; auto: attention with an adapter."
    )
    adapter: AdapterKind | None = option(
        None, help="Train a small adapter and the head over a frozen encoder.", panel="Adapters"
    )
    adapter_size: int = option(
        0, min=0, help="Width or rank of the adapter; 0: 64 for a width, 8 for a rank.", panel="Adapters"
    )
    seed: int = option(0, help="Random seed.")
    from_random: bool = False

    def _check_together(self) -> None:
        if 0 < self.max_length < 3:
            raise ConfigError(f"max length {self.max_length} leaves no room for a text between [CLS] and [SEP]")
        if self.from_random and (self.freeze_layers or self.adapter):
            raise ConfigError("random weights are no use frozen; leave out from_random, or freeze_layers and adapter")
        if self.adapter and self.freeze_layers:
            raise ConfigError("an adapter freezes the whole encoder by itself; leave out freeze_layers")
        if self.adapter_size and not self.adapter:
            raise ConfigError("adapter size: there is no adapter; name one, bottleneck or lora")

    def checkpointing(self) -> Checkpointing:
        """Returns what the backward pass runs again."""
        # 选适配器就是为了省内存：注意力重算只多花很少的时间
        if self.gradient_checkpointing == "auto":
            return "attention" if self.adapter else "none"
        return self.gradient_checkpointing

    def adapter_settings(self) -> AdapterSettings | None:
        """Returns what the adapter is made of; None where there is none."""
        if not self.adapter:
            return None
        return AdapterSettings(self.adapter, self.adapter_size)


def compute_dtype(precision: str, device: torch.device | str) -> torch.dtype:
    """Returns the dtype that a precision means on a device."""
    if precision == "auto":
        return best_compute_dtype(device)
    return torch.bfloat16 if precision == "bf16" else torch.float32


def runs_in(precision: str) -> Literal["bf16", "float32"] | None:
    """Returns the precision in which a model that was trained in `precision` predicts, as `InferenceConfig` takes it.

    `auto` means here what the hardware is best at, not a measurement: a run that is resumed must compute the same.
    """
    return None if precision == "auto" else "bf16" if precision == "bf16" else "float32"
