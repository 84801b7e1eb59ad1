"""Counter-based randomness: every draw is a function of what it is for.

A stateful generator has to be saved, restored and shared out among workers, and one draw too many shifts everything
after it. Here a generator is made on the spot from (seed, purpose, counters...), so that document 7 of epoch 3 gets
the same numbers on any worker, in any order, before and after a crash.
"""

import hashlib
import operator
import struct

import numpy as np
from numpy.typing import NDArray


def key_of(seed: int, purpose: str, *counters: int) -> int:
    """Hashes what a draw is for into a 128-bit key, an integer in [0, 2**128).

    Args:
        purpose: what is drawn, such as "masking"; different purposes never share numbers.
        *counters: integers that single out this draw, such as epoch and document; 64 bits of each count.
    """
    # numpy 的整数装不下这个掩码：先变成 Python 的
    words = [operator.index(number) & 0xFFFF_FFFF_FFFF_FFFF for number in (seed, *counters)]
    payload = purpose.encode() + struct.pack(f"<{len(words)}Q", *words)
    return int.from_bytes(hashlib.blake2b(payload, digest_size=16).digest(), "little")


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Returns a NumPy generator that depends on nothing but its arguments; see `key_of`."""
    # Philox 是计数器型生成器：密钥不同即为独立的随机流，无需保存任何状态
    return np.random.Generator(np.random.Philox(key=key_of(seed, purpose, *counters)))


def mixed_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes the bits of 64-bit numbers: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def torch_seed(seed: int, purpose: str, *counters: int) -> int:
    """Returns a 63-bit seed for `torch.manual_seed`, for draws that happen inside torch such as dropout."""
    return key_of(seed, purpose, *counters) >> 65
