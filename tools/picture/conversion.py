"""Before and after a conversion, from the proof in the partition."""
import os
from collections.abc import Sequence
from pathlib import Path

from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.errors import SeglogError
from seglog.reading.partition import Partition

from .. import report
from ..ls import Totals, extent_of
from .formats import legend_of, shares_of
from .page import ROWS_MAX, Cell, Section, Table
from .svg import Drawing, bytes_scale

_ROW_PIXELS = 34


def conversion_sections(partition: Partition) -> list[Section]:
    """Return one section if a conversion made this partition, otherwise none."""
    file = Path(partition.path) / PROOF_FILE
    if not file.is_file():
        return []
    try:
        proof = Proof.read(file)
    except SeglogError as error:
        return [Section("Before and after the conversion", [f"The proof cannot be read: {error}."])]
    words = [
        f"{report.count_of(proof.records, 'record')} of {report.count_of(len(proof.segments), 'segment')}, "
        + ("the same on both sides by SHA-256, read from the files." if proof.holds else "which differ: see below."),
        *([f"The target cannot store: {', '.join(proof.left_out)}."] if proof.left_out else []),
    ]
    after = _totals_of(partition)
    before = _source_totals(proof, partition)
    if before is None:
        words.append(f"The source, {proof.source}, no longer exists: only its records are compared.")
        sides = [("after", after)]
    else:
        sides = [("before", before), ("after", after)]
        words.append(f"{report.size(before.bytes)} became {report.size(after.bytes)}.")
    return [Section("Before and after the conversion", words, _bars(sides), legend_of(t for _, t in sides),
                    [_table(proof)])]


def _totals_of(partition: Partition) -> Totals:
    whole = Totals()
    for segment in partition.segments:
        whole.add(extent_of(segment)[0])
    return whole


def _source_totals(proof: Proof, target: Partition) -> Totals | None:
    """None if the source was removed, or was replaced by the result."""
    if os.path.realpath(proof.source) == os.path.realpath(target.path):
        return None
    try:
        with Partition(proof.source) as source:
            return _totals_of(source)
    except (SeglogError, OSError):
        return None


def _bars(sides: Sequence[tuple[str, Totals]]) -> Drawing:
    most = max(totals.bytes for _, totals in sides)
    drawing = Drawing(
        "Bytes before and after, by format",
        "; ".join(f"{name} the conversion {report.size(totals.bytes)}" for name, totals in sides) + ".",
        height=_ROW_PIXELS * len(sides) + 54,
    )
    x = bytes_scale(most, drawing.left, drawing.right, report.size)
    drawing.axes(x, None)
    for n, (name, totals) in enumerate(sides):
        top = drawing.top + _ROW_PIXELS * n
        drawing.text(drawing.left - 8, top + 19, name, "end")
        left = x(0)
        for kind, share in shares_of(totals):
            width = (x(totals.bytes) - x(0)) * share
            drawing.told_rectangle(
                kind, left, top + 4, width, _ROW_PIXELS - 10, f"{name}, {kind}: {report.size(totals.bytes * share)}"
            )
            left += width
    return drawing


def _table(proof: Proof) -> Table:
    rows: list[Sequence[Cell | str]] = [
        [
            ", ".join(segment.source.files), f"{segment.source.records:,}", ", ".join(segment.target.files) or "–",
            f"{segment.target.records:,}", segment.source.sha256[:16],
            "same" if segment.holds else Cell("differs", kind="error"),
        ]
        for segment in proof.segments[:ROWS_MAX]
    ]
    left = len(proof.segments) - len(rows)
    return Table(
        "Segments of the proof", ("before", "records", "after", "records", "SHA-256 begins with", "records are"), rows,
        (0, 2, 4, 5), f"{left:,} more are in {PROOF_FILE}." if left else "",
    )
