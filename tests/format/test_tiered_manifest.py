"""Manifests that Aiven's plug-in wrote, and what nobody may make of them."""
import base64
import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.errors import CorruptManifestError, EncryptedPayloadError, SeglogError, UnsupportedVersionError
from seglog.format.compression import Codec, compress
from seglog.format.tiered_manifest import TieredManifest, base_offset_of, chunk_sizes, topic_of
from support.golden import unpack

MANIFESTS = sorted(unpack("tiered").rglob("*.rsm-manifest"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: "-".join(path.parts[-4:])[-60:])
def test_a_manifest_tells_the_objects_beside_it(path):
    raw = path.read_bytes()
    if "encryption" in json.loads(raw):
        with pytest.raises(EncryptedPayloadError):
            TieredManifest.parse(raw, file=str(path))
        return
    manifest = TieredManifest.parse(raw, file=str(path))
    assert base_offset_of(path.name) == manifest.base_offset
    assert manifest.chunk_ends[-1] == path.with_suffix(".log").stat().st_size
    # Epochs stand there, too, which nobody asks for here.
    told = json.loads(raw)["segmentIndexes"]
    assert sum(place["size"] for place in told.values() if place) == path.with_suffix(".indexes").stat().st_size
    log = path.with_suffix(".log").read_bytes()
    opened = b"".join(
        manifest.opened(chunk, log[chunk.stored_position : chunk.stored_end], file="x")
        for chunk in manifest.chunks(0, manifest.log_bytes)
    )
    assert len(opened) == manifest.log_bytes
    assert int.from_bytes(opened[:8]) == manifest.base_offset or path.parts[-4] == "leaders"


def encoded(sizes):
    """As ChunkSizesBinaryCodec has it."""
    if len(sizes) < 2:
        raw = struct.pack(f">{1 + len(sizes)}i", len(sizes), *sizes)
    else:
        least = min(sizes[:-1])
        width = max((max(sizes[:-1]) - least).bit_length() + 7 >> 3, 1)
        raw = struct.pack(">iiB", len(sizes), least, width)
        raw += b"".join((size - least).to_bytes(width) for size in sizes[:-1]) + struct.pack(">i", sizes[-1])
    return base64.b64encode(bytes(compress(Codec.ZSTD, 2, raw))).decode()


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40) | st.lists(st.integers(900, 1100), max_size=300))
def test_sizes_of_chunks_come_back(sizes):
    assert chunk_sizes(encoded(sizes)) == sizes


@given(st.binary(max_size=60))
def test_sizes_of_nonsense_are_a_value_error_or_a_list(raw):
    try:
        sizes = chunk_sizes(base64.b64encode(bytes(compress(Codec.ZSTD, 2, raw))).decode())
    except (ValueError, struct.error):
        return
    assert all(0 <= size < 2**31 for size in sizes)


def test_a_stream_that_claims_too_much_is_refused():
    with pytest.raises(ValueError, match="do not decompress"):
        chunk_sizes(base64.b64encode(bytes(compress(Codec.ZSTD, 2, bytes(11 << 20)))).decode())


GOOD = json.loads(next(path for path in MANIFESTS if "compressed" in path.parts).read_bytes())


@pytest.mark.parametrize("change", [
    {"version": "2"},
    {"chunkIndex": None}, {"chunkIndex": {**GOOD["chunkIndex"], "type": "other"}},
    {"chunkIndex": {**GOOD["chunkIndex"], "originalChunkSize": 0}},
    {"chunkIndex": {**GOOD["chunkIndex"], "originalFileSize": -1}},
    {"chunkIndex": {**GOOD["chunkIndex"], "originalFileSize": 2**31}},
    {"chunkIndex": {**GOOD["chunkIndex"], "originalFileSize": 10**6}},
    {"chunkIndex": {**GOOD["chunkIndex"], "originalFileSize": True}},
    {"chunkIndex": {**GOOD["chunkIndex"], "transformedChunks": "&&"}},
    {"chunkIndex": {"type": "fixed", "originalChunkSize": 1, "originalFileSize": 2**31 - 1, "transformedChunkSize": 1,
                    "finalTransformedChunkSize": 1}, "compression": False},
    {"compression": "yes"}, {"compression": False},
    {"segmentIndexes": {}}, {"segmentIndexes": {**GOOD["segmentIndexes"], "offset": {"position": -1, "size": 4}}},
    {"remoteLogSegmentMetadata": {"startOffset": 5, "endOffset": 4}},
    {"remoteLogSegmentMetadata": {"startOffset": 5, "endOffset": 2**63}},
], ids=str)
def test_a_manifest_that_contradicts_itself_is_refused(change):
    with pytest.raises(UnsupportedVersionError if "version" in change else CorruptManifestError) as caught:
        TieredManifest.parse(json.dumps({**GOOD, **change}).encode(), file="s3://bucket/m")
    assert caught.value.file == "s3://bucket/m"


def test_more_sizes_than_any_segment_has_are_refused():
    raw = struct.pack(">iiB", (2 << 20) + 1, 0, 1) + bytes(2 << 20) + struct.pack(">i", 0)
    with pytest.raises(ValueError, match="at most 1048576"):
        chunk_sizes(base64.b64encode(bytes(compress(Codec.ZSTD, 2, raw))).decode())


def test_flipped_bits_are_an_error_of_ours_or_another_manifest():
    rng = random.Random(1)
    for path in MANIFESTS:
        raw = path.read_bytes()
        for _ in range(300):
            changed = bytearray(raw)
            for _ in range(rng.randint(1, 3)):
                changed[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            try:
                manifest = TieredManifest.parse(bytes(changed), file="m")
            except SeglogError:
                continue
            assert len(manifest.chunk_ends) == -(-manifest.log_bytes // manifest.chunk_bytes)
    for nonsense in (b"", b"[]", b"{}", b"1", b"[" * 100_000, b"\xff"):
        with pytest.raises(CorruptManifestError):
            TieredManifest.parse(nonsense, file="m")


def test_names():
    assert topic_of("orders-MWJ6FHTfRYy67jzwZdeqSQ") == "orders"
    assert topic_of("a-b-MWJ6FHTfR-_67jzwZdeqSQ") == "a-b"
    for name in ("orders-0", "orders", "-MWJ6FHTfRYy67jzwZdeqSQ", "or/ders-MWJ6FHTfRYy67jzwZdeqSQ",
                 "..-MWJ6FHTfRYy67jzwZdeqSQ", "orders-MWJ6FHTfRYy67jzwZdeqSQ\n", "orders-MWJ6FHTfRYy67jzwZdeqS"):
        assert topic_of(name) is None, name
    assert base_offset_of("00000000000000001234-tqimKeZwStOEOwRzT3L5oQ.rsm-manifest") == 1234
    for name in (
        "00000000000000001234-tqimKeZwStOEOwRzT3L5oQ.log", "1234-tqimKeZwStOEOwRzT3L5oQ.rsm-manifest", "x",
        "99999999999999999999-tqimKeZwStOEOwRzT3L5oQ.rsm-manifest",
    ):
        assert base_offset_of(name) is None, name
