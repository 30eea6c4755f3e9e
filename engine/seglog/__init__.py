"""seglog: the storage engine of a message log, byte-compatible with Kafka and Pulsar.

    import seglog

    with seglog.open("data/orders-0") as log:
        offset = log.append(b"value", key=b"key")
        for record in log.read(since="-2h"):
            print(record.offset, record.timestamp, record.key, record.value, record.headers)

The names here are public; the packages below hold the implementation. Each name is imported when it
is first used, so that `import seglog` costs next to nothing.
"""
from seglog._version import __version__

TYPE_CHECKING = False       # not typing.TYPE_CHECKING: importing typing takes as long as all of this
if TYPE_CHECKING:
    from seglog import aio, errors
    from seglog._kernels.columns import Columns
    from seglog._kernels.record_batch import Record, RecordBatch
    from seglog.conversion.directory import convert
    from seglog.conversion.erasing import erase
    from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
    from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
    from seglog.errors import SeglogError
    from seglog.format.batch import build_batch
    from seglog.frames.scan import TopicScan, scan, write_parquet
    from seglog.ledger.ledger import Ledger
    from seglog.ledger.managed.cursor import Cursor
    from seglog.ledger.managed.managed_ledger import ManagedLedger
    from seglog.ledger.message_position import MessagePosition
    from seglog.ledger.position import Position
    from seglog.log.append import AppendResult, Written
    from seglog.log.log import Log
    from seglog.log.mirror import Mirrored, mirror
    from seglog.log.open_dir import LogDir
    from seglog.log.producer import Producer
    from seglog.log.stats import LogStats
    from seglog.opening import open, open_dir, open_topic, serve
    from seglog.reading.follower import Follower, follow_partition
    from seglog.reading.log_cursor import LogCursor
    from seglog.reading.partition import Partition, open_partition
    from seglog.segment.positions import LostRange, TimestampOffset
    from seglog.segment.segment import Segment
    from seglog.topic.compacted_reader import read_compacted
    from seglog.topic.compaction_service import TopicCompactionService
    from seglog.topic.delayed_delivery import DelayedDelivery
    from seglog.topic.dispatcher import Dispatcher
    from seglog.upkeep.recover import Recovery, recover
    from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
    from seglog.verification.findings import Finding, Report
    from seglog.verification.verify import verify

__all__ = [
    "build_batch", "convert", "erase", "follow_partition", "mirror", "open", "open_dir", "open_partition", "open_topic",
    "read_compacted", "recover", "scan", "serve", "verify", "write_parquet",
    "AppendResult", "Columns", "Follower", "Log", "LogCursor", "LogDir", "LogStats", "Mirrored", "Partition",
    "Producer", "Record", "RecordBatch", "Segment", "Written",
    "Finding", "LostRange", "Recovery", "Report", "TimestampOffset",
    "Cursor", "Ledger", "ManagedLedger", "MessagePosition", "Position",
    "PulsarTopicCompactionService", "TopicCompactionService",
    "BucketDelayedDeliveryTracker", "DelayedDelivery", "Dispatcher", "InMemoryDelayedDeliveryTracker",
    "TopicScan",
    "SeglogError", "aio", "errors",
    "__version__",
]

_ROOM_OF = {
    "build_batch": "format.batch",
    "convert": "conversion.directory",
    "erase": "conversion.erasing",
    "open": "opening",
    "open_dir": "opening",
    "open_topic": "opening",
    "serve": "opening",
    "read_compacted": "topic.compacted_reader",
    "MessagePosition": "ledger.message_position",
    "PulsarTopicCompactionService": "upkeep.topic_compaction",
    "TopicCompactionService": "topic.compaction_service",
    "open_partition": "reading.partition",
    "AppendResult": "log.append",
    "BucketDelayedDeliveryTracker": "delayed.bucket_tracker",
    "Columns": "_kernels.columns",
    "DelayedDelivery": "topic.delayed_delivery",
    "Dispatcher": "topic.dispatcher",
    "Finding": "verification.findings",
    "InMemoryDelayedDeliveryTracker": "delayed.in_memory",
    "Cursor": "ledger.managed.cursor",
    "Follower": "reading.follower",
    "Ledger": "ledger.ledger",
    "ManagedLedger": "ledger.managed.managed_ledger",
    "Position": "ledger.position",
    "Log": "log.log",
    "LogCursor": "reading.log_cursor",
    "LogDir": "log.open_dir",
    "LogStats": "log.stats",
    "LostRange": "segment.positions",
    "Mirrored": "log.mirror",
    "Partition": "reading.partition",
    "Producer": "log.producer",
    "Record": "_kernels.record_batch",
    "RecordBatch": "_kernels.record_batch",
    "Recovery": "upkeep.recover",
    "Report": "verification.findings",
    "Segment": "segment.segment",
    "SeglogError": "errors",
    "TimestampOffset": "segment.positions",
    "Written": "log.append",
    "follow_partition": "reading.follower",
    "mirror": "log.mirror",
    "recover": "upkeep.recover",
    "scan": "frames.scan",
    "TopicScan": "frames.scan",
    "write_parquet": "frames.scan",
    "verify": "verification.verify",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    # Whole modules. aio: only programs that use it load asyncio. polars: so that `seglog.polars.scan_topic` works.
    if name in ("aio", "errors", "polars"):
        return import_module(f"seglog.{name}")
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'seglog' has no attribute {name!r}")
    found: object = getattr(import_module(f"seglog.{_ROOM_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM_OF})
