"""How a conversion treats batches, and how many of them at a time."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from seglog._kernels.batch_filter import BatchFilter
from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.batch_survey import cut_plain, tally
from seglog._kernels.key_map import KeyMap
from seglog._kernels.message_packer import MessagePacker
from seglog._kernels.packer import Packer
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.tagged_packer import TaggedPacker
from seglog.config import LogConfig
from seglog.errors import InvalidArgumentError, UnsupportedCompressionTypeError
from seglog.format.compression import Codec, Decompress, compress
from seglog.format.dialect import KAFKA, TAGGED, Dialect

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The most source, or result, held in memory at a time, in bytes. A compressed batch may become a thousand times as
# large, so compressed batches are converted one by one.
SLICE_BYTES = 4 << 20


Aborted = Literal["drop", "keep"]

# The version to convert to for messages with tags. (Their magic byte is the same as that of v1.)
TO_TAGGED = -1


def version_of(text: str) -> int:
    """Parse text such as "1", "v2" and "tagged" to 0, 1, 2 or TO_TAGGED. Raises InvalidArgumentError."""
    if text == TAGGED.name:
        return TO_TAGGED
    if text.lower().removeprefix("v") in ("0", "1", "2"):
        return int(text[-1])
    raise InvalidArgumentError(f"unknown record format {text!r}", hint="expected 0, 1, 2 or tagged")


def version_words(to: int) -> str:
    """Return v0, v1, v2 or tagged."""
    return TAGGED.name if to == TO_TAGGED else f"v{to}"


@dataclass(frozen=True, slots=True)
class Profile:
    """To v2: as Kafka 4 treats data at rest (KAFKA-13093, MemoryRecords.filterTo), unless options change it.

    One v2 batch for each compressed legacy batch, one for each uncompressed legacy message; v2 batches stay as
    they are. `repack_bytes` > 0 packs consecutive records into batches of about that size. `codec` recompresses.
    `delete_horizon_ms` is stamped on batches that hold a tombstone, as Kafka's cleaner does (KIP-534).

    To messages with tags: a wrapper for each compressed batch, otherwise a message for each record.

    To v0 and v1: as Kafka answers a fetch by an old consumer (FileRecords.downConvert). `aborted` says what happens to
    records of aborted and open transactions: without markers, every reader takes them for committed.

    With `erased`, keys, every batch keeps its format, its codec and its offsets, and loses the records of these keys
    (BatchFilter with `erases`); a v2 batch stays without records. `to` is 2, or TO_TAGGED for messages with tags.
    """

    repack_bytes: int = 0
    codec: Codec | None = None
    delete_horizon_ms: int | None = None
    to: int = 2
    aborted: Aborted | None = None
    erased: tuple[bytes, ...] = field(default=(), repr=False)       # not shown, so not in a proof's `made_from`

    def __post_init__(self) -> None:
        if self.to < 2 and (self.repack_bytes or self.delete_horizon_ms is not None):
            raise InvalidArgumentError(
                f"repacking and delete horizons need v2, not {version_words(self.to)}",
                hint="leave them out: in an older format, each batch is converted by itself",
            )
        if self.to in (0, 1) and self.codec == Codec.ZSTD:
            raise UnsupportedCompressionTypeError(
                f"zstd in format v{self.to}: only v2 may use it (KIP-110)", hint="choose gzip, snappy, lz4 or none"
            )
        if self.aborted not in (None, "drop", "keep"):
            raise InvalidArgumentError(f"aborted must be 'drop' or 'keep', not {self.aborted!r}")
        is_other = self.repack_bytes or self.codec or self.delete_horizon_ms or self.to in (0, 1) or self.aborted
        if self.erased and is_other:
            raise InvalidArgumentError("erasing records cannot be combined with the options of a conversion")

    @property
    def dialect(self) -> Dialect:
        """The dialect of the result."""
        return TAGGED if self.to == TO_TAGGED else KAFKA

    def packer(self, config: LogConfig, decompress: Decompress) -> Packer:
        """Return the kernel that converts batches of a log with this topic configuration."""
        if self.erased:
            return self.eraser(config, decompress)
        compress = compressor(config, 2 if self.to == TO_TAGGED else self.to)
        if self.to == TO_TAGGED:
            return TaggedPacker(
                codec=-1 if self.codec is None else self.codec, decompress=decompress, compress=compress,
                check_crc=False,        # Segment.tables has checked it
            )
        if self.to < 2:
            return MessagePacker(
                self.to,
                codec=-1 if self.codec is None else self.codec,
                decompress=decompress,
                compress=compress,
                check_crc=False,        # Segment.tables has checked it
            )
        return BatchPacker(
            repack_bytes=self.repack_bytes,
            codec=-1 if self.codec is None else self.codec,
            decompress=decompress,
            compress=compress,
            delete_horizon_ms=-1 if self.delete_horizon_ms is None else self.delete_horizon_ms,
            check_crc=False,        # Segment.tables has checked it
        )

    def eraser(self, config: LogConfig, decompress: Decompress) -> BatchFilter:
        """Return the kernel that removes records with the keys `erased`; its `superseded` counts them."""
        keys = KeyMap(max(1 << 20, 64 * len(self.erased)), expected_keys=len(self.erased))
        for key in self.erased:
            keys.put(key, 0)        # offsets do not matter
        levels = {magic: compressor(config, magic) for magic in range(3)}
        return BatchFilter(
            keys, latest_offset=2**63 - 1, now_ms=0, delete_retention_ms=0, erases=True, decompress=decompress,
            compress=lambda codec, magic, payload: levels[magic](codec, payload),
        )

    def compresses(self, table: BatchTable) -> bool:
        """Whether a batch of the table will be compressed: then only doing it tells the size of the result."""
        if self.erased:
            return False        # only the few batches that lose records are compressed
        codecs = tally(table)
        if self.codec is not None:
            return self.codec != Codec.NONE and any(codec != self.codec for _, codec in codecs)
        rewrites_v2 = self.repack_bytes > 0 or self.delete_horizon_ms is not None
        return any(codec != Codec.NONE and (magic != self.to or rewrites_v2) for magic, codec in codecs)


def compressor(config: LogConfig, magic: int) -> "Callable[[int, bytes], Buffer]":
    """Return the callable that compresses payloads of format `magic`, with the levels of the configuration."""
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }

    def compress_payload(codec: int, payload: bytes) -> "Buffer":
        return compress(codec, magic, payload, levels.get(Codec(codec)))

    return compress_payload


def slices(table: BatchTable, slice_bytes: int = SLICE_BYTES) -> Iterator[tuple[int, int]]:
    """Split the table into ranges of slots [first, stop) to convert at a time."""
    first = 0
    while first < len(table):
        stop = max(cut_plain(table, first, slice_bytes), first + 1)
        yield first, stop
        first = stop
