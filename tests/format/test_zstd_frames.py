"""The bound of a zstd frame, and the quick way that stands on it beside the way that counts."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

try:
    from compression import zstd
except ImportError:
    from backports import zstd

from seglog.errors import SeglogError
from seglog.format import compression
from seglog.format.compression import Codec, decompress
from seglog.format.zstd_frames import MAX_BLOCK_BYTES, output_bound

WINDOW = 8 << 20
LIMIT = 1 << 20


def streamed(data, **options):
    """As zstd-jni writes: no content size."""
    writer = zstd.ZstdCompressor(options={getattr(zstd.CompressionParameter, k): v for k, v in options.items()})
    return writer.compress(data) + writer.flush()


def bound(frame):
    return output_bound(memoryview(frame), WINDOW)


data = st.binary(max_size=300) | st.binary(min_size=1, max_size=20).map(lambda b: b * 40_000)


@given(data, st.booleans(), st.sampled_from([{}, {"checksum_flag": 1}]))
def test_no_frame_gives_more_than_its_bound(raw, one_shot, options):
    frame = zstd.compress(raw) if one_shot else streamed(raw, **options)
    assert len(raw) <= bound(frame) <= max(len(raw) + 2 * MAX_BLOCK_BYTES, len(frame))


@pytest.mark.parametrize("frame", [
    b"", b"\x28\xb5\x2f", b"no frame at all", zstd.compress(b"x") + zstd.compress(b"y"), zstd.compress(b"x" * 99)[:-1],
    zstd.compress(b"x") + b"\0", streamed(b"x" * 99, window_log=24), zstd.compress(bytes(100 * MAX_BLOCK_BYTES)),
])
def test_what_is_not_one_small_frame_has_no_bound(frame):
    assert bound(frame) == -1


class NoQuickWay:
    decompressor = None


def by(way, payload, monkeypatch):
    with monkeypatch.context() as patch:
        if way == "counting":
            patch.setattr(compression, "_quick_zstd", NoQuickWay)
        else:
            assert compression._quick_zstd().decompressor is not None, "tests install zstandard"
        try:
            return bytes(decompress(Codec.ZSTD, 2, payload, LIMIT))
        except SeglogError as e:
            return type(e)


@given(data, st.booleans(), st.data())
def test_both_ways_answer_the_same_to_changed_frames(raw, one_shot, draw):
    frame = bytearray(zstd.compress(raw) if one_shot else streamed(raw, checksum_flag=1))
    for _ in range(draw.draw(st.integers(0, 3))):
        frame[draw.draw(st.integers(0, len(frame) - 1))] = draw.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert by("quick", bytes(frame), monkeypatch) == by("counting", bytes(frame), monkeypatch)
