"""Checks a managed ledger, or a list of entries: every file against its checksum, the other files and itself.

Only reads. Its findings have the codes of verification.findings.
"""
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from seglog.errors import CorruptManifestError, CorruptRecordError, NotALogError, SeglogError, UnsupportedVersionError
from seglog.ledger.compacted.compacted_ledger import CompactedLedger, is_compacted
from seglog.ledger.entry import Entry
from seglog.ledger.ledger import LOG_NAME
from seglog.ledger.ledger_metadata import FILE_NAME as LEDGER_JSON
from seglog.ledger.ledger_metadata import LedgerEnd, LedgerMetadata
from seglog.ledger.ledger_recovery import check_ledger
from seglog.ledger.managed.compacted_home import is_compacted_home
from seglog.ledger.managed.cursor_file import CursorState, cursor_files
from seglog.ledger.managed.manifest import FILE_NAME, LEDGER_PREFIX, Manifest, ledger_directory
from seglog.segment.batches import UNREADABLE
from seglog.segment.segment import Segment
from seglog.verification.compacted_check import check_compacted, check_compacted_ledger
from seglog.verification.findings import Finding, Severity
from seglog.verification.relocated_check import check_relocated


@dataclass(slots=True)
class LedgerReport:
    """What was checked, and the findings."""

    path: str
    ledgers: int = 0
    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    cursors: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no errors and no warnings."""
        return all(found.severity == Severity.NOTE for found in self.findings)


@dataclass(slots=True)
class _Before:
    """The values of earlier entries, if they had any."""

    index: int | None = None
    timestamp: int = -1


def check_managed_ledger(path: Path) -> LedgerReport:
    """Check everything in the directory. Raises NotALogError if it is not a managed ledger, StorageError."""
    report = LedgerReport(os.fspath(path))
    present = sorted(
        (int(name.removeprefix(LEDGER_PREFIX)), name) for name in os.listdir(path) if _is_ledger(name)
    )
    manifest = None
    try:
        manifest = Manifest.read(path)
    except CorruptManifestError as error:
        report.findings.append(Finding("manifest_corrupt", os.fspath(path / FILE_NAME), found=error.what))
    except NotALogError:
        if not present:
            raise
        report.findings.append(Finding("manifest_corrupt", os.fspath(path / FILE_NAME), found="missing"))
    ends: dict[int, LedgerEnd | None] = {ledger_id: None for ledger_id, _ in present}
    if manifest is not None:
        ends = {info.ledger_id: info.end for info in manifest.ledgers}
        for ledger_id, name in present:
            if ledger_id not in ends:
                report.findings.append(Finding("ledger_stray", os.fspath(path / name)))
    before = _Before()
    for ledger_id, end in ends.items():
        directory = ledger_directory(path, ledger_id)
        if not directory.is_dir():
            found = f"ledger {ledger_id} is missing"
            report.findings.append(Finding("manifest_corrupt", os.fspath(path / FILE_NAME), found=found))
            continue
        report.ledgers += 1
        _check_ledger(report, directory, ledger_id, end, before)
    for file in cursor_files(path):
        report.cursors += 1
        try:
            CursorState.read(file)
        except (CorruptManifestError, UnsupportedVersionError) as error:
            report.findings.append(Finding("cursor_corrupt", os.fspath(file), found=error.what))
    report.findings += check_compacted(path)
    report.findings += check_relocated(path)
    return report


def check_entries(path: Path, entries: Iterable[tuple[int, int, bytes]]) -> LedgerReport:
    """Check entries of a plain file, each (byte, number, entry)."""
    report, before = LedgerReport(os.fspath(path)), _Before()
    for position, number, entry in entries:
        report.size_bytes += len(entry)
        report.findings += _check_entry(report, os.fspath(path), position, number, entry, before)
    return report


def _is_ledger(name: str) -> bool:
    return name.startswith(LEDGER_PREFIX) and name.removeprefix(LEDGER_PREFIX).isdigit()


def _check_ledger(
    report: LedgerReport, directory: Path, ledger_id: int, end: LedgerEnd | None, before: _Before
) -> None:
    found, log = report.findings, directory / LOG_NAME
    try:
        metadata = LedgerMetadata.read(directory)
    except (CorruptManifestError, NotALogError) as error:
        found.append(Finding("ledger_corrupt", os.fspath(directory / LEDGER_JSON), found=error.what))
        return
    if metadata.ledger_id != ledger_id:
        file, expected = os.fspath(directory / LEDGER_JSON), f"ledger {ledger_id}"
        found.append(Finding("ledger_corrupt", file, found=f"ledger {metadata.ledger_id}", expected=expected))
    if end is not None and metadata.end != end:
        found.append(Finding("ledger_differs", os.fspath(directory / LEDGER_JSON)))
    size_bytes = log.stat().st_size if log.exists() else 0
    report.size_bytes += size_bytes
    if metadata.end is None:
        found.append(Finding("ledger_open", os.fspath(directory)))
    elif metadata.end.length_bytes != size_bytes:
        found.append(Finding(
            "ledger_length", os.fspath(log), found=str(size_bytes), expected=str(metadata.end.length_bytes)
        ))
    if not size_bytes:
        return
    check = check_ledger(log)
    for damage in check.damages:
        is_tail = check.is_torn_tail and metadata.end is None
        found.append(Finding._of_damage("ledger_tail" if is_tail else "ledger_damaged", log, damage))
    for batch in Segment(log, is_last=True).batches(on_lost=lambda _: None):
        try:
            for record in batch:
                entry = record.value or b""
                found += _check_entry(report, os.fspath(log), batch.position, record.offset, entry, before)
        except UNREADABLE as error:
            what = error.what
            found.append(Finding("ledger_damaged", os.fspath(log), batch.position, batch.base_offset, found=what))


def _check_entry(
    report: LedgerReport, file: str, position: int, number: int, data: bytes, before: _Before
) -> Iterator[Finding]:
    report.entries += 1
    try:
        entry = Entry(data)
        damage = entry.damage()
        count = entry.fields().num_messages if not damage else 0
        timestamp, index = entry.broker_fields() if not damage else (None, None)
    except SeglogError as error:
        damage, count, timestamp, index = (str(error),), 0, None, None
    report.messages += max(count, 0)
    for what in damage:
        yield Finding("entry_corrupt", file, position, number, found=what)
    if index is not None:
        if before.index is not None and index != before.index + count:
            yield Finding("entry_index", file, position, number, found=str(index), expected=str(before.index + count))
        before.index = index
    if timestamp is not None:
        if timestamp < before.timestamp:
            expected = f"{before.timestamp} or later"
            yield Finding("entry_time", file, position, number, found=str(timestamp), expected=expected)
        before.timestamp = timestamp


def is_managed_ledger(path: Path) -> bool:
    """Whether a directory looks like a managed ledger: a manifest, or ledgers without one."""
    return path.is_dir() and not is_compacted_home(path) and (
        (path / FILE_NAME).exists() or any(_is_ledger(name) and (path / name).is_dir() for name in os.listdir(path))
    )


def is_ledger(path: Path) -> bool:
    """Whether a directory is a ledger."""
    return (path / LEDGER_JSON).exists()


def check_one_ledger(path: Path) -> LedgerReport:
    """Check one ledger's directory. Raises NotALogError, CorruptManifestError, StorageError."""
    report = LedgerReport(os.fspath(path), ledgers=1)
    metadata = LedgerMetadata.read(path)
    if is_compacted(metadata.properties):
        compacted = CompactedLedger(path)
        report.entries, report.size_bytes = len(compacted), compacted.size_bytes
        report.findings += check_compacted_ledger(compacted)
        if report.ok:
            report.messages = sum(stored.entry.fields().num_messages for stored in compacted)
        return report
    _check_ledger(report, path, metadata.ledger_id, None, _Before())
    return report


def read_stream(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the entries of a plain file of (size uint32 big-endian, entry), each as (byte, number, entry).

    Raises NotALogError if the first size goes beyond the file, CorruptRecordError if a later one does.
    """
    with open(path, "rb") as file:
        total = os.fstat(file.fileno()).st_size
        position = number = 0
        while position < total:
            head = file.read(4)
            size = int.from_bytes(head, "big")
            if len(head) < 4 or size > total - position - 4:
                what = f"an entry of {size} bytes, but {total - position - 4} are left"
                if not number:
                    raise NotALogError(f"not a file of entries preceded by their sizes: {what}", file=path)
                raise CorruptRecordError(what, file=path, position=position, offset=number)
            yield position + 4, number, file.read(size)
            position += 4 + size
            number += 1
