"""Pulsar's payloads: each codec there and back, and every way in which a payload may lie."""
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.errors import (
    CorruptRecordError,
    MissingCodecError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from seglog.format import payload_compression
from seglog.format.payload_compression import PayloadCodec, compress_payload, open_payload

COMPRESSED = [codec for codec in PayloadCodec if codec]
DATA = b"pulsar keeps one block " * 50


@given(st.sampled_from(PayloadCodec), st.binary(max_size=300))
def test_every_codec_opens_what_it_wrote(codec, data):
    assert bytes(open_payload(codec, compress_payload(codec, data), len(data))) == data


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, len(DATA) - 1, len(DATA) + 1, 1 << 20])
def test_a_payload_that_opens_to_another_size_is_damaged(codec, size):
    with pytest.raises(CorruptRecordError, match="does not decompress"):
        open_payload(codec, compress_payload(codec, DATA), size)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_payload_cut_short_or_garbled_is_damaged(codec):
    payload = bytes(compress_payload(codec, DATA))
    for damaged in (payload[:-6], payload[: len(payload) // 2], b"", b"\xff" * 20):
        with pytest.raises(CorruptRecordError, match="does not decompress"):
            open_payload(codec, damaged, len(DATA))


def test_a_zlib_stream_may_end_and_then_nothing_follows():
    assert open_payload(PayloadCodec.ZLIB, zlib.compress(DATA), len(DATA)) == DATA
    with pytest.raises(CorruptRecordError, match="1 bytes follow the stream"):
        open_payload(PayloadCodec.ZLIB, zlib.compress(DATA) + b"x", len(DATA))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_claim_above_the_limit_is_refused_before_anything_is_opened(codec):
    with pytest.raises(RecordTooLargeError, match=r"claims 101 bytes when.*max\.decompressed\.message\.bytes = 100"):
        open_payload(codec, b"", 101, 100)


def test_a_number_of_no_codec_is_refused():
    for number in (-1, 5):
        with pytest.raises(UnsupportedCompressionTypeError, match="SNAPPY"):
            open_payload(number, b"", 0)
        with pytest.raises(UnsupportedCompressionTypeError):
            compress_payload(number, b"")


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    payload_compression._lz4_block.cache_clear()
    with pytest.raises(MissingCodecError, match="needs the package lz4"):
        open_payload(PayloadCodec.LZ4, b"", 1)
