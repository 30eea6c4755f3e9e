"""`seglog convert`: a partition in another record format, in a new directory, with a proof."""
import os
import time
from collections.abc import Sequence
from pathlib import Path

import click

from seglog.errors import InvalidArgumentError, NotALogError
from seglog.format import names
from seglog.format.compression import Codec
from seglog.fs.aside import write_atomically
from seglog.fs.files import OsFileSystem
from seglog.upkeep.conversion_profile import Aborted
from seglog.upkeep.conversion_report import PartitionRow, report_json
from seglog.upkeep.directory_conversion import convert
from seglog.upkeep.proof import PROOF_FILE
from seglog.upkeep.throttle import Throttle

from . import report
from .cli import Command
from .conversion_report import plan_text, print_json, result_text
from .options import PATH, SizeType, TimeType, config_option, json_option, progress_option


@click.command(cls=Command)
@click.argument("src", metavar="SRC", type=PATH)
@click.argument("dst", metavar="[DST]", required=False, type=PATH)
@click.option("--to", metavar="VERSION", default="2", show_default=True, help="The format to convert to: 0, 1 or 2.")
@click.option("--repack", "repack_bytes", metavar="BYTES", type=SizeType(), default=0,
              help="Pack consecutive records into batches of about BYTES, such as 16k. All replicas must then be "
              "replaced together.")
@click.option("--codec", type=click.Choice([codec.label for codec in Codec]), help="Recompress every batch.")
@click.option("--allow-lossy", is_flag=True,
              help="Below v2: go on although headers, control batches, producer ids, and in v0 timestamps are lost. "
              "A dry run counts them.")
@click.option("--aborted", type=click.Choice(["drop", "keep"]),
              help="Below v2: what becomes of records of aborted and open transactions, which would look committed.")
@click.option("--delete-horizon", "delete_horizon_ms", metavar="TIME", type=TimeType(),
              help="To v2: when compaction may remove tombstones, stamped on batches as Kafka's cleaner does.")
@click.option("--throttle", "throttle_bytes", metavar="BYTES", type=SizeType(), default=0,
              help="Read and convert at most so many bytes of the source a second, such as 50m.")
@click.option("--report", "report_file", metavar="FILE", type=PATH,
              help="Write what became of each partition to FILE, as JSON.")
@click.option("--proof", "proof_file", metavar="FILE", type=PATH,
              help=f"Write the proof to FILE too. It always stands in DST/{PROOF_FILE}.")
@config_option
@progress_option
@json_option
def command(
    src: Path,
    dst: Path | None,
    to: str,
    repack_bytes: int,
    codec: str | None,
    allow_lossy: bool,
    aborted: Aborted | None,
    delete_horizon_ms: int | None,
    throttle_bytes: int,
    report_file: Path | None,
    proof_file: Path | None,
    settings: Sequence[tuple[str, str]],
    no_progress: bool,
    as_json: bool,
) -> int:
    """Rewrite the partition directory SRC in another record format, v2 by default, as the new partition directory DST.

    Without DST a dry run: the plan, the size to expect, and what an older format has no place for. Offsets, keys,
    values, timestamps and headers stay; each compressed batch and each bare message becomes one v2 batch, as Kafka 4
    treats old data, so that replicas stay alike. SRC is never changed. DST comes into being whole, after its files
    were read again and proven equal.
    """
    if dst is None and proof_file is not None:
        raise click.UsageError("--proof needs DST: a dry run proves nothing")
    for file in filter(None, (proof_file, report_file)):
        _check_output_file(file, src)
    version = to.lower().removeprefix("v")
    if version not in ("0", "1", "2"):
        raise click.BadParameter(f"{to!r} is no format version", param_hint="--to")
    if src.is_file():
        raise NotALogError("not a partition directory", file=src, hint="convert takes a whole one, such as orders-0")
    if src.is_dir() and not names.log_files(src):
        raise NotALogError(
            "no segment file (<20 digits>.log) in the directory", file=src,
            hint="convert takes one partition directory, such as orders-0; of a log dir, each by itself",
        )
    began_s = time.monotonic()
    throttle = Throttle(throttle_bytes)
    with report.Progress(f"reading {src.name}", enabled=not no_progress) as progress:
        plan = convert(
            src, dst, int(version), repack_bytes=repack_bytes, codec=codec, delete_horizon_ms=delete_horizon_ms,
            allow_lossy=allow_lossy, aborted=aborted, config=dict(settings), progress=throttle.progress(progress),
        )
    result = None
    if dst is not None:
        with report.Progress(f"converting {src.name}", enabled=not no_progress) as progress:
            result = plan.run(throttle.progress(progress))
        if proof_file is not None:
            write_atomically(OsFileSystem(), proof_file, result.proof.to_json())
    if report_file is not None:
        seconds = time.monotonic() - began_s
        row = PartitionRow.of_plan(plan, seconds) if result is None else PartitionRow.of_result(result, seconds)
        text = report_json(plan.source, plan.target, plan.to, [row])
        write_atomically(OsFileSystem(), report_file, text)
    if as_json:
        print_json(plan, result)
    elif result is None or dst is None:
        print("\n".join(plan_text(plan, src)))
    else:
        print("\n".join(result_text(result, src, dst)))
    return 0


def _check_output_file(file: Path, src: Path) -> None:
    """Before the work: a target that stands while its command failed would be taken for a failed conversion."""
    directory = Path(os.path.realpath(file.parent))
    if not directory.is_dir():
        raise InvalidArgumentError("the directory for this file is not there", file=directory, hint="make it first")
    if file.is_dir():
        raise InvalidArgumentError("a directory stands where the file should", file=file, hint="name a file")
    source = Path(os.path.realpath(src))
    if source in (directory, *directory.parents):
        raise InvalidArgumentError(
            "the file would lie in the source, which is never changed", file=file, hint="choose another place"
        )
