"""The reader of TensorFlow's files, against files that TensorFlow wrote and against a literal writer of the format."""

import shutil
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from bertsmith.errors import CheckpointError
from bertsmith.interop.tensorflow import TensorBundle, masked_crc32c

FOLDER = Path(__file__).parent / "google_tiny"
MAGIC = 0xDB4775248B80FB57


def crc_bit_by_bit(data):
    """The definition: polynomial division, one bit at a time."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def masked(data):
    crc = crc_bit_by_bit(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(shape=(2,), dtype=1, part=0, offset=0, size=8, checksum=0, extra=b""):
    dimensions = b"".join(field(2, field(1, size)) for size in shape)
    numbers = field(1, dtype) + field(2, dimensions) + field(3, part) + field(4, offset) + field(5, size)
    return numbers + varint(6 << 3 | 5) + struct.pack("<I", checksum) + extra


def block(records, shared=0):
    """Entries without prefix compression (or claiming `shared` bytes), and one restart point."""
    body = b"".join(varint(shared) + varint(len(k)) + varint(len(v)) + k + v for k, v in records)
    return body + struct.pack("<II", 0, 1)


def sealed(content, compression=0):
    content = content + bytes([compression])
    return content + struct.pack("<I", masked(content))


HEADER = (b"", field(1, 1) + field(3, field(1, 1)))


def write_index(folder, blocks, compression=0, pointers=None):
    """Writes `x.ckpt.index` with these data blocks, an index block and a footer."""
    data, places = b"", []
    for number, content in enumerate(blocks):
        places.append((b"%c" % (255 - len(blocks) + number), varint(len(data)) + varint(len(content))))
        data += sealed(content, compression)
    index = block(places if pointers is None else pointers(places))
    footer = varint(0) + varint(0) + varint(len(data)) + varint(len(index))
    data += sealed(index) + footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)
    (folder / "x.ckpt.index").write_bytes(data)
    return folder / "x.ckpt"


def write_data(folder, numbers):
    content = np.asarray(numbers, np.float32).tobytes()
    (folder / "x.ckpt.data-00000-of-00001").write_bytes(content)
    return content


@pytest.mark.parametrize(
    ("data", "published"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_checksums_are_the_published_ones(data, published):
    """RFC 3720, appendix B.4."""
    assert crc_bit_by_bit(data) == published
    assert masked_crc32c(data) == masked(data)
    assert masked_crc32c(np.frombuffer(data, np.uint8)) == masked(data)


def test_every_float_type_and_nothing_else():
    bundle = TensorBundle(FOLDER / "dtypes" / "dtypes.ckpt")
    written = np.array([0.0, -1.0, 1.5, 3.140625, -65504.0, 2.0**-14], np.float32)
    for name in ("float16", "float32", "float64"):
        read = bundle.read(name)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, written)
    # bfloat16 has 8 bits: 65504 rounds to 65536, the others are exact
    np.testing.assert_array_equal(bundle.read("bfloat16"), np.where(written == -65504, -65536, written))
    with pytest.raises(CheckpointError, match=r"dtypes\.ckpt\.data.*tensor int64 has type number 9"):
        bundle.read("int64")


def test_one_part_and_two_parts_hold_the_same():
    one, two = TensorBundle(FOLDER / "bert_model.ckpt"), TensorBundle(FOLDER / "two_parts" / "bert_model.ckpt")
    assert {entry.part for entry in two.entries.values()} == {0, 1}
    weights = {name for name in one.entries if not name.endswith(("adam_m", "adam_v"))}
    assert weights == set(two.entries)
    for name in weights - {"global_step"}:
        np.testing.assert_array_equal(one.read(name), two.read(name))


def test_a_table_of_many_blocks(tmp_path):
    """TensorFlow starts a new block at 256 KB, which no BERT's index reaches."""
    content = write_data(tmp_path, [1, 2])
    records = [(b"t%02d" % n, entry(checksum=masked(content))) for n in range(20)]
    prefix = write_index(tmp_path, [block([HEADER, *records[:7]]), block(records[7:8]), block(records[8:])])
    bundle = TensorBundle(prefix)
    assert list(bundle.entries) == [f"t{n:02d}" for n in range(20)]
    np.testing.assert_array_equal(bundle.read("t19"), [1, 2])


def open_copy(tmp_path, data):
    (tmp_path / "bert_model.ckpt.index").write_bytes(data)
    return TensorBundle(tmp_path / "bert_model.ckpt")


def test_an_index_cut_anywhere_is_refused(tmp_path):
    data = (FOLDER / "bert_model.ckpt.index").read_bytes()
    for length in [*range(60), *range(60, len(data), 41), len(data) - 1]:
        with pytest.raises(CheckpointError, match=r"bert_model\.ckpt\.index.*not a readable index"):
            open_copy(tmp_path, data[:length])


def test_a_flipped_bit_of_the_index_is_noticed(tmp_path):
    """Nothing is read from the small block of metadata before the index block, nor from the footer's padding."""
    data = (FOLDER / "bert_model.ckpt.index").read_bytes()
    footer = len(data) - 48
    for position in [*range(0, footer - 80, 23), *range(footer - 20, footer), *range(len(data) - 8, len(data))]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CheckpointError, match=r"bert_model\.ckpt\.index"):
            open_copy(tmp_path, bytes(damaged))


def test_damage_under_right_checksums_ends_in_no_other_error(tmp_path):
    """Someone who wants to do harm computes the checksums, too."""
    written = TensorBundle(FOLDER / "bert_model.ckpt").entries
    records = [
        (name.encode(), entry(e.shape, e.dtype, e.part, e.offset, e.size, e.checksum))
        for name, e in written.items()
        if not name.endswith(("adam_m", "adam_v", "global_step"))
    ]
    shutil.copy(FOLDER / "bert_model.ckpt.data-00000-of-00001", tmp_path / "x.ckpt.data-00000-of-00001")
    whole = block([HEADER, *records])
    assert TensorBundle(write_index(tmp_path, [whole])).entries.items() <= written.items()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        content = bytearray(whole)
        for position in rng.integers(0, len(content), rng.integers(1, 4)):
            content[position] = rng.integers(0, 256)
        try:
            bundle = TensorBundle(write_index(tmp_path, [bytes(content)]))
            for name in bundle.entries:
                bundle.read(name)
        except CheckpointError:
            refused += 1
    # a letter of a name may change unnoticed here; the table of names notices it
    assert 100 < refused < 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"part": 1}, "tensor t: not a readable index.*part 1"),
        ({"shape": (2,) * 9}, "more than 8 dimensions"),
        ({"shape": (3,)}, r"shape \[3\] but 8 bytes"),
        ({"shape": (2**62,), "size": 2**64}, "ends at byte"),
        ({"offset": 2**63 - 1}, "ends at byte"),
        ({"offset": 1}, "ends at byte 9, but the file has 8"),
        ({"dtype": 7}, "type number 7"),
        ({"dtype": 2}, "but 8 bytes"),
        ({"extra": field(7, b"")}, "stored in slices"),
        ({"checksum": 1}, "tensor t is damaged"),
        ({"extra": b"\xff"}, "tensor t: not a readable index.*cut off"),
        ({"extra": varint(9 << 3 | 2) + varint(99)}, "does not fit its message"),
        ({"extra": varint(9 << 3 | 3)}, "does not fit its message"),
    ],
)
def test_impossible_entries_are_named(tmp_path, change, message):
    content = write_data(tmp_path, [1, 2])
    prefix = write_index(tmp_path, [block([HEADER, (b"t", entry(**{"checksum": masked(content), **change}))])])
    with pytest.raises(CheckpointError, match=message):
        TensorBundle(prefix).read("t")


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([block([(b"t", entry())])], "no header"),
        ([block([])], "no header"),
        ([block([(b"", field(2, 1))])], "big-endian"),
        ([block([(b"", field(3, field(2, 9)))])], "later version"),
        ([block([HEADER, (b"b", entry()), (b"a", entry())])], "out of order"),
        ([block([HEADER, (b"a", entry()), (b"a", entry())])], "out of order"),
        ([block([HEADER, (b"\xff\xfe", entry())])], "not a readable index"),
        ([block([HEADER], shared=5)], "does not fit its block"),
        ([block([(b"k" * 2000, b"")])], "does not fit its block"),
        ([b""], "too short"),
        ([b"\xff\xff\xff\xff"], "too short"),
        ([b"\xff" * 20 + struct.pack("<II", 0, 1)], "cut off or too long"),
    ],
)
def test_impossible_tables_are_named(tmp_path, blocks, message):
    with pytest.raises(CheckpointError, match=rf"x\.ckpt\.index.*{message}"):
        TensorBundle(write_index(tmp_path, blocks))


@pytest.mark.parametrize(("compression", "name"), [(1, "snappy"), (7, "number 7")])
def test_compressed_blocks_are_named(tmp_path, compression, name):
    with pytest.raises(CheckpointError, match=rf"compressed \({name}\)"):
        TensorBundle(write_index(tmp_path, [block([HEADER])], compression))


def test_pointers_past_the_end_and_to_the_same_block_are_refused(tmp_path):
    past = write_index(tmp_path, [block([HEADER])], pointers=lambda _: [(b"z", varint(0) + varint(2**40))])
    with pytest.raises(CheckpointError, match="past the end"):
        TensorBundle(past)
    # without a bound, 60,000 pointers to a block of 60,000 entries would take hours
    many = block([HEADER, *((b"%05d" % n, b"") for n in range(60_000))])
    again = write_index(tmp_path, [many], pointers=lambda places: [(b"%05d" % n, places[0][1]) for n in range(60_000)])
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="overlap"):
        TensorBundle(again)
    assert time.monotonic() - started < 10


def test_missing_and_short_parts_are_named(tmp_path):
    for file in (FOLDER / "two_parts").iterdir():
        shutil.copy(file, tmp_path)
    part = tmp_path / "bert_model.ckpt.data-00001-of-00002"
    whole = part.read_bytes()
    bundle = TensorBundle(tmp_path / "bert_model.ckpt")
    last = max((e.offset, name) for name, e in bundle.entries.items() if e.part == 1 and e.dtype == 1)[1]
    for content, message in ((whole[:-100], f"tensor {last} ends at byte"), (b"", "but the file has 0")):
        part.write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            TensorBundle(tmp_path / "bert_model.ckpt").read(last)
    part.unlink()
    with pytest.raises(CheckpointError, match=r"data-00001-of-00002: cannot be read.*2 part\(s\)"):
        TensorBundle(tmp_path / "bert_model.ckpt").read(last)
    with pytest.raises(CheckpointError, match=r"nothing\.ckpt\.index: cannot be read"):
        TensorBundle(tmp_path / "nothing.ckpt")
