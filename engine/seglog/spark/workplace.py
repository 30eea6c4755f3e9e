"""The workplace of a conversion: a directory next to the target log dir, from which every step can be resumed.

    <target>.seglog-spark/
        journal.json            what is converted, and the progress
        plan/orders-0           the segments of a partition (plan.Shard)
        tasks                   a line for each task (plan.Task)
        survey/orders-0         what a format below v2 cannot hold
        attempts/<32 hex>/      what one attempt of a task is writing
        staged/orders-0/        finished files of the partition; this directory is renamed into the target (in an
                                object store they are in the target from the start: manifest.py)
        done/orders-0/<base>    a marker for each finished segment, written after its files
        outcome/orders-0        the result for the partition

It is not inside the log dir, because a broker refuses to start with a directory that it does not know.
docs/formats/spark_workplace.md describes the files.
"""
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from seglog.conversion.converted_segment import ConvertedSegment
from seglog.conversion.inputs import inputs_digest
from seglog.conversion.losses import Losses
from seglog.errors import CorruptCheckpointError, InvalidArgumentError
from seglog.format.checked_json import format_json, parse_json
from seglog.segment.transaction_index import AbortedTransaction
from seglog.spark.manifest import judged_files
from seglog.spark.options import ConversionOptions
from seglog.spark.plan import Shard, SourceSegment, Task, read_task
from seglog.stores.store import WORKPLACE_SUFFIX, RenamingStore, Store, StoredFile

MARKER, OUTCOME, SURVEY = "seglog-spark-marker", "seglog-spark-outcome", "seglog-spark-survey"


VERSION = 1
MARKER_VERSION = 2          # 1: without is_proven; then all were proven


def members(body: dict[str, Any]) -> dict[str, Any]:
    """The members of a file's JSON object that are specific to this file."""
    return {name: value for name, value in body.items() if name not in ("format", "version")}


@dataclass(frozen=True, slots=True)
class Marker:
    """Says that one source segment is converted: its files are in `staged`, synced, and proven if `is_proven`.

    With `verify="full"` the stage that reads all of them proves them, and only then writes `is_proven`: no partition is
    assembled before. Until then the proof in `segment` says what the files must have.

    `identity` identifies the source, `recipe` everything else that determines the bytes. `run` identifies the driver's
    run, `attempt` is Spark's number of the attempt, from 0.
    """

    identity: list[Any]
    recipe: str
    run: str
    attempt: int
    seconds: float
    files: dict[str, int]           # name: bytes, of the segment's files in `staged`
    segment: ConvertedSegment
    is_proven: bool

    def to_bytes(self) -> bytes:
        return format_json(
            MARKER, MARKER_VERSION, identity=self.identity, recipe=self.recipe, run=self.run, attempt=self.attempt,
            seconds=self.seconds, files=self.files, segment=self.segment.to_json().decode(),
            is_proven=self.is_proven,
        )

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "Marker":
        def make(body: dict[str, Any]) -> "Marker":
            segment = ConvertedSegment.of_json(body["segment"])
            is_proven = body["version"] == 1 or body["is_proven"] is True
            return cls(**members(body) | {
                "segment": segment, "files": judged_files(body["files"], file), "is_proven": is_proven,
            })

        return parse_json(raw, MARKER, MARKER_VERSION, file, make, oldest=1)


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """What a format below v2 cannot hold of a partition. `dropped`: transactions whose records are left out."""

    plan: str
    options: str
    dropped: tuple[AbortedTransaction, ...]
    losses: Losses
    end_offset: int                 # after the last record that is carried over

    def to_bytes(self) -> bytes:
        lines = [[t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset] for t in self.dropped]
        return format_json(
            SURVEY, VERSION, plan=self.plan, options=self.options, dropped=lines, losses=asdict(self.losses),
            end_offset=self.end_offset,
        )

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "PartitionSurvey":
        def make(body: dict[str, Any]) -> "PartitionSurvey":
            dropped = tuple(AbortedTransaction(*line) for line in body["dropped"])
            return cls(body["plan"], body["options"], dropped, Losses(**body["losses"]), body["end_offset"])

        return parse_json(raw, SURVEY, VERSION, file, make)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for a partition: `plan` is the identity of its shard, `row` its row in the report."""

    plan: str
    options: str
    logs: dict[str, int]            # name: bytes, of each .log of the result
    end_offset: int                 # of the result
    row: dict[str, Any]

    def to_bytes(self) -> bytes:
        return format_json(
            OUTCOME, VERSION, plan=self.plan, options=self.options, logs=self.logs, end_offset=self.end_offset,
            row=self.row,
        )

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "Outcome":
        def make(body: dict[str, Any]) -> "Outcome":
            return cls(**members(body) | {"logs": judged_files(body["logs"], file)})

        return parse_json(raw, OUTCOME, VERSION, file, make)


@dataclass(frozen=True, slots=True)
class Workplace:
    """The places of source, target and everything in between; sent along with every task.

    `store` is that of the target and of the workplace next to it. `prefix`: where the result is collected in the target
    in an object store, which cannot rename.
    """

    store: Store
    source_store: Store
    source: str
    target: str
    options: ConversionOptions
    prefix: str = ""
    run: str = ""
    lane_bytes_per_s: int = 0          # 0: no limit

    @property
    def path(self) -> str:
        return f"{self.target}{WORKPLACE_SUFFIX}"

    def within(self, *names: str) -> str:
        return "/".join([self.path, *names])

    def source_of(self, *names: str) -> str:
        return "/".join([self.source, *names])

    def staged(self, *names: str) -> str:
        """Where finished files of a partition are before it is published."""
        if isinstance(self.store, RenamingStore):
            return self.within("staged", *names)
        return "/".join([self.target, self.prefix, *names])

    def of_prefix(self, prefix: str) -> Self:
        return replace(self, prefix=prefix)

    def of_rate(self, lane_bytes_per_s: int) -> Self:
        return replace(self, lane_bytes_per_s=lane_bytes_per_s)

    # --- plan ----------------------------------------------------------------------------------

    def shard(self, partition: str) -> Shard:
        path = self.within("plan", partition)
        return Shard.parse(self._there(path), path)

    def task(self, number: int) -> Task:
        path = self.within("tasks")
        return read_task(self._there(path), number, path)

    def ranges(self, task: Task) -> Iterator[tuple[str, list[SourceSegment]]]:
        """The partitions of a task with their segments; only one shard is in memory at a time."""
        for partition, first, stop in task.ranges:
            yield partition, list(self.shard(partition).segments[first:stop])

    def survey(self, partition: str) -> PartitionSurvey | None:
        """What is left out; None for conversions to v2, which can hold everything."""
        path = self.within("survey", partition)
        raw = self.store.read(path)
        return None if raw is None else PartitionSurvey.parse(raw, path)

    # --- segments ------------------------------------------------------------------------------

    def marker_path(self, partition: str, segment: SourceSegment) -> str:
        return self.within("done", partition, segment.file)

    def recipe(self, survey: PartitionSurvey | None) -> str:
        """The digest of everything except the segment itself that determines its converted bytes."""
        if survey is None or not survey.dropped:
            return self.options.digest
        # A later segment may tell whether a transaction was aborted.
        return hashlib.sha256(f"{self.options.digest} {survey.dropped}".encode()).hexdigest()

    def marker(self, partition: str, segment: SourceSegment, recipe: str) -> Marker | None:
        """The marker of the segment as it is now; None if it must be converted, or converted again."""
        path = self.marker_path(partition, segment)
        raw = self.store.read(path)
        if raw is None:
            return None
        try:
            marker = Marker.parse(raw, path)
        except CorruptCheckpointError:
            return None
        return marker if (marker.identity, marker.recipe) == (segment.identity, recipe) else None

    def source_file(self, partition: str, segment: SourceSegment) -> StoredFile | None:
        """The segment's file in the source as it is now."""
        return self.source_store.file(self.source_of(partition, segment.file))

    def check_unchanged(self, partition: str, segment: SourceSegment) -> None:
        """Raises InvalidArgumentError if the file is no longer the one in the plan."""
        now = self.source_file(partition, segment)
        if now is None or (now.size_bytes, now.stamp) != (segment.size_bytes, segment.stamp):
            raise changed(self.source_of(partition, segment.file))

    # --- partitions ----------------------------------------------------------------------------

    def made_from(self, partition: str) -> str:
        """What the conversion is made from, as of now: see conversion.inputs."""
        files = self.source_store.files(self.source_of(partition))
        found = ((file.name, file.size_bytes, file.stamp) for file in files)
        return inputs_digest(found, self.options.profile, self.options.log_config)

    def outcome(self, partition: str) -> Outcome | None:
        path = self.within("outcome", partition)
        raw = self.store.read(path)
        return None if raw is None else Outcome.parse(raw, path)

    @contextmanager
    def local_source(self, partition: str, segment: SourceSegment) -> Iterator[Path]:
        """The segment's .log on this machine, with its .txnindex, if any, in the same directory."""
        with self.source_store.local(self.source_of(partition), segment.file, segment.size_bytes) as path:
            yield path

    def _there(self, path: str) -> bytes:
        raw = self.store.read(path)
        if raw is None:
            raise CorruptCheckpointError("a file of the workplace is missing", file=path)
        return raw


def changed(path: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the source has changed since it was planned", file=path, hint="run again: unchanged work is not repeated"
    )
