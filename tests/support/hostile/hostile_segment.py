"""A segment of 16 KiB that holds a batch of every kind, for flipping each of its bits."""
from functools import cache

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog.format.compression import Codec, compress
from support import plain_format as plain

SEGMENT_BYTES = 16 << 10
BITS = 8 * SEGMENT_BYTES
BASE_OFFSET = 100
T0 = 1_700_000_000_000


@cache
def segment_bytes() -> bytes:
    """Messages and wrappers of v0 and v1, batches of v2; each codec; transactions, markers, headers, LogAppendTime."""
    raw = b""
    offset = BASE_OFFSET
    for magic in (0, 1):
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
            raw += legacy(magic, codec, offset)
            offset += 4
    for codec in Codec:
        raw += batch(offset, codec)
        offset += 4
    raw += batch(offset, producer_id=7, producer_epoch=1, base_sequence=0, is_transactional=True)
    raw += marker(offset + 4, commit=False)
    raw += batch(offset + 5, Codec.LZ4, log_append_time=T0 + offset + 9)
    raw += batch(offset + 9, delete_horizon_ms=T0 + 60_000)
    offset += 13
    # What is left, in records of a size that does not make a flip a needle in a haystack.
    while SEGMENT_BYTES - len(raw) > 3000:
        raw += batch(offset, value_size=400)
        offset += 4
    size = SEGMENT_BYTES - len(raw)
    for value_size in range(size - 200, size):
        last = BatchBuilder(offset)
        last.append(offset, T0 + offset, b"last", bytes(value_size))
        closing = last.finish()
        if len(closing) == size:
            return raw + closing
    raise AssertionError("no value fills the segment")


def value(offset: int, size: int) -> bytes:
    return (b"%d;" % offset * size)[:size]


def legacy(magic: int, codec: Codec, offset: int) -> bytes:
    builder = MessageSetBuilder(magic, wrapped_from=offset if codec else None)
    for n in range(4):
        builder.append(offset + n, T0 + offset + n if magic else -1, b"key" if n else None, value(offset + n, 60))
    payload = builder.payload()
    return builder.wrap(compress(codec, magic, payload), codec) if codec else payload


def batch(offset: int, codec: Codec = Codec.NONE, *, value_size: int = 60, **options: object) -> bytes:
    builder = BatchBuilder(offset, leader_epoch=3, **options)
    for n in range(4):
        headers = [("h", b"x"), ("empty", None)] if n == 2 else []
        builder.append(offset + n, T0 + offset + n, b"key", None if n == 3 else value(offset + n, value_size), headers)
    return builder.finish(compress(codec, 2, builder.payload()) if codec else None, codec)


def marker(offset: int, *, commit: bool) -> bytes:
    builder = BatchBuilder(
        offset, leader_epoch=3, producer_id=7, producer_epoch=1, is_transactional=True, is_control=True)
    builder.append(offset, T0 + offset, bytes([0, 0, 0, int(commit)]), bytes(6))
    return builder.finish()


def bit_of(number: int) -> int:
    """An odd stride: the first numbers, too, are spread over the bytes and over the bits of a byte."""
    return number * 17 % BITS


def flipped(number: int) -> bytes:
    """The segment with one bit changed; each number below BITS changes another."""
    bit = bit_of(number)
    raw = bytearray(segment_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    return bytes(raw)


# --- bombs ---------------------------------------------------------------------------------------

BOMBS = 9


def bomb(number: int, limit_bytes: int) -> bytes:
    """A batch that opens to 64 times the limit (1 to 4, by codec; snappy, which makes 1/21 at best, to 10 times: what
    the test itself holds is counted, too), or to records of the smallest size that fill half of the limit (5 to 8).
    0: the segment as it is."""
    if number == 0:
        return segment_bytes()
    codec = Codec((number - 1) % 4 + 1)
    if number < 5:
        # Streams after one another: not even here shall the content be in memory.
        stream = bytes(compress(codec, 2, bytes(1 << 20)))
        payload = stream * min(64 * limit_bytes >> 20, (2 << 20) // len(stream))
        return plain.batch_v2(payload, count=1, base_offset=BASE_OFFSET, attributes=codec)
    smallest = plain.record_v2()
    count = limit_bytes // 2 // len(smallest)
    return plain.batch_v2(
        bytes(compress(codec, 2, smallest * count)), count=count, base_offset=BASE_OFFSET, attributes=codec)
