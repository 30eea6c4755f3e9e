"""The plan of a conversion: the segments, and which task converts which of them.

There may be a million segments, so nothing here holds them all: the segments of each partition are in a separate file,
and a task names ranges of slots in these files. Tasks are packed to a weight of at least TASK_BYTES, since starting one
costs 20 to 120 ms of CPU time; there are at most TASKS_MAX, since the driver holds them all. A segment weighs its bytes
plus SEGMENT_BYTES: 4 000 segments of 5 KB, only 20 MB, took one task 208 s.

Partitions are converted in waves, one after the other: those of a wave are published before the next one begins. At the
end of each wave some cores are idle, so each has at least WAVE_TASKS tasks in it.
"""
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from seglog._kernels.crc import crc32c
from seglog.errors import CorruptCheckpointError, NotALogError, UnfinishedChangeError
from seglog.format import names
from seglog.format.checked_json import format_json, parse_json
from seglog.format.dialect import DIALECTS, KAFKA, TAGGED, Dialect, dialect_of
from seglog.format.foreign_names import Shape, judged
from seglog.stores.store import StoredFile

TASK_BYTES = 64 << 20
# Opening a segment, syncing its result and proving it takes as long as converting this many bytes.
SEGMENT_BYTES = 2 << 20
TASKS_MAX = 20_000
WAVE_TASKS = 16
VERSION = 1
SHARD, TASK = "seglog-spark-plan", "seglog-spark-task"


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """A segment of the source, from a listing.

    `end_offset`: the base offset of the next segment, names.MAX_OFFSET for the last one; `is_last`: a torn end is not
    an error.
    """

    base_offset: int
    size_bytes: int
    stamp: str
    end_offset: int
    is_last: bool
    dialect: Dialect = KAFKA

    @property
    def file(self) -> str:
        return self.dialect.log_name(self.base_offset)

    @property
    def identity(self) -> list[Any]:
        """The properties that determine the converted bytes; equal as long as the source does not change."""
        return [self.base_offset, self.size_bytes, self.stamp, self.is_last]


def segments_of(files: Iterable[StoredFile], path: str, *, skip_active: bool = False) -> list[SourceSegment]:
    """The segments among the files of a partition directory, in offset order.

    `skip_active` leaves out the last. Raises NotALogError if there is none, UnfinishedChangeError for a `.swap`
    file.
    """
    found = []
    for file in files:
        if file.name.endswith(names.SWAP_SUFFIX):
            raise UnfinishedChangeError(
                "found a compacted segment that was not yet renamed into place", file=f"{path}/{file.name}"
            )
        if names.is_log_file(file.name):
            found.append((names.parse_base_offset(file.name), file))
    if any(file.name.endswith(TAGGED.log) for _, file in found):
        filled = next((file for _, file in found if not file.name.endswith(TAGGED.log) and file.size_bytes), None)
        if filled is not None:
            raise NotALogError("found a Kafka segment among tagged messages", file=f"{path}/{filled.name}")
        found = [(offset, file) for offset, file in found if file.name.endswith(TAGGED.log)]
    found.sort(key=lambda pair: pair[0])
    if not found:
        raise NotALogError("no segment file (<20 digits>.log) in the directory", file=path)
    ends = [*(offset for offset, _ in found[1:]), names.MAX_OFFSET]
    segments = [
        SourceSegment(offset, file.size_bytes, file.stamp, end, end == names.MAX_OFFSET, dialect_of(file.name))
        for (offset, file), end in zip(found, ends, strict=True)
    ]
    if skip_active:
        segments.pop()
        if not segments:
            raise NotALogError("the active segment is the only one", file=path, hint="convert it without --skip-active")
    return segments


# --- the shard of a partition ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shard:
    """The segments of one partition. Its file in the workplace has a head, then a line for each segment."""

    partition: str
    segments: tuple[SourceSegment, ...]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def is_tagged(self) -> bool:
        """Whether the source contains messages with tags."""
        return self.segments[0].dialect.is_tagged

    @property
    def identity(self) -> str:
        """Equal as long as no segment was added, removed or changed."""
        return f"{crc32c(self._lines()):08x}-{len(self.segments)}-{self.size_bytes}"

    def to_bytes(self) -> bytes:
        lines = self._lines()
        head: dict[str, Any] = {
            "partition": self.partition, "segments": len(self.segments), "lines_crc32c": crc32c(lines),
        }
        if self.is_tagged:
            head["dialect"] = TAGGED.name
        return format_json(SHARD, VERSION, **head) + lines

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "Shard":
        """Parse a shard's file. Raises CorruptCheckpointError, UnsupportedVersionError."""
        first, _, lines = raw.partition(b"\n")

        def make(head: dict[str, Any]) -> "Shard":
            if crc32c(lines) != head["lines_crc32c"]:
                raise ValueError("the checksum of the segments does not match")
            rows = [line.split() for line in lines.decode().splitlines()]
            dialect = DIALECTS[head.get("dialect", KAFKA.name)]
            return cls(
                judged(head["partition"], Shape.PARTITION, file, CorruptCheckpointError),
                tuple(
                    SourceSegment(int(base), int(size), stamp, int(end), last == "last", dialect)
                    for base, size, stamp, end, last in rows
                ),
            )

        return parse_json(first, SHARD, VERSION, file, make)

    def _lines(self) -> bytes:
        return "".join(
            f"{s.base_offset} {s.size_bytes} {s.stamp} {s.end_offset} {'last' if s.is_last else '-'}\n"
            for s in self.segments
        ).encode()


# --- tasks -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Task:
    """Work for one Spark task: ranges [first, stop) of slots in the shards of partitions, in this order."""

    size_bytes: int = 0
    segments: int = 0
    ranges: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def weight_bytes(self) -> int:
        """How long it takes relative to other tasks."""
        return self.size_bytes + self.segments * SEGMENT_BYTES

    def add(self, partition: str, slot: int, size_bytes: int) -> None:
        if self.ranges and self.ranges[-1][0] == partition and self.ranges[-1][2] == slot:
            self.ranges[-1] = (partition, self.ranges[-1][1], slot + 1)
        else:
            self.ranges.append((partition, slot, slot + 1))
        self.size_bytes += size_bytes
        self.segments += 1

    def take(self, other: "Task") -> None:
        """Add the work of `other` to this task."""
        for partition, first, stop in other.ranges:
            if self.ranges and self.ranges[-1][0] == partition and self.ranges[-1][2] == first:
                self.ranges[-1] = (partition, self.ranges[-1][1], stop)
            else:
                self.ranges.append((partition, first, stop))
        self.size_bytes += other.size_bytes
        self.segments += other.segments

    def to_line(self) -> bytes:
        return format_json(TASK, VERSION, bytes=self.size_bytes, segments=self.segments, ranges=self.ranges)

    @classmethod
    def parse(cls, line: bytes, file: str) -> "Task":
        def make(body: dict[str, Any]) -> Task:
            ranges = [
                (judged(name, Shape.PARTITION, file, CorruptCheckpointError), int(first), int(stop))
                for name, first, stop in body["ranges"]
            ]
            return cls(body["bytes"], body["segments"], ranges)

        return parse_json(line, TASK, VERSION, file, make)


class TaskPacker:
    """Packs segments into tasks as they are listed: call `add` for each partition, then `tasks`.

    `at_least`: the smallest number of tasks, one for each core, if there are enough segments.
    """

    def __init__(self, task_bytes: int = TASK_BYTES, tasks_max: int = TASKS_MAX, at_least: int = 1) -> None:
        self._task_bytes = task_bytes
        self._tasks_max = tasks_max
        self._at_least = min(at_least, tasks_max)
        self._full: list[Task] = []
        self._open = Task()
        self._first: list[Task] = []        # tasks of one segment each, while fewer than `at_least` tasks are full

    def add(self, shard: Shard) -> None:
        for slot, segment in enumerate(shard.segments):
            self._open.add(shard.partition, slot, segment.size_bytes)
            if len(self._full) < self._at_least:
                self._first.append(Task(segment.size_bytes, 1, [(shard.partition, slot, slot + 1)]))
            if self._open.weight_bytes >= self._task_bytes:
                self._close()

    def tasks(self, lanes: int | None = None) -> list[Task]:
        """The tasks, largest first, so that the last ones are short; at most `lanes`, if given."""
        if self._open.segments:
            self._close()
        if len(self._full) < self._at_least:
            self._full = _shared_out(self._first, self._at_least)
        if lanes is None or len(self._full) <= lanes:
            return _heaviest_first(self._full)
        return _shared_out(self._full, lanes)

    def _close(self) -> None:
        self._full.append(self._open)
        self._open = Task()
        if len(self._full) >= self._tasks_max:
            # From here on tasks are twice as large; the existing ones are merged in pairs.
            self._task_bytes *= 2
            for one, other in zip(self._full[::2], self._full[1::2], strict=False):
                one.take(other)
            self._full = self._full[::2]


def _heaviest_first(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: -task.weight_bytes)


def _shared_out(tasks: list[Task], lanes: int) -> list[Task]:
    """The tasks merged into at most `lanes` larger ones: each is added to the one with the least work."""
    heap = [(0, n, Task()) for n in range(min(lanes, len(tasks)))]
    for task in _heaviest_first(tasks):
        _, n, lane = heapq.heappop(heap)
        lane.take(task)
        heapq.heappush(heap, (lane.weight_bytes, n, lane))
    return _heaviest_first(lane for _, _, lane in heap)


# --- waves -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """The part of a partition's plan that stays in memory."""

    partition: str
    size_bytes: int
    segments: int

    def tasks(self, task_bytes: int) -> float:
        """About how many tasks it makes, as a fraction of one if it shares a task. A segment is not divided."""
        weight_bytes = self.size_bytes + self.segments * SEGMENT_BYTES
        return min(self.segments, weight_bytes / max(task_bytes, 1))


def waves(
    partitions: Iterable[PartitionSize], task_bytes: int, lanes: int, wave_bytes: int = 0
) -> list[list[PartitionSize]]:
    """Divide the partitions, in this order, into waves.

    With `wave_bytes`, a wave has at most this many bytes, or one larger partition. Otherwise as many waves of about the
    same size as there can be with WAVE_TASKS tasks for each of the `lanes` that run at a time.
    """
    listed = list(partitions)
    sizes = [float(one.size_bytes) if wave_bytes else one.tasks(task_bytes) for one in listed]
    # Even shares: a small rest would make a wave that leaves most cores idle.
    share = float(wave_bytes) or sum(sizes) / max(1, sum(sizes) // (WAVE_TASKS * max(lanes, 1)))
    found: list[list[PartitionSize]] = []
    before = filled = 0.0           # of all waves, and of the last one
    for one, size in zip(listed, sizes, strict=True):
        is_full = filled + size > share if wave_bytes else before >= share * len(found)
        if not found or is_full:
            found.append([])
            filled = 0.0
        found[-1].append(one)
        before += size
        filled += size
    return found


def read_task(raw: bytes, number: int, file: str) -> Task:
    """The task in line `number` of the file of all tasks."""
    lines = raw.split(b"\n", number + 1)
    return Task.parse(lines[number], file)


def tasks_to_bytes(tasks: Iterable[Task]) -> bytes:
    return b"".join(task.to_line() for task in tasks)


def spread(partitions: Iterable[str], tasks: int) -> Iterator[list[str]]:
    """The partitions in at most `tasks` lists, none of them empty."""
    lists: list[list[str]] = [[] for _ in range(tasks)]
    for n, partition in enumerate(partitions):
        lists[n % tasks].append(partition)
    yield from filter(None, lists)

