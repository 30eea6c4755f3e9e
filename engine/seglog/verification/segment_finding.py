"""One finding for each segment, of something that usually holds for all batches that the same program wrote."""
from dataclasses import replace

from seglog.verification.findings import Finding


class SegmentFinding:
    """The first one of a segment, and how many more there are. `what`: these, in words."""

    def __init__(self, file: str, findings: list[Finding], what: str) -> None:
        self.file = file
        self._findings = findings
        self._what = what
        self._first: Finding | None = None
        self._count = 0

    def add(self, count: int, finding: Finding) -> None:
        """Count so many, the first of which is this one."""
        self._count += count
        if self._first is None:
            self._first = finding

    def finish(self) -> None:
        """Report the finding."""
        if self._first is not None:
            more = f", and {self._count - 1} more {self._what}" if self._count > 1 else ""
            self._findings.append(replace(self._first, found=self._first.found + more))
