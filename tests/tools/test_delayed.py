"""`seglog delayed`: what a managed ledger holds of delayed messages, by hand."""
import time

import pytest

from seglog.delayed.worker import InlineWorker
from seglog.ledger.ledger import LOG_NAME
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from support.command import seglog, seglog_json
from support.topics import delayed, message, numbers

BUCKETS = {
    "delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 4,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 3,
}
SHARED = BUCKETS | {"enableShareDelayedMessageIndex": True}
MEMORY = {"enableBucketDelayedDeliveryTracker": False}
HOUR_MS = 3_600_000
CONFIG = {"managedLedgerMaxEntriesPerLedger": 4, "defaultRetentionTimeInMinutes": -1}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders"


def make(path, settings=BUCKETS):
    """Ten messages, an hour apart from in an hour on, two buckets sealed, and one that is not delayed."""
    now = time.time_ns() // 10**6
    with ManagedLedger(path, config=CONFIG) as topic:
        cursors = [topic.open_cursor(name, "earliest") for name in ("one", "other")]
        positions = topic.add_entries([*(delayed(n, now + (n + 1) * HOUR_MS) for n in range(10)), message(10)])
        with DelayedDelivery(topic, settings, new_worker=InlineWorker) as delivery:
            for cursor in cursors:
                assert numbers(delivery.dispatcher(cursor).read()) == [10]
    return positions


def reading(path, settings, name="one"):
    """What is pending for a subscription when the topic is opened again."""
    with ManagedLedger(path, config=CONFIG) as topic, DelayedDelivery(topic, settings) as delivery:
        cursor = topic.open_cursor(name)
        delivery.dispatcher(cursor).read()
        return delivery.tracker(cursor).number_of_delayed_messages


def test_ls_shows_every_bucket(path):
    make(path)
    rows = seglog_json("delayed", "buckets", path)
    assert [(row["cursor"], row["start"], row["end"], row["segments"], row["messages"]) for row in rows] == [
        ("one", 0, 0, 4, 4), ("one", 1, 1, 4, 4), ("other", 0, 0, 4, 4), ("other", 1, 1, 4, 4),
    ]
    assert rows[0]["last_ms"] - rows[0]["first_ms"] == 3 * HOUR_MS
    assert seglog_json("delayed", "buckets", path, "--subscription", "one") == rows[:2]
    assert "one" in seglog("delayed", "buckets", path).stdout
    assert "these have some: one, other" in seglog("delayed", "buckets", path, "--subscription", "x", status=2).stderr


def test_dump_shows_every_message_of_the_snapshots(path):
    make(path)
    rows = seglog_json("delayed", "dump", path, "--subscription", "one")
    assert [(row["ledger"], row["entry"]) for row in rows] == [(n // 4, n % 4) for n in range(8)]
    one = rows[0]["snapshot"]
    assert seglog_json("delayed", "dump", path, "--snapshot-id", one) == rows[:4]
    assert "segment 2" in seglog("delayed", "dump", path, "--snapshot-id", one).stdout


def test_verify_finds_nothing_wrong_with_what_is_whole(path):
    make(path)
    assert seglog_json("delayed", "verify", path) == [
        {"type": "summary", "schema": 1, "ok": True, "buckets": 4, "problems": 0}
    ]


def test_verify_names_what_is_damaged_missing_or_listed_by_nobody(path):
    make(path)
    one, other = (row["snapshot"] for row in seglog_json("delayed", "buckets", path, "--subscription", "one"))
    log = path / "delayed/one" / f"ledger-{one}" / LOG_NAME
    data = bytearray(log.read_bytes())
    data[-10] ^= 1
    log.write_bytes(data)
    (path / "delayed/one" / f"ledger-{other}").rename(path / "delayed/one/ledger-77")
    lines = seglog_json("delayed", "verify", path, "--subscription", "one", status=1)
    assert {line.get("code") for line in lines} == {"corrupt_delayed_index", "snapshot_missing", "orphan", None}
    assert lines[-1]["problems"] == 2
    assert "indexed again" in seglog("delayed", "verify", path, status=1).stdout
    assert "bucket 0 to 0" in seglog("delayed", "buckets", path, status=7).stderr
    assert reading(path, BUCKETS) == 10


@pytest.mark.parametrize("settings", [BUCKETS, MEMORY], ids=["bucket", "memory"])
def test_count_and_list_know_what_is_in_no_snapshot_too(path, settings):
    make(path, settings)
    now = time.time_ns() // 10**6
    counts = {row["of"]: row["messages"] for row in seglog_json("delayed", "count", path, "--subscription", "one")}
    assert counts == {"due now": 0, "due in an hour": 1, "due in 2 hours": 2, "due in a day": 10, "in all": 10}
    between = ["--since", str(now + int(1.5 * HOUR_MS)), "--until", str(now + int(4.5 * HOUR_MS))]
    assert seglog("delayed", "count", path, "--subscription", "one", *between).stdout == "3\n"
    rows = seglog_json("delayed", "messages", path, "--subscription", "one", *between)
    assert [(row["ledger"], row["entry"]) for row in rows] == [(0, 1), (0, 2), (0, 3)]
    limited = seglog("delayed", "messages", path, "--subscription", "one", "--limit", "4")
    assert len(limited.stdout.splitlines()) == 4
    assert "6 more" in limited.stderr
    # Nothing has changed by looking.
    assert reading(path, settings) == 10


def test_a_cancelled_message_is_never_delivered(path):
    make(path)
    rows = seglog_json("delayed", "cancel", path, "--subscription", "one", "0:2", "2:1", "7:7", status=1)
    assert [row["cancelled"] for row in rows] == [True, True, False]
    assert "not pending" in seglog("delayed", "cancel", path, "--subscription", "one", "0:2", status=1).stdout
    assert reading(path, BUCKETS) == 8
    assert reading(path, BUCKETS, "other") == 10
    assert "not a position" in seglog("delayed", "cancel", path, "--subscription", "one", "0-2", status=2).stderr


def test_a_shared_index_is_meant_where_no_subscription_is_named(path):
    make(path, SHARED)
    assert {row["cursor"] for row in seglog_json("delayed", "buckets", path)} == {"__delayed_index"}
    assert seglog_json("delayed", "count", path)[-1]["messages"] == 10
    seglog("delayed", "cancel", path, "0:0")
    assert reading(path, SHARED) == reading(path, SHARED, "other") == 9


@pytest.mark.parametrize("settings", [BUCKETS, SHARED], ids=["bucket", "shared"])
@pytest.mark.parametrize(("drop", "left"), [((), 10), (("--acknowledge",), 0)])
def test_clearing_leaves_no_snapshot_and_what_is_pending_is_indexed_again_or_dropped(path, settings, drop, left):
    make(path, settings)
    named = () if settings is SHARED else ("--subscription", "one")
    (line,) = seglog_json("delayed", "reset", path, *named, *drop)
    assert (line["pending"], line["acknowledged"]) == (10, bool(drop))
    assert [row for row in seglog_json("delayed", "buckets", path) if row["cursor"] != "other"] == []
    assert not list(path.glob("delayed/one/ledger-*"))
    assert reading(path, settings) == left


def test_clearing_is_refused_where_the_flag_that_it_needs_is_off(path):
    clear = "delayed", "reset", path
    make(path, MEMORY)
    refused = seglog(*clear, "--subscription", "one", status=2).stderr
    assert "enableBucketDelayedDeliveryTracker is off" in refused
    assert "enableShareDelayedMessageIndex is off" in seglog(*clear, status=2).stderr
    with ManagedLedger(path) as topic, DelayedDelivery(topic, SHARED) as delivery:
        delivery.index(topic.open_cursor("one"))
    assert "share one index" in seglog(*clear, "--subscription", "one", status=2).stderr


def test_a_topic_that_somebody_writes_is_looked_at_and_not_changed(path):
    make(path)
    with ManagedLedger(path):
        assert len(seglog_json("delayed", "buckets", path)) == 4
        seglog("delayed", "count", path, "--subscription", "one", status=5)


def test_what_is_no_managed_ledger_is_refused(tmp_path):
    seglog("delayed", "buckets", tmp_path, status=4)
    seglog("delayed", "count", tmp_path, "--subscription", "one", status=4)


def test_policies_are_kept_with_the_topic(tmp_path):
    path = tmp_path / "t"
    ManagedLedger(path).close()
    assert seglog("delayed", "policies", "get", path).stdout == ""
    both = "delayedDeliveryMaxDelayInMillis=5000", "delayedDeliveryTickTimeMillis=7"
    seglog("delayed", "policies", "set", path, *both)
    seglog("delayed", "policies", "set", path, "delayedDeliveryTickTimeMillis=")
    assert seglog("delayed", "policies", "get", path).stdout == "delayedDeliveryMaxDelayInMillis=5000\n"
    with ManagedLedger(path) as topic, DelayedDelivery(topic) as delivery:
        assert delivery.config.max_delay_ms == 5000
        seglog("delayed", "policies", "get", path)      # beside its writer
        seglog("delayed", "policies", "set", path, "delayedDeliveryTickTimeMillis=9", status=5)
    seglog("delayed", "policies", "set", path, "nothing=1", status=2)
    seglog("delayed", "policies", "set", path, "nothing", status=2)
