"""What the batches of a stream look like, and where a stream stands.

`StreamSettings` is what the user chooses; `StreamNeeds` is what an objective asks for. A stream is made from both, and
refuses those that contradict each other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal, get_args

from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.data.stream.pairs import Pairing
from bertsmith.errors import ConfigError
from bertsmith.options import option

Packing = Literal["sentences", "full"]
Pairs = Literal["none", "next_sentence", "sentence_order"]
Targets = Literal["masked", "next_token", "nothing"]


@dataclass(frozen=True)
class StreamSettings:
    """How sequences are cut and batches are filled."""

    panel: ClassVar[str] = "Sequences and batches"

    sequence_length: int = option(
        128, min=5, help="Maximum sequence length, [CLS] and [SEP] included; also the positions."
    )
    batch_size: int = option(
        32, min=1, shown_default="by size; more on a GPU", help="Sequences in a step, over all processes."
    )
    batch_tokens: int = option(0, min=0, help="Tokens in a step instead of sequences; 0: use the batch size.")
    packing: Packing = option(
        "sentences", help="Without pairs: whole sentences of one document, or full across documents."
    )
    pairing: Pairing = option("balanced", help="Next-sentence pairs: balanced, or google: as in the released code.")
    static_masking: int = option(
        0, min=0, help="Epochs after which sequences and masks repeat (static masks); 0: never."
    )
    short_probability: float = option(
        0.1, in_file_only=True, help="Share of documents cut into shorter sequences; not with full packing."
    )
    masking: MaskingSettings = field(default_factory=MaskingSettings)

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.sequence_length < 5:
            raise ConfigError(f"sequence length {self.sequence_length} is too short for [CLS] A [SEP] B [SEP]; use 5+")
        if self.batch_size < 1:
            raise ConfigError(f"batch size {self.batch_size} must be at least 1")
        if self.static_masking < 0:
            raise ConfigError(f"static masking {self.static_masking} must be a number of epochs, or 0 for none")
        for name, value, known in (
            ("packing", self.packing, get_args(Packing)),
            ("pairing", self.pairing, get_args(Pairing)),
        ):
            if value not in known:
                raise ConfigError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")
        if self.batch_tokens and self.batch_tokens < self.sequence_length:
            raise ConfigError(
                f"a batch of {self.batch_tokens} tokens does not hold one sequence of {self.sequence_length};"
                " raise the batch's tokens"
            )

    @property
    def fewest_sequences(self) -> int:
        """Sequences that every global batch has at least."""
        return self.batch_tokens // self.sequence_length if self.batch_tokens else self.batch_size


@dataclass(frozen=True)
class StreamNeeds:
    """What an objective asks of the batches.

    Attributes:
        pairs: whether sequences have a second segment, and what their label says of it.
        targets: the pieces to predict: hidden ones, or after each token the next, or nothing.
        draws: whether each hidden piece comes with a random number, for an objective that samples.
    """

    pairs: Pairs = "next_sentence"
    targets: Targets = "masked"
    draws: bool = False

    def require_fit(self, settings: StreamSettings) -> None:
        """Makes sure that settings do what is needed.

        Raises:
            ConfigError: they contradict it.
        """
        if settings.packing == "full" and self.pairs != "none":
            raise ConfigError("full packing has no second segment, which the objective needs; use mlm or ltr")
        if settings.pairing == "google" and self.pairs != "next_sentence":
            raise ConfigError("google pairing is about next sentences, which the objective does not predict")
        if settings.masking.kind != "token" and self.targets != "masked":
            raise ConfigError(f"the objective hides nothing; {settings.masking.kind} masking goes with mlm")


@dataclass(frozen=True)
class StreamPosition:
    """Where a stream stands: the next sequence is number `offset` of block `block` of epoch `epoch`."""

    epoch: int = 0
    block: int = 0
    offset: int = 0

    def to_json(self) -> dict[str, int]:
        """Returns the three integers for a state file."""
        return asdict(self)
