"""The result of a conversion for each partition, one row each: for people, scripts, and follow-up steps.

docs/formats/conversion_report.md.
"""
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from seglog.conversion.losses import Losses
from seglog.conversion.plan import Plan, Result
from seglog.conversion.proof import Proof
from seglog.errors import SeglogError
from seglog.format.checked_json import format_json
from seglog.reading.listing import settled_log_files

VERSION = 1
_FORMAT = "seglog-conversion-report"

# Why a partition is skipped by a later run.
DONE_BEFORE = "converted by an earlier run"


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition. Sizes are those of .log files; for a plan, `bytes_out` is its forecast.

    "planned": a dry run; "skipped": an earlier run has done it, or a conversion in place would change nothing. If each
    segment of the source is a separate step, `skipped` counts those that an earlier run had finished, `retried` those
    that took more than one attempt. `digest`: Proof.sha256, of source and target. `losses`: what the format cannot
    store, if it was counted. `error`: the code of what stopped it, `what` describes it, and `fix` says what to do; if
    it was skipped, `what` is the reason.
    """

    partition: str
    status: Literal["converted", "planned", "skipped", "failed"]
    segments: int = 0
    records: int | None = None
    bytes_in: int = 0
    bytes_out: int | None = None
    seconds: float = 0.0
    digest: str | None = None
    skipped: int = 0
    retried: int = 0
    losses: Losses | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None
    what: str | None = None
    fix: str | None = None

    @property
    def ratio(self) -> float | None:
        """The size of the result divided by that of the source; None if either is unknown or 0."""
        return self.bytes_out / self.bytes_in if self.bytes_out is not None and self.bytes_in else None

    @classmethod
    def of_plan(cls, plan: Plan, seconds: float) -> "PartitionRow":
        return cls(
            plan.source.name, "planned", segments=len(plan.segments), bytes_in=plan.size_bytes,
            bytes_out=plan.forecast_bytes, seconds=seconds, losses=plan.losses, warnings=plan.warnings,
        )

    @classmethod
    def of_result(cls, result: Result, seconds: float) -> "PartitionRow":
        return cls(
            result.plan.source.name, "converted", segments=len(result.segments), records=result.proof.records,
            bytes_in=result.plan.size_bytes, bytes_out=result.size_bytes, seconds=seconds, digest=result.proof.sha256,
            skipped=result.resumed, losses=result.plan.losses, warnings=result.warnings,
        )

    @classmethod
    def of_proof(cls, source: Path, target: Path, proof: Proof) -> "PartitionRow":
        """Make the row of a partition that an earlier run has converted."""
        files = [target / file for segment in proof.segments for file in segment.target.files]
        return cls(
            source.name, "skipped", segments=len(files), records=proof.records,
            bytes_in=_size_of(settled_log_files(source)), bytes_out=_size_of(files), digest=proof.sha256,
            what=DONE_BEFORE,
        )

    @classmethod
    def of_no_change(cls, plan: Plan, seconds: float) -> "PartitionRow":
        """Make the row of a partition that would not change."""
        return cls(
            plan.source.name, "skipped", segments=len(plan.segments), bytes_in=plan.size_bytes,
            bytes_out=plan.size_bytes, seconds=seconds, what=None if plan.profile.erased else f"already {plan.form}",
        )

    @classmethod
    def of_error(cls, partition: str, error: SeglogError, seconds: float) -> "PartitionRow":
        return cls(partition, "failed", seconds=seconds, error=error.code, what=str(error), fix=error.hint)


def _size_of(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def report_json(source: Path, target: Path | None, to: int, rows: Iterable[PartitionRow]) -> bytes:
    """Return the bytes of a run's report: format.checked_json."""
    return format_json(
        _FORMAT, VERSION, indent=1, source=str(source), target=None if target is None else str(target), to=to,
        partitions=[{**asdict(row), "ratio": row.ratio} for row in rows],
    )
