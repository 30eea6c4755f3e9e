"""The positions of a header's fields in Python, beside those of the kernels and what the kernels write and parse."""
import re
from pathlib import Path
from zlib import crc32

import pytest

from seglog import build_batch
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format import batch_layout as layout

KERNELS = Path(__file__).resolve().parents[2] / "cext"
RECORDS = [(b"k", b"v" * 300), (None, b"v" * 300), (b"k", None)]


def positions_of_kernels():
    found = re.findall(r"^    (\w+_POS|LOG_OVERHEAD|V2_HEADER_SIZE) = (\d+)",
                       (KERNELS / "records/batch_header.pxd").read_text(), re.MULTILINE)
    return {name: int(value) for name, value in found}


def number(raw, position, size_bytes):
    return int.from_bytes(raw[position : position + size_bytes], "big", signed=True)


def test_kernels_and_python_give_each_position_the_same_name_and_number():
    kernels = positions_of_kernels()
    assert len(kernels) > 15
    python = {name: value for name, value in vars(layout).items() if name in kernels or name.endswith("_POS")}
    assert python == {**kernels, "LOW_ATTRIBUTES_POS": kernels["ATTRIBUTES_POS"] + 1}


def test_no_kernel_that_parses_a_header_has_a_position_of_it_as_a_bare_number():
    numbers = "|".join(str(n) for n in {*positions_of_kernels().values()})
    bare = re.compile(rf"\b(?:p|header|start|first|position) \+ (?:{numbers})[,)]|\bp\[(?:{numbers})\]")
    for path in KERNELS.glob("*/*.p*"):
        text = path.read_text()
        if "from .batch_header cimport" in text or path.stem == "batch_header":
            assert bare.findall(text) == [], path


@pytest.mark.parametrize(("codec", "number_of_codec"), [
    ("none", 0), ("lz4", layout.CODEC_LZ4), ("zstd", layout.CODEC_ZSTD),
])
def test_every_field_of_a_batch_is_where_the_layout_says(codec, number_of_codec):
    raw = build_batch([(*record, (), 1_000 + n) for n, record in enumerate(RECORDS)], codec=codec, base_offset=7,
                      producer_id=1 << 40, producer_epoch=9, base_sequence=5, transactional=True, leader_epoch=3)
    batch = scan(Window(raw), check_crc=True)[0]
    assert number(raw, layout.SIZE_POS, 4) + layout.LOG_OVERHEAD == len(raw)
    assert number(raw, layout.LEADER_EPOCH_POS, 4) == batch.leader_epoch == 3
    assert raw[layout.MAGIC_POS] == batch.magic == 2
    assert number(raw, layout.CRC_POS, 4) & 0xFFFF_FFFF == batch.crc
    assert raw[layout.LOW_ATTRIBUTES_POS] & layout.CODEC_MASK == number_of_codec
    assert raw[layout.LOW_ATTRIBUTES_POS] & layout.TRANSACTIONAL_BIT
    assert not raw[layout.LOW_ATTRIBUTES_POS] & layout.CONTROL_BIT
    assert number(raw, layout.LAST_OFFSET_DELTA_POS, 4) == batch.last_offset - batch.base_offset == len(RECORDS) - 1
    assert number(raw, layout.BASE_TIMESTAMP_POS, 8) == 1_000
    assert number(raw, layout.MAX_TIMESTAMP_POS, 8) == batch.max_timestamp == 1_002
    assert number(raw, layout.PRODUCER_ID_POS, 8) == batch.producer_id == 1 << 40
    assert number(raw, layout.PRODUCER_EPOCH_POS, 2) == batch.producer_epoch == 9
    assert number(raw, layout.BASE_SEQUENCE_POS, 4) == batch.base_sequence == 5
    assert number(raw, layout.COUNT_POS, 4) == batch.count == len(RECORDS)


def test_a_marker_has_the_bit_of_control_batches():
    raw = build_batch([(b"\0\0\0\1", b"")], producer_id=1, producer_epoch=0, transactional=True, control=True)
    assert raw[layout.LOW_ATTRIBUTES_POS] & layout.CONTROL_BIT


def test_the_records_of_a_batch_begin_where_its_header_ends():
    raw = build_batch([(None, b"a value that is not compressed")])
    assert raw.index(b"a value") == layout.V2_HEADER_SIZE + len(b"\x00\x00\x00\x00\x00\x00")


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_has_its_fields_where_the_layout_says(magic):
    raw = build_batch(RECORDS, magic=magic, codec="gzip", timestamp=1_234 if magic else None)
    assert raw[layout.MAGIC_POS] == magic
    assert raw[layout.MESSAGE_ATTRIBUTES_POS] & layout.CODEC_MASK == 1
    assert number(raw, layout.MESSAGE_CRC_POS, 4) & 0xFFFF_FFFF == crc32(raw[layout.MAGIC_POS:])
    assert magic == 0 or number(raw, layout.MESSAGE_TIMESTAMP_POS, 8) == 1_234
