"""Every reader of the engine over bytes that may be wrong on purpose.

Each gives a result or raises a SeglogError; what else it raises is a finding. What the answers are is held elsewhere
(the mutation tests of tests/kernels, of columns and of conversion); here they have to come at all.
"""
import hashlib
import io
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import ClassVar

from seglog._kernels.arena import ArenaPool
from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.batch_pieces import BatchPieces
from seglog._kernels.canonical import canonical_bytes, update_digest
from seglog._kernels.columns import chunks
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.message_packer import MessagePacker
from seglog._kernels.segment_scan import find_batch, scan
from seglog._kernels.time_ranges import TimeRangesBuilder, TimeRangesSearch
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import SeglogError
from seglog.format.compression import compress, decompressor
from seglog.format.validate import AppendRules, assign, check_follower
from seglog.reading.partition import Partition
from seglog.segment.index_file import OffsetIndex, TimeIndex
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import TransactionIndex
from seglog.state.checkpoints import parse_offset_checkpoint
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.producer_state import ProducerState
from seglog.tools.cli import cli
from seglog.upkeep.index_rebuild import rebuild_indexes
from seglog.verification.verify import LEVELS, verify
from support.hostile_files import LOG_DIR_FILES, Case

# Far below the default, so that what passes it is seen.
LIMIT_BYTES = 4 << 20
CONFIG = LogConfig.of({"max.decompressed.message.bytes": LIMIT_BYTES})
POOL = ArenaPool(chunk_bytes=1 << 16)
IS_FULL = bool(os.environ.get("SEGLOG_TORTURE") or os.environ.get("SEGLOG_SANITIZE"))

# Of so many cases one goes through what takes long.
COMMANDS_EVERY = 60
REBUILD_EVERY = 20
ARROW_EVERY = 10

APPENDED = 20        # of the batches of a log, each as an append of its own
RULES = [
    AppendRules.of(LogConfig.of({"max.decompressed.message.bytes": LIMIT_BYTES} | settings))
    for settings in (
        {}, {"compression.type": "lz4"}, {"compression.type": "none", "message.timestamp.type": "LogAppendTime"},
        {"message.timestamp.type": "LogAppendTime"},
    )
]
PACKINGS = [{}, {"repack_bytes": 16384}, {"repack_bytes": 4096, "codec": 3}]


class Readers:
    """Calls readers and counts what they refuse. `sample` decides what one in many cases goes through."""

    _read_batches: ClassVar[set[int]] = set()       # hashes of what was read, in this process

    def __init__(self, sample: int) -> None:
        self.sample = sample
        self.refused: Counter[str] = Counter()

    def takes(self, every: int) -> bool:
        return self.sample % every == 0

    def read(self, reader: Callable[..., object], *arguments: object) -> None:
        try:
            reader(*arguments)
        except SeglogError as e:
            self.refused[f"{reader.__name__.strip('_')}: {e.code}"] += 1
        except Exception as e:
            e.add_note(f"in {reader.__name__}{arguments[1:]!r:.300}")
            raise

    def is_new(self, batch, length_bytes: int) -> bool:
        """Whether a batch is to be read by itself: always at full size, else once for the same bytes.

        Most batches of a case are as they were in the case before. The last one of a log counts apart, for behind it
        is nothing.
        """
        if IS_FULL:
            return True
        raw = batch.raw()
        key = hash((raw, batch.position + len(raw) == length_bytes, self.sample % len(RULES)))
        if key in self._read_batches:
            return False
        self._read_batches.add(key)
        return True

    # --- the kernels, over the bytes of a log ----------------------------------------------------

    def log_bytes(self, data: bytes) -> None:
        # An array has not a byte more than its own: a sanitizer sees the first one read behind it.
        window = Window(array("B", data), "hostile.log")
        table = scan(window, decompress=decompressor(LIMIT_BYTES))
        table.stop_details()
        new = {slot: batch for slot, batch in enumerate(table) if self.is_new(batch, len(data))}
        for batch in new.values():
            self.read(_batch, batch)
            self.read(_records, batch)
        self.read(_table_records, table)
        scan(window, check_crc=True).stop_details()
        for position in (0, 1, len(data) // 3):
            find_batch(window, position)
        find_batch(window, 0, 2**63 - 1)
        # One way of several that share nearly all their code.
        self._columns(table, bool(self.sample % 2))
        self.read(_packed, table, PACKINGS[self.sample % len(PACKINGS)])
        self.read(_gathered, table, self.sample % 2)
        self.read(_indexed, table)
        self.read(_ranged, table)
        self.read(_producers, table)
        self.read(_appended, data, RULES[self.sample % len(RULES)])
        self.read(_followed, data)
        for slot, batch in new.items():
            if slot < APPENDED:
                self.read(_appended, batch.raw(), RULES[self.sample % len(RULES)])
                self.read(_pieced, table, slot)

    def _columns(self, table, check_crc: bool) -> None:
        it = chunks(table, POOL, 3000, check_crc=check_crc)
        while it.next_batch < len(table):
            before = it.next_batch
            self.read(self._column_chunk, it)
            if it.next_batch == before:     # the batch that was refused
                it.next_batch += 1

    def _column_chunk(self, it) -> None:
        columns = next(it, None)
        if columns is None:
            return
        digest = hashlib.sha1()
        update_digest(columns, digest)
        canonical_bytes(columns, len(columns) // 2)
        if len(columns):
            assert isinstance(columns[len(columns) - 1], tuple)
            sum(columns.offset), sum(columns.timestamp)
        if self.takes(ARROW_EVERY):
            columns.to_arrow().validate(full=True)

    # --- a partition directory -------------------------------------------------------------------

    def partition(self, directory: Path, log: Path) -> None:
        self.read(_segment, log)
        # Each of them is in its turn the first one that reads a partition, and finds nothing that others left in it.
        first = self.sample % len(_OF_A_PARTITION)
        self.read(self._one_after_another, directory, _OF_A_PARTITION[first:] + _OF_A_PARTITION[:first])
        for level in LEVELS if IS_FULL else [LEVELS[self.sample % len(LEVELS)]]:
            # Damage is a finding; only what is no log at all may be refused.
            verify(directory, level=level, config=CONFIG)
        self.read(_index_bytes, log)
        if self.takes(COMMANDS_EVERY):
            self.commands(directory, log)
        if self.takes(REBUILD_EVERY):
            self.read(_rebuild, directory)

    def _one_after_another(self, directory: Path, readers: Iterable[Callable[[Partition], None]]) -> None:
        with Partition(directory, config=CONFIG) as partition:
            for reader in readers:
                self.read(reader, partition)

    def commands(self, directory: Path, log: Path) -> None:
        target = directory.parent / "converted-0"
        for arguments in (
            ["ls", directory], ["ls", "--json", directory.parent], ["dump", directory], ["dump", "--json", log],
            ["dump", "--batches", "--json", directory], ["stats", directory], ["stats", "--json", log],
            ["seek", directory, "--offset", "71"], ["seek", "--json", directory, "--time", "latest"],
            ["seek", directory, "--time", "1"], ["verify", directory], ["verify", "--json", "--level", "deep", log],
            ["verify", "--indexes", directory], ["convert", directory], ["convert", directory, target],
            *(["dump", path] for path in sorted(directory.iterdir()) if path.suffix != ".log"),
        ):
            self.read(_command, *map(str, arguments))
        shutil.rmtree(target, ignore_errors=True)

    # --- the files around a log ------------------------------------------------------------------

    def other_file(self, kind: str, data: bytes, base_offset: int) -> None:
        exact = array("B", data)
        if kind in ("index", "timeindex"):
            self.read(_index, OffsetIndex if kind == "index" else TimeIndex, exact, base_offset)
        else:
            self.read(_PARSERS[kind], data)


def read_case(case: Case, readers: Readers, workshop: "Workshop") -> None:
    """The changed file alone, then the directory that holds it."""
    if case.kind == "log":
        readers.log_bytes(case.data)
    else:
        readers.other_file(case.kind, case.data, int(case.slice.base))
    directory = workshop.lay_out(case.slice.directory, case.slice.files, {case.file: case.data})
    readers.partition(directory, directory / f"{case.slice.base}.log")


class Workshop:
    """A log dir with one partition directory in it, laid out anew for each case."""

    def __init__(self, root: Path) -> None:
        self.log_dir = root / "log-dir"
        self.log_dir.mkdir()

    def lay_out(self, name: str, files: Mapping[str, bytes], changed: Mapping[str, bytes]) -> Path:
        for entry in os.scandir(self.log_dir):
            if entry.is_dir():
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        directory = self.log_dir / name
        directory.mkdir()
        for file, data in {**files, **changed}.items():
            place = self.log_dir if file in LOG_DIR_FILES else directory
            (place / file).write_bytes(data)
        return directory


# --- one reader each -------------------------------------------------------------------------------


def _batch(batch) -> None:
    batch.crc_is_valid()
    repr(batch), batch.raw(), batch.last_sequence, batch.delete_horizon_ms, batch.timestamp_type
    batch.payload()
    batch.find_bad_message()
    assert isinstance(batch.base_offset, int)


def _records(batch) -> None:
    for record in batch:
        touch(record)


def _table_records(table) -> None:
    touch_all(table.records(5, 2**63 - 1, False))


def touch(record) -> None:
    assert len((record.offset, record.timestamp, record.size_bytes, record.sequence, record.timestamp_type)) == 5
    key, value = record.key, record.value
    assert (None if record.value_view is None else bytes(record.value_view)) == value
    assert (None if record.key_view is None else bytes(record.key_view)) == key
    for name, _ in record.headers:
        assert isinstance(name, str)


def touch_all(records: Iterable) -> None:
    for record in records:
        assert len((record.offset, record.timestamp, record.key, record.value, record.headers)) == 5


def _packed(table, options: dict) -> None:
    packer = BatchPacker(
        compress=lambda codec, payload: compress(codec, 2, payload), decompress=decompressor(LIMIT_BYTES),
        check_crc=False, **options,
    )
    packer.add(table, 0, len(table))
    packer.finish()
    made = scan(Window(packer.take()))
    assert made.stop == 0, made.stop_details()


def _pieced(table, slot: int) -> None:
    pieces = BatchPieces(table, slot)
    magic = table[slot].magic
    for targets in (1, 3):
        for target, count in enumerate(pieces.route(targets, 0)):
            if count:
                pieces.piece(target, 100, lambda codec, payload: compress(codec, magic, payload))


def _gathered(table, magic: int) -> None:
    packer = MessagePacker(
        magic, compress=lambda codec, payload: compress(codec, magic, payload), decompress=decompressor(LIMIT_BYTES),
        check_crc=False, repack_bytes=4096,
    )
    packer.add(table, 0, len(table))
    packer.finish()
    made = scan(Window(packer.take()))
    assert made.stop == 0, made.stop_details()


def _ranged(table) -> None:
    builder = TimeRangesBuilder(0, 1000)
    builder.add(table, decompressor(LIMIT_BYTES))
    ranges = TimeRangesSearch(Window(array("B", builder.finish())))
    ranges.find(0, 0, 2**62), ranges.slot_at(5)


def _indexed(table) -> None:
    builder = IndexBuilder(0, 100)
    builder.add(table, 0, len(table), 0)
    builder.finish()
    builder.take_offset_entries(), builder.take_time_entries()


def _producers(table) -> None:
    state = ProducerState()
    for batch in table:
        state.add(batch)
    state.contradiction(state.entries(), 2**62)
    LeaderEpochs.of_batches((b.leader_epoch, b.last_offset) for b in table)


def _appended(raw, rules: AppendRules) -> None:
    assigned = assign(raw, 1000, rules, now_ms=1_700_000_000_000, leader_epoch=1)
    made = scan(Window(bytes(assigned.raw)), check_crc=True, decompress=decompressor(LIMIT_BYTES))
    assert made.stop == 0, made.stop_details()
    # One after another: a list of the offsets would be counted as memory of the reader.
    expected = 1000
    for record in made.records():
        assert record.offset == expected
        expected += 1
    assert expected == assigned.last_offset + 1


def _followed(data: bytes) -> None:
    raw = array("B", data)
    assert bytes(check_follower(raw, 0, RULES[0]).raw) == data


def _segment(log: Path) -> None:
    readers = Readers(1)
    segment = Segment(log, decompress=decompressor(LIMIT_BYTES))
    base = segment.base_offset
    for target in (-1, base, base + 10, base + 71, base + 2**31, 2**63 - 1):
        readers.read(segment.find_offset, target)
    for target in (0, 1_600_000_000_000, 1_700_000_000_000, 2**63 - 1):
        readers.read(segment.find_timestamp, target)
    readers.read(lambda: segment.largest_timestamp)
    readers.read(lambda: segment.next_offset)
    readers.read(lambda: segment.offset_index)
    readers.read(lambda: segment.time_index)
    readers.read(lambda: segment.transaction_index)
    segment.close()


def _offset_for_time(partition: Partition) -> None:
    readers = Readers(1)
    for when in (-1, -2, -3, 0, 1_600_000_000_000, 1_700_000_000_000, 2**62):
        readers.read(partition.offset_for_time, when)
    for offset in (0, 50, 75, 2**62):
        readers.read(partition.find_offset, offset)
    readers.read(lambda: partition.leader_epochs)
    assert isinstance(partition.log_start_offset, int)


def _records_skipping(partition: Partition) -> None:
    touch_all(partition._records_in_files(0, on_corrupt="skip", control=True))
    for batch in partition.batches(on_corrupt="skip"):
        assert batch.last_offset < 2**63 - 1


def _records_raising(partition: Partition) -> None:
    touch_all(partition.read())


def _records_between(partition: Partition) -> None:
    touch_all(partition.read(3, 70, on_out_of_range="earliest", since=5, until=1_700_000_000_000))


def _partition_columns(partition: Partition) -> None:
    for columns in partition.columns(chunk_bytes=1 << 16):
        len(columns)


_OF_A_PARTITION = [_offset_for_time, _records_skipping, _records_raising, _records_between, _partition_columns]


def _index_bytes(log: Path) -> None:
    index_bytes(Segment(log, decompress=decompressor(LIMIT_BYTES)), CONFIG)


def _rebuild(directory: Path) -> None:
    for _ in rebuild_indexes(directory, config=CONFIG):
        pass


def _command(*arguments: str) -> None:
    # Not by click's CliRunner: it leaves an exception in a cycle, and the collector stumbles over views in its frames.
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    os.environ["SEGLOG_DEBUG"] = "1"        # raise as it was raised, instead of three lines on stderr
    status: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main(arguments)
    except SystemExit as e:
        status = e.code
    finally:
        del os.environ["SEGLOG_DEBUG"]
    err.flush()
    assert status in (0, 1), err.buffer.getvalue()


def _index(kind, exact, base_offset: int) -> None:
    index = kind(exact, base_offset)
    list(index)
    targets = array("q", sorted([0, base_offset, base_offset + 10, 2**31, 1_700_000_000_000, 2**63 - 1, -1]))
    for target in targets:
        index.lookup(target)
    index.lookup_many(targets, array("q", bytes(8 * len(targets))))


def _checkpoint(data: bytes) -> None:
    parse_offset_checkpoint(data)


def _leader_epochs(data: bytes) -> None:
    epochs = LeaderEpochs.parse(data)
    epochs.epoch_for_offset(5)
    epochs.to_bytes()


def _transaction_index(data: bytes) -> None:
    list(TransactionIndex(data))


def _producer_snapshot(data: bytes) -> None:
    state = ProducerState.from_snapshot(data)
    assert len(state) <= len(ProducerSnapshot.parse(data).producers)
    ProducerSnapshot.parse(state.to_snapshot())
    state.remove_expired(1_700_000_000_000, 86_400_000)


_PARSERS: Mapping[str, Callable[[bytes], object]] = {
    "txnindex": _transaction_index,
    "snapshot": _producer_snapshot,
    "leader-epoch-checkpoint": _leader_epochs,
    "partition.metadata": PartitionMetadata.parse,
    "log-start-offset-checkpoint": _checkpoint,
}
