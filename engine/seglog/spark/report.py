"""The report of a conversion on Spark: the rows of conversion.report, their sum, and the same as a DataFrame."""
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seglog.conversion.report import PartitionRow, report_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TopicsReport:
    """The result of a conversion of `source` into `target`, in the format `to`. `rows`: one for each partition, by
    topic and number. `tasks`: the number of tasks in the plan.

    `is_dry_run`: nothing was written, and the rows say what would be. `is_final`: the conversion is ended as by
    `finalize_topics`, and cannot be undone. `removed`: the partitions whose source was removed in this run.
    """

    source: str
    target: str
    to: int
    rows: tuple[PartitionRow, ...]
    is_dry_run: bool = False
    tasks: int = 0
    is_final: bool = False
    removed: tuple[str, ...] = ()

    @property
    def failed(self) -> list[PartitionRow]:
        """The rows of partitions that could not be converted; the target contains nothing of them."""
        return [row for row in self.rows if row.status == "failed"]

    @property
    def is_whole(self) -> bool:
        """Whether no partition failed: all of them are in the target, unless it was a dry run."""
        return not self.failed

    @property
    def total(self) -> PartitionRow:
        """The sum of all rows that did not fail."""
        rows = [row for row in self.rows if row.status != "failed"]
        return PartitionRow(
            "total", "planned" if self.is_dry_run else "converted",
            segments=sum(row.segments for row in rows),
            records=None if self.is_dry_run else sum(row.records or 0 for row in rows),
            bytes_in=sum(row.bytes_in for row in rows),
            bytes_out=sum(row.bytes_out or 0 for row in rows),
            seconds=sum(row.seconds for row in rows),
            skipped=sum(row.skipped for row in rows),
            retried=sum(row.retried for row in rows),
        )

    def to_json(self) -> bytes:
        """The report of a run as a file: docs/formats/conversion_report.md."""
        return report_json(Path(self.source), None if self.is_dry_run else Path(self.target), self.to, self.rows)

    def to_dataframe(self, spark: "SparkSession") -> "DataFrame":
        """The rows as a DataFrame; a column for each member of a row in the JSON report."""
        rows = [[*_cells(row), row.ratio] for row in self.rows]
        return spark.createDataFrame(rows, f"{_COLUMNS}, ratio double")


_COLUMNS = (
    "partition string, status string, segments long, records long, bytes_in long, bytes_out long, seconds double,"
    " digest string, skipped long, retried long, warnings array<string>, error string, what string"
)


def _cells(row: PartitionRow) -> list[Any]:
    fields = asdict(row)
    names = [column.split()[0] for column in _COLUMNS.split(", ")]
    return [list(fields[name]) if name == "warnings" else fields[name] for name in names]
