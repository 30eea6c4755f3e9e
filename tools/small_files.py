"""`seglog dump` of the files around a log: indexes, snapshots, checkpoints, metadata.

Prints a table; with `--json` a line for each entry, whose `type` names its kind.
"""
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from seglog._kernels.window import Window
from seglog.errors import NotALogError, ProtocolError, UnsupportedVersionError
from seglog.format import names
from seglog.format.dialect import dialect_of
from seglog.fs.mapping import Mapping as FileMapping
from seglog.fs.mapping import read_file
from seglog.reading.metadata_snapshot import snapshot_batches
from seglog.segment.column_stats import ColumnStats
from seglog.segment.index_file import (
    OFFSET_INDEXES,
    TIME_INDEXES,
    OffsetIndex,
    TaggedOffsetIndex,
    TaggedTimeIndex,
    TimeIndex,
)
from seglog.segment.time_ranges import TimeRanges
from seglog.segment.transaction_index import TransactionIndex
from seglog.state.checkpoints import read_offset_checkpoint
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.partition_metadata import VERSION, PartitionMetadata, format_topic_id
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.wire.internal_topics import InternalRecords
from seglog.wire.json_text import json_text

from . import records as lines
from . import report

Entry = Mapping[str, object]


def is_one(path: Path) -> bool:
    return _kind(path) is not None and not path.is_dir()


def dump(path: Path, *, as_json: bool) -> None:
    """Print the file's entries. If it is damaged, raises the error of its reader."""
    kind = _kind(path)
    if kind is None:
        raise NotALogError("not a file that belongs to a log", file=path)
    type_, read = kind
    entries = [*read(path)]
    if as_json:
        for entry in entries:
            report.print_json(type_, file=path.name, **entry)
        return
    print(report.paint(path.name, "bold"))
    if entries:
        rows = [[_cell(name, value) for name, value in entry.items()] for entry in entries]
        print(report.table(list(entries[0]), rows, left=_left(entries[0])))
    else:
        print("no entries")
    zeros = _preallocated_bytes(path)
    if zeros:
        report.note(
            f"{path.name}: {report.size(zeros)} of zeros after its entries: "
            "preallocated by a broker that crashed or still runs"
        )


def _left(entry: Entry) -> tuple[int, ...]:
    """The columns of text."""
    return tuple(n for n, name in enumerate(entry) if name in ("record", "data"))


def _kind(path: Path) -> tuple[str, Callable[[Path], Iterable[Entry]]] | None:
    """Return the `type` of the JSON lines, and the reader."""
    parsed = names.parse_file_name(path.name)
    if parsed is not None:
        return _BY_SUFFIX.get(parsed.suffix)
    if path.name.endswith(names.METADATA_SNAPSHOT_SUFFIX) and names.parse_metadata_snapshot(path.name) is not None:
        return _METADATA
    return _BY_NAME.get(path.name)


def _cell(name: str, value: object) -> str:
    if name in ("timestamp", "smallest", "largest") and isinstance(value, int):
        return f"{report.moment(value)} ({value})"
    if isinstance(value, dict):
        return lines.printable(json_text(value))
    return str(value)


# --- readers -----------------------------------------------------------------------------


def _offset_index(path: Path) -> Iterable[Entry]:
    index = OffsetIndex(FileMapping(path), names.parse_base_offset(path.name), path=path)
    return [{"entry": n, "offset": offset, "position": position} for n, (offset, position) in enumerate(index)]


def _time_index(path: Path) -> Iterable[Entry]:
    index = TimeIndex(FileMapping(path), names.parse_base_offset(path.name), path=path)
    return [{"entry": n, "timestamp": timestamp, "offset": offset} for n, (timestamp, offset) in enumerate(index)]


def _time_ranges(path: Path) -> Iterable[Entry]:
    return [
        {
            "entry": n, "first_offset": run.start_offset, "last_offset": run.stop_offset - 1,
            "position": run.position, "size": run.end_position - run.position,
            "smallest": run.smallest, "largest": run.largest,
        }
        for n, run in enumerate(TimeRanges(Window(FileMapping(path), str(path))))
    ]


def _column_stats(path: Path) -> Iterable[Entry]:
    return [
        {
            "entry": n, **run._asdict(), "smallest_key": run.smallest_key.hex(" ", 8),
            "largest_key": run.largest_key.hex(" ", 8),
        }
        for n, run in enumerate(ColumnStats(read_file(path), path).runs)
    ]


def _preallocated_bytes(path: Path) -> int:
    parsed = names.parse_file_name(path.name)
    dialect = dialect_of(path)
    if parsed is None or parsed.suffix not in dialect.own_indexes:
        return 0
    index = OFFSET_INDEXES[dialect.name] if parsed.suffix == dialect.offset_index else TIME_INDEXES[dialect.name]
    return index(FileMapping(path), parsed.offset, path=path).preallocated_bytes


def _transaction_index(path: Path) -> Iterable[Entry]:
    return [
        {
            "entry": n, "version": a.version, "producer_id": a.producer_id, "first_offset": a.first_offset,
            "last_offset": a.last_offset, "last_stable_offset": a.last_stable_offset,
        }
        for n, a in enumerate(TransactionIndex(read_file(path), path=path))
    ]


def _snapshot(path: Path) -> Iterable[Entry]:
    return [
        {
            "producer_id": p.producer_id, "producer_epoch": p.producer_epoch, "last_sequence": p.last_sequence,
            "last_offset": p.last_offset, "offset_delta": p.offset_delta, "timestamp": p.timestamp,
            "coordinator_epoch": p.coordinator_epoch, "current_txn_first_offset": p.current_txn_first_offset,
        }
        for p in ProducerSnapshot.read(path).producers
    ]


def _leader_epochs(path: Path) -> Iterable[Entry]:
    return [{"epoch": e.epoch, "start_offset": e.start_offset} for e in LeaderEpochs.read(path)]


def _partition_metadata(path: Path) -> Iterable[Entry]:
    return [{"version": VERSION, "topic_id": format_topic_id(PartitionMetadata.read(path).topic_id)}]


def _offset_checkpoint(path: Path) -> Sequence[Entry]:
    return [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in read_offset_checkpoint(path).items()
    ]


def _metadata_snapshot(path: Path) -> Iterable[Entry]:
    decode = InternalRecords(names.METADATA_TOPIC)
    for batch in snapshot_batches(path):
        for record in batch:
            at = {"offset": record.offset, "timestamp": record.timestamp}
            if batch.is_control:
                fields = lines.control_fields(record, batch)
                yield {**at, "record": fields["control_type"], "version": fields["version"], "data": fields.get("data")}
                continue
            try:
                form = decode.value(None, record.value or b"")
                yield {**at, "record": form["type"], "version": form["version"], "data": form["data"]}
            except (ProtocolError, UnsupportedVersionError):
                yield {**at, "record": None, "version": None, "data": lines.base64_or_null(record.value).strip('"')}


def _tagged_index(path: Path) -> Iterable[Entry]:
    mapped, base_offset = FileMapping(path), names.parse_base_offset(path.name)
    offsets, times = TaggedOffsetIndex(mapped, base_offset, path=path), TaggedTimeIndex(mapped, base_offset, path=path)
    return (
        {"entry": n, "offset": offset, "timestamp": times[n][0], "position": position}
        for n, (offset, position) in enumerate(offsets)
    )


_METADATA = ("metadata_record", _metadata_snapshot)
_BY_SUFFIX = {
    names.OFFSET_INDEX_SUFFIX: ("offset_index_entry", _offset_index),
    names.TIME_INDEX_SUFFIX: ("time_index_entry", _time_index),
    names.MINUTE_INDEX_SUFFIX: ("minute_index_entry", _time_index),
    names.TAGGED_INDEX_SUFFIX: ("tagged_index_entry", _tagged_index),
    names.TRANSACTION_INDEX_SUFFIX: ("aborted_transaction", _transaction_index),
    names.TIME_RANGES_SUFFIX: ("time_range", _time_ranges),
    names.COLUMN_STATS_SUFFIX: ("run_stats", _column_stats),
    names.SNAPSHOT_SUFFIX: ("producer", _snapshot),
}
_BY_NAME = {
    names.LEADER_EPOCH_CHECKPOINT: ("leader_epoch", _leader_epochs),
    names.PARTITION_METADATA: ("partition_metadata", _partition_metadata),
    names.BOOTSTRAP_SNAPSHOT: _METADATA,
    **dict.fromkeys(names.OFFSET_CHECKPOINTS, ("checkpoint", _offset_checkpoint)),
}
