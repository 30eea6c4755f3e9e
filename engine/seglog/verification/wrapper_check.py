"""Checks, at level deep, the wrappers of v0 and v1 in a segment: opens them, since their headers say little.

Makes one finding for each kind and segment: usually the same client wrote all such wrappers.
"""
from seglog._kernels import batch_survey as survey
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.verification.findings import Finding


class WrapperCheck:
    """The check of the segment whose .log is `file`."""

    def __init__(self, file: str, findings: list[Finding]) -> None:
        self._file = file
        self._findings = findings
        self._found: dict[str, tuple[Finding, int]] = {}        # for each code the first finding and their number

    def see(self, table: BatchTable) -> bool:
        """Check the table's wrappers; return whether a message in one has a wrong checksum. Raises for damage."""
        is_bad = False
        if any(magic in (0, 1) and codec for magic, codec in survey.tally(table)):
            for batch in table:
                if batch.magic in (0, 1) and batch.codec:
                    is_bad |= self._see_batch(batch)
        return is_bad

    def _see_batch(self, wrapper: RecordBatch) -> bool:
        bad, largest, is_mixed = wrapper.survey_wrapper()
        if is_mixed:
            self._note("wrapper_format", wrapper, f"messages of v{1 - wrapper.magic}", f"v{wrapper.magic}")
        if wrapper.magic == 1 and not wrapper.bounds_time and largest > wrapper.max_timestamp:
            self._note("wrapper_time", wrapper, f"timestamp {wrapper.max_timestamp}", f"at least {largest}")
        return bad >= 0

    def _note(self, code: str, wrapper: RecordBatch, found: str, expected: str) -> None:
        first, count = self._found.get(code, (None, 0))
        if first is None:
            first = Finding(code, self._file, wrapper.position, wrapper.last_offset, found=found, expected=expected)
        self._found[code] = first, count + 1

    def finish(self) -> None:
        """Report the findings."""
        for first, count in self._found.values():
            more = f", and {count - 1} more wrappers" if count > 1 else ""
            self._findings.append(Finding(
                first.code, first.file, first.position, first.offset, found=first.found + more,
                expected=first.expected))
