"""Compaction of a directory that is not open elsewhere: `seglog compact`, with dry run and proof."""
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seglog.clock import Clock, checked_clock
from seglog.errors import ProofMismatchError
from seglog.log.log import Log
from seglog.reading.partition import Partition
from seglog.reading.reader import LogReader
from seglog.upkeep.cleaner import Cleaned, clean, plan_for, what_would_go
from seglog.upkeep.cleaning_plan import CleaningPlan, plan
from seglog.upkeep.cleaning_round import CleaningLimits
from seglog.upkeep.cleaning_source import source_of_closed


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result for a directory, or of a dry run. `plan`: as of before. `proven_keys`: of a proof, else None."""

    directory: Path
    plan: CleaningPlan
    cleaned: Cleaned
    proven_keys: int | None = None


def compact(
    directory: Path, *, config: Mapping[str, object], dry_run: bool = False, prove: bool = False,
    keyless_go: bool = False, clock: Clock | None = None,
) -> Compaction:
    """Compact all of a partition directory except its active segment, due or not, as its owner would.

    It is locked, recovered if it was not closed, and clean afterwards. `dry_run`: only the first round; nothing is
    written and no lock taken. `verify`: read all keys before and afterwards, and check that exactly the last committed
    record of each remains. Needs memory for all keys.

    Raises ProofMismatchError, InvalidRecordError for records without a key unless `keyless_go`, and what opening and
    cleaning raise.
    """
    settings = {"cleanup.policy": "compact"} | dict(config)
    limits = CleaningLimits(keyless_go=keyless_go)
    if dry_run:
        with Partition(directory, config=settings) as partition:
            now_ms = checked_clock(clock).now_ms()
            found = plan(source_of_closed(partition).as_planned(), partition.config, now_ms)
            return Compaction(directory, found, what_would_go(partition, partition.config, now_ms, limits))
    with Partition(directory):
        pass        # otherwise Log would create a log in an empty directory
    with Log(directory, config=settings, create=False, clock=clock) as log:
        found = plan_for(log)
        end = found.first_uncleanable_offset
        last = last_records(log, end) if prove else None
        done = clean(log, limits=limits)
        if last is not None and done.outcome != "nothing":
            check(log, last, end)
        return Compaction(directory, found, done, None if last is None else len(last))


def last_records(log: LogReader, end_offset: int) -> dict[bytes, tuple[int, bool]]:
    """Return the offset of each key's last committed record below `end_offset`, and whether it is a tombstone."""
    last = {}
    for record in log.read(stop=end_offset, isolation="read_committed"):
        if record.key is not None:
            last[record.key] = record.offset, record.value is None
    return last


def check(log: LogReader, last: Mapping[bytes, tuple[int, bool]], end_offset: int) -> None:
    """Check that exactly these records are below `end_offset`; tombstones may be gone. Raises ProofMismatchError."""
    left = dict(last)
    for record in log.read(stop=end_offset, isolation="read_committed"):
        offset, _ = left.pop(record.key or b"", (-1, False))
        if record.key is None or offset != record.offset:
            raise ProofMismatchError(
                f"the record at offset {record.offset} is not the last one of its key, which is at {offset}",
                file=log.path, offset=record.offset,
            )
    lost = sorted(offset for offset, is_tombstone in left.values() if not is_tombstone)
    if lost:
        raise ProofMismatchError(
            f"the last records of {len(lost)} keys are gone, the first one at offset {lost[0]}", file=log.path,
            offset=lost[0],
        )


