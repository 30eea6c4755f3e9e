"""Converts, or verifies, the segments of one task on an executor.

A task may run twice at the same time (speculation), or again after an attempt or its driver died. So it writes
temporary files, syncs and renames them, and writes the marker last; a repetition produces the same bytes.

A segment that cannot be converted (damage, a changed source), or was not converted well, is reported to the driver, and
its partition is left alone: a retry would not help. A failure of the machine (StorageError of the workplace) is raised,
so that Spark retries elsewhere.
"""
import errno
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from seglog._kernels.columns import ArenaPool
from seglog._kernels.crc import crc32c
from seglog.conversion.proof import SegmentProof, digest, views
from seglog.conversion.segment import check_indexes, convert_segment
from seglog.conversion.throttle import Throttle
from seglog.errors import CorruptCheckpointError, SeglogError, StorageError
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.format.dialect import dialect_of
from seglog.fs.files import OsFileSystem
from seglog.fs.refusals import storage_error
from seglog.segment.segment import Segment
from seglog.spark.plan import SourceSegment, Task
from seglog.spark.workplace import Marker, PartitionSurvey, Workplace
from seglog.stores.side_by_side import side_by_side

# `verify="sample"` reads about one segment in this many again, and at least one.
SAMPLE_EVERY = 16
# Of a small segment a task waits longer for the disk, or the server, than it works: so many are under way at a time.
SMALL_BYTES, SMALL_AT_A_TIME = 1 << 20, 8


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a partition cannot be converted: the error's code, its message, and what to do."""

    partition: str
    error: str
    what: str
    fix: str | None

    @classmethod
    def of(cls, partition: str, error: SeglogError) -> "Failure":
        return cls(partition, error.code, str(error), error.hint)


@dataclass(slots=True)
class TaskReport:
    """The result of one task; small, however large the task. `bytes_out`: of all its .log files in `staged`."""

    segments: int = 0
    bytes_out: int = 0
    failures: list[Failure] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def convert_task(workplace: Workplace, number: int, attempt: int, how: str) -> TaskReport:
    """Convert the segments of task `number` that have no marker yet.

    `how` they will be verified: "full" leaves the reading of what was written to `verify_task`, which proves it. After
    "sample", all of them are proven.
    """
    report = TaskReport()
    failed: set[str] = set()
    throttle = Throttle(workplace.lane_bytes_per_s)

    def convert(piece: _Piece) -> tuple[int, int] | Failure:
        """How many segments were converted, 0 or 1; and the bytes in `staged`."""
        if piece.partition in failed:
            return 0, 0
        try:
            done = _done(workplace, piece)
            if done is None:
                return 1, _bytes_out(_convert(workplace, piece, attempt, throttle, proves=how != "full"))
            if how != "full" and not done.is_proven:
                # Converted by a run that meant to read all of them, and died before it did.
                _verify(workplace, piece.partition, piece.segment, done)
            return 0, _bytes_out(done)
        except (SeglogError, OSError) as error:
            return Failure.of(piece.partition, of_the_partition(workplace, error))

    def add(done: tuple[int, int] | Failure) -> None:
        if not isinstance(done, Failure):
            report.segments += done[0]
            report.bytes_out += done[1]
        elif done.partition not in failed:
            report.failures.append(done)
            failed.add(done.partition)

    def small() -> Iterator[_Piece]:
        for piece in _pieces(workplace, workplace.task(number)):
            if piece.segment.size_bytes > SMALL_BYTES or workplace.lane_bytes_per_s:
                add(convert(piece))
            else:
                yield piece

    for done in side_by_side(convert, small(), SMALL_AT_A_TIME):
        add(done)
    return report


@dataclass(frozen=True, slots=True)
class _Piece:
    """A segment of a task. `survey`: that of its partition."""

    partition: str
    segment: SourceSegment
    survey: PartitionSurvey | None


def _pieces(workplace: Workplace, task: Task) -> Iterator[_Piece]:
    for partition, segments in workplace.ranges(task):
        survey = workplace.survey(partition)
        if survey is None and (workplace.options.to < 2 or segments[0].dialect.is_tagged):
            continue        # the survey failed
        for segment in segments:
            yield _Piece(partition, segment, survey)


def of_the_partition(workplace: Workplace, error: SeglogError | OSError) -> SeglogError:
    """The error to report for this partition alone. If the error concerns neither the data nor the source, it is raised
    again, since another machine, or this one later, may succeed. An error without an errno means that the store was not
    reached, which may also succeed later.
    """
    if isinstance(error, OSError):
        error = storage_error(error, "read", str(error.filename or workplace.path))
    in_source = error.file is not None and error.file.startswith(f"{workplace.source}/")
    if isinstance(error, StorageError) and not (in_source and error.errno is not None):
        raise error
    return error


def _done(workplace: Workplace, piece: _Piece) -> Marker | None:
    """The segment's marker, if it has one and the files that it names exist."""
    partition = piece.partition
    marker = workplace.marker(partition, piece.segment, workplace.recipe(piece.survey))
    if marker is None:
        return None
    staged = (workplace.store.file(workplace.staged(partition, name)) for name in marker.files)
    is_there = all(
        file is not None and file.size_bytes == size
        for file, size in zip(staged, marker.files.values(), strict=True)
    )
    return marker if is_there else None


def _bytes_out(marker: Marker) -> int:
    return sum(size for name, size in marker.files.items() if names.is_log_file(name))


def _convert(workplace: Workplace, piece: _Piece, attempt: int, throttle: Throttle, *, proves: bool) -> Marker:
    store, options = workplace.store, workplace.options
    partition, segment, survey = piece.partition, piece.segment, piece.survey
    begin = time.perf_counter()
    dropped = () if survey is None else survey.dropped
    workplace.check_unchanged(partition, segment)
    with store.attempt(workplace.path) as directory, workplace.local_source(partition, segment) as source:
        converted = convert_segment(
            OsFileSystem(), source, directory, options.profile, options.log_config,
            end_offset=segment.end_offset, is_last=segment.is_last, dropped=dropped, worked=throttle,
            proves=proves,
        )
        # The bytes read were of one and the same file, from the first to the last.
        workplace.check_unchanged(partition, segment)
        files = {path.name: path.stat().st_size for path in sorted(directory.iterdir())}
        store.take(directory, files, workplace.staged(partition))
    seconds = round(time.perf_counter() - begin, 3)
    recipe = workplace.recipe(survey)
    marker = Marker(segment.identity, recipe, workplace.run, attempt, seconds, files, converted, proves)
    # What it says is on the disk; it may be lost itself, and then the segment is converted again.
    store.write_draft(workplace.marker_path(partition, segment), marker.to_bytes())
    return marker


# --- verification --------------------------------------------------------------------------------


def verify_task(workplace: Workplace, number: int, how: str) -> TaskReport:
    """Read the files in `staged`, and compare them with the markers. `how`: "full" or "sample"."""
    report = TaskReport()
    looked = number > 0
    for partition, first, stop in workplace.task(number).ranges:
        segments, recipe = workplace.shard(partition).segments, workplace.recipe(workplace.survey(partition))
        for slot in range(first, stop):
            # Chosen by name: every attempt chooses the same ones, and short partitions are not left out.
            if how != "full" and looked and crc32c(f"{partition} {slot}".encode()) % SAMPLE_EVERY:
                continue
            looked = True
            marker = workplace.marker(partition, segments[slot], recipe)
            if marker is None:
                break       # the partition failed
            try:
                _verify(workplace, partition, segments[slot], marker)
                report.segments += 1
            except (SeglogError, OSError) as error:
                report.failures.append(Failure.of(partition, of_the_partition(workplace, error)))
                break
    return report


def _verify(workplace: Workplace, partition: str, segment: SourceSegment, marker: Marker) -> None:
    """Verify the segment's files. Its marker then says that they are proven, or is gone: they are converted again."""
    path = workplace.marker_path(partition, segment)
    try:
        verify_segment(workplace, partition, marker)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise       # what cannot be read now may be good: Spark tries again
        workplace.store.remove_file(path)
        raise CorruptCheckpointError("a converted segment is missing", file=error.file) from error
    except SeglogError:
        workplace.store.remove_file(path)
        raise
    if not marker.is_proven:
        workplace.store.write_draft(path, replace(marker, is_proven=True).to_bytes())


def verify_segment(workplace: Workplace, partition: str, marker: Marker) -> None:
    """Raises ProofMismatchError if the staged files do not have the source's records, or their indexes are wrong."""
    config = workplace.options.log_config
    decompress = decompressor(config.max_decompressed_message_bytes)
    proven = marker.segment.proof.target
    with ExitStack() as closer:
        staged = []
        for part in marker.segment.parts:
            path = closer.enter_context(
                workplace.store.local(workplace.staged(partition), part.file, part.size_bytes)
            )
            staged.append(closer.enter_context(closing(Segment(path, is_last=False, decompress=decompress))))
        view = views(workplace.options.profile, dialect_of(marker.segment.source)).target
        SegmentProof(proven, digest(staged, ArenaPool(), view=view)).check(staged[0].path)
        for segment in staged:
            check_indexes(segment, config, lambda name: workplace.store.read(workplace.staged(partition, name)))
