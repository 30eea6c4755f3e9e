"""Converts the partitions of a log dir, one after the other, into a log dir that a broker can start on.

Each partition is converted by itself (conversion.directory): one that fails is reported and left out, the others
continue. A partition's lines in the source's checkpoints are copied; once every partition in the target is known to be
intact, it gets Kafka's clean-shutdown file, so that a broker trusts the indexes.
"""
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypeVar

from seglog.conversion.directory import AnyPath, Options, plan_from_options, refuse_locked, run
from seglog.conversion.in_place import is_converted, plan_in_place
from seglog.conversion.inputs import finished
from seglog.conversion.plan import Plan, Progress
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.conversion.report import PartitionRow
from seglog.errors import InvalidArgumentError, LogLockedError, NotALogError, SeglogError
from seglog.format import names
from seglog.format.directory_kinds import LEDGERS_HINT, DirectoryKind, refuse_other_kind
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.lock import lock_log_dir
from seglog.fs.refusals import refusals, storage_error
from seglog.fs.staging import remove_leftovers
from seglog.state.carried_offsets import carry_offsets, make_log_dir, tell_log_dir, topic_partition

_HINT = "pass the log dir, which contains directories such as orders-0"

# How many partitions, or bytes of them, are planned before they are converted.
_TOGETHER = 256
_TOGETHER_BYTES = 64 << 20

Watch = Callable[[str, str], Progress]
"""Returns the progress callable for a phase ("reading", "converting") of a partition."""


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
    """Convert the partitions of the log dir `src` into the log dir `dst`, created if it does not exist; yield a row
    each.

    Without `dst` it is a dry run. `topics`: globs, such as "orders-*"; all topics if there are none. `resume`:
    partitions that an earlier run has finished are skipped; if their source has changed since, they are converted and
    replaced.

    Raises NotALogError if there is no partition; InvalidArgumentError for a glob that matches none, and for log dirs
    inside each other; LogLockedError if a broker or another writer holds one; StorageError. Anything else that stops a
    partition is reported in its row.
    """
    job = _LogDirConversion(Path(os.path.abspath(src)), dst, options, watch, checked_fs(fs))
    return job.run(partitions_in(job.source, topics, unreadable=True), resume=resume)


def partitions_in(log_dir: Path, topics: Iterable[str] = (), *, unreadable: bool = False) -> list[Path]:
    """Return the partition directories of the topics that match a glob, or of all without one, by topic and number.

    Leaves out those that a broker has marked (-delete, -future, -stray), and KRaft's metadata log: that is not a topic
    of LogManager, and has files that no partition has. `unreadable`: includes those that cannot be listed, such as a
    link that leads nowhere: opening them says why. Raises as convert_log_dir.
    """
    if log_dir.is_file():
        raise NotALogError("a file, not a log dir", file=log_dir, hint=_HINT)
    with refusals("list", log_dir):
        refuse_other_kind(log_dir, DirectoryKind.LOG_DIR, LEDGERS_HINT)
        found = [child.name for child in log_dir.iterdir() if is_topics_name(child.name)]
        if unreadable:
            found = [name for name in found if names.may_have_segments(log_dir / name)]
        else:
            found = [name for name in found if (log_dir / name).is_dir() and names.has_segments(log_dir / name)]
    return [log_dir / name for name in choose_partitions(found, topics, log_dir)]


def is_topics_name(directory: str) -> bool:
    """Whether a directory in a log dir is named like a partition of a topic: see partitions_in."""
    parsed = names.parse_partition_dir(directory)
    return parsed is not None and not parsed.mark and parsed.topic != names.METADATA_TOPIC


def choose_partitions(directories: Iterable[str], topics: Iterable[str], log_dir: AnyPath) -> list[str]:
    """Choose the partition directories of a log dir whose topics match a glob, as in partitions_in."""
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
    backup: AnyPath | None,
    options: Options,
    *,
    topics: Iterable[str] = (),
    resume: bool = False,
    watch: Watch | None = None,
    fs: FileSystem | None = None,
) -> Iterator[PartitionRow]:
    """Convert partitions of the log dir `src` in place (in_place.plan_in_place); yield a row for each. Without `backup`
    it is a dry run.

    Skips a partition that would not change; with `resume` also one that was converted and has its backup. Of others,
    `resume` takes over the segments that an earlier run had finished. Raises as convert_log_dir.
    """
    progress: Watch = watch or _unwatched

    def convert(partition: Path, began_s: float) -> PartitionRow:
        reading = progress("reading", partition.name)
        if backup is None:
            plan = plan_from_options(partition, None, options, progress=reading, fs=fs)
            seconds = time.monotonic() - began_s
            is_done = plan.changes_nothing
            return PartitionRow.of_no_change(plan, seconds) if is_done else PartitionRow.of_plan(plan, seconds)
        if resume and is_converted(partition, backup, fs=fs):
            before = Path(backup) / partition.name
            return PartitionRow.of_proof(before, partition, Proof.read(partition / PROOF_FILE))
        plan = plan_in_place(
            partition, backup, options, resumes=resume, keeps_large=True, progress=reading, fs=fs)
        if plan.changes_nothing:
            return PartitionRow.of_no_change(plan, time.monotonic() - began_s)
        result = plan.run(progress("converting", partition.name))
        return PartitionRow.of_result(result, time.monotonic() - began_s)

    yield from _each(partitions_in(Path(os.path.abspath(src)), topics, unreadable=True), convert)


def _unwatched(phase: str, partition: str) -> Progress:
    return lambda done, total: None


def _each(partitions: list[Path], convert: Callable[[Path, float], PartitionRow]) -> Iterator[PartitionRow]:
    """Yield a row for each; an error in one does not stop the others."""
    for partition in partitions:
        yield _tried(partition, convert)


T = TypeVar("T")


def _tried(partition: Path, convert: Callable[[Path, float], T]) -> T | PartitionRow:
    """Return what `convert` returns, or a row that says what stopped it."""
    began_s = time.monotonic()
    try:
        return convert(partition, began_s)
    except LogLockedError:
        raise       # an error of the log dir, which also affects the others
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
        """Plan several partitions, write their lines to the target's checkpoints, then convert them.

        Each of these files covers all partitions: writing it for each one of many would cost the square of their
        number.
        """
        if self._target is not None:
            refuse_locked(partitions[0])
            make_log_dir(self._fs, self.source, self._target)
            if not resume:
                self._remove_leftovers(self._target)
        waiting: list[_Planned | PartitionRow] = []
        waiting_bytes = 0
        for partition in partitions:
            planned = _tried(partition, partial(self._plan, resume))
            # A partition that is replaced keeps its lines until its turn.
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
        if self._target is not None and resume:     # not before: what they had converted was taken over
            self._remove_leftovers(self._target)

    def _remove_leftovers(self, log_dir: Path) -> None:
        with lock_log_dir(self._fs, log_dir):
            remove_leftovers(self._fs, log_dir)

    def _plan(self, resume: bool, source: Path, began_s: float) -> "_Planned | PartitionRow":
        target = None if self._target is None else self._target / source.name
        if target is not None and resume:
            proof = finished(source, target, self._profile, self._config)
            if proof is not None:
                tell_log_dir(self._fs, target.parent, source.name)
                return PartitionRow.of_proof(source, target, proof)
        plan = plan_from_options(
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
        result = run(planned.plan, self._watch("converting", source.name), clears=False, keeps_large=True)
        return PartitionRow.of_result(result, planned.seconds + time.monotonic() - began_s)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A partition to be converted; `seconds`: the time that its plan took."""

    plan: Plan
    source: Path
    target: Path
    seconds: float


def _checked_log_dir(source: Path, target: Path) -> Path:
    real_source, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real_target == real_source:
        raise InvalidArgumentError("source and target are the same log dir", file=target, hint="use --in-place")
    if real_source in real_target.parents or real_target in real_source.parents:
        raise InvalidArgumentError(
            "source and target are inside each other", file=target, hint="choose another directory"
        )
    if os.path.lexists(target) and not target.is_dir():
        raise InvalidArgumentError("the target exists and is not a directory", file=target, hint="choose another name")
    return target
