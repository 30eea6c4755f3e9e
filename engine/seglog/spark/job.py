"""The conversion of whole topics, as the driver sees it.

    plan ── tasks ── [what a lower format loses] ── convert ── verify ── assemble ── publish
     │        │                                        │          │         │           │
     shard    packed to 64 MB                          marker for  read      outcome     one rename
     for each                                          each        again     for each    a partition
     partition                                         segment               partition

Each stage is a Spark job of tasks that take a number and return a few lines; what they know of one another stands in
the workplace. So a driver that died is followed by another that begins at the plan and finds most of it done.
"""
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seglog.errors import InvalidArgumentError, NotALogError, SeglogError
from seglog.format import names
from seglog.format.compression import Codec
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.fs.refusals import refusals
from seglog.spark.cluster import Cluster, Progress
from seglog.spark.journal import CONVERTING, PUBLISHING, Journal
from seglog.spark.options import ConversionOptions
from seglog.spark.partition_task import assemble_all
from seglog.spark.plan import TASK_BYTES, Shard, Task, TaskPacker, segments_of, spread, tasks_to_bytes
from seglog.spark.publication import publish, source_locked
from seglog.spark.report import TopicsReport
from seglog.spark.segment_task import convert_task, verify_task
from seglog.spark.store import LocalStore
from seglog.spark.survey_task import forecast_all, survey_all
from seglog.spark.workplace import Workplace
from seglog.upkeep.conversion_losses import Losses
from seglog.upkeep.conversion_profile import Aborted
from seglog.upkeep.conversion_report import PartitionRow
from seglog.upkeep.log_dir_conversion import partitions_in
from seglog.upkeep.target_log_dir import make_log_dir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AnyPath = str | os.PathLike[str]
Verify = Literal["full", "sample"]


def convert_topics(
    spark: "SparkSession",
    source: AnyPath,
    target: AnyPath,
    to: int = 2,
    *,
    topics: Iterable[str] = (),
    repack_bytes: int = 0,
    codec: str | Codec | None = None,
    delete_horizon_ms: int | None = None,
    allow_lossy: bool = False,
    aborted: Aborted | None = None,
    skip_active: bool = False,
    config: Mapping[str, object] | None = None,
    verify: Verify = "sample",
    dry_run: bool = False,
    resume: bool = True,
    max_concurrent: int | None = None,
    throttle_bytes_per_s: int = 0,
    task_bytes: int = TASK_BYTES,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> TopicsReport:
    """Convert the partitions of the log dir `source` into the log dir `target`, by the tasks of `spark`.

    Both paths are the same on every executor. `topics` are patterns such as "orders*"; none means all. The other
    options are those of `seglog.convert`. What an earlier call with the same source and options has finished is not
    done again; with `resume` false, one that was begun is an error. `verify`: read all of the result again before it is
    published, or a sample of it. `max_concurrent` tasks run at a time, and read `throttle_bytes_per_s` together.
    `dry_run` says what would be done, from samples.

    The source is never changed. A partition that cannot be converted is reported and left alone, the others are
    published. `rollback_topics` undoes it, `finalize_topics` removes what that would need.

    Raises InvalidArgumentError for what cannot be meant, a partition that the target has already, another
    conversion into it; LogLockedError where a broker or a writer is in either; NotALogError without partitions;
    StorageError, also where Spark gives up: then call again.
    """
    options = ConversionOptions(
        to, repack_bytes, None if codec is None else Codec.of(codec).label, delete_horizon_ms, allow_lossy, aborted,
        skip_active, tuple((key, str(value)) for key, value in (config or {}).items()),
    )
    if verify not in ("full", "sample"):
        raise InvalidArgumentError(f"verify is full or sample, not {verify!r}")
    fs = fs or OsFileSystem()
    source, target = _checked_paths(source, target)
    workplace = Workplace(LocalStore(fs), source, target, options)
    cluster = Cluster(spark, progress, max_concurrent)
    job = _Job(workplace, cluster, tuple(topics), verify, task_bytes, throttle_bytes_per_s, resume)
    if dry_run:
        return job.dry_run()
    make_log_dir(fs, Path(source), Path(target))
    if _device(target) != _device(os.path.dirname(target)):
        raise InvalidArgumentError(
            "the target is a file system of its own: no partition can be renamed into it", file=target,
            hint="name a directory within it: the workplace stands beside the target",
        )
    with source_locked(fs, source):
        with lock_log_dir(fs, target):
            report, finished = job.run()
        # The log dir's own files are shared with writers of other partitions: they take turns.
        journal = Journal.read(workplace.store, target)
        if journal is not None and (finished or journal.state == PUBLISHING):
            publish(fs, workplace, journal, finished)
    return report


def _checked_paths(source: AnyPath, target: AnyPath) -> tuple[str, str]:
    source, target = os.path.abspath(source), os.path.abspath(target)
    if not os.path.isdir(source):
        raise NotALogError("no such log dir", file=source)
    if names.parse_partition_dir(os.path.basename(target)) is not None:
        raise InvalidArgumentError(
            "the target is named like a partition", file=target, hint="name the log dir to make, which holds them"
        )
    real_source, real_target = os.path.realpath(source), os.path.realpath(target)
    if real_source == real_target or f"{real_target}/".startswith(f"{real_source}/"):
        raise InvalidArgumentError("the target lies in the source", file=target, hint="choose another directory")
    if f"{real_source}/".startswith(f"{real_target}/"):
        raise InvalidArgumentError("the source lies in the target", file=target, hint="choose another directory")
    return source, target


def _device(path: str) -> int:
    with refusals("look at", path):
        return os.stat(path).st_dev


@dataclass(slots=True)
class _Job:
    workplace: Workplace
    cluster: Cluster
    topics: tuple[str, ...]
    verify: Verify
    task_bytes: int
    throttle_bytes_per_s: int
    resume: bool

    def run(self) -> tuple[TopicsReport, list[str]]:
        """The report, and the partitions that are to be published."""
        workplace = self.workplace
        store, options = workplace.store, workplace.options
        partitions = self._partitions()
        journal = Journal.read(store, workplace.target)
        if journal is None:
            _check_free(workplace, partitions)
            store.make_directory(workplace.path)
            journal = Journal(CONVERTING, workplace.source, workplace.target, options.to_dict())
            journal.write(store)
        elif not self.resume:
            raise InvalidArgumentError(
                "a conversion into this target was begun", file=workplace.path,
                hint="go on with it (--resume), or undo it with --rollback",
            )
        else:
            journal.check_same(workplace.source, options)
        _forget_attempts(workplace)
        for name in ("plan", "survey", "attempts", "staged", "done", "outcome"):
            store.make_directory(workplace.within(name))
        rows, tasks = self._plan(partitions, journal)
        open_ = [name for name, row in rows.items() if row.status == "planned"]
        if open_:
            self._survey(open_, rows)
            self._convert(tasks, rows)
            self._verify(tasks, rows)
            self._assemble([name for name in open_ if rows[name].status != "failed"], rows)
            _forget_attempts(workplace)
        finished = [name for name in open_ if rows[name].status != "failed"]
        report = TopicsReport(workplace.source, workplace.target, options.to, tuple(rows.values()), tasks=len(tasks))
        return report, finished

    # --- plan ----------------------------------------------------------------------------------

    def _partitions(self) -> list[str]:
        """The partition directories of the source whose topics are asked for."""
        return [path.name for path in partitions_in(Path(self.workplace.source), self.topics)]

    def _plan(self, partitions: list[str], journal: Journal) -> tuple[dict[str, PartitionRow], list[Task]]:
        """List the segments of each partition, one partition in memory at a time, and pack them into tasks."""
        workplace, packer = self.workplace, TaskPacker(self.task_bytes)
        rows = {}
        for partition in partitions:
            try:
                shard = plan_partition(workplace, partition)
                before = self._published_before(partition, shard, journal)
                if before is not None:
                    rows[partition] = before
                    continue
                rows[partition] = PartitionRow(partition, "planned", bytes_in=shard.size_bytes)
            except SeglogError as error:
                rows[partition] = PartitionRow.of_error(partition, error, 0.0)
                continue
            for directory in ("staged", "done"):
                workplace.store.make_directory(workplace.within(directory, partition))
            packer.add(shard)
        tasks = packer.tasks(self.cluster.lanes(throttled=self.throttle_bytes_per_s > 0))
        workplace.store.write(workplace.within("tasks"), tasks_to_bytes(tasks))
        return rows, tasks

    def _published_before(self, partition: str, shard: Shard, journal: Journal) -> PartitionRow | None:
        """The row of a partition that an earlier run has put into the target."""
        workplace = self.workplace
        outcome = workplace.outcome(partition)
        target = f"{workplace.target}/{partition}"
        if not workplace.store.exists(target):
            return None
        if outcome is None or partition not in journal.published:
            raise InvalidArgumentError(
                "the target has a partition of this name already", file=target, hint="choose another, or move it away"
            )
        if outcome.plan != shard.identity:
            raise InvalidArgumentError(
                "the source changed since the partition was published", file=workplace.source_of(partition),
                hint="undo the conversion with --rollback, and convert again",
            )
        return replace(row_of(outcome.row), status="skipped", skipped=len(shard.segments), retried=0, seconds=0.0)

    # --- the stages ----------------------------------------------------------------------------

    def _survey(self, partitions: list[str], rows: dict[str, PartitionRow]) -> None:
        """To v0 or v1: what would be lost, before anything is made."""
        workplace = self.workplace
        if workplace.options.to == 2:
            return
        lists = self._spread(partitions)

        def work(number: int, attempt: int) -> dict[str, Any]:
            return {"failed": survey_all(workplace, lists[number])}

        for done in self.cluster.run(f"survey {len(partitions)} partitions", len(lists), work):
            _add_failures(rows, done["failed"])

    def _convert(self, tasks: list[Task], rows: dict[str, PartitionRow]) -> None:
        # At least 1, for 0 is no limit.
        lane_bytes_per_s = -(-self.throttle_bytes_per_s // max(1, len(tasks)))
        self.workplace = workplace = self.workplace.of_run(secrets.token_hex(8), lane_bytes_per_s)

        def work(number: int, attempt: int) -> dict[str, Any]:
            return convert_task(workplace, number, attempt).to_dict()

        self._of_tasks("convert", tasks, rows, work)

    def _verify(self, tasks: list[Task], rows: dict[str, PartitionRow]) -> None:
        workplace, how = self.workplace, self.verify

        def work(number: int, attempt: int) -> dict[str, Any]:
            return verify_task(workplace, number, how).to_dict()

        self._of_tasks("verify", tasks, rows, work)

    def _of_tasks(
        self, word: str, tasks: list[Task], rows: dict[str, PartitionRow], work: Callable[[int, int], dict[str, Any]]
    ) -> None:
        for done in self.cluster.run(f"{word} {self._words(tasks)}", len(tasks), work):
            _add_failures(rows, done["failures"])

    def _assemble(self, partitions: list[str], rows: dict[str, PartitionRow]) -> None:
        workplace = self.workplace
        lists = self._spread(partitions)

        def work(number: int, attempt: int) -> dict[str, Any]:
            return {"rows": assemble_all(workplace, lists[number])}

        for done in self.cluster.run(f"assemble {len(partitions)} partitions", len(lists), work):
            for body in done["rows"]:
                rows[body["partition"]] = row_of(body)

    def _spread(self, partitions: list[str]) -> list[list[str]]:
        """The partitions, each a matter of moments, as a few tasks for each core."""
        return list(spread(partitions, min(len(partitions), 4 * self.cluster.parallelism)))

    def _words(self, tasks: list[Task]) -> str:
        """For the description of a Spark job."""
        topics = sorted({name.rpartition("-")[0] for task in tasks[:100] for name, _, _ in task.ranges})
        listed = ", ".join(topics[:3]) + (" and more" if len(topics) > 3 else "")
        segments = sum(task.segments for task in tasks)
        return f"{listed} to v{self.workplace.options.to}: {segments:,} segments"

    # --- a dry run -----------------------------------------------------------------------------

    def dry_run(self) -> TopicsReport:
        """What `run` would make, forecast from samples; what it would lose, counted. Nothing is written."""
        workplace = self.workplace
        partitions = self._partitions()
        lists = self._spread(partitions)

        def work(number: int, attempt: int) -> dict[str, Any]:
            return {"rows": forecast_all(workplace, lists[number])}

        rows = {}
        for done in self.cluster.run(f"dry run of {len(partitions)} partitions", len(lists), work):
            for body in done["rows"]:
                rows[body["partition"]] = row_of(body)
        return TopicsReport(
            workplace.source, workplace.target, workplace.options.to,
            tuple(rows[partition] for partition in partitions), is_dry_run=True,
        )


def plan_partition(workplace: Workplace, partition: str) -> Shard:
    """List the segments of a partition, and leave its shard in the workplace."""
    path = workplace.source_of(partition)
    skip_active = workplace.options.skip_active
    shard = Shard(partition, tuple(segments_of(workplace.store.files(path), path, skip_active=skip_active)))
    raw, shard_path = shard.to_bytes(), workplace.within("plan", partition)
    if workplace.store.read(shard_path) != raw:
        workplace.store.write(shard_path, raw)
    return shard


def row_of(body: dict[str, Any]) -> PartitionRow:
    """A row from its members as JSON has them."""
    losses = None if body["losses"] is None else Losses(**body["losses"])
    return PartitionRow(**{**body, "losses": losses, "warnings": tuple(body["warnings"])})


def _add_failures(rows: dict[str, PartitionRow], failures: list[dict[str, Any]]) -> None:
    for failure in failures:
        rows[failure["partition"]] = replace(rows[failure["partition"]], status="failed", **failure)


def _forget_attempts(workplace: Workplace) -> None:
    """Remove what attempts have left. Tasks of a driver that died may still write there: they lose the ground first."""
    store, attempts = workplace.store, workplace.within("attempts")
    if store.exists(attempts):
        store.rename(attempts, f"{attempts}.{secrets.token_hex(8)}")
    for name in store.directories(workplace.path):
        if name.startswith("attempts"):
            store.remove_tree(workplace.within(name))


def _check_free(workplace: Workplace, partitions: list[str]) -> None:
    """Before anything is made. Raises InvalidArgumentError."""
    there = set(workplace.store.directories(workplace.target))
    for partition in partitions:
        if partition in there:
            raise InvalidArgumentError(
                "the target has a partition of this name already", file=f"{workplace.target}/{partition}",
                hint="choose another target, or move it away",
            )

