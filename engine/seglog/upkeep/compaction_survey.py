"""What compaction would find in a log: `seglog stats --compaction`. Only reads.

A duplicate is a record whose key has a later committed one anywhere in the log, including the active segment: some are
removed only when a later segment can be cleaned. Needs memory for all keys.
"""
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from seglog._kernels.key_map import KeyMap
from seglog._kernels.record_batch import RecordBatch
from seglog.reading.partition import Partition
from seglog.segment.segment import Segment
from seglog.state.checked_aborts import checked_aborts
from seglog.upkeep.cleaned_transactions import CleanedTransactions
from seglog.upkeep.cleaning_plan import CleaningPlan, plan
from seglog.upkeep.cleaning_round import MAP_BYTES_A_KEY
from seglog.upkeep.cleaning_source import source_of_closed
from seglog.upkeep.retain import settings_of

# The size of a map, besides that of each key.
_LEAST_BYTES = 1024


@dataclass(slots=True)
class SegmentDuplicates:
    """One segment. `state`: clean, dirty, held (dirty, but not to be cleaned yet) or active.

    Its records: `duplicates`, `keyless`, and `aborted` with their transaction are removed; of the `tombstones`, the
    last record of their key, `without_horizon` get a horizon when they are next cleaned, or are removed by the time of
    their file (v0, v1). The others are removed after their delete horizon, from `first_horizon_ms` to
    `last_horizon_ms`.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    state: str
    records: int = 0
    duplicates: int = 0
    keyless: int = 0
    aborted: int = 0
    tombstones: int = 0
    without_horizon: int = 0
    first_horizon_ms: int | None = None
    last_horizon_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CompactionSurvey:
    """A log as the cleaner would find it. `why_not`: why it would not clean the log now; empty if it would."""

    plan: CleaningPlan
    segments: tuple[SegmentDuplicates, ...]
    why_not: str


def survey(partition: Partition, given: Mapping[str, object], now_ms: int) -> CompactionSurvey:
    """Read all keys of a partition twice, and count, by the stored settings and `given`.

    It counts as compacted unless cleanup.policy is given.

    Raises CorruptRecordError, as cleaning would, and codec errors.
    """
    config = settings_of(partition, {"cleanup.policy": "compact"} | dict(given))
    found = plan(source_of_closed(partition).as_planned(), config, now_ms)
    keys = KeyMap(max(partition.log_end_offset - partition.log_start_offset, 0) * MAP_BYTES_A_KEY + _LEAST_BYTES)
    end = partition.last_stable_offset
    for _, batch, is_aborted in _batches(partition):
        if not is_aborted and not batch.is_control:
            for record in batch:
                if record.key is not None and record.offset < end:
                    keys.put(record.key, record.offset)
    segments = list(partition.segments)
    counts = {
        segment.base_offset: SegmentDuplicates(
            segment.base_offset, segment.next_offset, segment.size_bytes,
            "active" if segment is segments[-1] else _state(segment.base_offset, found),
        )
        for segment in segments
    }
    for segment, batch, is_aborted in _batches(partition):
        _count(counts[segment.base_offset], batch, is_aborted, keys)
    why_not = found.why_not
    if not config.is_compacted:
        why_not = f"cleanup.policy is {config.cleanup_policy}: the log is not compacted"
    return CompactionSurvey(found, tuple(counts.values()), why_not)


def _state(base_offset: int, found: CleaningPlan) -> str:
    if base_offset >= found.first_uncleanable_offset:
        return "held"
    return "clean" if base_offset < found.first_dirty_offset else "dirty"


def _batches(partition: Partition) -> Iterator[tuple[Segment, RecordBatch, bool]]:
    """Yield each batch with its segment, and whether it is data of an aborted transaction."""
    transactions = CleanedTransactions()
    aborted = checked_aborts(partition.segments, partition.log_end_offset)
    for segment in partition.segments:
        transactions.add(aborted.between(segment.base_offset, segment.next_offset))
        for table in segment.tables():
            for batch in table:
                yield segment, batch, transactions.may_go(batch) and not batch.is_control


def _count(counts: SegmentDuplicates, batch: RecordBatch, is_aborted: bool, keys: KeyMap) -> None:
    if batch.is_control:
        return
    horizon_ms = batch.delete_horizon_ms
    for record in batch:
        counts.records += 1
        if is_aborted:
            counts.aborted += 1
        elif record.key is None:
            counts.keyless += 1
        elif record.offset < keys.get(record.key):
            counts.duplicates += 1
        elif record.value is None:
            counts.tombstones += 1
            if horizon_ms is None:
                counts.without_horizon += 1
            else:
                first, last = counts.first_horizon_ms, counts.last_horizon_ms
                counts.first_horizon_ms = horizon_ms if first is None else min(first, horizon_ms)
                counts.last_horizon_ms = horizon_ms if last is None else max(last, horizon_ms)
