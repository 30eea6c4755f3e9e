"""Reads a log twice: with the kernels, and in plain Python (format.plain_records). If they differ, one is wrong.

Takes the walk's batches, and reads their bytes from the file itself, by reads instead of a map.
"""
import hashlib
from collections.abc import Sequence

from seglog._kernels.canonical import update_digest
from seglog._kernels.columns import ArenaPool, chunks
from seglog._kernels.segment_scan import BatchTable, scan
from seglog.format.plain_codecs import Malformed
from seglog.format.plain_records import PlainBatch, PlainDigest, split
from seglog.format.plain_tagged import split_tagged
from seglog.fs.refusals import refusals
from seglog.segment.batches import UNREADABLE
from seglog.segment.segment import Segment
from seglog.verification.findings import Finding


class WitnessCheck:
    """The check of one segment."""

    def __init__(self, segment: Segment, findings: list[Finding]) -> None:
        self._segment = segment
        self._findings = findings
        self._pool = ArenaPool()

    def see(self, table: BatchTable) -> None:
        """Compare the table's batches, and report the first one that differs."""
        start, stop = table[0].position, table.end
        raw = self._read(start, stop - start)
        plain = split_tagged(raw, start) if self._segment.dialect.is_tagged else split(raw, start)
        batches = [(batch.position, batch.size_bytes) for batch in table]
        theirs = [(batch.position, len(batch.raw)) for batch in plain]
        if theirs != batches:
            both = next((n for n, (a, b) in enumerate(zip(batches, theirs, strict=False)) if a != b),
                        min(len(batches), len(theirs)))
            position = [*batches, (stop, 0)][both][0]
            self._tell(position, f"{len(batches)} batches by the kernels", f"{len(theirs)} by plain Python")
            return
        if self._ours(table) == _theirs(plain):
            return
        for batch in plain:
            one = scan(self._segment.window, batch.position, max_batches=1, decompress=self._segment.decompress)
            ours, other = self._ours(one), _theirs([batch])
            if ours != other:
                self._tell(batch.position, f"{_words(ours)} by the kernels", f"{_words(other)} by plain Python")
                return

    def _read(self, position: int, size_bytes: int) -> bytes:
        with refusals("read", self._segment.path), open(self._segment.path, "rb", buffering=0) as file:
            file.seek(position)
            return file.read(size_bytes)

    def _ours(self, table: BatchTable) -> tuple[int, str] | None:
        """Return (records, digest) as the kernels read them; None if they refuse the batch."""
        sha256, records = hashlib.sha256(), 0
        try:
            for columns in chunks(table, self._pool, check_crc=True, include_control=True):
                update_digest(columns, sha256)
                records += len(columns)
        except UNREADABLE:
            return None
        return records, sha256.hexdigest()

    def _tell(self, position: int, found: str, expected: str) -> None:
        self._findings.append(
            Finding("witness_differs", str(self._segment.path), position, found=found, expected=expected))


def _theirs(batches: Sequence[PlainBatch]) -> tuple[int, str] | None:
    digest = PlainDigest()
    try:
        for batch in batches:
            digest.add(batch.records())
    except Malformed:
        return None
    return digest.records, digest.sha256


def _words(read: tuple[int, str] | None) -> str:
    return "refused" if read is None else f"{read[0]} records with digest {read[1][:16]}"
