"""What `seglog convert` reports on one partition (plan, result, losses) and on many, as text and as JSON lines."""
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seglog.conversion.losses import Losses, LossKind, loss_kinds
from seglog.conversion.plan import FormatCount, Plan, Result
from seglog.conversion.proof import PROOF_FILE
from seglog.conversion.report import PartitionRow
from seglog.format.conversion_profile import TO_TAGGED, Aborted, version_words

from . import report

# --- JSON --------------------------------------------------------------------------------


def print_json(plan: Plan, result: Result | None) -> None:
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
        aborted=plan.profile.aborted, forecast_bytes=plan.forecast_bytes, log_end_offset=plan.log_end_offset,
        target_end_offset=plan.target_end_offset, tail=tail, left_behind=plan.left_behind, warnings=plan.warnings,
        losses=asdict(plan.losses), lossy=plan.losses.kinds,
        is_undecided=plan.losses.undecided_records > 0 and plan.profile.aborted is None,
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
        records=sum(proof.target.records for proof in result.proof.segments), left_out=result.proof.left_out,
        log_end_offset=plan.target_end_offset, proven=result.proof.holds,
        proven_again=result.proven_again, proof_file=result.target / PROOF_FILE,
        warnings=result.warnings, notes=result.notes,
    )


def _format_fields(f: FormatCount) -> dict[str, Any]:
    return {"magic": f.magic, "codec": f.codec, "batches": f.batches, "bytes": f.size_bytes, "records": f.records}


def print_row(row: PartitionRow) -> None:
    report.print_json("partition", **{**asdict(row), "ratio": row.ratio})


def print_summary(rows: Sequence[PartitionRow], told: Mapping[str, object]) -> None:
    """Print the last line of a dry run, or of a run over many partitions. `told`: report.dry_run_fields."""
    known = [row.bytes_out for row in rows if row.bytes_out is not None]
    report.print_json(
        "summary", **told, partitions=len(rows), **{status: len(rows_of(rows, status)) for status in STATUSES},
        records=sum(row.records or 0 for row in rows), bytes_in=sum(row.bytes_in for row in rows), bytes_out=sum(known),
    )


# --- text --------------------------------------------------------------------------------


_NAMED_MAX = 8
STATUSES = ("converted", "planned", "skipped", "failed")


def rows_of(rows: Sequence[PartitionRow], status: str) -> list[PartitionRow]:
    return [row for row in rows if row.status == status]


def rows_text(rows: Sequence[PartitionRow], to: int, *, with_steps: bool = False) -> Iterable[str]:
    """Return a line for each partition and one for all, then the failures, the losses and the remarks.

    `with_steps`: also count the segments that an earlier run or another attempt has converted.
    """
    lines = [
        [
            row.partition, row.status, str(row.segments), "-" if row.records is None else f"{row.records:,}",
            report.size(row.bytes_in), "-" if row.bytes_out is None else report.size(row.bytes_out),
            "-" if row.ratio is None else f"{row.ratio:.2f}", f"{row.seconds:.1f}", (row.digest or "-")[:16],
        ]
        for row in rows
    ]
    known = [row for row in rows if row.bytes_out is not None]
    bytes_in, bytes_out = sum(row.bytes_in for row in known), sum(row.bytes_out or 0 for row in known)
    records = sum(row.records or 0 for row in rows)
    lines.append([
        "total", ", ".join(f"{len(found)} {status}" for status in STATUSES if (found := rows_of(rows, status))),
        str(sum(row.segments for row in rows)), f"{records:,}" if records else "-",
        report.size(sum(row.bytes_in for row in rows)), report.size(bytes_out),
        f"{bytes_out / bytes_in:.2f}" if bytes_in else "-", f"{sum(row.seconds for row in rows):.1f}", "",
    ])
    version = version_words(to)
    head = ["partition", "status", "segments", "records", "bytes", f"as {version}", "ratio", "seconds", "digest"]
    if with_steps:
        head[7:7] = ["skipped", "retried"]
        for line, row in zip(lines, rows, strict=False):
            line[7:7] = [str(row.skipped), str(row.retried)]
        lines[-1][7:7] = [str(sum(row.skipped for row in rows)), str(sum(row.retried for row in rows))]
    yield report.table(head, lines, left=(0, 1, len(head) - 1), total=True)
    for row in rows:
        if row.skipped and not with_steps:
            taken = report.count_of(row.skipped, "segment")
            yield f"{report.printable(row.partition)}: {taken} converted by an earlier run, read and compared again"
        lost = [f"{count:,} {what}" for _, count, what in row.losses.counted] if row.losses else []
        if row.losses and row.losses.undecided_records:
            lost.append(row.losses.undecided_words)
        if lost:
            yield f"{version_words(to)} cannot store: {report.printable(row.partition)}: {'; '.join(lost)}"
    yield from rows_remarks(rows)


def rows_remarks(rows: Sequence[PartitionRow]) -> Iterable[str]:
    """Return why partitions were skipped, the remarks on each, the failures, and what to do about them."""
    for reason in dict.fromkeys(row.what for row in rows_of(rows, "skipped") if row.what is not None):
        same = [report.printable(row.partition) for row in rows_of(rows, "skipped") if row.what == reason]
        more = f" and {len(same) - _NAMED_MAX:,} more" if len(same) > _NAMED_MAX else ""
        yield f"skipped: {reason}: {', '.join(same[:_NAMED_MAX])}{more}"
    for row in rows:
        for warning in row.warnings:
            yield f"{report.paint('warning:', 'yellow')} {report.printable(f'{row.partition}: {warning}')}"
    for row in rows_of(rows, "failed"):
        words = report.printable(f"{row.partition}: {row.what}")
        yield f"{report.paint('failed:', 'bold', 'red')} {words} [{row.error}]"
    for fix in dict.fromkeys(row.fix for row in rows_of(rows, "failed")):
        yield f"  try: {report.printable(fix or '')}"


def plan_text(plan: Plan) -> Iterable[str]:
    yield report.paint(f"{plan.source.name} to {version_words(plan.to)}", "bold") + f"  {_profile_text(plan)}"
    rows = []
    for s in plan.segments:
        mark = "" if s.forecast_is_exact else "about "
        size = "-" if s.forecast_bytes is None else mark + report.size(s.forecast_bytes)
        offsets = _offsets(s.base_offset, s.next_offset)
        rows.append([s.file, offsets, _formats(s.formats), report.size(s.size_bytes), size])
    forecast = "-" if plan.forecast_bytes is None else report.size(plan.forecast_bytes)
    rows.append(["total", _offsets(plan.segments[0].base_offset, plan.log_end_offset), "",
                 report.size(plan.size_bytes), forecast])
    head = ("segment", "offsets", "formats", "bytes", f"as {version_words(plan.to)}")
    yield report.table(head, rows, left=(0, 1, 2), total=True)
    yield from _losses_text(plan)
    yield from _remarks(plan, plan.warnings, ())


def result_text(result: Result, src: Path, dst: Path) -> Iterable[str]:
    plan = result.plan
    heading = f"{src} in place" if src == dst else f"{src} → {dst}"
    yield report.paint(heading, "bold") + f"  {_profile_text(plan)}"
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
    head = ("source segment", "bytes", f"as {version_words(plan.to)}", "segments", "records", "digest", "proof")
    yield report.table(head, rows, left=(0, 5, 6))
    for words in result.proof.left_out:
        yield f"left out: {words}"
    yield from _remarks(plan, result.warnings, result.notes)
    fields = {0: "offset, key and value", 1: "offset, timestamp, key and value"}
    has_tags = any(f.magic == TO_TAGGED for segment in plan.segments for f in segment.formats)
    to = 1 if plan.to == TO_TAGGED or (has_tags and plan.to == 2) else plan.to
    yield (
        f"{report.count_of(result.proof.records, 'record')}: "
        f"{fields.get(to, 'offset, timestamp, key, value and headers')} are the same in "
        f"both, compared by reading the files again ({os.path.join(result.target.name, PROOF_FILE)})"
    )
    if result.resumed:
        yield f"{report.count_of(result.resumed, 'segment')} converted by an earlier run, read and compared again"
    if result.proven_again:
        yield f"{report.count_of(result.proven_again, 'segment')} proven a second time, by plain Python"


def _losses_text(plan: Plan) -> Iterable[str]:
    """Return each kind of loss with its count, and the decision that only the user can make."""
    losses = plan.losses
    if losses.kinds:
        yield f"{version_words(plan.to)} cannot store:"
        width = max(len(f"{count:,}") for _, count, _ in losses.counted)
        for _, count, what in losses.counted:
            yield f"  {count:>{width},}  {what}"
    if losses.undecided_records:
        would = f"{losses.undecided_words}, which would look committed in {version_words(plan.to)}"
        yield f"{would}: {_ABORTED[plan.profile.aborted]}"


_ABORTED = {
    None: "--aborted drop leaves them out, --aborted keep keeps them",
    "drop": "they are left out",
    "keep": "they are kept",
}


def needed_options(
    losses: Iterable[Losses], allow_lossy: Sequence[LossKind], aborted: Aborted | None
) -> list[str]:
    """Return the options that a conversion with these losses needs in addition."""
    found = list(losses)
    needed = []
    lost = loss_kinds(kind for one in found for kind in one.kinds)
    if set(lost) - set(allow_lossy):
        needed += ["--allow-lossy", ",".join(loss_kinds([*allow_lossy, *lost]))]
    if aborted is None and any(one.undecided_records for one in found):
        needed += ["--aborted", "drop|keep"]
    return needed


def _remarks(plan: Plan, warnings: Iterable[str], notes: Iterable[str]) -> Iterable[str]:
    for warning in warnings:
        yield f"{report.paint('warning:', 'yellow')} {report.printable(warning)}"
    if plan.tail is not None:
        yield (
            f"not carried over: {report.size(plan.tail.size_bytes)} after the last batch of {plan.tail.file}, "
            f"from byte {plan.tail.position:,} on: an unfinished write"
        )
    if plan.left_behind:
        yield f"not carried over: {', '.join(map(report.printable, plan.left_behind))}"
    for note in notes:
        yield f"note: {report.printable(note)}"


_AS_KAFKA = {False: "batch by batch, as Kafka 4 does", True: "batch by batch, as Kafka did for old consumers"}


def _profile_text(plan: Plan) -> str:
    words = [
        f"batches of about {report.size(plan.profile.repack_bytes)}" if plan.profile.repack_bytes
        else "a message with tags for each record or wrapper" if plan.to == TO_TAGGED else _AS_KAFKA[plan.to < 2]
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
    words = (f"{version_words(magic)} {report.size(size_bytes)}" for magic, size_bytes in sizes.items())
    return ", ".join(words) or "empty"
