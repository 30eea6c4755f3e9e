"""What a conversion on Spark did, one row a partition: as a table, as JSON, as a DataFrame."""
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = 1

CONVERTED, PUBLISHED_BEFORE, FAILED, PLANNED = "converted", "published before", "failed", "planned"


@dataclass(slots=True)
class PartitionRow:
    """One partition. `skipped` segments were finished by an earlier run, `retried` ones by a later attempt.

    `digest` is SHA-256 over the digests of its segments' records; `seconds` is the time of its tasks in this run.
    `status`: converted, published before, failed (then `error` says why, and nothing of it is in the target), planned.
    """

    partition: str
    status: str = CONVERTED
    segments: int = 0
    first_offset: int = 0
    end_offset: int = 0
    records: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    skipped: int = 0
    retried: int = 0
    seconds: float = 0.0
    digest: str = ""
    error: str = ""
    code: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Bytes out for each byte in; None of nothing."""
        return self.bytes_out / self.bytes_in if self.bytes_in else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}

    @classmethod
    def of_dict(cls, body: dict[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}
        found: dict[str, Any] = {name: value for name, value in body.items() if name in known}
        return cls(**{**found, "warnings": tuple(found["warnings"]), "notes": tuple(found["notes"])})


@dataclass(slots=True)
class TopicsReport:
    """All rows, in the order of partitions. `is_whole`: none failed, all of it is in the target."""

    source: str
    target: str
    to: int
    is_dry_run: bool = False
    is_whole: bool = False
    rows: list[PartitionRow] = field(default_factory=list)
    losses: dict[str, int] = field(default_factory=dict)
    tasks: int = 0

    @property
    def failed(self) -> list[PartitionRow]:
        return [row for row in self.rows if row.status == FAILED]

    @property
    def total(self) -> PartitionRow:
        """The sum of all rows that did not fail."""
        rows = [row for row in self.rows if row.status != FAILED]
        total = PartitionRow("total")
        for name in ("segments", "records", "bytes_in", "bytes_out", "skipped", "retried", "seconds"):
            setattr(total, name, sum(getattr(row, name) for row in rows))
        return total

    def to_json(self) -> str:
        """One JSON object: the rows, their sum, what was asked for."""
        return json.dumps(
            {
                "type": "spark_conversion", "schema": SCHEMA, "source": self.source, "target": self.target,
                "to": self.to, "dry_run": self.is_dry_run, "whole": self.is_whole, "tasks": self.tasks,
                "losses": self.losses, "partitions": [row.to_dict() for row in self.rows],
                "total": self.total.to_dict(),
            },
            indent=1,
        ) + "\n"

    def to_dataframe(self, spark: "SparkSession") -> "DataFrame":
        """The rows as a DataFrame, in the same columns."""
        return spark.createDataFrame([list(_cells(row)) for row in self.rows], _DDL)


_TYPES = {"str": "string", "int": "long", "float": "double", "tuple": "array<string>"}
_COLUMNS = [(f.name, _TYPES[f.type if isinstance(f.type, str) else f.type.__name__]) for f in fields(PartitionRow)]
_DDL = ", ".join(f"{name} {type_}" for name, type_ in [*_COLUMNS, ("ratio", "double")])


def _cells(row: PartitionRow) -> Iterable[Any]:
    for name, _ in _COLUMNS:
        value = getattr(row, name)
        yield list(value) if isinstance(value, tuple) else value
    yield row.ratio
