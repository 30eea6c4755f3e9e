"""Converts compacted ledgers of many topics to another form, on Spark: one task for each topic.

Each task is `seglog ledger convert` of one managed ledger: it writes a new ledger, proves it, and swaps it in. So a
task that runs again, or in parallel with a copy of itself, finds the topic converted or locked, and reports that.
"""
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from seglog.errors import InvalidArgumentError, SeglogError, StorageError
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.spark.cluster import Cluster, Progress
from seglog.upkeep.compacted_conversion import FORMS, digest_of
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ConvertedLedger:
    """The result for the topic at `path`. `status`: "converted", "skipped" (then `what` says why) or "failed" (then
    `error` is the error's code, and `what` its message). `messages`: how many it has; `sha256`: of these messages.
    `bytes_in`, `bytes_out`: the size of the ledger before and after."""

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
    form: str,
    *,
    max_concurrent: int | None = None,
    progress: Progress | None = None,
) -> list[ConvertedLedger]:
    """Rewrite the compacted ledger of each managed ledger in another `form`: "old", "new" or "retained-only".

    `topics`: directories that are the same on every executor. A topic that cannot be converted is reported and left as
    it was; the others are converted. Raises InvalidArgumentError, StorageError if Spark gives up.
    """
    if form not in FORMS:
        raise InvalidArgumentError(f"the form must be one of {', '.join(FORMS)}, not {form!r}")
    listed = list(dict.fromkeys(map(str, topics)))

    def work(number: int, attempt: int) -> dict[str, Any]:
        return asdict(convert_one(listed[number], form))

    cluster = Cluster(spark, progress, max_concurrent)
    done = cluster.run(f"convert {len(listed)} compacted ledgers", len(listed), work)
    return [ConvertedLedger(**row) for row in done]


def convert_one(path: str, form: str) -> ConvertedLedger:
    """Run one task. A StorageError of the machine is raised, so that Spark retries elsewhere."""
    try:
        with OpenManagedLedger(path, create=False) as topic:
            service = PulsarTopicCompactionService(topic)
            before = service.compacted_ledger
            if before is None:
                return ConvertedLedger(path, "skipped", what="it was never compacted")
            bytes_in = before.size_bytes
            ledger_id = service.convert(FORMS[form])
            after = service.compacted_ledger
            assert after is not None
            proof = digest_of(after)
            return ConvertedLedger(
                path, "skipped" if ledger_id is None else "converted", proof.messages, proof.sha256, bytes_in,
                after.size_bytes, what=f"it is {form} already" if ledger_id is None else None,
            )
    except StorageError:
        raise
    except SeglogError as error:
        return ConvertedLedger(path, "failed", error=error.code, what=str(error))
