"""`seglog convert`: a partition, or a log dir of them, in another record format, in a new directory, with a proof."""
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from seglog.config import LogConfig
from seglog.conversion.directory import Options, plan_from_options, run
from seglog.conversion.in_place import RolledBack, has_traces, is_converted, plan_in_place, roll_back
from seglog.conversion.inputs import finished
from seglog.conversion.log_dir import convert_log_dir, convert_log_dir_in_place, partitions_in
from seglog.conversion.losses import LossKind, loss_kinds
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.conversion.report import PartitionRow, report_json
from seglog.conversion.throttle import Throttle
from seglog.errors import InvalidArgumentError, InvalidConfigError, LogLockedError, NotALogError, SeglogError
from seglog.format import names
from seglog.format.compression import Codec
from seglog.format.conversion_profile import Aborted, version_of
from seglog.fs.aside import write_atomically
from seglog.fs.files import OsFileSystem

from . import report
from .cli import Command
from .conversion_report import needed_options, plan_text, print_json, print_row, print_summary, result_text, rows_text
from .options import (
    PATH,
    SOURCE,
    NumberType,
    SizeType,
    TimeType,
    apply_option,
    config_option,
    json_option,
    progress_option,
)
from .targets import Place, check_output_file
from .upgrade_plan import TopicConfigType, show_plan

# The value of --proof that is not a file name; for a file of this name, pass ./independent.
_INDEPENDENT = "independent"
_WITH_LEVELS = ("gzip", "lz4", "zstd")


class CodecType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """`zstd` or `zstd:9`: the codec, and the setting with its level."""

    name = "codec"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, dict[str, object]]:
        if isinstance(value, tuple):
            return value
        name, colon, level = value.partition(":")
        if name not in (labels := [codec.label for codec in Codec]):
            self.fail(f"{name!r} is not one of {', '.join(labels)}", param, ctx)
        if not colon:
            return name, {}
        key = f"compression.{name}.level"
        if name not in _WITH_LEVELS:
            self.fail(f"{name} has no levels", param, ctx)
        try:
            LogConfig.of({key: level})
        except InvalidConfigError as error:
            self.fail(error.what, param, ctx)
        return name, {key: level}


class LossKindsType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """What a conversion may lose, with commas: `producers,headers`. See seglog.conversion.losses."""

    name = "kinds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[LossKind, ...]:
        words = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
        try:
            return loss_kinds(words)
        except InvalidArgumentError as e:
            self.fail(f"{e.what}: {e.hint}", param, ctx)


@click.command(cls=Command)
@click.argument("src", metavar="SRC", type=SOURCE)
@click.argument("dst", metavar="[DST]", required=False, type=PATH)
@click.option("--to", metavar="VERSION", default="2", show_default=True,
              help="The format to convert to: 0, 1, 2, or tagged.")
@click.option("--repack", "repack_bytes", metavar="BYTES", type=SizeType(), default=0,
              help="Pack consecutive records into batches of about BYTES, such as 16k. All replicas must then be "
              "replaced together.")
@click.option("--codec", metavar="CODEC", type=CodecType(),
              help="Recompress every batch that has another codec: none, gzip, snappy, lz4 or zstd. A level may "
              "follow, such as zstd:9.")
@click.option("--allow-lossy", metavar="KINDS", type=LossKindsType(), default=(),
              help="Below v2, and to or from tagged: what may be lost: headers, timestamps (to v0), control (control "
              "batches), producers (their ids and sequences). Several: producers,headers. A dry run counts them.")
@click.option("--aborted", type=click.Choice(["drop", "keep"]),
              help="Below v2 and to tagged: what to do with records of aborted and open transactions, which would "
              "look committed.")
@click.option("--delete-horizon", "delete_horizon_ms", metavar="TIME", type=TimeType(),
              help="To v2: the time after which compaction may remove tombstones, written into batches as Kafka's "
              "cleaner does.")
@click.option("--plan", "shows_plan", is_flag=True,
              help="Only show how much of the log dir SRC is in v0 and v1, what retention or compaction will remove, "
              "what converting the rest would cost, and the steps of a rolling migration. Works beside a broker.")
@click.option("--topic-config", "of_topics", metavar="GLOB:KEY=VALUE", type=TopicConfigType(), multiple=True,
              help="With --plan: retention.ms, retention.bytes or cleanup.policy of topics that match, such as "
              "'orders-*:retention.ms=-1'; --config sets them for all topics. Kafka's defaults otherwise.")
@click.option("--throttle", "throttle_bytes", metavar="BYTES", type=SizeType(), default=0,
              help="At most this many bytes of the source per second, such as 50m.")
@click.option("--report", "report_file", metavar="FILE", type=PATH,
              help="Write the result for each partition to FILE, as JSON.")
@click.option("--proof", "proofs", metavar="FILE|independent", multiple=True,
              help=f"Also write the proof to FILE; it is always in DST/{PROOF_FILE}. independent: prove it a second "
              "time in plain Python, which shares no code with the converter; slow, a few MB/s; needs seglog[witness].")
@click.option("--proof-every", metavar="N", type=NumberType(1), default=1, show_default=True,
              help="Prove only every Nth segment of a partition, and the last one, a second time.")
@click.option("--topic", "topics", metavar="GLOB", multiple=True,
              help="Only topics that match. May be repeated. For a log dir.")
@click.option("--resume/--no-resume", default=False,
              help="Continue an earlier run: skip partitions and segments that it finished, unless their source has "
              "changed since.")
@click.option("--in-place", is_flag=True,
              help="Replace SRC with the result, in one step: only with --apply, otherwise show a dry run.")
@apply_option("Do it: with --in-place, and --backup. --dry-run: change nothing, also with DST or --rollback.")
@click.option("--backup", metavar="DIR", type=PATH,
              help="Keep what is replaced in DIR: the old partition directories, under their names. On the same file "
              "system, but not in the log dir.")
@click.option("--rollback", is_flag=True, help="Undo it: restore the directories in --backup. For --in-place.")
@config_option
@progress_option
@json_option
def command(
    src: Path,
    dst: Path | None,
    to: str,
    repack_bytes: int,
    codec: tuple[str, dict[str, object]] | None,
    allow_lossy: tuple[LossKind, ...],
    aborted: Aborted | None,
    delete_horizon_ms: int | None,
    shows_plan: bool,
    of_topics: Sequence[tuple[str, str, str]],
    throttle_bytes: int,
    report_file: Path | None,
    proofs: Sequence[str],
    proof_every: int,
    topics: Sequence[str],
    resume: bool,
    in_place: bool,
    applies: bool | None,
    backup: Path | None,
    rollback: bool,
    settings: Sequence[tuple[str, str]],
    no_progress: bool,
    as_json: bool,
) -> int:
    """Rewrite SRC in another record format, v2 by default: a partition directory as the new partition directory DST, or
    a log dir as the log dir DST.

    Without DST, show a dry run: the plan, the expected size, and what an older format cannot hold; status 1 if there is
    something to convert. Offsets, keys, values, timestamps and headers stay; each compressed batch and each single
    message becomes one v2 batch, as when Kafka 4 compacts old data, so that replicas stay identical. DST appears only
    when it is complete, after its files were read back and proven equal. Only --in-place with --apply changes SRC, and
    swaps it with the result in one step. If a partition of a log dir fails, it is reported and the others are
    converted: status 7.
    """
    if shows_plan:
        if dst is not None or in_place or rollback:
            raise click.UsageError("--plan only reads: leave out DST, --in-place and --rollback")
        return show_plan(src, topics, settings, of_topics, no_progress=no_progress, as_json=as_json)
    if of_topics:
        raise click.UsageError("--topic-config needs --plan")
    try:
        version = version_of(to)
    except InvalidArgumentError as error:
        raise click.BadParameter(f"{error.what}; {error.hint}", param_hint="--to") from None
    second_proof_every = proof_every if _INDEPENDENT in proofs else 0
    proof_files = [Path(proof) for proof in proofs if proof != _INDEPENDENT]
    proof_file = proof_files[-1] if proof_files else None
    label, levels = codec or (None, {})
    options = Options(
        version, repack_bytes, label, delete_horizon_ms, allow_lossy, aborted, {**dict(settings), **levels},
        second_proof_every,
    )
    if src.is_file():
        raise NotALogError(
            "neither a partition directory nor a log dir", file=src, hint="pass a directory, such as orders-0"
        )
    is_partition = not src.is_dir() or names.has_segments(src)
    if is_partition and topics:
        raise click.UsageError("--topic needs a log dir: SRC is a single partition")
    if backup is not None and str(backup).startswith("--"):
        raise click.UsageError(f"--backup needs a directory, not the option {backup}")
    if in_place and rollback:
        raise click.UsageError("--in-place and --rollback exclude each other")
    if applies and not (in_place or dst is not None or rollback):
        raise click.UsageError("--apply needs DST or --in-place")
    if in_place and applies and backup is None:
        raise click.UsageError("--apply needs --backup DIR, the directory that keeps the old SRC")
    if rollback and backup is None:
        raise click.UsageError("--rollback needs --backup DIR, the directory that --in-place kept the old SRC in")
    if backup is not None and not (in_place or rollback):
        raise click.UsageError("--backup needs --in-place or --rollback: nothing else changes SRC")
    if dst is not None and backup is not None:
        raise click.UsageError("DST cannot be combined with --in-place or --rollback")
    if proof_file is not None and ((dst is None and not in_place) or not is_partition):
        raise click.UsageError("--proof needs DST and a single partition: in a log dir, each has its own proof")
    if second_proof_every and dst is None and not in_place:
        raise click.UsageError("--proof independent needs DST: a dry run has nothing to prove")
    if resume and dst is None and not in_place:
        raise click.UsageError("--resume needs DST: a dry run leaves nothing to resume")
    if rollback and backup is not None:
        return roll_back_each(
            [src] if is_partition else partitions_in(src, topics), backup, dry_run=applies is False, as_json=as_json
        )
    for file in filter(None, (proof_file, report_file)):
        check_output_file(file, src)
    is_dry = not applies if in_place else dst is None or applies is False
    missing = ["--backup", "DIR"] if in_place and backup is None else []
    copies = dst is not None
    if is_dry:
        dst, backup, resume, proof_file = None, None, False, None
    rows = []
    with (
        as_open_as(src) if in_place and not is_dry else nullcontext(),
        closing(Watch(
            Throttle(throttle_bytes), [src] if is_partition else partitions_in(src, topics),
            1 if dst is None and backup is None else 2, enabled=not no_progress,
        )) as watch,
    ):
        if is_partition:
            rows.append(_convert_partition(
                src, dst, backup, options, watch, proof_file, resume=resume, copies=copies, as_json=as_json
            ))
        else:
            found = (
                convert_log_dir(src, dst, options, topics=topics, resume=resume, watch=watch) if copies
                else convert_log_dir_in_place(src, backup, options, topics=topics, resume=resume, watch=watch)
            )
            for row in found:
                rows.append(row)
                if as_json:
                    watch.close()
                    print_row(row)
    if report_file is not None:
        source, target = Path(os.path.abspath(src)), Path(os.path.abspath(dst)) if dst is not None else None
        text = report_json(source, source if in_place else target, options.to, rows)
        write_atomically(OsFileSystem(), report_file, text)
    is_needed = any(row.status == "planned" for row in rows)
    # What the command that does it needs in addition.
    more = [
        *([] if in_place or copies else ["DST"]), *missing,
        *needed_options([row.losses for row in rows if row.losses], allow_lossy, aborted),
    ]
    if as_json:
        if is_dry or not is_partition:
            print_summary(rows, report.dry_run_fields(is_dry, is_needed, *more, apply=in_place))
    else:
        if not is_partition:
            print("\n".join(rows_text(rows, options.to)))
            if backup is not None and any(row.status == "converted" for row in rows):
                print(f"the old partitions are kept in {report.printable(str(backup))}, until you remove them")
                print(_rollback_text(src, backup))
        if is_dry:
            print(report.dry_run_text(is_needed, *more, apply=in_place))
    if any(row.status == "failed" for row in rows):
        return report.PARTIAL
    return int(is_dry and is_needed)


def _rollback_text(src: Path, backup: Path) -> str:
    """The command that undoes a conversion in place."""
    return f"To undo it: seglog convert {shlex.quote(str(src))} --rollback --backup {shlex.quote(str(backup))}"


def roll_back_each(
    partitions: Sequence[Path], backup: Path, *, dry_run: bool, as_json: bool, command: str = "seglog convert",
    before: str = "before it was converted", unchanged: str = "was not converted",
) -> int:
    """Restore each partition by itself. In a log dir, partitions that were not changed in place stay as they are."""
    started = [partition for partition in partitions if has_traces(partition, backup)]
    status = 0
    if dry_run:
        for partition in started:
            if as_json:
                report.print_json("rolled_back", partition=partition.name, outcome=None)
            else:
                print(f"{report.printable(str(partition))} would be restored to what it was {before}")
        return int(bool(started))
    for partition in started or partitions[:1]:       # if there are none, the first one raises the error
        try:
            outcome = roll_back(partition, backup)
        except SeglogError as error:
            if len(started) <= 1 or isinstance(error, LogLockedError):
                raise
            report.show_error(error, command, as_json=as_json)
            status = report.PARTIAL
            continue
        if as_json:
            report.print_json("rolled_back", partition=partition.name, outcome=outcome.value)
        elif outcome is RolledBack.RESTORED:
            print(f"{report.printable(str(partition))} is restored to what it was {before}")
        else:
            print(f"{report.printable(str(partition))} {unchanged}: removed what an interrupted run left")
    return status


def _convert_partition(
    src: Path, dst: Path | None, backup: Path | None, options: Options, watch: "Watch", proof_file: Path | None, *,
    resume: bool, copies: bool, as_json: bool,
) -> PartitionRow:
    began_s = time.monotonic()
    source = Path(os.path.abspath(src))
    if resume and (done := _done(source, dst, backup, options)):
        if as_json:
            print_row(done)
        else:
            print(f"{report.printable(str(dst or src))} was converted by an earlier run: nothing to do")
        return done
    reading = watch("reading", source.name)
    if backup is None:
        plan = plan_from_options(src, dst, options, replace=resume, progress=reading)
    else:
        plan = plan_in_place(src, backup, options, resumes=resume, keeps_large=True, progress=reading)
    if not copies and plan.changes_nothing:
        watch.close()
        row = PartitionRow.of_no_change(plan, time.monotonic() - began_s)
        if as_json:
            print_row(row)
        else:
            print(f"every batch of {report.printable(str(src))} already has the requested form: nothing to do")
        return row
    result = None
    if plan.target is not None:
        converting = watch("converting", source.name)
        result = run(plan, converting, keeps_large=True) if copies else plan.run(converting)
    watch.close()
    if result is not None and proof_file is not None:
        write_atomically(OsFileSystem(), proof_file, result.proof.to_json())
    if as_json:
        print_json(plan, result)
    elif result is None:
        print("\n".join(plan_text(plan)))
    else:
        print("\n".join(result_text(result, src, dst or src)))
        if backup is not None:
            kept = report.printable(str(backup / source.name))
            print(f"the old partition is kept as {kept}; --rollback restores it, until you remove it")
            print(_rollback_text(src, backup))
    seconds = time.monotonic() - began_s
    return PartitionRow.of_plan(plan, seconds) if result is None else PartitionRow.of_result(result, seconds)


def _done(source: Path, dst: Path | None, backup: Path | None, options: Options) -> PartitionRow | None:
    """The row of an earlier run that converted this source; None if there is none or the source has changed since."""
    if backup is not None:
        if not is_converted(source, backup):
            return None
        return PartitionRow.of_proof(backup / source.name, source, Proof.read(source / PROOF_FILE))
    assert dst is not None
    proof = finished(source, dst, options.profile(), options.log_config())
    return None if proof is None else PartitionRow.of_proof(source, dst, proof)


@contextmanager
def as_open_as(directory: Path) -> Iterator[None]:
    """Return new files the permissions of `directory`, whatever the umask: the result replaces this directory."""
    before = os.umask(0o777 & ~stat.S_IMODE(os.stat(directory).st_mode))
    try:
        yield
    finally:
        os.umask(before)


class Watch:
    """One progress bar over everything that is read and converted, throttled to a rate; `close` wipes it."""

    def __init__(self, throttle: Throttle, partitions: Iterable[Path], phases: int, *, enabled: bool) -> None:
        self._throttle = throttle
        self._bar = report.Progress("", enabled=enabled)
        self._sizes = {path.name: Place(path).log_bytes() for path in partitions} if self._bar.is_shown else {}
        self._bar.total_bytes = phases * sum(self._sizes.values())

    def __call__(self, phase: str, partition: str) -> Callable[[int, int], None]:
        return self._throttle.progress(self._bar.part(f"{phase} {partition}", self._sizes.get(partition, 0)))

    def close(self) -> None:
        self._bar.wipe()
