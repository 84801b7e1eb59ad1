"""Vectors of words in a file that the field's tools read, the nearest words, and analogies.

The file is that of the first word2vec program, binary: a line with the numbers of words and of dimensions, then for
each word its text, a space, and its float32 numbers. `gensim.models.KeyedVectors.load_word2vec_format` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import CheckpointError, InputError
from bertsmith.files import atomic_path

FILE = "vectors.bin"


class WordVectors:
    """Words and their vectors.

    Attributes:
        words: V words, the most frequent first.
        vectors: [V, H] float32.
    """

    def __init__(self, words: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.words, self.vectors = list(words), vectors
        self._number = {word: number for number, word in enumerate(self.words)}
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = vectors / np.maximum(lengths, 1e-12)

    def vector(self, word: str) -> NDArray[np.float32]:
        """Returns [H].

        Raises:
            InputError: the word has no vector.
        """
        found: NDArray[np.float32] = self.vectors[self._find(word)]
        return found

    def nearest(self, plus: Sequence[str], minus: Sequence[str] = (), count: int = 10) -> list[tuple[str, float]]:
        """Returns the words nearest to a sum of directions, with their cosines; the given words are left out.

        `nearest(["woman", "king"], ["man"])` asks what is to woman as king is to man (Mikolov et al. 2013).

        Args:
            plus: words that are added.
            minus: words that are taken away.
            count: at least 1.

        Raises:
            InputError: a word has no vector, or none is given.
        """
        if not plus and not minus:
            raise InputError("give a word to look around")
        if count < 1:
            raise InputError(f"count {count} must be at least 1")
        signed = [(self._find(word), 1.0) for word in plus] + [(self._find(word), -1.0) for word in minus]
        # 类比是方向的加减：先都缩成单位长度，否则高频词的长向量会盖过别的
        aim = sum((sign * self._directions[number] for number, sign in signed), np.zeros(self.vectors.shape[1]))
        cosines = self._directions @ (aim / max(float(np.linalg.norm(aim)), 1e-12))
        cosines[[number for number, _ in signed]] = -np.inf
        order = np.argsort(-cosines, kind="stable")[:count]
        return [(self.words[number], float(cosines[number])) for number in order if np.isfinite(cosines[number])]

    def save(self, folder: str | Path) -> None:
        """Writes `vectors.bin`.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        with atomic_path(Path(folder) / FILE) as temporary, temporary.open("wb") as file:
            file.write(f"{len(self.words)} {self.vectors.shape[1]}\n".encode())
            for word, vector in zip(self.words, self.vectors, strict=True):
                file.write(word.encode() + b" " + vector.astype("<f4").tobytes())

    @classmethod
    def load(cls, folder: str | Path) -> WordVectors:
        """Reads what `save`, or another program, wrote.

        Raises:
            CheckpointError: the file is missing, or damaged.
        """
        path = Path(folder) / FILE
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be read ({error.strerror}); train with bertsmith word-vectors"
            ) from None
        try:
            head, _, rest = content.partition(b"\n")
            count, size = map(int, head.split())
            words, vectors = [], np.empty((count, size), np.float32)
            place = 0
            for number in range(count):
                # 有的程序在向量之后换行，有的不换
                end = rest.index(b" ", place)
                words.append(rest[place:end].lstrip(b"\n").decode())
                place = end + 1 + 4 * size
                vectors[number] = np.frombuffer(rest, "<f4", size, end + 1)
        except (ValueError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: damaged ({error}); train it again") from None
        if rest[place:].strip(b"\n") or not np.isfinite(vectors).all() or len(set(words)) < count:
            raise CheckpointError(
                f"{path}: damaged (not {count} words with {size} finite numbers each); train it again"
            )
        return cls(words, vectors)

    def _find(self, word: str) -> int:
        if word not in self._number:
            raise InputError(f"{word!r} has no vector: it is no piece of the vocabulary")
        return self._number[word]
