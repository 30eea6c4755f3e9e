"""Compacted ledgers of many topics to another form: one task a topic, whatever becomes of the tasks."""
import pytest

from seglog.errors import InvalidArgumentError
from seglog.pulsar import ManagedLedger
from seglog.spark import convert_compacted_ledgers
from seglog.upkeep.compacted_conversion import FORMS
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.keyed_topic import keyed_batch, read_all
from support.spark_double import SparkDouble

COUNT = 4


@pytest.fixture
def topics(tmp_path):
    """Four compacted topics, and one that never was."""
    paths = [tmp_path / f"t{n}" for n in range(COUNT + 1)]
    for n, path in enumerate(paths):
        with ManagedLedger(path, fsync="never") as topic:
            topic.add_entries([keyed_batch(m, [(f"k{m % 3}", b"%d" % m), ("a", b"%d" % n)], m % 5) for m in range(9)])
            if n < COUNT:
                PulsarTopicCompactionService(topic).compact()
    return paths


def state_of(path):
    with ManagedLedger(path) as topic:
        service = PulsarTopicCompactionService(topic)
        return service.compacted_ledger.properties.form, read_all(topic, service)


def twice(job, number, run):
    """A second attempt after one whose answer was lost."""
    run()
    return run()


def test_every_topic_is_converted_by_a_task_of_its_own(topics):
    before = [state_of(path) for path in topics[:COUNT]]
    spark = SparkDouble()
    for form in ("old", "retained-only", "new"):
        rows = convert_compacted_ledgers(spark, topics, form)
        assert [row.status for row in rows] == ["converted"] * COUNT + ["skipped"]
        assert [row.what for row in rows] == [None] * COUNT + ["it was never compacted"]
        assert [row.path for row in rows] == [str(path) for path in topics]
        assert all(row.messages == 4 and row.sha256 for row in rows[:COUNT])
        assert [state_of(path) for path in topics[:COUNT]] == [(FORMS[form], messages) for _, messages in before]
    assert spark.jobs == [len(topics)] * 3
    assert [row.status for row in convert_compacted_ledgers(spark, topics, "new")] == ["skipped"] * len(topics)


def test_a_task_that_runs_again_finds_it_done(topics):
    rows = convert_compacted_ledgers(SparkDouble(twice), topics, "old")
    assert [row.status for row in rows] == ["skipped"] * len(topics)
    assert [row.what for row in rows] == ["it is old already"] * COUNT + ["it was never compacted"]
    assert {state_of(path)[0] for path in topics[:COUNT]} == {FORMS["old"]}


def test_one_that_fails_is_told_and_the_others_go_on(topics):
    (directory,) = (topics[1] / "compacted").iterdir()
    log = directory / "00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    with ManagedLedger(topics[2]):
        rows = convert_compacted_ledgers(SparkDouble(), [*topics, topics[0].parent / "nowhere"], "old")
    assert [row.status for row in rows] == ["converted", "failed", "failed", "converted", "skipped", "failed"]
    assert [row.error for row in rows if row.status == "failed"] == ["corrupt_record", "locked", "not_a_log"]
    with pytest.raises(InvalidArgumentError):
        convert_compacted_ledgers(SparkDouble(), topics, "other")
