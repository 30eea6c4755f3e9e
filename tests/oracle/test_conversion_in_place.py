"""A broker stops, its log dir is converted where it lies, and the broker goes on as if nothing had happened."""
import base64
import shutil

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.erasing import plan_erasure
from seglog.conversion.in_place import plan_in_place, roll_back
from seglog.conversion.log_dir import convert_log_dir, convert_log_dir_in_place
from seglog.conversion.upgrade_plan import plan_upgrade
from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.reading.partition import Partition
from support.conversion import UnsyncedFs, source_of
from support.golden import golden_cases

pytestmark = pytest.mark.oracle

MS = 1_760_000_000_000
ENDS = [f"{isolation}_{end}" for isolation in ("read_uncommitted", "read_committed") for end in ("begin", "end")]
CASES = {case.name: case for case in golden_cases()}


def codecs(directory):
    with Partition(directory) as partition:
        return {batch.codec for batch in partition.batches() if not batch.is_control}


@pytest.fixture(autouse=True)
def talkative(monkeypatch):
    monkeypatch.setenv("LOGLEVEL", "info")


def assert_nothing_was_recovered(messages):
    """Of the last start."""
    said = messages.read_text()
    last = said[said.rindex("Loading logs from log dirs") :]
    assert "since clean shutdown file was found" in last
    assert "Recovering unflushed segment" not in last
    assert "rebuilding index files" not in last


def rows(consumed):
    return [[row[field] for field in ("offset", "timestamp", "key", "value", "headers")] for row in consumed.records]


def test_a_broker_goes_on_where_its_log_dir_was_converted(kafka_oracle, tmp_path):
    with kafka_oracle("4.1.1").serving(tmp_path / "broker") as broker:
        logs, backups = broker.log_dir, tmp_path / "backups"
        broker.start()
        broker.create("orders", {"segment.bytes": 1 << 20, "retention.ms": -1})
        broker.produce("orders-0", 0, 40, MS, codec="none")
        broker.produce("orders-0", 40, 20, MS + 40, transaction=("t", "commit"))
        broker.produce("orders-0", 60, 10, MS + 60, transaction=("t", "abort"))
        # Beside the running broker, which holds the log dir's lock.
        plan, = plan_upgrade(logs, topics=["orders"])
        assert (plan.verdict, plan.damaged) == ("nothing", False)
        with pytest.raises(LogLockedError):
            list(convert_log_dir_in_place(logs, backups, Options(codec="zstd"), topics=["orders"], fs=UnsyncedFs()))
        before = {level: broker.consume("orders-0", level) for level in ("read_uncommitted", "read_committed")}
        broker.stop()
        done = list(convert_log_dir_in_place(
            logs, backups, Options(codec="zstd", config={"segment.bytes": "1MiB"}), topics=["orders"], fs=UnsyncedFs()
        ))
        assert [(row.partition, row.status) for row in done] == [("orders-0", "converted")]
        assert codecs(logs / "orders-0") == {4}
        made = {path.name: path.read_bytes() for path in (logs / "orders-0").glob("*.*index")}
        broker.start()
        for level, answer in before.items():
            after = broker.consume("orders-0", level)
            assert rows(after) == rows(answer)
            assert (after.begin, after.end) == (answer.begin, answer.end)
        assert len(before["read_committed"].records) < len(before["read_uncommitted"].records)
        # The same producer goes on: its transactions and epochs are known.
        broker.produce("orders-0", 70, 5, MS + 70, transaction=("t", "commit"))
        broker.stop()
        for name, raw in made.items():
            assert (logs / "orders-0" / name).read_bytes().startswith(raw.rstrip(b"\0")), name
        with pytest.raises(InvalidArgumentError, match="written to after"):
            roll_back(logs / "orders-0", backups, fs=UnsyncedFs())
        assert_nothing_was_recovered(tmp_path / "broker/messages")


def test_a_broker_starts_on_a_new_log_dir_as_after_a_clean_stop(kafka_oracle, tmp_path):
    with kafka_oracle("4.1.1").serving(tmp_path / "broker") as broker:
        logs, made = broker.log_dir, tmp_path / "made"
        broker.start()
        for topic in ("orders", "payments"):
            broker.create(topic, {"retention.ms": -1})
            broker.produce(f"{topic}-0", 0, 60, MS, codec="gzip")
        broker.delete_records("orders-0", 10)
        before = {topic: broker.consume(f"{topic}-0") for topic in ("orders", "payments")}
        assert before["orders"].begin == 10
        broker.stop()
        done = list(convert_log_dir(logs, made, Options(codec="lz4"), fs=UnsyncedFs()))
        assert {row.status for row in done} == {"converted"}
        # As docs/conversion.md says of a combined log dir.
        shutil.copytree(logs / "__cluster_metadata-0", made / "__cluster_metadata-0")
        logs.rename(tmp_path / "old")
        made.rename(logs)
        broker.start()
        for topic, answer in before.items():
            assert codecs(logs / f"{topic}-0") == {3}
            after = broker.consume(f"{topic}-0")
            assert rows(after) == rows(answer)
            assert (after.begin, after.end) == (answer.begin, answer.end)
            assert broker.produce(f"{topic}-0", 60, 5, MS + 60) == answer.end + 4
        broker.stop()
        assert_nothing_was_recovered(tmp_path / "broker/messages")


def test_a_broker_serves_old_formats_that_became_new_and_again_after_the_way_back(kafka_oracle, tmp_path):
    """What the consumer is given is the same before, in v2, and rolled back."""
    names = ["v0-gzip-ct-k391", "v1-none-ct-k391", "mixed-formats-k282"]
    logs = tmp_path / "logs"
    for name in names:
        shutil.copytree(source_of(CASES[name]), logs / f"{name}-0")
    oracle = kafka_oracle("4.1.1")
    answers = []
    for step in ("old", "new", "back"):
        for name in names:
            if step == "new":
                plan_in_place(logs / f"{name}-0", tmp_path / "backups", Options(), fs=UnsyncedFs()).run()
            elif step == "back":
                roll_back(logs / f"{name}-0", tmp_path / "backups", fs=UnsyncedFs())
        boot = oracle.boot([logs / f"{name}-0" for name in names], tmp_path / "broker")
        assert boot.summary["consume_errors"] == 0
        answers.append({
            name: [(row["offset"], row["timestamp"], row["key"], row["value"]) for row in found]
            for name, found in boot.records.items()
        })
    assert answers[0] == answers[1] == answers[2]
    assert all(answers[0].values())


def test_a_broker_serves_what_is_left_where_records_were_erased(kafka_oracle, tmp_path):
    """Offsets, ends and transactions are what they were; the consumer gets every record but those of the keys."""
    names = ["v2-zstd-ct-k391", "v2-none-ct-k411", "txn-v2-k411", "idempotent-v2-k391", "mixed-formats-k282"]
    logs = tmp_path / "logs"
    for name in names:
        shutil.copytree(source_of(CASES[name]), logs / f"{name}-0")
    oracle = kafka_oracle("4.1.1")
    answers, erased = [], {}
    for step in ("before", "after"):
        for name in names:
            if step == "after":
                found = [base64.b64decode(row["key"]) for row in answers[0][name][0] if row["key"] is not None]
                erased[name] = set(found[::3])
                plan = plan_erasure(logs / f"{name}-0", erased[name], tmp_path / "backups", fs=UnsyncedFs())
                assert plan.run().proof.holds
        boot = oracle.boot([logs / f"{name}-0" for name in names], tmp_path / step)
        assert boot.summary["consume_errors"] == 0
        answers.append({
            name: (boot.records[there], boot.committed[there], [boot.partitions[there][end] for end in ENDS])
            for name, there in ((name, f"{name}-0") for name in names)
        })
    before, after = answers
    for name in names:
        left, committed = (
            [row for row in rows if row["key"] is None or base64.b64decode(row["key"]) not in erased[name]]
            for rows in before[name][:2]
        )
        assert len(left) < len(before[name][0])
        assert after[name] == (left, committed, before[name][2])
