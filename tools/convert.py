"""`seglog convert`: a partition of old formats as v2, in a new directory, with a proof."""
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from seglog.errors import InvalidArgumentError, NotALogError
from seglog.format import names
from seglog.format.compression import Codec
from seglog.fs.aside import write_atomically
from seglog.fs.files import OsFileSystem
from seglog.upkeep.conversion_plan import FormatCount, Plan, Result
from seglog.upkeep.directory_conversion import convert
from seglog.upkeep.proof import PROOF_FILE

from . import report
from .cli import Command
from .options import PATH, SizeType, config_option, json_option, progress_option


@click.command(cls=Command)
@click.argument("src", metavar="SRC", type=PATH)
@click.argument("dst", metavar="[DST]", required=False, type=PATH)
@click.option("--to", metavar="VERSION", default="2", show_default=True, help="The format to convert to: 2.")
@click.option("--repack", "repack_bytes", metavar="BYTES", type=SizeType(), default=0,
              help="Pack consecutive records into batches of about BYTES, such as 16k. All replicas must then be "
              "replaced together.")
@click.option("--codec", type=click.Choice([codec.label for codec in Codec]), help="Recompress every batch.")
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
    proof_file: Path | None,
    settings: Sequence[tuple[str, str]],
    no_progress: bool,
    as_json: bool,
) -> int:
    """Rewrite the partition directory SRC in record format v2 as the new partition directory DST.

    Without DST a dry run: the plan and the size to expect. Offsets, keys, values, timestamps and headers stay; each
    compressed batch and each bare message becomes one v2 batch, as Kafka 4 treats old data, so that replicas stay
    alike. SRC is never changed. DST comes into being whole, after its files were read again and proven equal.
    """
    if dst is None and proof_file is not None:
        raise click.UsageError("--proof needs DST: a dry run proves nothing")
    if proof_file is not None:
        _check_proof_file(proof_file, src)
    version = to.lower().removeprefix("v")
    if not version.isdigit():
        raise click.BadParameter(f"{to!r} is no format version", param_hint="--to")
    if src.is_file():
        raise NotALogError("not a partition directory", file=src, hint="convert takes a whole one, such as orders-0")
    if src.is_dir() and not names.log_files(src):
        raise NotALogError(
            "no segment file (<20 digits>.log) in the directory", file=src,
            hint="convert takes one partition directory, such as orders-0; of a log dir, each by itself",
        )
    with report.Progress(f"reading {src.name}", enabled=not no_progress) as progress:
        plan = convert(
            src, dst, int(version), repack_bytes=repack_bytes, codec=codec, config=dict(settings), progress=progress
        )
    result = None
    if dst is not None:
        with report.Progress(f"converting {src.name}", enabled=not no_progress) as progress:
            result = plan.run(progress)
        if proof_file is not None:
            write_atomically(OsFileSystem(), proof_file, result.proof.to_json().encode())
    if as_json:
        _print_json(plan, result)
    elif result is None or dst is None:
        print("\n".join(_plan_text(plan, src)))
    else:
        print("\n".join(_result_text(result, src, dst)))
    return 0


def _check_proof_file(proof_file: Path, src: Path) -> None:
    """Before the work: a target that stands while its command failed would be taken for a failed conversion."""
    directory = Path(os.path.realpath(proof_file.parent))
    if not directory.is_dir():
        raise InvalidArgumentError("the directory for the proof is not there", file=directory, hint="make it first")
    if proof_file.is_dir():
        raise InvalidArgumentError("a directory stands where the proof should", file=proof_file, hint="name a file")
    source = Path(os.path.realpath(src))
    if source in (directory, *directory.parents):
        raise InvalidArgumentError(
            "the proof would lie in the source, which is never changed", file=proof_file, hint="choose another place"
        )


# --- JSON --------------------------------------------------------------------------------


def _print_json(plan: Plan, result: Result | None) -> None:
    for segment in plan.segments:
        report.print_json(
            "plan_segment", segment=segment.file, base_offset=segment.base_offset, next_offset=segment.next_offset,
            bytes=segment.size_bytes, formats=[_format_fields(f) for f in segment.formats],
            forecast_bytes=segment.forecast_bytes, forecast_is_exact=segment.forecast_is_exact, parts=segment.parts,
        )
    tail = None
    if plan.tail is not None:
        tail = {"file": plan.tail.file, "position": plan.tail.position, "bytes": plan.tail.size_bytes}
    report.print_json(
        "plan", source=plan.source, target=plan.target, to=plan.to, repack_bytes=plan.profile.repack_bytes,
        codec=None if plan.profile.codec is None else plan.profile.codec.label, bytes=plan.size_bytes,
        forecast_bytes=plan.forecast_bytes, log_end_offset=plan.log_end_offset, tail=tail,
        left_behind=plan.left_behind, warnings=plan.warnings,
    )
    if result is None:
        return
    for target in result.segments:
        report.print_json(
            "converted_segment", segment=target.file, source=target.source, base_offset=target.base_offset,
            bytes=target.size_bytes,
        )
    for proof in result.proof.segments:
        report.print_json(
            "proof", source_files=proof.source.files, target_files=proof.target.files,
            source_records=proof.source.records, target_records=proof.target.records,
            source_sha256=proof.source.sha256, target_sha256=proof.target.sha256, holds=proof.holds,
        )
    report.print_json(
        "summary", target=result.target, segments=len(result.segments), bytes=result.size_bytes,
        records=result.proof.records, proven=result.proof.holds, proof_file=result.target / PROOF_FILE,
        warnings=result.warnings, notes=result.notes,
    )


def _format_fields(f: FormatCount) -> dict[str, Any]:
    return {"magic": f.magic, "codec": f.codec, "batches": f.batches, "bytes": f.size_bytes, "records": f.records}


# --- text --------------------------------------------------------------------------------


def _plan_text(plan: Plan, src: Path) -> Iterable[str]:
    yield report.paint(f"{plan.source.name} to v{plan.to}", "bold") + f"  {_profile_text(plan)}"
    rows = []
    for s in plan.segments:
        mark = "" if s.forecast_is_exact else "about "
        size = "-" if s.forecast_bytes is None else mark + report.size(s.forecast_bytes)
        offsets = _offsets(s.base_offset, s.next_offset)
        rows.append([s.file, offsets, _formats(s.formats), report.size(s.size_bytes), size])
    forecast = "-" if plan.forecast_bytes is None else report.size(plan.forecast_bytes)
    rows.append(["total", _offsets(plan.segments[0].base_offset, plan.log_end_offset), "",
                 report.size(plan.size_bytes), forecast])
    yield report.table(("segment", "offsets", "formats", "bytes", "as v2"), rows, left=(0, 1, 2), total=True)
    yield from _remarks(plan, plan.warnings, ())
    yield f"a dry run, nothing was written: seglog convert {report.printable(str(src))} DST carries it out"


def _result_text(result: Result, src: Path, dst: Path) -> Iterable[str]:
    plan = result.plan
    yield report.paint(f"{src} → {dst}", "bold") + f"  {_profile_text(plan)}"
    sizes = {target.file: target.size_bytes for target in result.segments}
    source_sizes = {segment.file: segment.size_bytes for segment in plan.segments}
    rows = [
        [
            ", ".join(proof.source.files), report.size(sum(source_sizes[name] for name in proof.source.files)),
            report.size(sum(sizes[name] for name in proof.target.files)), str(len(proof.target.files)),
            f"{proof.target.records:,}", proof.target.sha256[:16], "same" if proof.holds else "DIFFERENT",
        ]
        for proof in result.proof.segments
    ]
    yield report.table(
        ("source segment", "bytes", "as v2", "segments", "records", "digest", "proof"), rows, left=(0, 5, 6)
    )
    yield from _remarks(plan, result.warnings, result.notes)
    yield (
        f"{report.count_of(result.proof.records, 'record')}: offset, timestamp, key, value and headers are the same in "
        f"both, read again from the files ({os.path.join(result.target.name, PROOF_FILE)})"
    )


def _remarks(plan: Plan, warnings: Iterable[str], notes: Iterable[str]) -> Iterable[str]:
    for warning in warnings:
        yield f"{report.paint('warning:', 'yellow')} {warning}"
    if plan.tail is not None:
        yield (
            f"not carried over: {report.size(plan.tail.size_bytes)} behind the last batch of {plan.tail.file}, "
            f"from byte {plan.tail.position:,} on: a write that did not finish"
        )
    if plan.left_behind:
        yield f"not carried over: {', '.join(map(report.printable, plan.left_behind))}"
    for note in notes:
        yield f"note: {note}"


def _profile_text(plan: Plan) -> str:
    words = [
        f"batches of about {report.size(plan.profile.repack_bytes)}" if plan.profile.repack_bytes
        else "batch for batch, as Kafka 4 does it"
    ]
    if plan.profile.codec is not None:
        words.append(f"codec {plan.profile.codec.label}")
    return f"({', '.join(words)})"


def _offsets(start: int, end: int) -> str:
    return f"{start:,}…{end - 1:,}" if end > start else "none"


def _formats(formats: Iterable[FormatCount]) -> str:
    sizes: dict[int, int] = {}
    for f in formats:
        sizes[f.magic] = sizes.get(f.magic, 0) + f.size_bytes
    return ", ".join(f"v{magic} {report.size(size_bytes)}" for magic, size_bytes in sizes.items()) or "empty"
