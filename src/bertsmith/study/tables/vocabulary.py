"""How many pieces suit a text, at equal time."""

from __future__ import annotations

from bertsmith.study.study import Arm, Base, Start, Study

FACTORS = (1.0, 0.25, 0.5, 2.0)
"""Of the number of pieces that is usual for the amount of text; that number itself comes first."""


class Vocabulary(Study):
    """Smaller and larger vocabularies, compared in bits per character, since their pieces are of different lengths."""

    name, title = "vocabulary", "Into how many pieces: sizes of the vocabulary"
    source = "not in the paper, which takes 30,000 (§3)"
    found = "The paper takes 30,000 pieces for 3.3 billion words and compares nothing."
    columns = ("bits per character",)
    axis = ("place", "pieces")

    def arms(self, base: Base) -> list[Arm]:
        """Returns the sizes, the usual one first."""
        sizes = [round(base.vocab_size * factor) for factor in FACTORS]
        return [
            Arm(f"{size:,} pieces", Start((("objective", "mlm"),), vocab_size=size), place=float(size))
            for size in sizes
        ]
