"""The conversion of whole topics, from the driver's side.

    plan ── [what a lower format loses] ── wave ── tasks ── convert ── verify ── assemble ── publish ── next wave
     │                                      │       │          │          │         │           │
     shard                                  some    packed     marker for read      outcome     one rename
     for each                               parti-  to 64 MB   each       again     for each    a partition
     partition                              tions              segment              partition

Each stage is a Spark job of tasks that take a number and return a small report; they share state only through the
workplace. So if a driver dies, a new one starts from the plan, and finds most of the work done.
"""
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seglog.conversion.log_dir import choose_partitions, is_topics_name
from seglog.conversion.losses import Losses, loss_kinds
from seglog.conversion.report import DONE_BEFORE, PartitionRow
from seglog.errors import InvalidArgumentError, NotALogError, SeglogError
from seglog.format import names
from seglog.format.compression import Codec
from seglog.format.conversion_profile import Aborted, version_of
from seglog.format.dialect import TAGGED
from seglog.format.foreign_names import Shape, has_shape
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.lock import EXCLUSIVE, SHARED
from seglog.fs.refusals import refusals, storage_error
from seglog.spark.cluster import Cluster, Progress
from seglog.spark.journal import COMMITTED, CONVERTING, PUBLISHING, Journal
from seglog.spark.manifest import MANIFEST_FILE, removable
from seglog.spark.options import ConversionOptions
from seglog.spark.partition_task import assemble_all
from seglog.spark.plan import (
    TASK_BYTES,
    PartitionSize,
    Shard,
    Task,
    TaskPacker,
    segments_of,
    spread,
    tasks_to_bytes,
    waves,
)
from seglog.spark.publication import forget_steps, publish, remove_workplace, source_locked
from seglog.spark.report import TopicsReport
from seglog.spark.segment_task import convert_task, verify_task
from seglog.spark.source_removal import check_options, check_place, complete_removals, remove_sources, verify_result
from seglog.spark.survey_task import forecast_all, survey_all
from seglog.spark.target import Target, target_of
from seglog.spark.workplace import Workplace
from seglog.state.directory_dialect import DIALECT_SETTING
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.kept_settings import parse_settings
from seglog.stores.open_store import AnyPath, open_store
from seglog.stores.remote_store import RemoteStore
from seglog.stores.store import LocalStore, RenamingStore, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Verify = Literal["full", "sample"]


def convert_topics(
    spark: "SparkSession",
    source: AnyPath,
    target: AnyPath,
    to: int | str = 2,
    *,
    topics: Iterable[str] = (),
    partitions: Iterable[str] = (),
    repack_bytes: int = 0,
    codec: str | Codec | None = None,
    delete_horizon_ms: int | None = None,
    allow_lossy: Iterable[str] = (),
    aborted: Aborted | None = None,
    skip_active: bool = False,
    config: Mapping[str, object] | None = None,
    verify: Verify = "sample",
    dry_run: bool = False,
    resume: bool = True,
    max_concurrent: int | None = None,
    throttle_bytes_per_s: int = 0,
    task_bytes: int = TASK_BYTES,
    wave_bytes: int = 0,
    finalize_each: bool = False,
    remove_source: bool = False,
    progress: Progress | None = None,
    store_options: Mapping[str, str] | None = None,
    fs: FileSystem | None = None,
) -> TopicsReport:
    """Convert the partitions of the log dir `source` into the log dir `target`, with tasks of `spark`.

    Both are paths that are the same on every executor, or URLs (s3://, webhdfs://), with `store_options` for their
    stores: docs/spark_jobs.md. `topics` are patterns such as "orders*", `partitions` directories such as "orders-3";
    none means all. The other options are those of `seglog.convert`. Work that an earlier call with the same source and
    options has finished is not repeated; with `resume` false, an unfinished conversion is an error. `verify`: read the
    result again before it is published: all of it ("full") or a sample ("sample"). At most `max_concurrent` tasks run
    at a time, and together read at most `throttle_bytes_per_s`. `dry_run` reports what would be done, from samples.

    Partitions are published in waves, each as soon as all its partitions are checked. A wave has at most `wave_bytes`
    of the source, or one larger partition; by default it is large enough to keep all cores busy. With `finalize_each`,
    partitions are final as soon as they are published: `rollback_topics` cannot undo them, and what it would need for
    that is removed at once. If none failed, nothing but the result is left at the end, as after `finalize_topics`.
    `remove_source`, with `finalize_each` and `verify="full"`: the source of each partition is removed once its result
    is final, so that source and result together never take much more room than the source and a wave. Nothing can bring
    a removed source back.

    Otherwise the source is never changed. A partition that cannot be converted is reported and left alone; the others
    are published. `rollback_topics` undoes the conversion, `finalize_topics` makes it permanent.

    Raises InvalidArgumentError for invalid arguments, for a partition that the target already has, and if another
    conversion into the target is under way; LogLockedError if a broker or a writer uses either log dir; NotALogError
    without partitions; StorageError for a source that does not exist, and if Spark gives up: then call it again.
    """
    options = ConversionOptions(
        version_of(to) if isinstance(to, str) else to,
        repack_bytes, None if codec is None else Codec.of(codec).label, delete_horizon_ms, loss_kinds(allow_lossy),
        aborted, skip_active, tuple((key, str(value)) for key, value in (config or {}).items()),
    )
    if verify not in ("full", "sample"):
        raise InvalidArgumentError(f"verify must be full or sample, not {verify!r}")
    fs = checked_fs(fs)
    source_store, source = open_store(source, store_options or {}, fs, removable=removable)
    store, target = open_store(target, store_options or {}, fs, removable=removable)
    if remove_source:
        check_options(source_store, source, finalize_each=finalize_each, verify=verify, skip_active=skip_active)
    _check_places(source_store, source, store, target)
    workplace = Workplace(store, source_store, source, target, options, run=secrets.token_hex(8))
    cluster = Cluster(spark, progress, max_concurrent)
    job = _Job(
        workplace, cluster, tuple(topics), tuple(partitions), verify, task_bytes, wave_bytes, throttle_bytes_per_s,
        resume, finalize_each, remove_source,
    )
    if dry_run:
        return job.dry_run()
    goal = target_of(workplace)
    job.makes_target = goal.is_missing()
    goal.make()
    with source_locked(source_store, source, EXCLUSIVE if remove_source else SHARED):
        return job.run()


def _check_places(source_store: Store, source: str, store: Store, target: str) -> None:
    """Check source and target. Raises InvalidArgumentError, NotALogError (a file), or StorageError if the source does
    not exist, or a store denies access."""
    for place, path in ((source_store, source), (store, target)):
        if isinstance(place, RemoteStore):
            place.check(path)
    if isinstance(source_store, LocalStore):
        with refusals("list", source):
            if not stat.S_ISDIR(os.stat(source).st_mode):
                raise NotALogError(
                    "a file, not a log dir", file=source,
                    hint="pass the log dir, which contains directories such as orders-0",
                )
    elif not source_store.exists(source):
        raise storage_error(FileNotFoundError(errno.ENOENT, ""), "list", source)
    if names.parse_partition_dir(target.rpartition("/")[2]) is not None:
        raise InvalidArgumentError(
            "the target is named like a partition", file=target, hint="name the log dir to create instead"
        )
    if source_store.file(f"{source}/{MANIFEST_FILE}") is not None:
        raise InvalidArgumentError(
            "the source contains several versions, and a manifest that selects among them", file=source,
            hint=f"name the version to use: {source}/v1-...",
        )
    real_source, real_target = _real(source_store, source), _real(store, target)
    if real_source == real_target or f"{real_target}/".startswith(f"{real_source}/"):
        raise InvalidArgumentError("the target is inside the source", file=target, hint="choose another directory")
    if f"{real_source}/".startswith(f"{real_target}/"):
        raise InvalidArgumentError("the source is inside the target", file=target, hint="choose another directory")


def _real(store: Store, path: str) -> str:
    return os.path.realpath(path) if isinstance(store, LocalStore) else path


@dataclass(slots=True)
class _Job:
    workplace: Workplace
    cluster: Cluster
    topics: tuple[str, ...]
    partitions: tuple[str, ...]
    verify: Verify
    task_bytes: int
    wave_bytes: int
    throttle_bytes_per_s: int
    resume: bool
    finalize_each: bool
    remove_source: bool
    makes_target: bool = False      # it is a local directory that did not exist before
    _tagged: set[str] = field(default_factory=set)      # the source's partitions that contain messages with tags
    _rows: dict[str, PartitionRow] = field(default_factory=dict)
    _tasks: int = 0
    _is_ended: bool = False                             # the workplace is gone
    _removed: list[str] = field(default_factory=list)   # the partitions whose source was removed

    def run(self) -> TopicsReport:
        """Convert and publish wave after wave.

        While a wave is published, the target is not locked: writers of other partitions share the log dir's own files,
        and take turns. Each time it is locked again, the journal tells whether it is still ours.
        """
        with self._held():
            partitions = self._partitions()
            begins, journal = self._begin(partitions)
        if journal.state == PUBLISHING:
            # A run died there, perhaps before the last of these partitions had its name. They were checked.
            publish(self.workplace, journal, journal.published, journal.failed, then=CONVERTING)
        with self._held_by_us() as journal:
            if self.remove_source:
                complete_removals(self.workplace, journal.final)
            planned = self._plan(partitions, journal)
            self._survey([one.partition for one in planned])
            former = [name for name, row in self._rows.items() if row.status == "skipped"]
            if begins and not self._open(list(self._rows)) and not (self.remove_source and former):
                # There is nothing to convert, and the next run may use other options.
                remove_workplace(self.workplace)
                self._is_ended = not self._failed(journal)
                return self._report()
            if self.finalize_each:
                self._finalize_former(former, journal)
        found = waves(planned, self.task_bytes, self.cluster.parallelism, self.wave_bytes)
        for number, wave in enumerate(found, start=1):
            place = f", wave {number} of {len(found)}" if len(found) > 1 else ""
            with self._held_by_us():
                done = self._wave([one.partition for one in wave], place)
            if done:
                then = COMMITTED if number == len(found) else CONVERTING
                journal = self._journal()
                publish(self.workplace, journal, done, self._failed(journal), then, is_final=self.finalize_each)
                if self.finalize_each:
                    with self._held_by_us():
                        self._forget_steps(done)
            if place:
                self._tell(f"publish{place[1:]}", planned)
        self._finish()
        return self._report()

    def _begin(self, partitions: list[str]) -> tuple[bool, Journal]:
        """Write the journal of a new conversion, or take over that of an unfinished one. Returns whether it is new."""
        workplace = self.workplace
        store, options = workplace.store, workplace.options
        journal = Journal.read(store, workplace.target)
        begins = journal is None
        if journal is None:
            goal = target_of(workplace)
            goal.check_free(partitions)
            store.make_directory(workplace.path)
            journal = Journal(
                CONVERTING, workplace.source, workplace.target, options.to_dict(), prefix=goal.new_prefix(),
                run=workplace.run, made_target=self.makes_target,
            )
        elif not self.resume:
            raise InvalidArgumentError(
                "a conversion into this target has already been started", file=workplace.path,
                hint="continue it (--resume), or undo it with --rollback",
            )
        else:
            journal.check_same(workplace.source, options)
            journal = replace(journal, run=workplace.run, options=options.to_dict())
        journal.write(store)
        self.workplace = workplace.of_prefix(journal.prefix)
        return begins, journal

    def _wave(self, partitions: list[str], place: str) -> list[str]:
        """Do the stages up to `assemble`. Returns the partitions to publish. `place` says which wave it is."""
        workplace = self.workplace
        partitions = self._open(partitions)
        if not partitions:
            return []
        workplace.store.make_directory(workplace.within("attempts"))
        tasks = self._pack(partitions)
        self._tasks += len(tasks)
        bytes_out = self._convert(tasks, place)
        if self.verify == "full":
            # A second attempt, still at work, must not replace what is proven from here on by what is not.
            _forget_attempts(workplace)
            workplace.store.make_directory(workplace.within("attempts"))
        self._verify(tasks, bytes_out, place)
        self._assemble(self._open(partitions), place)
        _forget_attempts(workplace)
        return [name for name in partitions if self._rows[name].status != "failed"]

    def _finalize_former(self, partitions: list[str], journal: Journal) -> None:
        """Make final what earlier runs have published, as far as this run would have converted it."""
        if self.remove_source and partitions:
            workplace = self.workplace
            tasks = self._pack(partitions)

            def work(number: int, attempt: int) -> dict[str, Any]:
                return verify_result(workplace, number)

            self._of_tasks(f"verify again {self._words(tasks)}", tasks, work)
            partitions = [name for name in partitions if self._rows[name].status != "failed"]
        if any(name not in journal.final for name in partitions):
            journal.made_final(partitions).write(self.workplace.store)
        self._forget_steps(partitions)

    def _forget_steps(self, partitions: list[str]) -> None:
        """Remove what is left of partitions that are final: the source, if remove_source is set, and files of the
        workplace."""
        if self.remove_source:
            removed, failures = remove_sources(self.workplace, partitions)
            self._removed += removed
            self._add_failures([asdict(failure) for failure in failures])
        forget_steps(self.workplace, partitions)

    def _finish(self) -> None:
        """Complete the journal of a run that has reached its end, or end the conversion if everything is final."""
        journal = self._journal()
        failed = self._failed(journal)
        if self.finalize_each and not failed and not journal.published:
            with self._held_by_us():
                # Interrupted here, the next run finds everything final, and does this again.
                target_of(self.workplace).settle()
                remove_workplace(self.workplace)
                self._is_ended = True
            return
        is_committed = journal.state == CONVERTING and bool(journal.published or journal.final)
        if is_committed or failed != journal.failed:
            state = COMMITTED if is_committed else journal.state
            replace(journal, failed=failed).now(self.workplace.store, state)

    def _held(self) -> AbstractContextManager[object]:
        """Keep brokers, writers and other conversions out of the target."""
        return target_of(self.workplace).held()

    @contextmanager
    def _held_by_us(self) -> Iterator[Journal]:
        """The same, with the journal as it is now. Raises LogLockedError if another run has taken over.

        It is asked before, too: a rollback meanwhile removed the target with its lock, if this conversion had made it.
        """
        self._journal()
        with self._held():
            yield self._journal()

    def _journal(self) -> Journal:
        """The journal as it is now. Raises LogLockedError if another run has taken over."""
        return Journal.read_ours(self.workplace.store, self.workplace.target, self.workplace.run)

    def _open(self, partitions: list[str]) -> list[str]:
        """Those of the partitions that have not failed."""
        return [name for name in partitions if self._rows[name].status == "planned"]

    def _failed(self, journal: Journal) -> dict[str, str]:
        """{partition: reason} of those that failed in this run, or in an earlier one and were not tried since."""
        tried = {name for name, row in self._rows.items() if row.status != "planned"}
        failed = {name: why for name, why in journal.failed.items() if name not in tried}
        return failed | {name: row.what or "" for name, row in self._rows.items() if row.status == "failed"}

    def _tell(self, words: str, planned: list[PartitionSize]) -> None:
        done = sum(self._rows[one.partition].status == "converted" for one in planned)
        self.cluster.published(words, done, len(planned))

    def _report(self) -> TopicsReport:
        workplace = self.workplace
        return TopicsReport(
            workplace.source, workplace.target, workplace.options.to, tuple(self._rows.values()), tasks=self._tasks,
            is_final=self._is_ended, removed=tuple(self._removed),
        )

    # --- plan ----------------------------------------------------------------------------------

    def _partitions(self) -> list[str]:
        """The requested partition directories of the source."""
        store, path = self.workplace.source_store, self.workplace.source
        named = [
            name for name in store.directories(path) if is_topics_name(name) and has_shape(name, Shape.PARTITION)
        ]

        def has_log(name: str) -> bool:
            return any(names.is_log_file(file.name) for file in store.files(f"{path}/{name}"))

        # The source of these may be removed already, so that none may be left.
        journal = Journal.read(self.workplace.store, self.workplace.target) if self.remove_source else None
        final = () if journal is None else journal.final
        if self.partitions:
            missing = [name for name in self.partitions if name not in named and name not in final]
            if missing:
                raise InvalidArgumentError(
                    f"no such partition: {', '.join(missing)}", file=path,
                    hint="name partitions as their directories are named, such as orders-3",
                )
            named = [name for name in named if name in self.partitions]
        found = [name for name, has in zip(named, store.each(has_log, named), strict=True) if has]
        return [name for name in choose_partitions({*found, *final}, self.topics, path) if name in found]

    def _plan(self, partitions: list[str], journal: Journal) -> list[PartitionSize]:
        """List the segments of each partition, a few partitions in memory at a time. Returns those to convert."""
        workplace = self.workplace
        goal = target_of(workplace)
        _forget_attempts(workplace)
        for name in ("plan", "survey", "staged", "done", "outcome"):
            workplace.store.make_directory(workplace.within(name))

        def plan(partition: str) -> tuple[PartitionRow, Shard | None]:
            try:
                if self.remove_source:
                    check_place(workplace, partition)
                shard = plan_partition(workplace, partition)
                if shard.is_tagged:
                    self._tagged.add(partition)
                before = self._published_before(goal, partition, shard, journal)
            except SeglogError as error:
                return PartitionRow.of_error(partition, error, 0.0), None
            if before is not None:
                return before, None
            return PartitionRow(partition, "planned", bytes_in=shard.size_bytes), shard

        planned = []
        for row, shard in workplace.store.each(plan, partitions):
            self._rows[row.partition] = row
            if shard is not None:
                planned.append(PartitionSize(row.partition, row.bytes_in, len(shard.segments)))
        for place in (workplace.staged(), workplace.within("done")):
            workplace.store.make_directories(place, [one.partition for one in planned])
        return planned

    def _pack(self, partitions: list[str]) -> list[Task]:
        """Pack the segments of the partitions into tasks, and write the list of tasks."""
        workplace = self.workplace
        packer = TaskPacker(self.task_bytes, at_least=self.cluster.parallelism)
        for shard in workplace.store.each(workplace.shard, partitions):
            packer.add(shard)
        tasks = packer.tasks(self.cluster.lanes(throttled=self.throttle_bytes_per_s > 0))
        workplace.store.write(workplace.within("tasks"), tasks_to_bytes(tasks))
        return tasks

    def _published_before(
        self, goal: Target, partition: str, shard: Shard, journal: Journal
    ) -> PartitionRow | None:
        """The row of a partition that an earlier run has published."""
        workplace = self.workplace
        if not goal.has(partition):
            return None
        outcome = workplace.outcome(partition)
        if outcome is None or partition not in journal.published:
            if goal.has_result(partition, [segment.file for segment in shard.segments]):
                return self._finalized_before(goal, partition, shard)
            if partition in journal.final:
                raise changed_since(workplace, partition, "move the partition out of the target, and convert again")
            raise InvalidArgumentError(
                "the target already has a partition with this name", file=f"{workplace.target}/{partition}",
                hint="choose another target, or move it away",
            )
        if outcome.plan != shard.identity:
            raise changed_since(workplace, partition, "undo the conversion with --rollback, and convert again")
        return replace(
            row_of(outcome.row), status="skipped", skipped=len(shard.segments), retried=0, seconds=0.0,
            what=DONE_BEFORE,
        )

    def _finalized_before(self, goal: Target, partition: str, shard: Shard) -> PartitionRow:
        proof = goal.kept(partition)
        assert proof is not None
        logs = [
            file for file in self.workplace.store.files(goal.place(partition))
            if names.is_log_file(file.name)
        ]
        return PartitionRow(
            partition, "skipped", segments=len(logs), records=proof.records, bytes_in=shard.size_bytes,
            bytes_out=sum(file.size_bytes for file in logs), digest=proof.sha256, skipped=len(shard.segments),
            what=f"{DONE_BEFORE}, and final",
        )

    # --- the stages ----------------------------------------------------------------------------

    def _survey(self, partitions: list[str]) -> None:
        """Find out what would be lost, before anything is converted: to v0, v1 or tagged, and from tagged."""
        workplace = self.workplace
        if workplace.options.to == 2:
            partitions = [name for name in partitions if name in self._tagged]
        if not partitions:
            return
        lists = self._spread(partitions)

        def work(number: int, attempt: int) -> dict[str, Any]:
            return {"failed": survey_all(workplace, lists[number])}

        for done in self.cluster.run(f"survey {len(partitions)} partitions", len(lists), work):
            self._add_failures(done["failed"])

    def _convert(self, tasks: list[Task], place: str) -> int:
        """Returns the bytes of the result."""
        # At least 1, since 0 means no limit.
        lane_bytes_per_s = -(-self.throttle_bytes_per_s // max(1, len(tasks)))
        self.workplace = workplace = self.workplace.of_rate(lane_bytes_per_s)
        how = self.verify

        def work(number: int, attempt: int) -> dict[str, Any]:
            return convert_task(workplace, number, attempt, how).to_dict()

        return self._of_tasks(f"convert {self._words(tasks)}{place}", tasks, work)

    def _verify(self, tasks: list[Task], bytes_out: int, place: str) -> None:
        workplace, how = self.workplace, self.verify

        def work(number: int, attempt: int) -> dict[str, Any]:
            return verify_task(workplace, number, how).to_dict()

        self._of_tasks(f"verify {self._words(tasks)} as {bytes_out:,} bytes{place}", tasks, work)

    def _of_tasks(self, words: str, tasks: list[Task], work: Callable[[int, int], dict[str, Any]]) -> int:
        """Returns the bytes of the result that the tasks report."""
        bytes_out = 0
        for done in self.cluster.run(words, len(tasks), work, [task.size_bytes for task in tasks]):
            self._add_failures(done["failures"])
            bytes_out += done["bytes_out"]
        return bytes_out

    def _assemble(self, partitions: list[str], place: str) -> None:
        workplace = self.workplace
        lists = self._spread(partitions)

        def work(number: int, attempt: int) -> dict[str, Any]:
            return {"rows": assemble_all(workplace, lists[number])}

        for done in self.cluster.run(f"assemble {len(partitions)} partitions{place}", len(lists), work):
            for body in done["rows"]:
                self._rows[body["partition"]] = row_of(body)

    def _add_failures(self, failures: list[dict[str, Any]]) -> None:
        for failure in failures:
            name = failure["partition"]
            self._rows[name] = replace(self._rows[name], status="failed", **failure)

    def _spread(self, partitions: list[str]) -> list[list[str]]:
        """The partitions, each of which takes only moments, as a few tasks for each core."""
        return list(spread(partitions, min(len(partitions), 4 * self.cluster.parallelism)))

    def _words(self, tasks: list[Task]) -> str:
        """The description of a Spark job."""
        topics = sorted({name.rpartition("-")[0] for task in tasks[:100] for name, _, _ in task.ranges})
        listed = ", ".join(topics[:3]) + (" and more" if len(topics) > 3 else "")
        segments = sum(task.segments for task in tasks)
        size_bytes = sum(task.size_bytes for task in tasks)
        return f"{listed} to v{self.workplace.options.to}: {segments:,} segments, {size_bytes:,} bytes"

    # --- a dry run -----------------------------------------------------------------------------

    def dry_run(self) -> TopicsReport:
        """Forecast from samples what `run` would write, and count what it would lose. Writes nothing."""
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


def changed_since(workplace: Workplace, partition: str, hint: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the source has changed since the partition was published", file=workplace.source_of(partition), hint=hint
    )


def plan_partition(workplace: Workplace, partition: str) -> Shard:
    """List the segments of a partition, and write its shard into the workplace."""
    path = workplace.source_of(partition)
    skip_active = workplace.options.skip_active
    shard = Shard(partition, tuple(segments_of(workplace.source_store.files(path), path, skip_active=skip_active)))
    if shard.is_tagged:
        _check_witness(workplace, path)
    raw, shard_path = shard.to_bytes(), workplace.within("plan", partition)
    if workplace.store.read(shard_path) != raw:
        workplace.store.write_draft(shard_path, raw)
    return shard


def _check_witness(workplace: Workplace, path: str) -> None:
    """Raises NotALogError if there are .tlog files without the setting for tagged messages."""
    settings = f"{path}/{SETTINGS_FILE}"
    raw = workplace.source_store.read(settings)
    if raw is None or parse_settings(raw, Path(settings)).get(DIALECT_SETTING) != TAGGED.name:
        raise NotALogError(
            f"found .tlog files, but {SETTINGS_FILE} does not say that they are tagged", file=path,
            hint=f"restore its {SETTINGS_FILE}: a directory of tagged messages has {DIALECT_SETTING}=tagged",
        )


def row_of(body: dict[str, Any]) -> PartitionRow:
    """A row from its JSON members."""
    losses = None if body["losses"] is None else Losses(**body["losses"])
    return PartitionRow(**{**body, "losses": losses, "warnings": tuple(body["warnings"])})


def _forget_attempts(workplace: Workplace) -> None:
    """Remove the attempts' files. Tasks of a dead driver may still write there, so the directory is renamed first."""
    store, attempts = workplace.store, workplace.within("attempts")
    if isinstance(store, RenamingStore) and store.exists(attempts):
        store.rename(attempts, f"{attempts}.{secrets.token_hex(8)}")
    for name in store.directories(workplace.path):
        if name.startswith("attempts"):
            store.remove_tree(workplace.within(name))

