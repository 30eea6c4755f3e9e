"""`seglog spark convert`: convert whole topics in the tasks of a Spark cluster."""
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from seglog.conversion.losses import LossKind
from seglog.errors import InvalidArgumentError
from seglog.format.conversion_profile import Aborted, version_of
from seglog.fs.aside import write_atomically
from seglog.fs.files import OsFileSystem
from seglog.spark.cluster import JobStep
from seglog.spark.plan import TASK_BYTES
from seglog.stores.open_store import is_local, open_store
from seglog.stores.store import WORKPLACE_SUFFIX

from . import convert as on_one_machine
from . import report, terminal
from .cli import Command, CommandGroup
from .conversion_report import needed_options, print_row, print_summary, rows_text
from .options import (
    PATH,
    SOURCE,
    ConfigType,
    NumberType,
    SizeType,
    dry_run_option,
    json_option,
    options_of,
    progress_option,
    store_option,
)
from .targets import check_output_file

if TYPE_CHECKING:
    import logging

    from pyspark.sql import SparkSession

    from seglog.spark.report import TopicsReport


class PlaceType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """A path, or the URL of a store, kept as written."""

    name = "path or URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


PLACE = PlaceType()
# How often a job that has no terminal says how far it is.
_TOLD_EVERY_S = 30


@click.group(name="spark", cls=CommandGroup)
def command() -> None:
    """Work on whole topics with Apache Spark. Needs the extra `seglog[spark]` and Java: run `seglog doctor`."""


@command.command(cls=Command)
@click.argument("src", metavar="SRC", type=PLACE)
@click.argument("dst", metavar="DST", type=PLACE)
@options_of(
    on_one_machine.command,
    "to", "repack_bytes", "codec", "allow_lossy", "aborted", "delete_horizon_ms", "topics", "settings",
)
@click.option("--partition", "partitions", metavar="NAME", multiple=True,
              help="Only this partition, such as orders-0. May be repeated. For --rollback, too.")
@click.option("--skip-active", is_flag=True, help="Leave out the last segment of each partition.")
@dry_run_option
@click.option("--resume/--no-resume", default=True, show_default=True,
              help="Continue an earlier run: one that did not finish. --no-resume refuses to.")
@click.option("--verify", type=click.Choice(["full", "sample"]), default="sample", show_default=True,
              help="Compare each segment of the result with its source before publishing: in a step of its own (full), "
              "or right after writing it, and every sixteenth once more (sample).")
@click.option("--rollback", "end", flag_value="rollback", default=None,
              help="Undo it: the conversion into DST, finished or not.")
@click.option("--finalize", "end", flag_value="finalize",
              help="Keep the result in DST, and remove the files that --rollback needs.")
@click.option("--finalize-each", is_flag=True,
              help="Make partitions final as soon as they are published: --rollback cannot undo them.")
@click.option("--remove-source", is_flag=True,
              help="With --finalize-each and --verify full: remove the source of each partition once its result is "
              "final, to make room.")
@click.option("--max-concurrent", type=NumberType(1), metavar="N", help="At most N tasks at a time.")
@click.option("--throttle", "throttle_bytes", metavar="BYTES", type=SizeType(), default=0,
              help="At most this many bytes of the source per second, such as 50m. In all tasks together.")
@click.option("--task-bytes", metavar="BYTES", type=SizeType(), default=TASK_BYTES, show_default="64m",
              help="Pack segments into tasks of at least this many bytes; a segment counts as its size plus 2m.")
@click.option("--wave-bytes", metavar="BYTES", type=SizeType(), default=0,
              help="Convert and publish at most this many bytes of the source, or one larger partition, before the "
              "next ones begin. By default, enough to keep all cores busy.")
@click.option("--report", "report_file", metavar="FILE", type=PATH,
              help="Write the result for each partition to FILE, as JSON.")
@click.option("--master", metavar="URL",
              help="local[2], spark://HOST:7077, yarn, k8s://..., sc://HOST. By default that of spark-submit, "
              "otherwise all cores of this machine.")
@click.option("--conf", "spark_settings", type=ConfigType(), multiple=True,
              help="A Spark setting. May be repeated.")
@store_option
@progress_option
@json_option
def convert(
    src: str,
    dst: str,
    to: str,
    repack_bytes: int,
    codec: tuple[str, dict[str, object]] | None,
    allow_lossy: tuple[LossKind, ...],
    aborted: Aborted | None,
    delete_horizon_ms: int | None,
    topics: Sequence[str],
    settings: Sequence[tuple[str, str]],
    partitions: Sequence[str],
    skip_active: bool,
    dry_run: bool,
    resume: bool,
    verify: Literal["full", "sample"],
    end: Literal["rollback", "finalize"] | None,
    finalize_each: bool,
    remove_source: bool,
    max_concurrent: int | None,
    throttle_bytes: int,
    task_bytes: int,
    wave_bytes: int,
    report_file: Path | None,
    master: str | None,
    spark_settings: Sequence[tuple[str, str]],
    store_options: Sequence[tuple[str, str]],
    no_progress: bool,
    as_json: bool,
) -> int:
    """Rewrite the log dir SRC in another record format, v2 by default, as the log dir DST.

    SRC and DST are paths that every executor sees, or URLs: s3://BUCKET/PREFIX, webhdfs://HOST:PORT/PATH. The
    resulting bytes are those of `seglog convert`. SRC does not change, except with --remove-source; each partition
    appears in DST as a whole, by one rename (in an object store by one manifest), after all of it was checked.
    Progress is kept in DST.seglog-spark until --finalize or --rollback: after a failure, run the same command again. If
    a partition fails, it is reported and the others are converted: status 7.
    """
    try:
        version = version_of(to)
    except InvalidArgumentError as error:
        raise click.BadParameter(f"{error.what}; {error.hint}", param_hint="--to") from None
    if end is not None:
        if end == "finalize" and partitions:
            raise click.UsageError("--finalize keeps everything that was published: leave out --partition")
        if dry_run:
            raise click.UsageError(f"--{end} has no dry run: leave out --dry-run")
        for option, is_given in (("--finalize-each", finalize_each), ("--remove-source", remove_source)):
            if is_given:
                raise click.UsageError(f"{option} belongs to a conversion: leave out --{end}")
        return _end(end, dst, partitions, dict(store_options), as_json=as_json)
    if is_local(src):
        source = Path(open_store(src, {}, OsFileSystem())[1])
        SOURCE.check(source)        # before Spark starts
        if report_file is not None:
            check_output_file(report_file, source)
    from seglog.spark import convert_topics

    label, levels = codec or (None, {})
    with _Line(enabled=not no_progress) as line, _started(line, master, spark_settings) as spark:
        done = convert_topics(
            spark, src, dst, version, topics=topics, partitions=partitions, repack_bytes=repack_bytes, codec=label,
            delete_horizon_ms=delete_horizon_ms, allow_lossy=allow_lossy, aborted=aborted, skip_active=skip_active,
            config={**dict(settings), **levels}, verify=verify, dry_run=dry_run, resume=resume,
            max_concurrent=max_concurrent,
            throttle_bytes_per_s=throttle_bytes, task_bytes=task_bytes, wave_bytes=wave_bytes,
            finalize_each=finalize_each, remove_source=remove_source, progress=line,
            store_options=dict(store_options),
        )
    if report_file is not None:
        write_atomically(OsFileSystem(), report_file, done.to_json())
    is_needed = any(row.status == "planned" for row in done.rows)
    more = needed_options([row.losses for row in done.rows if row.losses], allow_lossy, aborted)
    if as_json:
        for row in done.rows:
            print_row(row)
        if finalize_each and not dry_run:
            report.print_json("finalize", target=dst, is_final=done.is_final, removed=done.removed)
        print_summary(done.rows, report.dry_run_fields(dry_run, is_needed, *more, apply=False))
    else:
        ending = report.dry_run_text(is_needed, *more, apply=False) if dry_run else _what_next(done, dst)
        print("\n".join([*rows_text(done.rows, done.to, with_steps=True), *_removed(done, src), ending]))
    if not done.is_whole:
        return report.PARTIAL
    return int(dry_run and is_needed)


@contextmanager
def _started(line: "_Line", master: str | None, settings: Sequence[tuple[str, str]]) -> Iterator["SparkSession"]:
    import logging

    from seglog.spark.session import session

    line.say("starting Spark")
    # py4j logs a traceback of each signal that interrupts its wait for the JVM, and of what the JVM, which gets the
    # signal, too, no longer answers. The command says what ended it.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_lost_answer)
    try:
        with session(master, dict(settings)) as spark:
            yield spark
            line.wipe()     # before the JVM says goodbye
    except Exception as error:
        behind: BaseException | None = error
        while behind is not None and not isinstance(behind, KeyboardInterrupt):
            behind = behind.__context__
        if behind is None:
            raise
        # PySpark asks the JVM once more on the way out, by a connection that the signal closed.
        raise behind from None


def _is_no_lost_answer(record: "logging.LogRecord") -> bool:
    """Whether the root logger shall log it: py4j uses that one, too."""
    return not record.getMessage().endswith("while sending command.")


def _removed(done: "TopicsReport", src: str) -> list[str]:
    removed = report.count_of(len(done.removed), "partition")
    return [f"{removed} removed from {report.printable(src)}"] if done.removed else []


def _what_next(done: "TopicsReport", dst: str) -> str:
    if done.is_final:
        return f"{report.count_of(len(done.rows), 'partition')} kept in {report.printable(dst)}"
    place = report.printable(f"{dst}{WORKPLACE_SUFFIX}")
    return f"{place} stays until --finalize keeps the result or --rollback undoes it"


@command.command(cls=Command)
@click.argument("log_dir", metavar="LOGDIR", type=PATH)
@click.option("--complete", "end", flag_value="complete", default=None,
              help="Put the rest of the commit in place. Do not run its job again.")
@click.option("--drop", "end", flag_value="drop", help="Undo the commit: partitions are as they were before it.")
@dry_run_option
@json_option
def sink(log_dir: Path, end: Literal["complete", "drop"] | None, dry_run: bool, as_json: bool) -> int:
    """Show, complete or drop the commit of a Spark job that wrote into LOGDIR and was killed meanwhile.

    A job that writes with format("seglog") keeps its journal in LOGDIR.seglog-sink. Status 1 if a commit is unfinished
    and stays so. Needs no Spark.
    """
    from seglog.spark import complete_commit, drop_commit, unfinished_commit

    found = unfinished_commit(log_dir)
    if end is not None and not dry_run:
        partitions = complete_commit(log_dir) if end == "complete" else drop_commit(log_dir)
        if as_json:
            report.print_json(end, path=log_dir, partitions=partitions)
        elif partitions:
            words = "are now complete" if end == "complete" else "are as they were before"
            print(f"{report.count_of(len(partitions), 'partition')} {words}")
        else:
            print("no commit is unfinished")
        return 0
    if as_json:
        if found is not None:
            report.print_json("unfinished", path=log_dir, **asdict(found))
    elif found is None:
        print("no commit is unfinished")
    else:
        if found.stream is not None:
            of_what = f"epoch {found.epoch} of stream {report.printable(found.stream)}"
        elif found.batch is not None:
            of_what = f"batch {report.printable(found.batch)}"
        else:
            of_what = "a batch without an id"
        drops = "; it is being dropped" if found.drops else ""
        count = report.count_of(len(found.partitions), "partition")
        print(f"the commit of {of_what}, of {count}, is unfinished{drops}")
        print("  try: --drop to undo it, and run its job again" if found.drops else
              "  try: --complete to keep it, or --drop to undo it, and run its job again")
    return 0 if found is None else 1


def _end(
    end: Literal["rollback", "finalize"], dst: str, partitions: Sequence[str], store_options: dict[str, str], *,
    as_json: bool,
) -> int:
    """Undo or keep the result. Status 7 if a kept result does not contain all of the source."""
    from seglog.spark import finalize_topics, rollback_topics

    failed: dict[str, str] = {}
    before = ""
    if end == "rollback":
        words, done = "removed from", rollback_topics(dst, partitions=partitions, store_options=store_options)
    else:
        kept = finalize_topics(dst, store_options=store_options)
        words, done, failed = "in" if kept.was_final else "kept in", kept.partitions, kept.failed
        before = "already final: " if kept.was_final else ""
    if as_json:
        report.print_json(end, target=dst, partitions=done, failed=failed)
    else:
        print(f"{before}{report.count_of(len(done), 'partition')} {words} {report.printable(dst)}")
        for partition, why in failed.items():
            print(f"{report.paint('not in it:', 'bold', 'red')} {report.printable(f'{partition}: {why}')}")
        if failed:
            print("  try: repair them and convert again; unchanged partitions in the target are skipped")
    return report.PARTIAL if failed else 0


def progress_text(step: JobStep, seconds: float) -> str:
    """Return the tasks done, their bytes, bytes per second, and the estimated time left."""
    words = f"{step.what}  {step.done:,} of {report.count_of(step.tasks, 'task')}"
    if step.partitions:
        words += f", {step.published:,} of {report.count_of(step.partitions, 'partition')} published"
    if not 0 < step.done_bytes < step.size_bytes or seconds <= 0:
        return words
    bytes_per_s = step.done_bytes / seconds
    left_s = math.ceil((step.size_bytes - step.done_bytes) / bytes_per_s)
    minutes, rest_s = divmod(left_s, 60)
    left = f"{minutes // 60}:{minutes % 60:02}:{rest_s:02}" if minutes >= 60 else f"{minutes}:{rest_s:02}"
    return (
        f"{words}, {report.size(step.done_bytes)} of {report.size(step.size_bytes)},"
        f" {bytes_per_s / 1e6:.1f} MB/s, {left} left"
    )


class _Line(terminal.Line):
    """The progress of a job. Lines of failed partitions stay. In a file or a pipe, a line at the beginning and every
    half minute."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__(enabled=enabled)
        self._is_told = enabled and not terminal.wishes.quiet
        self._told_s = -math.inf
        self._failed: set[str] = set()
        self._job, self._began_s = "", 0.0

    def say(self, words: str) -> None:
        super().say(words)
        if self._is_told and not self.is_shown and time.monotonic() - self._told_s >= _TOLD_EVERY_S:
            self._told_s = time.monotonic()
            sys.stderr.write(f"{words}\n")
            sys.stderr.flush()

    def __call__(self, step: JobStep) -> None:
        if step.what != self._job:
            self._job, self._began_s = step.what, time.monotonic()
        for partition in step.failed:
            if partition not in self._failed and self._is_told:
                self.wipe()
                print(f"failed: {report.printable(partition)}", file=sys.stderr)
            self._failed.add(partition)
        self.say(progress_text(step, time.monotonic() - self._began_s))
