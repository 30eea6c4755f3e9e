"""Batches as tagged messages and back, in memory, by the functions for users."""
import pytest

from seglog import build_batch
from seglog._kernels.segment_scan import scan
from seglog._kernels.tag_list import tags_of
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, UnsupportedCompressionTypeError
from seglog.format.compression import decompressor
from seglog.format.tagged import from_tagged, scan_tagged, to_tagged

TIME = 1_700_000_000_123
RECORDS = [(b"k", b"v", TIME), (None, b"w" * 100, TIME + 1), (b"k", None, TIME + 2)]


def made(codec="lz4", headers=()):
    return build_batch([(key, value, list(headers), time) for key, value, time in RECORDS], codec=codec)


def read(raw):
    table = scan(Window(raw), check_crc=True, decompress=decompressor())
    return [(r.offset, r.key, r.value, r.timestamp, r.headers) for r in table.records()]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_comes_back_as_it_was(codec):
    raw = made(codec)
    tagged = to_tagged(raw)
    assert [(r.offset, r.key, r.value, r.timestamp) for r in scan_tagged(tagged).records()] == [
        (n, *record) for n, record in enumerate(RECORDS)]
    assert read(from_tagged(tagged)) == read(raw)


def test_another_codec_and_seconds_alone():
    (wrapper,) = scan_tagged(to_tagged(made("none"), codec="gzip"))
    assert wrapper.codec == 1
    assert len(list(scan_tagged(to_tagged(made("gzip"), codec="none")))) == 3
    assert {r.timestamp for r in scan_tagged(to_tagged(made("none"), with_ms=False)).records()} == {TIME // 1000 * 1000}


def test_unknown_tags_are_headers_in_v2_and_lost_below():
    header = ("seglog.tag.100", b"any")
    tagged = to_tagged(made("none", [header, ("other", b"")]))
    assert {tags_of(message)[100] for message in scan_tagged(tagged)} == {b"any"}
    assert {record[4] for record in read(from_tagged(tagged))} == {(header,)}
    assert {record[4] for record in read(from_tagged(tagged, to=1))} == {()}


def test_zstd_has_no_place_below_v2():
    with pytest.raises(UnsupportedCompressionTypeError, match="zstd"):
        from_tagged(to_tagged(made("zstd")), to=1)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])])
def test_damage_is_named_with_its_place(damage):
    tagged = to_tagged(made("none"))
    first = scan_tagged(tagged)[0].size_bytes
    with pytest.raises(CorruptRecordError) as caught:
        scan_tagged(tagged[:first] + damage(tagged[first:]), name="orders")
    assert caught.value.file == "orders"
    assert caught.value.position >= first
