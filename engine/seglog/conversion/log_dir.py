"""Convert the partitions of a log dir, one after the other, into a log dir that a broker can start on.

Each partition is converted as by itself (directory_conversion): one that fails is reported and left out, the others
go on. What the source's checkpoints say of a partition is carried over; once every partition in the target is known to
be whole, Kafka's mark of a clean stop stands there, so that a broker trusts the indexes.
"""
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypeVar

from seglog.conversion.directory import AnyPath, Options, plan_conversion, refuse_locked, run
from seglog.conversion.in_place import is_converted, plan_in_place
from seglog.conversion.inputs import finished
from seglog.conversion.plan import Plan, Progress
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.conversion.report import PartitionRow
from seglog.errors import InvalidArgumentError, LogLockedError, NotALogError, SeglogError
from seglog.format import names
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.fs.refusals import refusals, storage_error
from seglog.fs.staging import remove_leftovers
from seglog.state.carried_offsets import carry_offsets, make_log_dir, tell_log_dir, topic_partition

_HINT = "give the log dir, which holds directories such as orders-0"

# So many partitions, or bytes of them, are planned before they are converted.
_TOGETHER = 256
_TOGETHER_BYTES = 64 << 20

Watch = Callable[[str, str], Progress]
"""Gives the progress of a phase ("reading", "converting") of a partition."""


def convert_log_dir(
    src: AnyPath,
    dst: AnyPath | None,
    options: Options,
    *,
    topics: Iterable[str] = (),
    resume: bool = False,
    watch: Watch | None = None,
    fs: FileSystem | None = None,
) -> Iterator[PartitionRow]:
    """Convert the partitions of the log dir `src` into the log dir `dst`, made where it is not there; a row each.

    Without `dst` a dry run. `topics`: globs, such as "orders-*"; all where there are none. `resume`: what an earlier
    run has done is not done again; where its source has changed since, it is, and takes the place of the older one.

    Raises NotALogError if there is no partition; InvalidArgumentError for a glob that matches none, and for
    log dirs one in the other; LogLockedError where a broker or another writer holds one; StorageError. All else
    that stops a partition stands in its row.
    """
    job = _LogDirConversion(Path(os.path.abspath(src)), dst, options, watch, fs or OsFileSystem())
    return job.run(partitions_in(job.source, topics), resume=resume)


def partitions_in(log_dir: Path, topics: Iterable[str] = ()) -> list[Path]:
    """The partition directories of the topics that match a glob, of all without one, by topic and number.

    What a broker has marked (-delete, -future, -stray) is not among them, nor is KRaft's metadata log: that is no topic
    of LogManager's, and has files beside it that no partition has. Raises as convert_log_dir.
    """
    if log_dir.is_file():
        raise NotALogError("a file, not a log dir", file=log_dir, hint=_HINT)
    with refusals("list", log_dir):
        found = [child.name for child in log_dir.iterdir() if is_topics_name(child.name)]
        found = [name for name in found if (log_dir / name).is_dir() and names.log_files(log_dir / name)]
    return [log_dir / name for name in choose_partitions(found, topics, log_dir)]


def is_topics_name(directory: str) -> bool:
    """Whether a directory in a log dir is named as a partition of a topic: see partitions_in."""
    parsed = names.parse_partition_dir(directory)
    return parsed is not None and not parsed.mark and parsed.topic != names.METADATA_TOPIC


def choose_partitions(directories: Iterable[str], topics: Iterable[str], log_dir: AnyPath) -> list[str]:
    """Of the partition directories of a log dir those whose topics match a glob, as partitions_in."""
    globs = list(topics)
    found = {topic_partition(name): name for name in directories}
    if not found:
        raise NotALogError("no partition with a segment (<20 digits>.log) in the log dir", file=log_dir, hint=_HINT)
    for glob in globs:
        if not any(fnmatchcase(topic, glob) for topic, _ in found):
            raise InvalidArgumentError(
                f"no topic matches {glob!r}", file=log_dir,
                hint="a glob is matched against the name of a topic, without -<partition>",
            )
    return [
        name for (topic, _), name in sorted(found.items())
        if not globs or any(fnmatchcase(topic, glob) for glob in globs)
    ]


def convert_log_dir_in_place(
    src: AnyPath,
    backup: AnyPath,
    options: Options,
    *,
    topics: Iterable[str] = (),
    resume: bool = False,
    watch: Watch | None = None,
    fs: FileSystem | None = None,
) -> Iterator[PartitionRow]:
    """Convert partitions of the log dir `src` where they lie (in_place.plan_in_place); a row each.

    One that would come out as it is is left alone; with `resume` also one that was converted, and whose backup is
    there. Raises as convert_log_dir.
    """
    progress: Watch = watch or _unwatched

    def convert(partition: Path, began_s: float) -> PartitionRow:
        if resume and is_converted(partition, backup, fs=fs):
            before = Path(backup) / partition.name
            return PartitionRow.of_proof(before, partition, Proof.read(partition / PROOF_FILE))
        plan = plan_in_place(partition, backup, options, progress=progress("reading", partition.name), fs=fs)
        if plan.changes_nothing:
            return PartitionRow.of_no_change(plan, time.monotonic() - began_s)
        result = plan.run(progress("converting", partition.name))
        return PartitionRow.of_result(result, time.monotonic() - began_s)

    yield from _each(partitions_in(Path(os.path.abspath(src)), topics), convert)


def _unwatched(phase: str, partition: str) -> Progress:
    return lambda done, total: None


def _each(partitions: list[Path], convert: Callable[[Path, float], PartitionRow]) -> Iterator[PartitionRow]:
    """A row of each; what stops one stops no other."""
    for partition in partitions:
        yield _tried(partition, convert)


T = TypeVar("T")


def _tried(partition: Path, convert: Callable[[Path, float], T]) -> T | PartitionRow:
    """What `convert` gives, or a row that says what stopped it."""
    began_s = time.monotonic()
    try:
        return convert(partition, began_s)
    except LogLockedError:
        raise       # of the log dir: so of all that follow
    except SeglogError as error:
        return PartitionRow.of_error(partition.name, error, time.monotonic() - began_s)
    except OSError as error:
        refusal = storage_error(error, "read", partition)
        return PartitionRow.of_error(partition.name, refusal, time.monotonic() - began_s)


class _LogDirConversion:
    def __init__(
        self, source: Path, dst: AnyPath | None, options: Options, watch: Watch | None, fs: FileSystem
    ) -> None:
        self.source = source
        self._target = None if dst is None else _checked_log_dir(source, Path(os.path.abspath(dst)))
        self._options = options
        self._profile, self._config = options.profile(), options.log_config()
        self._watch: Watch = watch or _unwatched
        self._fs = fs

    def run(self, partitions: list[Path], *, resume: bool) -> Iterator[PartitionRow]:
        """Several partitions are planned, their lines are written to the target's checkpoints, then they are converted.

        Each of these files speaks for all partitions: to write it for each one of many would cost their square.
        """
        if self._target is not None:
            refuse_locked(partitions[0])
            make_log_dir(self._fs, self.source, self._target)
            with lock_log_dir(self._fs, self._target):
                remove_leftovers(self._fs, self._target)
        waiting: list[_Planned | PartitionRow] = []
        waiting_bytes = 0
        for partition in partitions:
            planned = _tried(partition, partial(self._plan, resume))
            # What is replaced keeps its lines until its turn.
            alone = isinstance(planned, _Planned) and planned.plan.replace and planned.target.exists()
            if alone:
                yield from self._convert(waiting)
                waiting, waiting_bytes = [], 0
            waiting.append(planned)
            waiting_bytes += planned.plan.size_bytes if isinstance(planned, _Planned) else 0
            if alone or self._target is None or len(waiting) >= _TOGETHER or waiting_bytes >= _TOGETHER_BYTES:
                yield from self._convert(waiting)
                waiting, waiting_bytes = [], 0
        yield from self._convert(waiting)

    def _plan(self, resume: bool, source: Path, began_s: float) -> "_Planned | PartitionRow":
        target = None if self._target is None else self._target / source.name
        if target is not None and resume:
            proof = finished(source, target, self._profile, self._config)
            if proof is not None:
                tell_log_dir(self._fs, target.parent, source.name)
                return PartitionRow.of_proof(source, target, proof)
        plan = plan_conversion(
            source, target, self._options, replace=resume, progress=self._watch("reading", source.name), fs=self._fs
        )
        if target is None:
            return PartitionRow.of_plan(plan, time.monotonic() - began_s)
        return _Planned(plan, source, target, time.monotonic() - began_s)

    def _convert(self, waiting: "list[_Planned | PartitionRow]") -> Iterator[PartitionRow]:
        planned = [one for one in waiting if isinstance(one, _Planned)]
        log_dir = self._target
        if planned and log_dir is not None:
            carry_offsets(
                self._fs, self.source, log_dir, {one.source.name: one.plan.target_end_offset for one in planned}
            )
        told: list[str] = []
        try:
            for one in waiting:
                if isinstance(one, PartitionRow):
                    yield one
                    continue
                row = _tried(one.source, partial(self._run, one))
                if row.error is None:
                    told.append(one.source.name)
                yield row
        finally:
            if log_dir is not None:
                tell_log_dir(self._fs, log_dir, *told)

    def _run(self, planned: "_Planned", source: Path, began_s: float) -> PartitionRow:
        result = run(planned.plan, self._watch("converting", source.name), clears=False)
        return PartitionRow.of_result(result, planned.seconds + time.monotonic() - began_s)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A partition that is converted next; `seconds` went into its plan."""

    plan: Plan
    source: Path
    target: Path
    seconds: float


def _checked_log_dir(source: Path, target: Path) -> Path:
    real_source, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real_target == real_source:
        raise InvalidArgumentError("source and target are the same log dir", file=target, hint="see --in-place")
    if real_source in real_target.parents or real_target in real_source.parents:
        raise InvalidArgumentError(
            "source and target are inside each other", file=target, hint="choose another directory"
        )
    if os.path.lexists(target) and not target.is_dir():
        raise InvalidArgumentError("the target is there, and no directory", file=target, hint="choose another name")
    return target
