"""Converts batches of Kafka's formats to messages of the tagged dialect and back: docs/formats/tagged_message.md.

Works in memory, for code that stores or sends such bytes itself. format.dialect is about directories of them.
"""
from typing import TYPE_CHECKING

from seglog._kernels.packer import Packer
from seglog._kernels.segment_scan import BatchTable, Status, scan
from seglog._kernels.status import words
from seglog._kernels.tagged_packer import TaggedPacker
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError
from seglog.format.compression import Codec, Decompress, decompressor
from seglog.format.conversion_profile import Profile, compressor

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CONFIG = LogConfig()


def scan_tagged(messages: "Buffer", *, name: str | None = None) -> BatchTable:
    """Scan bytes for messages, bare ones and wrappers, and check their checksums. `name`: for error messages.

    Raises CorruptRecordError if they are damaged or end in the middle of a message.
    """
    return _table(Window(messages, name, is_tagged=True))


def to_tagged(batches: "Buffer", *, codec: str | Codec | None = None, with_ms: bool = True) -> bytes:
    """Convert batches of v0, v1 and v2 to tagged messages with the same offsets, keys, values and times.

    codec: compress every batch with this one, or if None, keep each batch's. with_ms: give each message tag 0, its time
    in ms; otherwise only seconds remain. Other information in v2 is lost, except headers named `seglog.tag.<id>`.

    Raises CorruptRecordError, codec errors, RecordTooLargeError.
    """
    packer = TaggedPacker(
        codec=-1 if codec is None else Codec.of(codec), with_ms=with_ms, decompress=_decompress(),
        compress=compressor(_CONFIG, 2),
    )
    return _packed(packer, _table(Window(batches)))


def from_tagged(messages: "Buffer", *, to: int = 2, codec: str | Codec | None = None) -> bytes:
    """Convert tagged messages to batches of v0, v1 or v2. Other tags become headers in v2, and are lost below it.

    Raises CorruptRecordError, codec errors, UnsupportedCompressionTypeError for zstd below v2.
    """
    profile = Profile(codec=None if codec is None else Codec.of(codec), to=to)
    return _packed(profile.packer(_CONFIG, _decompress()), scan_tagged(messages))


def _decompress() -> Decompress:
    return decompressor(_CONFIG.max_decompressed_message_bytes)


def _table(window: Window) -> BatchTable:
    table = scan(window, check_crc=True, decompress=_decompress())
    if table.stop != Status.OK:
        found, expected = table.stop_details() or ("", "")
        raise CorruptRecordError(
            f"{words(table.stop)}: {found}, expected {expected}", file=window.name, position=table.end)
    return table


def _packed(packer: Packer, table: BatchTable) -> bytes:
    packer.add(table, 0, len(table))
    packer.finish()
    return bytes(packer.take())
