"""Payloads of compressed batches: what Kafka wrote opens, what we write others open, and no stream costs more than
it is allowed."""
import contextlib
import gzip
import json
import os
import random
import struct
import subprocess
import sys
import warnings
import zlib

import aiokafka.codec
import cramjam
import lz4
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seglog.format.compression as compression
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    MissingCodecError,
    RecordTooLargeError,
    SeglogError,
    UnsupportedCompressionTypeError,
)
from seglog.format.compression import Codec, compress, decompress, decompressor, output_bytes_max

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)     # of importlib.resources, inside kafka-python
    import kafka.codec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 1 << 20
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
# every codec in every format version that may use it
CELLS = [(codec, magic) for codec in Codec for magic in (0, 1, 2) if codec != Codec.ZSTD or magic == 2]

TEXT = b" ".join(b"record %d" % n for n in range(5000))
NOISE = random.Random(1).randbytes(100_000)


def opened(codec, payload, *, magic=2, limit=LIMIT):
    return bytes(decompress(codec, magic, payload, limit))


def packed(codec, data, *, magic=2, level=None):
    return bytes(compress(codec, magic, data, level))


@pytest.fixture(scope="module")
def golden_payloads(golden_kafka):
    """(codec, magic, payload as Kafka wrote it, record count or None) of every compressed batch of every case."""
    payloads = []
    for path in sorted(golden_kafka.glob("cases/*/*/*.log")):
        for batch in scan(Window(path.read_bytes())):
            if batch.codec:
                payloads.append((Codec(batch.codec), batch.magic, bytes(batch.payload()), batch.count))
    return payloads


# --- what Kafka wrote ------------------------------------------------------------------------


def test_every_golden_payload_opens_to_whole_records(golden_payloads):
    seen = set()
    for codec, magic, payload, count in golden_payloads:
        data = opened(codec, payload, magic=magic)
        if magic == 2:
            assert whole_records(data) == count
        else:
            assert whole_messages(data) > 0
        seen.add((codec, magic))
    assert seen == {(codec, magic) for codec, magic in CELLS if codec}


def whole_records(data):
    """How many v2 records fill the bytes exactly."""
    pos = count = 0
    while pos < len(data):
        length = shift = 0
        while True:
            byte = data[pos]
            pos += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        pos += length >> 1
        count += 1
    assert pos == len(data)
    return count


def whole_messages(data):
    """How many v0 or v1 messages fill the bytes exactly."""
    pos = count = 0
    while pos < len(data):
        pos += 12 + struct.unpack_from(">i", data, pos + 8)[0]
        count += 1
    assert pos == len(data)
    return count


def test_golden_payloads_open_as_other_clients_open_them(golden_payloads):
    theirs = {
        Codec.GZIP: [gzip.decompress, aiokafka.codec.gzip_decode, kafka.codec.gzip_decode],
        Codec.SNAPPY: [aiokafka.codec.snappy_decode],
        Codec.LZ4: [aiokafka.codec.lz4_decode, kafka.codec.lz4_decode],
        Codec.ZSTD: [aiokafka.codec.zstd_decode],
    }
    for codec, magic, payload, _ in golden_payloads:
        if (codec, magic) != (Codec.LZ4, 0):    # refused by both, see the next test
            for their in theirs[codec]:
                assert opened(codec, payload, magic=magic) == their(payload)


def test_v0_lz4_headers_are_wrong_as_kafka_3160_made_them(golden_payloads):
    payloads = [payload for codec, magic, payload, _ in golden_payloads if (codec, magic) == (Codec.LZ4, 0)]
    for payload in payloads:
        with pytest.raises(RuntimeError, match="headerChecksum_invalid"):
            lz4.frame.decompress(payload)
        with pytest.raises(CorruptRecordError, match="headerChecksum"):
            opened(Codec.LZ4, payload, magic=1)
        mended = payload[:6] + b"\x82" + payload[7:]
        assert opened(Codec.LZ4, payload, magic=0) == lz4.frame.decompress(mended)


def test_we_write_kafkas_lz4_frames(golden_payloads):
    bundled_by_the_wheels_that_were_compared = lz4.library_version_number() < 11000
    for codec, magic, payload, _ in golden_payloads:
        if codec == Codec.LZ4:
            ours = packed(codec, opened(codec, payload, magic=magic), magic=magic)
            assert ours[:7] == payload[:7]
            if bundled_by_the_wheels_that_were_compared:
                assert ours == payload


# --- round trips -----------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "magic"), CELLS)
@pytest.mark.parametrize(
    "data", [b"", b"x", TEXT, NOISE, bytes(compression.PIECE_BYTES), bytes(compression.PIECE_BYTES + 1), TEXT * 40],
    ids=["empty", "byte", "text", "noise", "piece", "piece+1", "megabytes"],
)
def test_what_was_compressed_comes_back(codec, magic, data):
    assert opened(codec, packed(codec, data, magic=magic), magic=magic, limit=4 * LIMIT) == data


@given(
    cell=st.sampled_from(CELLS),
    data=st.binary(max_size=200) | st.builds(lambda part, n: part * n, st.binary(max_size=50), st.integers(0, 3000)),
)
def test_anything_comes_back(cell, data):
    codec, magic = cell
    assert opened(codec, packed(codec, data, magic=magic), magic=magic) == data


@pytest.mark.parametrize(
    ("codec", "their"),
    [
        (Codec.GZIP, aiokafka.codec.gzip_decode),
        (Codec.SNAPPY, aiokafka.codec.snappy_decode),
        (Codec.LZ4, aiokafka.codec.lz4_decode),
        (Codec.LZ4, kafka.codec.lz4_decode),
        (Codec.ZSTD, aiokafka.codec.zstd_decode),
    ],
)
@pytest.mark.parametrize("data", [b"x", TEXT, NOISE])
def test_other_clients_open_what_we_write(codec, their, data):
    assert their(packed(codec, data)) == data


@pytest.mark.parametrize(
    ("codec", "their"),
    [
        (Codec.GZIP, aiokafka.codec.gzip_encode),
        (Codec.GZIP, kafka.codec.gzip_encode),
        (Codec.SNAPPY, aiokafka.codec.snappy_encode),
        (Codec.LZ4, aiokafka.codec.lz4_encode),
        (Codec.LZ4, kafka.codec.lz4_encode),
        (Codec.ZSTD, aiokafka.codec.zstd_encode),
    ],
)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE])
def test_we_open_what_other_clients_write(codec, their, data):
    assert opened(codec, bytes(their(data))) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_payloads_may_be_any_buffer(codec):
    payload = packed(codec, TEXT)
    for buffer in (bytearray(payload), memoryview(payload), memoryview(b"__" + payload)[2:]):
        assert opened(codec, buffer) == TEXT


def test_an_uncompressed_payload_is_passed_on_untouched():
    payload = memoryview(b"records")
    assert decompress(0, 2, payload, 1) is payload
    assert compress(0, 2, payload) is payload


def test_decompressor_is_the_callable_of_the_kernels():
    assert bytes(decompressor(100)(3, 2, memoryview(packed(3, bytes(100))))) == bytes(100)
    with pytest.raises(RecordTooLargeError):
        decompressor(99)(3, 2, memoryview(packed(3, bytes(100))))


# --- framing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(
    "parts",
    [[b"one", b"two"], [b"", b"x", b""], [TEXT, NOISE, TEXT], [b"%d" % n for n in range(999)]],
    ids=["two", "empty ones", "large", "many"],
)
def test_several_streams_follow_one_another(codec, parts):
    assert opened(codec, b"".join(packed(codec, part) for part in parts)) == b"".join(parts)


def test_several_v0_lz4_frames_follow_one_another():
    frames = packed(Codec.LZ4, b"one", magic=0) + packed(Codec.LZ4, TEXT, magic=0)
    assert opened(Codec.LZ4, frames, magic=0) == b"one" + TEXT


def test_xerial_streams_follow_one_another():
    assert opened(Codec.SNAPPY, packed(Codec.SNAPPY, TEXT) * 3) == TEXT * 3


def test_snappy_is_framed_in_blocks_of_32_kib():
    payload = packed(Codec.SNAPPY, NOISE)
    assert payload[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    pos, sizes = 16, []
    while pos < len(payload):
        size = struct.unpack_from(">i", payload, pos)[0]
        sizes.append(len(cramjam.snappy.decompress_raw(payload[pos + 4 : pos + 4 + size])))
        pos += 4 + size
    assert sizes == [32768, 32768, 32768, len(NOISE) - 3 * 32768]


@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE])
def test_bare_snappy_opens(data):
    assert opened(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_lz4_frames_are_those_of_lz4_block_output_stream():
    info = lz4.frame.get_frame_info(packed(Codec.LZ4, TEXT))
    assert info["block_size"] == 65536
    assert not info["block_linked"]
    assert not info["content_checksum"]
    assert not info["block_checksum"]
    assert info["content_size"] == 0


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"store_size": True},
        {"content_checksum": True, "block_checksum": True},
        {"block_linked": True, "block_size": lz4.frame.BLOCKSIZE_MAX4MB},
    ],
    ids=str,
)
def test_lz4_frames_of_other_writers_open(magic, options):
    assert opened(Codec.LZ4, lz4.frame.compress(NOISE + TEXT, **options), magic=magic) == NOISE + TEXT


def test_lz4_header_checksum_is_not_looked_at_in_v0():
    payload = bytearray(packed(Codec.LZ4, TEXT, magic=0))
    for checksum in (0, 0x82, 0xFF):
        payload[6] = checksum
        assert opened(Codec.LZ4, payload, magic=0) == TEXT


def test_zstd_frames_need_no_content_size():
    # As zstd-jni writes them: flushed in pieces.
    writer = zstd.ZstdCompressor()
    payload = writer.compress(TEXT, writer.FLUSH_BLOCK) + writer.flush()
    assert zstd.get_frame_info(payload).decompressed_size is None
    assert opened(Codec.ZSTD, payload) == TEXT


def wide_zstd(data, window_log):
    writer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
    return writer.compress(data, writer.FLUSH_BLOCK) + writer.flush()


@pytest.mark.parametrize("window_log", [10, 23, 24, 27])
def test_zstd_windows_up_to_kafkas_own_limit_open(window_log):
    assert opened(Codec.ZSTD, wide_zstd(TEXT, window_log), limit=2 * len(TEXT)) == TEXT


def test_a_wide_zstd_window_counts_as_a_second_copy_of_the_output():
    with pytest.raises(RecordTooLargeError):
        opened(Codec.ZSTD, wide_zstd(TEXT, 24), limit=2 * len(TEXT) - 2)


def test_zstd_windows_above_kafkas_own_limit_are_refused():
    with pytest.raises(CorruptRecordError, match="too much memory"):
        opened(Codec.ZSTD, wide_zstd(TEXT, 28))


# --- levels ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Codec.GZIP, [-1, 1, 6, 9]),
        (Codec.LZ4, [1, 2, 3, 9, 12, 17]),
        (Codec.ZSTD, [-131072, -5, 1, 3, 22]),
    ],
)
def test_kafkas_levels_are_taken(codec, levels):
    for level in levels:
        assert opened(codec, packed(codec, TEXT, level=level)) == TEXT


@pytest.mark.parametrize(("codec", "default"), [(Codec.GZIP, 6), (Codec.LZ4, 9), (Codec.ZSTD, 3)])
def test_the_default_level_is_kafkas(codec, default):
    assert packed(codec, TEXT) == packed(codec, TEXT, level=default)


def test_lz4_level_9_is_the_fast_compressor_and_every_other_the_slow_one():
    assert len(packed(Codec.LZ4, TEXT, level=3)) < len(packed(Codec.LZ4, TEXT, level=9))


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Codec.GZIP, 0), (Codec.GZIP, 10), (Codec.GZIP, -2), (Codec.LZ4, 0), (Codec.LZ4, 18), (Codec.ZSTD, 23),
        (Codec.ZSTD, -131073), (Codec.SNAPPY, 1), (Codec.NONE, 1),
    ],
)
def test_a_level_that_the_codec_does_not_have_is_refused(codec, level):
    with pytest.raises(InvalidConfigError, match=codec.label):
        compress(codec, 2, TEXT, level)


# --- names and numbers -----------------------------------------------------------------------


def test_codecs_have_kafkas_names_and_numbers():
    assert [(codec.label, int(codec)) for codec in Codec] == [
        ("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)
    ]
    for codec in Codec:
        assert Codec.of(codec.label) is Codec.of(int(codec)) is codec


@pytest.mark.parametrize("name", ["GZIP", "lzma", "", "producer", 5, 7, -1])
def test_unknown_codecs_are_named_with_those_that_exist(name):
    with pytest.raises(UnsupportedCompressionTypeError, match="snappy"):
        Codec.of(name)


# Tests of all the error paths follow:


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_codec_bits_that_name_no_codec(codec):
    with pytest.raises(UnsupportedCompressionTypeError, match="unknown codec"):
        decompress(codec, 2, b"", LIMIT)
    with pytest.raises(UnsupportedCompressionTypeError, match="unknown codec"):
        compress(codec, 2, b"")


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_below_v2(magic):
    with pytest.raises(UnsupportedCompressionTypeError, match=f"v{magic}"):
        decompress(Codec.ZSTD, magic, packed(Codec.ZSTD, b"x"), LIMIT)
    with pytest.raises(UnsupportedCompressionTypeError, match=f"v{magic}"):
        compress(Codec.ZSTD, magic, b"x")


@pytest.mark.parametrize(
    ("codec", "package", "library"),
    [
        (Codec.SNAPPY, "cramjam", compression._snappy_library),
        (Codec.LZ4, "lz4", compression._lz4_library),
        (Codec.ZSTD, "backports.zstd", compression._zstd_library),
    ],
)
def test_a_missing_library_is_named_with_its_pip_line(codec, package, library, monkeypatch):
    payload = packed(codec, b"x")

    def import_module(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(compression, "import_module", import_module)
    monkeypatch.setattr(compression, "_quick_zstd", compression._QuickZstd)
    for call in (lambda: decompress(codec, 2, payload, LIMIT), lambda: compress(codec, 2, b"x")):
        library.cache_clear()
        with pytest.raises(MissingCodecError, match=package) as error:
            call()
        assert error.value.hint == f"pip install {package}"


def test_gzip_does_without_isal(monkeypatch):
    def import_module(name):
        if name.startswith("isal"):
            raise ImportError(name)
        return __import__(name)

    monkeypatch.setattr(compression, "import_module", import_module)
    compression._gzip_library.cache_clear()
    try:
        assert compression._gzip_library() is zlib
        assert opened(Codec.GZIP, packed(Codec.GZIP, TEXT) * 2) == TEXT * 2
        with pytest.raises(CorruptRecordError, match="gzip"):
            opened(Codec.GZIP, b"\x1f\x8bno")
    finally:
        compression._gzip_library.cache_clear()


@pytest.mark.parametrize(("codec", "magic"), [cell for cell in CELLS if cell[0]])
def test_a_payload_cut_short(codec, magic):
    payload = packed(codec, TEXT[:400], magic=magic)
    for end in range(len(payload)):
        if codec == Codec.SNAPPY and end == 16:
            continue    # a xerial stream without blocks is whole
        with pytest.raises(CorruptRecordError, match=codec.label):
            decompress(codec, magic, payload[:end], LIMIT)


@pytest.mark.parametrize(("codec", "magic"), [cell for cell in CELLS if cell[0]])
@pytest.mark.parametrize("tail", [b"\x00", b"x" * 20], ids=["zero", "garbage"])
def test_bytes_after_the_payload(codec, magic, tail):
    for data in (TEXT[:400], TEXT * 40):
        with pytest.raises(CorruptRecordError, match=codec.label):
            decompress(codec, magic, packed(codec, data, magic=magic) + tail, 4 * LIMIT)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", 5) + b"abc",       # beyond the end
        b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", -5) + b"abcdefgh",
        b"\x82SNAPPY\x00" + struct.pack(">ii", 0, 0) + struct.pack(">i", 1) + b"\x00",      # older than any reader
        b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", 0),                # an empty block
        b"\x82SNAPPY\x00\x00",
        b"\xff\xff\xff\xff\xff\xff\xff",                                                    # a size without end
        b"\x05abc",
    ],
    ids=["beyond", "negative", "version", "empty", "header", "size", "raw"],
)
def test_snappy_framing_that_cannot_be(payload):
    with pytest.raises(CorruptRecordError, match="snappy"):
        opened(Codec.SNAPPY, payload)


def test_a_raw_snappy_block_may_not_announce_more_than_the_limit():
    # A varint of 2^31 - 1 before five bytes of content.
    with pytest.raises(RecordTooLargeError):
        opened(Codec.SNAPPY, b"\xff\xff\xff\xff\x07" + bytes(cramjam.snappy.compress_raw(b"hello"))[1:])


@pytest.mark.parametrize(("codec", "magic"), [cell for cell in CELLS if cell[0]])
@pytest.mark.parametrize("size", [1, 1000, LIMIT + 1, 3 * LIMIT])
def test_one_byte_above_the_limit(codec, magic, size):
    payload = packed(codec, bytes(size), magic=magic)
    assert len(opened(codec, payload, magic=magic, limit=size)) == size
    with pytest.raises(RecordTooLargeError, match=r"max\.decompressed\.message\.bytes") as error:
        opened(codec, payload, magic=magic, limit=size - 1)
    assert str(size - 1) in str(error.value)


def test_the_limit_counts_all_streams_of_a_payload():
    for codec in COMPRESSED:
        with pytest.raises(RecordTooLargeError):
            opened(codec, packed(codec, bytes(1000)) * 11, limit=10_999)


@settings(max_examples=300)
@given(
    cell=st.sampled_from([cell for cell in CELLS if cell[0]]),
    data=st.sampled_from([b"", b"x", TEXT[:300], NOISE[:300], bytes(5000)]),
    places=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 40),
)
def test_a_mutated_payload_raises_nothing_foreign(cell, data, places, cut):
    codec, magic = cell
    payload = bytearray(packed(codec, data, magic=magic))
    for place, byte in places:
        payload[place % len(payload)] = byte
    with contextlib.suppress(SeglogError):
        assert len(opened(codec, payload[: len(payload) - cut], magic=magic, limit=6000)) <= 6000


# --- bombs -----------------------------------------------------------------------------------


def bombs():
    """Payloads that open to 96 MiB, or that claim to."""
    zeros, pieces = bytes(1 << 20), 96
    writer = zlib.compressobj(9, wbits=31)
    yield Codec.GZIP, b"".join([*(writer.compress(zeros) for _ in range(pieces)), writer.flush()])
    yield Codec.GZIP, packed(Codec.GZIP, zeros) * pieces
    for window_log in (21, 23, 24, 27):
        stream = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
        yield Codec.ZSTD, b"".join([*(stream.compress(zeros) for _ in range(pieces)), stream.flush()])
    yield Codec.ZSTD, zstd.compress(zeros * pieces)
    for block_size in (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB):
        frame = lz4.frame.LZ4FrameCompressor(block_size=block_size)
        yield Codec.LZ4, b"".join([frame.begin(), *(frame.compress(zeros) for _ in range(pieces)), frame.flush()])
    yield Codec.LZ4, lz4.frame.compress(zeros * pieces, store_size=True)
    yield Codec.SNAPPY, packed(Codec.SNAPPY, zeros * pieces)
    yield Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(zeros * pieces))
    # Very many streams of nothing.
    yield Codec.GZIP, packed(Codec.GZIP, b"") * 20_000
    yield Codec.LZ4, packed(Codec.LZ4, b"") * 20_000
    yield Codec.ZSTD, packed(Codec.ZSTD, b"") * 20_000
    yield Codec.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"\x00\x00\x00\x01\x00" * 100_000


BOMB_SQUAD = """
import json, resource, sys
from seglog.errors import RecordTooLargeError
from seglog.format.compression import Codec, compress, decompress

def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)

limit = 32 << 20
for codec in Codec:
    decompress(codec, 2, compress(codec, 2, b"warm"), limit)
for line in sys.stdin:
    codec, path = json.loads(line)
    payload = open(path, "rb").read()
    before = peak_kib()
    try:
        opened = decompress(codec, 2, payload, limit)
        assert len(opened) == 0, (codec, path, len(opened))
    except RecordTooLargeError:
        pass
    opened = None
    print(json.dumps([codec, path, peak_kib() - before]), flush=True)
"""


def test_no_bomb_takes_more_memory_than_the_limit_and_a_little(tmp_path):
    lines = []
    # The smallest first, for the peak of a process only grows: reading a large one hides nothing.
    for n, (codec, payload) in enumerate(sorted(bombs(), key=lambda bomb: len(bomb[1]))):
        path = tmp_path / str(n)
        path.write_bytes(payload)
        lines.append(json.dumps([codec, str(path)]))
    done = subprocess.run(
        [sys.executable, "-c", BOMB_SQUAD], input="\n".join(lines), capture_output=True, text=True,
        env=os.environ | {"MALLOC_ARENA_MAX": "1"}, timeout=600, check=True,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(lines)
    # Together, since each begins at the peak of those before it: the limit, and zstd's window of 8 MiB and some pieces.
    assert sum(grown_kib for _, _, grown_kib in results) < (32 + 24) << 10, results


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_no_payload_has_more_bytes_than_its_bound(codec):
    for data in (b"", b"x" * 10, bytes(1 << 20), random.Random(5).randbytes(100_000)):
        assert output_bytes_max(codec, memoryview(compress(codec, 2, data))) >= len(data)
    assert output_bytes_max(Codec.NONE, memoryview(b"abc")) == 3
    assert output_bytes_max(6, memoryview(b"abc")) == 0
