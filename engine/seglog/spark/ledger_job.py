"""Compacted ledgers of many topics to another form, on Spark: one task a topic.

Each task is `seglog ledger convert` of one managed ledger: written aside, proved, swapped in. So a task that runs
again, or beside a copy of itself, finds it done, or the topic locked, and tells that.
"""
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from seglog.errors import InvalidArgumentError, SeglogError, StorageError
from seglog.ledger.managed_ledger import ManagedLedger
from seglog.spark.cluster import Cluster, Progress
from seglog.upkeep.compacted_conversion import FORMS, digest_of
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ConvertedLedger:
    """What became of one topic. `status`: "converted", "skipped" (it has the form, or was never compacted) or
    "failed"; then `error` is the code of what went wrong, and `what` its words. `sha256`: of its messages."""

    path: str
    status: str
    messages: int = 0
    sha256: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    error: str | None = None
    what: str | None = None


def convert_compacted_ledgers(
    spark: "SparkSession",
    topics: Iterable[str],
    to: str,
    *,
    max_concurrent: int | None = None,
    progress: Progress | None = None,
) -> list[ConvertedLedger]:
    """Rewrite what compaction left of each managed ledger in the form `to`: "old", "new" or "retained-only".

    `topics`: directories that are the same on every executor. A topic that cannot be converted is told, and left as it
    was; the others go on. Raises InvalidArgumentError, StorageError where Spark gives up.
    """
    if to not in FORMS:
        raise InvalidArgumentError(f"a form is {', '.join(FORMS)}, not {to!r}")
    listed = list(dict.fromkeys(map(str, topics)))

    def work(number: int, attempt: int) -> dict[str, Any]:
        return asdict(convert_one(listed[number], to))

    cluster = Cluster(spark, progress, max_concurrent)
    done = cluster.run(f"convert {len(listed)} compacted ledgers", len(listed), work)
    return [ConvertedLedger(**row) for row in done]


def convert_one(path: str, to: str) -> ConvertedLedger:
    """One task. What a machine refuses is raised, for Spark to try elsewhere: StorageError."""
    try:
        with ManagedLedger(path, create=False) as topic:
            service = PulsarTopicCompactionService(topic)
            before = service.compacted_ledger
            if before is None:
                return ConvertedLedger(path, "skipped")
            bytes_in = before.size_bytes
            ledger_id = service.convert(FORMS[to])
            after = service.compacted_ledger
            assert after is not None
            proof = digest_of(after)
            return ConvertedLedger(
                path, "skipped" if ledger_id is None else "converted", proof.messages, proof.sha256, bytes_in,
                after.size_bytes,
            )
    except StorageError:
        raise
    except SeglogError as error:
        return ConvertedLedger(path, "failed", error=error.code, what=str(error))
