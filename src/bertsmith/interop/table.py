"""LevelDB's table of sorted keys, the format of TensorFlow's index files (`table_format.md` of LevelDB).

From its end to its start: a footer points to an index block, its entries point to data blocks, and there each key gives
only what differs from the key before it. Every block carries a checksum.

A file may be damaged or hostile: every offset and length is checked against the file, blocks may not overlap and keys
are bounded, so that a small file cannot ask for endless time or memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import google_crc32c
import numpy as np
from numpy.typing import NDArray

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # one byte says how a block is compressed, four are its checksum
_MOST_KEY_BYTES = 1 << 10


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Reads a whole table.

    Args:
        data: the file.

    Yields:
        Keys and values, in the order of the keys.

    Raises:
        ValueError: the file is no table, is damaged, or has compressed blocks; the message says which.
    """
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("it does not end as a TensorFlow index does")
    footer = data[-_FOOTER_BYTES:-8]
    position = 0
    for _ in range(2):  # the first pointer is to a block of metadata, which is always empty
        offset, position = read_varint(footer, position)
        size, position = read_varint(footer, position)
    end = 0
    last = None
    for _, pointer in _block_entries(_read_block(data, offset, size)):
        offset, position = read_varint(pointer, 0)
        size, _ = read_varint(pointer, position)
        # 块必须依次排列、互不重叠：否则许多指针指向同一大块，几兆的文件就能耗掉几小时
        if offset < end:
            raise ValueError("its blocks overlap")
        end = offset + size
        for key, value in _block_entries(_read_block(data, offset, size)):
            if last is not None and key <= last:
                raise ValueError("its keys are out of order")
            last = key
            yield key, value


def _read_block(data: bytes, offset: int, size: int) -> bytes:
    if offset + size + _TRAILER_BYTES > len(data):
        raise ValueError("a block lies past the end of the file")
    compression, checksum = struct.unpack_from("<BI", data, offset + size)
    if masked_crc32c(data[offset : offset + size + 1]) != checksum:
        raise ValueError("the checksum of a block differs")
    if compression:
        name = "snappy" if compression == 1 else f"number {compression}"
        raise ValueError(f"a block is compressed ({name}), which TensorFlow's own writer never does")
    return data[offset : offset + size]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries of a block; a key gives only what differs from the key before it."""
    if len(block) < 4:
        raise ValueError("a block is too short")
    # 块尾是重启点数组，只为二分查找而设；顺序读取用不到
    end = len(block) - 4 - 4 * int(struct.unpack("<I", block[-4:])[0])
    if end < 0:
        raise ValueError("a block is too short")
    key, position = b"", 0
    while position < end:
        shared, position = read_varint(block, position)
        fresh, position = read_varint(block, position)
        length, position = read_varint(block, position)
        stop = position + fresh + length
        if shared > len(key) or shared + fresh > _MOST_KEY_BYTES or stop > end:
            raise ValueError("an entry does not fit its block")
        key = key[:shared] + block[position : position + fresh]
        yield key, block[position + fresh : stop]
        position = stop


def masked_crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """Computes a CRC-32C in the disguise in which TensorFlow stores it: so a file can hold checksums of checksums.

    Args:
        data: any number of bytes.

    Returns:
        The CRC-32C, rotated by 15 bits plus a constant, in [0, 2^32).
    """
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads an integer of 7 bits a byte, lowest first.

    Args:
        data: where to read.
        position: where the integer starts.

    Returns:
        The integer, and the position after it.

    Raises:
        ValueError: the data ends within it, or it has more than 70 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number is cut off or too long")
