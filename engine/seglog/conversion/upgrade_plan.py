"""Finds what of a log dir is in old formats, what disappears by itself, and what converting the rest would cost.

Only reads, takes no lock, and may read a log dir that a broker is writing to: it does not see what is appended
meanwhile, and leaves out segments that are deleted meanwhile. Reads batch headers, and converts samples in memory.

What disappears by itself follows Kafka's rules: retention deletes whole segments from the start of the log
(UnifiedLog.deleteRetentionMsBreachedSegments, deleteRetentionSizeBreachedSegments); the cleaner of Kafka 4 writes what
it compacts as v2, that of 3.9 and older keeps the format (MemoryRecords.filterTo). See docs/migrating.md.
"""
import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Self

from seglog._kernels.batch_survey import tally
from seglog.config import LogConfig, parse_bytes
from seglog.conversion.log_dir import partitions_in
from seglog.conversion.plan import Progress
from seglog.errors import CorruptRecordError, InvalidConfigError, SeglogError, StorageError
from seglog.format import names
from seglog.format.conversion_profile import Profile, slices
from seglog.reading.listing import settled_log_files
from seglog.reading.partition import Partition
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.state.checkpoints import TopicPartition, offsets_or_none

# Samples: from this many segments with old formats, the first bytes, up to this size, are converted.
SAMPLED_SEGMENTS = 4
SAMPLE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """What determines how long a topic keeps its data. A log dir does not contain it; the defaults are Kafka's.

    `cleanup_policy` "": not given. Then "compact" if the cleaner has left its mark, otherwise "delete".
    """

    cleanup_policy: str = ""
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        """Make it from Kafka's keys: cleanup.policy, retention.ms, retention.bytes. Raises InvalidConfigError."""
        known = {field.name.replace("_", "."): field.name for field in fields(cls)}
        values: dict[str, int | str] = {}
        for key, value in settings.items():
            if key not in known:
                raise InvalidConfigError(f"unknown key: {key}", hint=f"expected one of {', '.join(known)}")
            if key == "cleanup.policy":
                if not set(value.split(",")) <= {"compact", "delete"}:
                    raise InvalidConfigError(f"cleanup.policy must be compact, delete or both, not {value!r}")
                values[known[key]] = value
                continue
            try:
                values[known[key]] = int(value) if key == "retention.ms" or value == "-1" else parse_bytes(value)
            except ValueError as e:
                raise InvalidConfigError(f"{key}: {value!r} is not a number") from e
        return cls(**values)    # type: ignore[arg-type]

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy


PolicyOf = Callable[[str], TopicPolicy]
"""Returns the policy of a topic, by its name."""


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """What a plan needs of a segment. `largest_timestamp` (ms) is the file's time if no record has one, as in Kafka.

    `bytes_of`: the bytes of complete batches of v0, v1 and v2.
    """

    base_offset: int
    size_bytes: int
    bytes_of: tuple[int, int, int]
    largest_timestamp: int

    @property
    def old_bytes(self) -> int:
        return self.bytes_of[0] + self.bytes_of[1]


@dataclass(frozen=True, slots=True)
class PartitionUpgrade:
    """One partition. `verdict`, what happens to its old formats without a conversion:

    "nothing": there are none; "retention": deletes all of them, at `gone_ms`, or once `gone_after_bytes` more were
    written; "compaction": the cleaner of Kafka 4 rewrites them when it runs, which is when the log is dirty enough
    (`dirty_ratio`); "stays".

    `forecast_bytes`: the size of all .log files after a conversion; `convert_seconds`: at the rate of the sample, on
    one core, without reading and proving. Both None if there is nothing to convert or nothing could be sampled.
    """

    partition: str
    topic: str
    policy: TopicPolicy
    segments: int
    old_segments: int
    bytes_of: tuple[int, int, int]
    active_old_bytes: int
    verdict: Literal["nothing", "retention", "compaction", "stays"]
    gone_ms: int | None
    gone_after_bytes: int | None
    dirty_ratio: float | None
    forecast_bytes: int | None
    forecast_is_exact: bool
    convert_seconds: float | None
    damaged: bool

    @property
    def old_bytes(self) -> int:
        return self.bytes_of[0] + self.bytes_of[1]


def plan_upgrade(
    log_dir: Path,
    policy_of: PolicyOf = lambda topic: TopicPolicy(),
    *,
    topics: Iterable[str] = (),
    progress: Callable[[str], Progress] = lambda partition: lambda done, total: None,
    unread: Callable[[Path, SeglogError], None] | None = None,
) -> Iterator[PartitionUpgrade]:
    """Return, for each partition, what an upgrade requires, by topic and number.

    `topics`: globs; all topics without one. `unread` is called with each partition that cannot be read, and why; if it
    is None, the first one raises StorageError or NotALogError. Raises NotALogError if there is no partition,
    InvalidArgumentError for a glob that matches none.
    """
    partitions = partitions_in(log_dir, topics, unreadable=True)
    cleaned = offsets_or_none(log_dir / names.CLEANER_CHECKPOINT) or {}
    for path in partitions:
        try:
            with Partition(path) as partition:
                where = (partition.topic, partition.partition)
                policy = _told(policy_of(partition.topic), where, cleaned)
                row = _look(partition, policy, cleaned.get(where), progress(path.name))
        except SeglogError as error:
            if unread is None:
                raise
            unread(path, error)
        else:
            yield row


def policies(settings: Mapping[str, str], of_topics: Sequence[tuple[str, str, str]]) -> PolicyOf:
    """Make the policies from (glob, key, value), later ones first, on top of those of all topics.

    Raises InvalidConfigError at once.
    """
    TopicPolicy.of({**settings, **{key: value for _, key, value in of_topics}})

    def policy_of(topic: str) -> TopicPolicy:
        own = {key: value for glob, key, value in of_topics if fnmatchcase(topic, glob)}
        return TopicPolicy.of({**settings, **own})

    return policy_of


def _told(policy: TopicPolicy, where: TopicPartition, cleaned: Mapping[TopicPartition, int]) -> TopicPolicy:
    if policy.cleanup_policy:
        return policy
    guess = "compact" if where in cleaned or where[0] in names.BROKER_TOPICS else "delete"
    return TopicPolicy(guess, policy.retention_ms, policy.retention_bytes)


# --- one partition -----------------------------------------------------------------------------


def _look(partition: Partition, policy: TopicPolicy, cleaned_to: int | None, progress: Progress) -> PartitionUpgrade:
    total = sum(path.stat().st_size for path in settled_log_files(partition.path))
    done, damaged = 0, False
    found: list[tuple[Segment, SegmentAge]] = []
    for segment in partition.segments:
        try:
            age, is_damaged = _age_of(segment)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            continue        # deleted by the broker since the directory was listed
        found.append((segment, age))
        damaged |= is_damaged
        done += age.size_bytes
        progress(done, total)
        segment._let_go()
    ages = [age for _, age in found]
    sample = _Sample([segment for segment, age in found if age.old_bytes], partition.config)
    old = [age for age in ages if age.old_bytes]
    gone_ms, gone_after_bytes = _gone(ages, policy)
    return PartitionUpgrade(
        partition=partition.path.name,
        topic=partition.topic,
        policy=policy,
        segments=len(ages),
        old_segments=len(old),
        bytes_of=(sum(a.bytes_of[0] for a in ages), sum(a.bytes_of[1] for a in ages), sum(a.bytes_of[2] for a in ages)),
        active_old_bytes=ages[-1].old_bytes if ages else 0,
        verdict=_verdict(bool(old), policy, gone_ms, gone_after_bytes),
        gone_ms=gone_ms,
        gone_after_bytes=gone_after_bytes,
        dirty_ratio=_dirty_ratio(ages, cleaned_to) if policy.compacts else None,
        forecast_bytes=sample.forecast(old, sum(sum(age.bytes_of) for age in ages)),
        forecast_is_exact=sample.is_whole,
        convert_seconds=sample.seconds_for(old),
        damaged=damaged or sample.damaged,
    )


def _age_of(segment: Segment) -> tuple[SegmentAge, bool]:
    """Return its age, from one walk over the headers, and whether damage was skipped."""
    bytes_of = [0, 0, 0]
    largest = -1
    lost: list[LostRange] = []
    for table in segment.tables(check_crc=False, on_lost=lost.append):
        for (magic, _), (_, size_bytes, _) in tally(table).items():
            bytes_of[magic] += size_bytes
        largest = max(largest, table.max_timestamp)
    if largest < 0:
        largest = segment.path.stat().st_mtime_ns // 1_000_000
    age = SegmentAge(segment.base_offset, segment.size_bytes, (bytes_of[0], bytes_of[1], bytes_of[2]), largest)
    return age, bool(lost)


def _verdict(
    has_old: bool, policy: TopicPolicy, gone_ms: int | None, gone_after_bytes: int | None
) -> Literal["nothing", "retention", "compaction", "stays"]:
    if not has_old:
        return "nothing"
    if gone_ms is not None or gone_after_bytes is not None:
        return "retention"
    return "compaction" if policy.compacts else "stays"


def _gone(ages: Sequence[SegmentAge], policy: TopicPolicy) -> tuple[int | None, int | None]:
    """Return when retention will have deleted the last segment with old formats, and after how many more bytes.

    Segments are deleted from the start of the log, in order. A limit of None deletes nothing.
    """
    last = max((slot for slot, age in enumerate(ages) if age.old_bytes), default=-1)
    if last < 0 or not policy.deletes:
        return None, None
    upto = ages[: last + 1]
    gone_ms = None
    if policy.retention_ms >= 0:
        gone_ms = max(age.largest_timestamp for age in upto) + policy.retention_ms
    gone_after_bytes = None
    if policy.retention_bytes >= 0:
        kept = sum(age.size_bytes for age in ages[last + 1 :])
        gone_after_bytes = max(0, policy.retention_bytes - kept)
    return gone_ms, gone_after_bytes


def _dirty_ratio(ages: Sequence[SegmentAge], cleaned_to: int | None) -> float:
    """Return the share of bytes after the cleaner's checkpoint, without the active segment, which is never cleaned."""
    closed = ages[:-1]
    dirty = sum(age.size_bytes for age in closed if cleaned_to is None or age.base_offset >= cleaned_to)
    return dirty / max(1, sum(age.size_bytes for age in closed))


class _Sample:
    """Converts the beginning of some segments in memory, to estimate the size of the result and the time."""

    def __init__(self, segments: Sequence[Segment], config: LogConfig) -> None:
        self._config = config
        self._from = self._made = 0
        self._seconds = 0.0
        self.damaged = False
        self.is_whole = len(segments) <= SAMPLED_SEGMENTS
        every = max(1, -(-len(segments) // SAMPLED_SEGMENTS))
        for segment in segments[::every]:
            self._convert(segment)

    def _convert(self, segment: Segment) -> None:
        packer = Profile().packer(self._config, segment.decompress)
        end = 0
        try:
            for table in segment.tables():
                for first, stop in slices(table):
                    if end >= SAMPLE_BYTES:
                        self.is_whole = False
                        return
                    began_s = time.perf_counter()
                    packer.add(table, first, stop)
                    self._made += packer.take().nbytes
                    self._seconds += time.perf_counter() - began_s
                    last = table[stop - 1]
                    self._from += last.position + last.size_bytes - table[first].position
                    end = last.position + last.size_bytes
        except CorruptRecordError:
            self.damaged = True
            self.is_whole = False
        finally:
            segment._let_go()

    def forecast(self, old: Sequence[SegmentAge], total_bytes: int) -> int | None:
        """Forecast all segments: those with old formats change as the sample did, the others stay."""
        if not self._from:
            return None
        before = sum(sum(age.bytes_of) for age in old)
        return total_bytes - before + round(before * self._made / self._from)

    def seconds_for(self, old: Sequence[SegmentAge]) -> float | None:
        if not self._from:
            return None
        return self._seconds * sum(sum(age.bytes_of) for age in old) / self._from
