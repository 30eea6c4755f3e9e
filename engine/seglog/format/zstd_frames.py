"""Parses the structure of a zstd frame (RFC 8878, 3.1.1), to bound its output without decompressing it.

Kafka's frames have no content size, and a stated one cannot be trusted. But each block header states how the block is
coded, and no block gives more than 128 KiB. So a walk over the block headers bounds the output, and a frame that stays
within the limit can be decompressed in one call.
"""
from typing import Final

MAGIC: Final = b"\x28\xb5\x2f\xfd"
MAX_BLOCK_BYTES: Final = 128 << 10
_RLE, _COMPRESSED = 1, 2
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_NO_BOUND = -1
# A frame with more blocks is left to the codec's own counting: walking it in Python would cost as much.
_MAX_BLOCKS = 64


def output_bound(frame: memoryview, max_window_bytes: int) -> int:
    """Return the most that the bytes can decompress to if they are one frame with few enough blocks, otherwise -1.

    Also returns -1 for a frame whose window is larger than `max_window_bytes`.
    """
    size = len(frame)
    if size < 6 or bytes(frame[:4]) != MAGIC:
        return _NO_BOUND
    descriptor = frame[4]
    if descriptor & 0x08:                       # a reserved bit
        return _NO_BOUND
    single_segment = descriptor & 0x20          # the window is the content, and no window byte follows
    pos = 5
    if not single_segment:
        exponent, mantissa = frame[5] >> 3, frame[5] & 7
        window = 1 << (10 + exponent)
        if window + (window >> 3) * mantissa > max_window_bytes:
            return _NO_BOUND
        pos = 6
    pos += _DICTIONARY_ID_BYTES[descriptor & 3]
    pos += _CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if single_segment else 0)
    bound = 0
    for _ in range(_MAX_BLOCKS):
        if size - pos < 3:
            return _NO_BOUND
        header = frame[pos] | frame[pos + 1] << 8 | frame[pos + 2] << 16
        pos += 3
        kind, block_bytes = header >> 1 & 3, header >> 3
        bound += MAX_BLOCK_BYTES if kind == _COMPRESSED else block_bytes
        pos += 1 if kind == _RLE else block_bytes
        if header & 1:                          # the last block; a checksum may follow
            pos += 4 if descriptor & 0x04 else 0
            return bound if pos == size and (not single_segment or bound <= max_window_bytes) else _NO_BOUND
    return _NO_BOUND
