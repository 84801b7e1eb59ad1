"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of TensorFlow's files, at the speed of numpy.

The checksum is linear over bits, and that is the whole trick. The state of a left half, moved over the length of the
right half, and xor-ed with the state of the right half, is the state of both. So all 4-byte words of a piece are folded
pairwise, as in a tournament, with a few numpy operations a round instead of one Python step a byte. An operator
"move over 2^k zero bytes" is two tables, for the low and the high 16 bits of a state; squaring it gives the next.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_ONE = np.uint32(1)
_POLYNOMIAL = np.uint32(0x82F63B78)  # bits reversed, as the states are
_PIECE = 1 << 20  # bytes folded at a time: bounds the memory, and stays in the processor's cache

_States = NDArray[np.uint32]
_Operator = tuple[_States, _States]


def crc32c(data: bytes | memoryview | NDArray[np.uint8]) -> int:
    """Computes the checksum.

    Args:
        data: any number of bytes.

    Returns:
        The CRC-32C, in [0, 2^32).
    """
    content = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    state = np.array([0xFFFFFFFF], np.uint32)
    for start in range(0, len(content), _PIECE):
        piece = content[start : start + _PIECE]
        for power, operator in enumerate(_operators()):
            if len(piece) >> power & 1:
                state = _apply(operator, state)
        state ^= _fold(piece)
    return int(~state[0])


def masked_crc32c(data: bytes | memoryview | NDArray[np.uint8]) -> int:
    """Computes the checksum in the disguise in which it is stored, so that a file can hold checksums of checksums.

    Args:
        data: any number of bytes.

    Returns:
        The CRC-32C, rotated by 15 bits plus a constant, in [0, 2^32).
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _fold(piece: NDArray[np.uint8]) -> _States:
    """The state after a piece, from a state of zero: [1]."""
    operators = _operators()
    # 前面补零不改变全零初态的校验值，于是字数可以凑成二的幂，两两归并
    padded = np.zeros(4 << max(0, (len(piece) - 1) // 4).bit_length(), np.uint8)
    padded[len(padded) - len(piece) :] = piece
    states: _States = padded.view("<u4").astype(np.uint32, copy=False)
    for operator in operators[2:]:
        if len(states) == 1:
            break
        states = _apply(operator, states[0::2]) ^ states[1::2]
    return _apply(operators[2], states)


@cache
def _operators() -> tuple[_Operator, ...]:
    """Operator k moves a state over 2^k zero bytes, for every k up to a whole piece."""
    low = np.arange(1 << 16, dtype=np.uint32)
    high = low << np.uint32(16)
    for _ in range(8):
        low, high = (half >> _ONE ^ _POLYNOMIAL * (half & _ONE) for half in (low, high))
    operators: list[_Operator] = [(low, high)]
    while 1 << len(operators) <= _PIECE:
        # 走 2^k 个字节两次，就是 2^(k+1) 个字节
        last = operators[-1]
        operators.append((_apply(last, last[0]), _apply(last, last[1])))
    return tuple(operators)


def _apply(operator: _Operator, states: _States) -> _States:
    low, high = operator
    moved: _States = low[states & 0xFFFF] ^ high[states >> 16]
    return moved
