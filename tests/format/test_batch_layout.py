"""The positions of a header's fields in Python, beside what the kernels write and what they parse."""
import pytest

from seglog import build_batch
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format import batch_layout as layout

RECORDS = [(b"k", b"v" * 300), (None, b"v" * 300), (b"k", None)]


def number(raw, position, size_bytes):
    return int.from_bytes(raw[position : position + size_bytes], "big", signed=True)


@pytest.mark.parametrize(("codec", "number_of_codec"), [
    ("none", 0), ("lz4", layout.CODEC_LZ4), ("zstd", layout.CODEC_ZSTD),
])
def test_every_field_of_a_batch_is_where_the_layout_says(codec, number_of_codec):
    raw = build_batch(RECORDS, codec=codec, base_offset=7, producer_id=1 << 40, producer_epoch=9, base_sequence=5,
                      transactional=True)
    batch = scan(Window(raw), check_crc=True)[0]
    assert number(raw, layout.SIZE_POS, 4) + layout.LOG_OVERHEAD == len(raw)
    assert raw[layout.MAGIC_POS] == batch.magic == 2
    assert number(raw, layout.CRC_POS, 4) & 0xFFFF_FFFF == batch.crc
    assert layout.ATTRIBUTES_POS + 1 == layout.LOW_ATTRIBUTES_POS
    assert raw[layout.LOW_ATTRIBUTES_POS] & layout.CODEC_MASK == number_of_codec
    assert raw[layout.LOW_ATTRIBUTES_POS] & layout.TRANSACTIONAL_BIT
    assert not raw[layout.LOW_ATTRIBUTES_POS] & layout.CONTROL_BIT
    assert number(raw, layout.LAST_OFFSET_DELTA_POS, 4) == batch.last_offset - batch.base_offset == len(RECORDS) - 1
    assert number(raw, layout.PRODUCER_ID_POS, 8) == batch.producer_id == 1 << 40
    assert number(raw, layout.PRODUCER_EPOCH_POS, 2) == batch.producer_epoch == 9


def test_a_marker_has_the_bit_of_control_batches():
    raw = build_batch([(b"\0\0\0\1", b"")], producer_id=1, producer_epoch=0, transactional=True, control=True)
    assert raw[layout.LOW_ATTRIBUTES_POS] & layout.CONTROL_BIT


def test_the_records_of_a_batch_begin_where_its_header_ends():
    raw = build_batch([(None, b"a value that is not compressed")])
    assert raw.index(b"a value") == layout.V2_HEADER_SIZE + len(b"\x00\x00\x00\x00\x00\x00")


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_has_its_magic_and_attributes_where_the_layout_says(magic):
    raw = build_batch(RECORDS, magic=magic, codec="gzip")
    assert raw[layout.MAGIC_POS] == magic
    assert raw[layout.MESSAGE_ATTRIBUTES_POS] & layout.CODEC_MASK == 1
