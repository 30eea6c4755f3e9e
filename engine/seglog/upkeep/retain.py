"""Retention on an operator's request: shows what would be deleted from the logs of a log dir, or deletes it.

A dry run only reads, and takes no lock. Deleting opens each log as its owner would, one after the other: recovered if
it was not closed, locked meanwhile, and closed cleanly.
"""
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from seglog.clock import Clock, checked_clock
from seglog.config import LogConfig
from seglog.fs.files import FileSystem
from seglog.log.expiry import Expired, LogAge, Retention, Verdict
from seglog.log.log import Log
from seglog.log.retaining import AgedSegment, Retained, kept_from
from seglog.reading.partition import Partition
from seglog.reading.settings import LogSettings
from seglog.state.reader_cursor import committed_cursors
from seglog.upkeep.retention import HeldSegment, expired, held_segments, over_total


@dataclass(frozen=True, slots=True)
class LogRetention:
    """One partition: what is deleted, where the log begins then, and what remains.

    `is_done`: it was deleted. `next_ms`: when the first remaining segment will be too old; None if its time never is.
    """

    directory: Path
    retained: Retained
    kept_segments: int
    kept_bytes: int
    next_ms: int | None
    is_done: bool


def retain(
    directories: Iterable[str | os.PathLike[str]],
    *,
    config: Mapping[str, object] | Callable[[Path], Mapping[str, object]] | None = None,
    total_bytes: int = -1,
    dry_run: bool = False,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
) -> Iterator[LogRetention]:
    """Delete what `config` allows, or what it returns for each, from these partition directories, one by one;
    `total_bytes`: the limit for all of them together. `dry_run`: only show it. A partition with two names (a link) is
    processed once, under the first of them.

    Raises, for each directory, what `Partition` and `Log` raise; InvalidConfigError at once.
    """
    clock = checked_clock(clock)
    paths = list(by_first_name(directories).values())
    given = {path: dict(config(path) if callable(config) else config or {}) for path in paths}
    for settings in [{} if callable(config) else dict(config or {}), *given.values()]:
        LogConfig.of(settings)     # raises at once
    return _retain(given, total_bytes, dry_run, clock, fs)


def by_first_name(directories: Iterable[str | os.PathLike[str]]) -> dict[Path, Path]:
    """Return the directories behind these names, each with the first of its names."""
    found: dict[Path, Path] = {}
    for directory in directories:
        found.setdefault(Path(os.path.realpath(directory)), Path(os.path.abspath(directory)))
    return found


def _retain(
    given_of: dict[Path, dict[str, object]], total_bytes: int, dry_run: bool, clock: Clock, fs: FileSystem | None
) -> Iterator[LogRetention]:
    now_ms = clock.now_ms()
    rules: dict[Path, Retention] = dict(_rules(given_of, total_bytes, now_ms)) if total_bytes >= 0 else {}
    for path, given in given_of.items():
        rule = rules.get(path, expired)
        with Partition(path, config=given) as partition:
            config = settings_of(partition, given)
            ages = [AgedSegment(segment) for segment in partition.segments]
            verdict = rule(_age_of(partition, ages, config), config, now_ms)
            kept = ages[len(verdict.expired):]
            next_ms = None
            if kept and kept[0].size_bytes and config.deletes and config.retention_ms >= 0:
                largest = kept[0].largest_timestamp
                next_ms = (largest if largest >= 0 else kept[0].file_time_ms) + config.retention_ms + 1
            retained = Retained(verdict.expired, verdict.log_start_offset)
            kept_bytes = sum(age.size_bytes for age in kept)
        if not dry_run:
            with Log(path, config=given, clock=clock, fs=fs, create=False, retention=rule) as log:
                retained = log.delete_old_segments()
        yield LogRetention(path, retained, max(len(kept), 1), kept_bytes, next_ms, not dry_run)


def holds(
    partition: Partition, given: Mapping[str, object], now_ms: int, *, names_records: bool = True
) -> list[HeldSegment]:
    """Return when retention.ms deletes each segment of a partition, and which records hold segments back; that is read
    from the records of each segment unless `names_records` is False."""
    ages = [AgedSegment(segment) for segment in partition.segments]

    def offset_of_largest(age: AgedSegment) -> int | None:
        if not names_records:
            return None
        largest = age.segment.largest_timestamp
        return None if largest is None else largest.offset

    return list(held_segments(ages, offset_of_largest, settings_of(partition, given), now_ms))


@dataclass(frozen=True, slots=True)
class LaggingReader:
    """A cursor with unread records at `offset`, in the segment at `base_offset`: `unread` offsets of it, which it
    loses at `goes_ms`, or keeps if that is None.
    """

    name: str
    offset: int
    base_offset: int
    unread: int
    goes_ms: int | None


def lagging_readers(
    partition: Partition, held: Sequence[HeldSegment], given: Mapping[str, object]
) -> list[LaggingReader]:
    """Return the cursors that lag, each with what it would lose. `held`: the result of `holds`. Raises what
    ReaderCursor.read raises."""
    keeps = settings_of(partition, given).retention_respect_cursors
    ends = [*(one.base_offset for one in held[1:]), partition.log_end_offset]
    found = []
    for cursor in committed_cursors(partition.path):
        offset = max(cursor.offset, partition.log_start_offset)
        for one, end in zip(held, ends, strict=True):
            if offset < end:
                goes_ms = None if keeps else one.goes_ms
                found.append(LaggingReader(cursor.name, cursor.offset, one.base_offset, end - offset, goes_ms))
                break
    return found


def settings_of(partition: Partition, given: Mapping[str, object]) -> LogConfig:
    """Return the settings, with those stored in the directory: what opening the log would use."""
    return LogSettings(partition.path, dict(given), LogConfig.of(given)).config


def _age_of(partition: Partition, ages: list[AgedSegment], config: LogConfig) -> LogAge:
    start, end = partition.log_start_offset, partition.log_end_offset
    return LogAge(ages, start, kept_from(partition.path, config, start, end), end)


def _rules(
    given_of: dict[Path, dict[str, object]], total_bytes: int, now_ms: int
) -> Iterator[tuple[Path, Retention]]:
    """Make for each log the rule that also deletes what exceeds the total."""
    left: dict[Path, tuple[list[AgedSegment], LogConfig]] = {}
    limits: dict[Path, int] = {}
    for path, given in given_of.items():
        with Partition(path, config=given) as partition:
            config = settings_of(partition, given)
            ages = [AgedSegment(segment) for segment in partition.segments]
            log = _age_of(partition, ages, config)
            verdict = expired(log, config, now_ms)
            limits[path] = log.high_watermark
            for age in ages:
                age.read()      # while it is open
            left[path] = ages[len(verdict.expired):], config
    gone = over_total({path: entry for path, entry in left.items() if entry[0]}, total_bytes, now_ms, limits)
    for path, (ages, _) in left.items():
        yield path, _also(frozenset(age.base_offset for age in ages[: gone.get(path, 0)]))


def _also(base_offsets: frozenset[int]) -> Retention:
    """Make Kafka's rule, extended by these segments after what it deletes, except for the last segment."""

    def rule(log: LogAge, config: LogConfig, now_ms: int) -> Verdict:
        verdict = expired(log, config, now_ms)
        more = [
            Expired(age.base_offset, after.base_offset, age.size_bytes, "total")
            for age, after in islice(pairwise(log.segments), len(verdict.expired), None)
            if age.base_offset in base_offsets
        ]
        if not more:
            return verdict
        return Verdict((*verdict.expired, *more), max(verdict.log_start_offset, more[-1].next_offset))

    return rule
