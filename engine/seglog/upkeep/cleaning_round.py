"""One round of compaction: a map of the dirty part, then, group by group, what remains of all segments up to its end.

Kafka's Cleaner.doClean: buildOffsetMap, groupSegmentsBySize, cleanSegments, cleanInto.
"""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from seglog._kernels.batch_filter import BatchFilter
from seglog._kernels.batch_survey import first_with_producer
from seglog._kernels.key_map import KeyMap
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.config import MAX_INT, LogConfig
from seglog.errors import InvalidRecordError
from seglog.format.compression import compress, decompressor
from seglog.logger import Logger
from seglog.segment.aborted_transactions import IndexedAborts
from seglog.segment.segment import Segment
from seglog.state.checked_aborts import checked_aborts
from seglog.upkeep.cleaned_segments import CleanedSegments
from seglog.upkeep.cleaned_transactions import CleanedTransactions
from seglog.upkeep.cleaning_plan import CleaningPlan
from seglog.upkeep.cleaning_source import CleaningSource, mtime_ns
from seglog.upkeep.merged_batches import MergedBatches

_LOG = Logger(__name__)

# How a BatchFilter compares keys (batch_filter.pyx).
_EXACT = {"false": 0, "uncompressed": 1, "true": 2}
# The memory of a map for each record that may add a key.
MAP_BYTES_A_KEY = 32


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """The limits of a round. `throttle`: called with all bytes read and written; `should_stop`: called between batches.

    `keyless_go`: drop records without a key, as Kafka does; otherwise a round that meets one is refused.
    """

    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    throttle: Callable[[float], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    keyless_go: bool = True


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """A group of segments and the new one. Counts of removed records: superseded by a later one of their key, expired
    tombstones, without a key, in aborted transactions or markers. `collisions`: two keys with the same hash.
    """

    base_offsets: tuple[int, ...]
    bytes_before: int
    bytes_after: int
    records_read: int
    records_kept: int
    superseded: int
    tombstones: int
    keyless: int
    dropped: int
    collisions: int


class Stopped(Exception):
    """`should_stop` asked to stop."""


class Changed(Exception):
    """The log was truncated where the round has read."""


class CleaningRound:
    """One round: `run()`, called once, cleans group by group; `groups` are the finished ones."""

    def __init__(
        self, source: CleaningSource, config: LogConfig, now_ms: int, plan: CleaningPlan, limits: CleaningLimits
    ) -> None:
        self._source = source
        dialect = source.segments[0].dialect
        # (A caller that only reads a directory may have another configuration.)
        self._config = config = config.replace(message_dialect=dialect.name)
        self._now_ms = now_ms
        self._plan = plan
        self._limits = limits
        self._seen = [s for s in source.segments if s.base_offset < plan.first_uncleanable_offset]
        self._dirty = self._dirty_segments()
        self._last_batches = {p.producer_id: p for p in source.producers}
        self._decompress = decompressor(config.max_decompressed_message_bytes)
        # Messages with tags are not merged: each set has its own tags.
        merge_bytes = 0 if dialect.is_tagged else min(config.compaction_merge_bytes, config.max_message_bytes)
        self._merged = MergedBatches(merge_bytes, self._decompress, self._holds_state) if merge_bytes else None
        self.groups: list[CleanedGroup] = []
        self.end_offset = plan.first_dirty_offset       # exclusive: the map covers all records up to here
        self.keys = 0

    def _dirty_segments(self) -> list[Segment]:
        first = max((n for n, s in enumerate(self._seen) if s.base_offset <= self._plan.first_dirty_offset), default=0)
        return self._seen[first:]

    # --- the map ---------------------------------------------------------------------------------

    def build_map(self) -> KeyMap:
        """Map every key in the dirty part, or in as much of it as fits, to its last offset. Sets `end_offset`."""
        size = self._limits.dedupe_buffer_bytes
        while True:
            keys = KeyMap(size, load_factor=self._limits.load_factor, expected_keys=self._expected_keys())
            self.end_offset = self._fill(keys)
            if self.end_offset > self._plan.first_dirty_offset:
                break
            size *= 2       # not even the first batch fits
            _LOG.warning("%s: a map of %d bytes cannot hold the keys of one batch", self._source.path, size // 2)
        if keys.keyless and not self._limits.keyless_go:
            raise InvalidRecordError(
                f"the log has {keys.keyless} records without a key, which compaction drops", file=self._source.path,
                hint="compact it with --drop-keyless if they are not needed",
            )
        self.keys = len(keys)
        return keys

    def _expected_keys(self) -> int:
        """Return a bound on the number of keys: large logs get their whole map at once, small ones a small one."""
        offsets = self._plan.first_uncleanable_offset - self._plan.first_dirty_offset
        return min(offsets, self._plan.cleanable_bytes // 8 + 1)

    def _fill(self, keys: KeyMap) -> int:
        start, stop = self._plan.first_dirty_offset, self._plan.first_uncleanable_offset
        transactions = CleanedTransactions()
        transactions.add(self._aborted.between(start, stop))
        with_positions = self._config.cleaner_dedupe_exact != "false"
        end = start
        for slot, segment in enumerate(self._dirty):
            for table in self._tables(segment, segment.position_near(start) if slot == 0 else 0):
                done = _add(keys, table, transactions, start, with_positions)
                if done:
                    end = max(end, table[done - 1].last_offset + 1)
                if done < len(table):
                    return end
            # Offsets that compaction has emptied before the next segment count as read.
            end = self._dirty[slot + 1].base_offset if slot + 1 < len(self._dirty) else stop
        return end

    def _tables(self, segment: Segment, position: int = 0) -> Iterator[BatchTable]:
        for table in segment.tables(position):
            if self._limits.should_stop():
                raise Stopped
            if len(table):
                yield table
                self._limits.throttle(table.end - table[0].position)

    @cached_property
    def _aborted(self) -> IndexedAborts:
        """Use all segments, even the active one: below the last stable offset, where a round ends, none is added."""
        return checked_aborts(self._source.segments, self._plan.first_uncleanable_offset)

    # --- what remains ------------------------------------------------------------------------------

    def run(self) -> None:
        """Clean. Raises Stopped, Changed, and what reading and writing raise: finished groups stay finished."""
        keys = self.build_map()
        exact = _EXACT[self._config.cleaner_dedupe_exact]
        filtered = BatchFilter(
            keys, latest_offset=self.end_offset - 1, now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms, upgrade=self._config.compaction_upgrade_format,
            decompress=self._decompress, compress=compress,
            places=[(s.base_offset, s.window) for s in self._dirty] if exact else (), exact=exact,
            find_key=self._source.key_at,
        )
        transactions = CleanedTransactions()
        horizon_ms = self._legacy_horizon_ms()
        segments = [s for s in self._seen if s.base_offset < self.end_offset]
        for group in grouped(segments, self._config, self._plan.first_uncleanable_offset):
            self._clean(group, filtered, transactions, horizon_ms)

    def _legacy_horizon_ms(self) -> int:
        """Return the file time up to which tombstones of v0 and v1 are removed."""
        clean = [s for s in self._source.segments if s.base_offset < self._plan.first_dirty_offset]
        return mtime_ns(clean[-1]) // 1_000_000 - self._config.delete_retention_ms if clean else 0

    def _clean(
        self, group: Sequence[Segment], filtered: BatchFilter, transactions: CleanedTransactions, horizon_ms: int
    ) -> None:
        source, before = self._source, _counted(filtered)
        size_bytes = sum(segment.size_bytes for segment in group)
        index_bytes = sum(max(_index_sizes(segment)) for segment in group)
        times = [mtime_ns(segment) for segment in group]
        with CleanedSegments(source.fs, source.path, group[0].base_offset, self._config, 4 * index_bytes) as target:
            for segment, time_ns, following in zip(group, times, [*group[1:], None], strict=True):
                end = segment.next_offset if following is None else following.base_offset
                transactions.add(self._aborted.between(segment.base_offset, end))
                filtered.keeps_legacy_tombstones = time_ns // 1_000_000 > horizon_ms
                for table in self._tables(segment):
                    self._filter(table, filtered, transactions)
                    batches = filtered.take()
                    self._write(batches, target)
                    batches.release()       # not after an error: its frames still reference it
            if self._merged is not None:
                self._append(memoryview(self._merged.finish()), target)
            for transaction in transactions.kept:
                target.add_aborted(transaction)
            transactions.kept.clear()
            target.finish(times[-1])
            self._exchange(group, target)
        after = [now - then for now, then in zip(_counted(filtered), before, strict=True)]
        self.groups.append(CleanedGroup(
            tuple(segment.base_offset for segment in group), size_bytes, target.size_bytes, *after
        ))

    def _write(self, batches: memoryview, target: CleanedSegments) -> None:
        if self._merged is None:
            self._append(batches, target)
        else:
            self._merged.add(batches)
            self._append(memoryview(self._merged.take()), target)

    def _append(self, batches: memoryview, target: CleanedSegments) -> None:
        target.append(batches)
        if self._source.fs is not None and len(batches):
            self._limits.throttle(len(batches))

    def _filter(self, table: BatchTable, filtered: BatchFilter, transactions: CleanedTransactions) -> None:
        begin, slot = 0, first_with_producer(table)
        while slot >= 0:
            known = self._known_of(table[slot], transactions)
            if known is not None:
                filtered.add(table, begin, slot)
                keep_empty, drop_records, empty_transaction = known
                filtered.add_one(
                    table, slot, keep_empty=keep_empty, drop_records=drop_records, empty_transaction=empty_transaction
                )
                begin = slot + 1
            slot = first_with_producer(table, slot + 1)
        last = len(table) - 1
        if begin <= last and self._ends_the_round(table[last]):
            filtered.add(table, begin, last)
            filtered.add_one(table, last, keep_empty=True)
        else:
            filtered.add(table, begin, last + 1)

    def _known_of(self, batch: RecordBatch, transactions: CleanedTransactions) -> tuple[bool, bool, bool] | None:
        """Return (keep it even if empty, drop its records, it marks an empty transaction); None for any other batch."""
        may_go = transactions.may_go(batch)
        is_empty_transaction = may_go and batch.is_control
        drops = may_go
        if batch.is_control:
            horizon_ms = batch.delete_horizon_ms
            drops = may_go and horizon_ms is not None and horizon_ms <= self._now_ms
        keeps = self._holds_state(batch) or self._ends_the_round(batch)
        return (keeps, drops, is_empty_transaction) if keeps or drops or is_empty_transaction else None

    def _holds_state(self, batch: RecordBatch) -> bool:
        """Whether the log's state of an active producer depends on this batch."""
        last = self._last_batches.get(batch.producer_id)
        if last is None:
            return False
        if last.last_offset >= 0:
            return batch.last_offset == last.last_offset
        return batch.is_control and batch.producer_epoch == last.producer_epoch

    def _ends_the_round(self, batch: RecordBatch) -> bool:
        """Whether it ends the round: replicas continue after a round's last offset (KAFKA-17076)."""
        return (
            self._config.compaction_upgrade_format
            and batch.last_offset + 1 == self._plan.first_uncleanable_offset
        )

    def _exchange(self, group: Sequence[Segment], target: CleanedSegments) -> None:
        if self._source.exchange is None:
            return
        try:
            new = self._source.exchange(self._seen, group, target.logs)
        except BaseException:
            target.remove()     # unless the exchange began: then the files have other names, and opening completes it
            raise
        if new is None:
            target.remove()
            raise Changed
        begin = self._seen.index(group[0])
        self._seen[begin : begin + len(group)] = new


def grouped(segments: Sequence[Segment], config: LogConfig, first_uncleanable: int) -> Iterator[list[Segment]]:
    """Yield segments that become one: their sizes before cleaning, and their offsets, fit one (KAFKA-6264)."""
    slot = 0
    while slot < len(segments):
        group = [segments[slot]]
        size = segments[slot].size_bytes
        offset_index, time_index = _index_sizes(segments[slot])
        slot += 1
        while slot < len(segments):
            segment = segments[slot]
            more_offsets, more_times = _index_sizes(segment)
            last = (segments[slot + 1].base_offset if slot + 1 < len(segments) else first_uncleanable) - 1
            size += segment.size_bytes
            offset_index += more_offsets
            time_index += more_times
            if (
                size > config.segment_bytes or offset_index > config.segment_index_bytes
                or time_index > config.segment_index_bytes
                or (segment.size_bytes and last - group[0].base_offset > MAX_INT)
            ):
                break
            group.append(segment)
            slot += 1
        yield group


def _index_sizes(segment: Segment) -> tuple[int, int]:
    """Return the bytes of the .index and the .timeindex; 0 if there is none. Equal if one index serves both."""
    sizes = []
    for suffix in (segment.dialect.offset_index, segment.dialect.time_index):
        path = segment.path.with_suffix(suffix)
        sizes.append(path.stat().st_size if path.exists() else 0)
    return sizes[0], sizes[1]


def _add(
    keys: KeyMap, table: BatchTable, transactions: CleanedTransactions, first_offset: int, with_positions: bool
) -> int:
    """Add the keys of a table, except aborted data. Return how many of its batches were added completely."""
    begin, slot = 0, first_with_producer(table)
    while slot >= 0:
        batch = table[slot]
        if transactions.may_go(batch) and not batch.is_control:
            done = keys.add_batches(table, begin, slot, first_offset=first_offset, with_positions=with_positions)
            if done < slot:
                return done
            begin = slot + 1
        slot = first_with_producer(table, slot + 1)
    return keys.add_batches(table, begin, len(table), first_offset=first_offset, with_positions=with_positions)


def _counted(filtered: BatchFilter) -> list[int]:
    return [
        filtered.records_read, filtered.records_kept, filtered.superseded, filtered.tombstones, filtered.keyless,
        filtered.dropped, filtered.collisions,
    ]
