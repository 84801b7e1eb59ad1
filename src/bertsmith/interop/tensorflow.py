"""A reader of TensorFlow's checkpoints ("tensor bundles") that needs no TensorFlow.

A bundle is `PREFIX.index`, a table from names to where the numbers are, and `PREFIX.data-00000-of-0000N`, the numbers.
The table's values are protobuf messages (`tensor_bundle.proto`), of which a handful of fields matter. The table is
LevelDB's (`table_format.md`): from its end, a footer points to an index block, whose entries point to data blocks;
there each key gives only what differs from the key before it.

Every checksum, offset, length and shape is checked before it is believed: a damaged or hostile file ends in one
`CheckpointError` that names it, and costs no more memory and time than its own size.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import CheckpointError

_MOST_INDEX_BYTES = 1 << 24  # BERT large: about 50 KB and 1,200 tensors, with the optimizer's slots
_MOST_TENSORS = 1 << 16
_MOST_DIMENSIONS = 8
_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # one byte says how a block is compressed, four are its checksum
_MOST_KEY_BYTES = 1 << 10

_FLOATS = {1: "<f4", 2: "<f8", 14: "<u2", 19: "<f2"}
"""DataType of `types.proto` → how numpy sees the bytes."""
_BFLOAT16 = 14


class BundleEntry(NamedTuple):
    """Where a tensor is: bytes [offset, offset + size) of a part."""

    dtype: int
    shape: tuple[int, ...]
    part: int
    offset: int
    size: int
    checksum: int
    is_sliced: bool


class TensorBundle:
    """An opened checkpoint, `PREFIX.index` and its parts; a tensor is read when it is asked for."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.entries: dict[str, BundleEntry] = {}
        self._parts: dict[int, NDArray[np.uint8]] = {}
        path = prefix.with_name(f"{prefix.name}.index")
        place = ""
        try:
            # 先看大小再读：损坏或恶意的索引不该耗尽内存
            if path.stat().st_size > _MOST_INDEX_BYTES:
                raise ValueError(f"it is over {_MOST_INDEX_BYTES >> 20} MiB; too large for a BERT")
            records = read_table(path.read_bytes())
            self._num_parts = _read_header(next(records, None))
            for key, value in records:
                name = key.decode("utf-8")
                place = f", tensor {name}"
                self.entries[name] = _read_entry(value, self._num_parts)
                place = f", after tensor {name}"
                if len(self.entries) > _MOST_TENSORS:
                    raise ValueError(f"it names over {_MOST_TENSORS} tensors; too many for a BERT")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror}); check the file") from None
        except ValueError as error:
            raise CheckpointError(f"{path}{place}: not a readable index ({error}); copy the file again") from None

    def read(self, name: str) -> NDArray[np.float32]:
        """Reads a tensor as float32, in the entry's shape; stored as float16, bfloat16, float32 or float64."""
        entry = self.entries[name]
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.part:05d}-of-{self._num_parts:05d}")
        where = f"{path}: tensor {name}"
        if entry.dtype not in _FLOATS or entry.is_sliced:
            kind = "is stored in slices" if entry.is_sliced else f"has type number {entry.dtype}"
            raise CheckpointError(f"{where} {kind}; only whole tensors of floating-point numbers can be read")
        layout = np.dtype(_FLOATS[entry.dtype])
        # 形状来自文件，先与字节数核对，再据此分配内存
        if math.prod(entry.shape) * layout.itemsize != entry.size:
            raise CheckpointError(f"{where} has shape {list(entry.shape)} but {entry.size} bytes; copy the files again")
        part = self._open_part(entry.part, path)
        if entry.offset + entry.size > len(part):
            raise CheckpointError(
                f"{where} ends at byte {entry.offset + entry.size}, but the file has {len(part)}; copy it again"
            )
        content = part[entry.offset : entry.offset + entry.size]
        if masked_crc32c(content) != entry.checksum:
            raise CheckpointError(f"{where} is damaged (its checksum differs); copy the file again")
        numbers = content.view(layout)
        if entry.dtype == _BFLOAT16:
            # bfloat16 就是 float32 的高 16 位
            numbers = (numbers.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return numbers.astype(np.float32).reshape(entry.shape)

    def _open_part(self, number: int, path: Path) -> NDArray[np.uint8]:
        if number not in self._parts:
            try:
                size = path.stat().st_size
                self._parts[number] = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
            except OSError as error:
                raise CheckpointError(
                    f"{path}: cannot be read ({error.strerror}); the checkpoint has {self._num_parts} part(s) beside"
                    " its index, copy them all"
                ) from None
        return self._parts[number]


def _read_message(data: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """Returns the integers and the contents of a protobuf message by number; what is absent counts as 0 or empty."""
    integers: dict[int, int] = {}
    contents: dict[int, list[bytes]] = defaultdict(list)
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            integers[number], position = read_varint(data, position)
            continue
        if wire_type == 2:
            size, position = read_varint(data, position)
        else:
            # 不认识的类型给一个必然越界的长度：走下面同一条报错
            size = {1: 8, 5: 4}.get(wire_type, len(data))
        content = data[position : position + size]
        position += size
        if position > len(data):
            raise ValueError("a field does not fit its message")
        if wire_type == 2:
            contents[number].append(content)
        else:
            integers[number] = int.from_bytes(content, "little")
    return integers, contents


def _read_header(record: tuple[bytes, bytes] | None) -> int:
    """Checks BundleHeaderProto, the value of the empty key, and returns the number of parts."""
    if record is None or record[0]:
        raise ValueError("it has no header")
    header, versions = _read_message(record[1])
    if header.get(2, 0) != 0:
        raise ValueError("its numbers are big-endian")
    if any(_read_message(version)[0].get(2, 0) > 1 for version in versions[3][-1:]):
        raise ValueError("it asks for a later version of the format than 1")
    return header.get(1, 0)


def _read_entry(value: bytes, num_parts: int) -> BundleEntry:
    numbers, contents = _read_message(value)
    dimensions = _read_message(contents[2][-1])[1][2] if contents[2] else []
    if len(dimensions) > _MOST_DIMENSIONS:
        raise ValueError(f"it has more than {_MOST_DIMENSIONS} dimensions")
    shape = tuple(_read_message(dimension)[0].get(1, 0) for dimension in dimensions)
    dtype, part, offset, size, checksum = (numbers.get(number, 0) for number in (1, 3, 4, 5, 6))
    if part >= num_parts:
        raise ValueError(f"it is in part {part}, and the last one is {num_parts - 1}")
    return BundleEntry(dtype, shape, part, offset, size, checksum, is_sliced=bool(contents[7]))


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a whole table, in the order of the keys; ValueError says what is wrong with it.

    Offsets and lengths are checked, blocks cannot overlap, keys are bounded: a small file takes little time and memory.
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
    """Computes a CRC-32C in the disguise in which TensorFlow stores it: so a file can hold checksums of checksums."""
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads an integer of 7 bits a byte, lowest first, from a position; returns it, and the position after it.

    Raises ValueError where the data ends within it, or it has more than 70 bits.
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
