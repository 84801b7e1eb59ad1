"""A bounded memory of chunks already tokenized: why tokenizing in Python is fast.

Word frequencies follow Zipf's law: nearly every chunk of a text has been seen before. So the hot loop is one
dictionary lookup in C per chunk, and the careful work runs in `__missing__` only.

The memory is bounded by two generations. New and reused entries live in the dictionary itself; when it is full it
becomes the old generation and a new one begins. An old entry that is asked for again is taken over, one that is not
is forgotten with its generation. So frequent chunks survive, and hostile text made of chunks never seen again can
neither grow the memory past its cap nor push the frequent ones out for longer than one miss each. Chunks are weighed
by their length, so that long ones cannot fill more memory than short ones.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_CACHED_CHARS = 64
# 每个条目自身（字典槽、字符串头、元组头）约合这么多个字符的内存
ENTRY_WEIGHT = 16


class ChunkCache(dict[str, T], Generic[T]):
    """Maps a chunk to what `compute` returns for it, and remembers the most useful ones.

    Attributes:
        compute: the careful work for a chunk that is not remembered.
        capacity: the weight of one generation: every entry weighs its characters and `ENTRY_WEIGHT`. At most twice
            as much is alive.
    """

    def __init__(self, compute: Callable[[str], T], capacity: int) -> None:
        super().__init__()
        self.compute = compute
        self.capacity = capacity
        self._room = capacity
        self._old: dict[str, T] = {}

    def __missing__(self, chunk: str) -> T:
        """Finds the chunk in the old generation, or computes it; remembers it unless it is very long.

        Args:
            chunk: a piece of text.

        Returns:
            The value for the chunk.
        """
        value = self._old.get(chunk)
        if value is None:
            value = self.compute(chunk)
        length = len(chunk)
        # 很长的块几乎不会重复（网址、无空格的文本），存下来只占内存
        if length <= MAX_CACHED_CHARS:
            self._room -= length + ENTRY_WEIGHT
            if self._room < 0:
                # 满了就整代换掉：仍有用的条目会在下次被查到时搬回新一代
                self._old = dict(self)
                self.clear()
                self._room = self.capacity - length - ENTRY_WEIGHT
            self[chunk] = value
        return value

    def weight(self) -> int:
        """Weighs the entries of both generations.

        Returns:
            At most twice `capacity`.
        """
        return sum(len(chunk) + ENTRY_WEIGHT for part in (self, self._old) for chunk in part)
