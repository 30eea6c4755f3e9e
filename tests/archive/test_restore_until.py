"""A restored partition ends where it is asked to, and goes on there as a log that was cut."""
import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError
from support.command import seglog as run
from support.command import seglog_json

NOW = 1_700_000_000_000
CONFIG = {"segment.bytes": 900, "index.interval.bytes": 100}


@pytest.fixture
def data(in_memory):
    """60 records, a second apart, every third in an aborted transaction; with a cursor, producers and two epochs."""
    with seglog.open(in_memory / "data/orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        with log.producer(7) as producer:
            for n in range(20):
                producer.begin()
                producer.append(b"gone %d" % n, timestamp=NOW + 1000 * log.log_end_offset)
                producer.abort()
                log.append(b"kept %d" % n, timestamp=NOW + 1000 * log.log_end_offset)
        log.cursor("billing").commit(50)
        (log.path / "partition.metadata").write_text("version: 0\ntopic_id: wr3A7yeGTQaSKNMkNFaUDw")
    seglog.backup(in_memory / "data", in_memory / "store")
    return in_memory / "data"


@pytest.fixture
def store(data, in_memory):
    return in_memory / "store"


def held(path, **more):
    with seglog.open_partition(path) as partition:
        return [(record.offset, record.value) for record in partition.read(**more)]


@pytest.mark.parametrize("end", [1, 2, 17, 30, 31, 59, 60, 99])
def test_an_offset_ends_the_log_before_its_batch(data, store, in_memory, end):
    back = in_memory / "back"
    restored, = seglog.restore(store, back, partitions=["orders-0"], until_offset=end, config=CONFIG).partitions
    assert restored.next_offset == min(end, 60)
    assert held(back / "orders-0") == [pair for pair in held(data / "orders-0") if pair[0] < end]
    committed = held(data / "orders-0", isolation="read_committed")
    with seglog.open(back / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        assert log.recovery.lost == ()
        assert log.log_end_offset == min(end, 60)
        stable = [pair for pair in committed if pair[0] < log.last_stable_offset]
        assert [(r.offset, r.value) for r in log.read(isolation="read_committed")] == stable
        assert log.cursor("billing").position == min(50, end)
        assert log.append(b"goes on") == min(end, 60)
    assert not [f for f in seglog.verify(back / "orders-0", config=CONFIG).findings if f.severity == "error"]


@pytest.mark.parametrize("after_ms", [0, 500, 7000, 30_000, 10**9])
def test_a_time_ends_the_log_before_the_first_later_batch(data, store, in_memory, after_ms):
    back = in_memory / "back"
    seglog.restore(store, back, until=NOW + after_ms, config=CONFIG)
    with seglog.open_partition(data / "orders-0") as partition:
        expected, later = [], False
        for batch in partition.batches():
            later = later or batch.max_timestamp > NOW + after_ms
            if not later:
                expected.append(batch.last_offset)
    with seglog.open(back / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        assert log.log_end_offset == (expected[-1] + 1 if expected else 0)
        assert log.append(b"goes on") == log.log_end_offset - 1


def test_nothing_is_left_of_a_log_that_begins_later(data, store, in_memory):
    with seglog.open(data / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        log.delete_records(33)
    seglog.backup(data, store)
    for number, end in enumerate((0, 10, 33)):
        back = in_memory / f"back-{number}"
        restored, = seglog.restore(store, back, topics=["orders"], until_offset=end).partitions
        assert (restored.log_start_offset, restored.next_offset) == (33, 33)
        with seglog.open(back / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
            assert (log.log_start_offset, log.append(b"first")) == (33, 33)
    seglog.restore(store, in_memory / "back", until=NOW - 1)
    assert held(in_memory / "back/orders-0") == []


def test_a_topic_gets_another_name_and_loses_its_id(data, store, in_memory):
    back = in_memory / "back"
    restored, = seglog.restore(store, back, rename={"orders": "copied"}).partitions
    assert restored.name == "copied-0"
    assert held(back / "copied-0") == held(data / "orders-0")
    assert not (back / "copied-0/partition.metadata").exists()
    seglog.restore(store, back)
    assert (back / "orders-0/partition.metadata").exists()


def test_what_makes_no_sense_is_refused(store, in_memory):
    back = in_memory / "back"
    for message, arguments in {
        "exclude each other": {"until": NOW, "until_offset": 3}, "one of a partition": {"until_offset": 3},
        "must be an offset": {"until_offset": -1, "topics": ["orders"]},
        "invalid topic name": {"rename": {"orders": "a/b"}},
        "no topic 'x' is restored": {"rename": {"x": "y"}}, "must be a mapping": {"rename": ["orders"]},
    }.items():
        with pytest.raises(InvalidArgumentError, match=message):
            seglog.restore(store, back, **arguments)
    assert not back.exists()
    for words in (["--rename", "orders"], ["--until", "soon"], ["--until-offset", "x"]):
        run("restore", store, back, *words, status=2)
    run("restore", store, back, "--topic", "orders", "--until-offset", 7, "--rename", "orders=other")
    assert len(held(back / "other-0")) > 0


@pytest.fixture
def mixed(data, in_memory):
    """Beside the log a queue, and one with the name of the topic."""
    for name in ("jobs", "orders"):
        with seglog.Queue(data / name) as queue:
            queue.put(b"a job")
    seglog.backup(data, in_memory / "mixed")
    return in_memory / "mixed"


def test_queues_that_were_backed_up_later_are_left_out_and_named(data, mixed, in_memory):
    """The whole restore was refused, and with it the logs: "choose topics of Kafka's", also if a queue had the name of
    the topic."""
    back, end = in_memory / "back", NOW + 30_000
    seglog.restore(mixed, in_memory / "logs", partitions=["orders-0"], until=end)
    for given in ({}, {"topics": ["*"]}, {"topics": ["orders", "*"]}):
        would = seglog.restore(mixed, back, until=end, dry_run=True, **given)
        assert ([part.name for part in would.partitions], would.ledgers) == (["orders-0"], [])
        assert would.left_out.keys() == {"jobs", "orders"}
    run = seglog.restore(mixed, back, until=end)
    assert run.left_out.keys() == {"jobs", "orders"}
    assert "a queue is restored as of its moment, 20" in run.left_out["jobs"]
    assert sorted(path.name for path in back.iterdir() if path.is_dir()) == ["orders-0"]
    assert held(back / "orders-0") == held(in_memory / "logs/orders-0") != held(data / "orders-0")
    seglog.restore(mixed, back, topics=["jobs"])       # as the report says
    with seglog.Queue(back / "jobs", create=False) as queue:
        assert queue.get(timeout=0).value == b"a job"


def test_an_offset_leaves_a_queue_with_the_name_of_the_topic_out(mixed, in_memory):
    run = seglog.restore(mixed, in_memory / "back", topics=["orders"], until_offset=5)
    assert ([part.next_offset for part in run.partitions], list(run.left_out)) == ([5], ["orders"])


@pytest.mark.parametrize("given", [{"until": NOW, "topics": ["jobs"]}, {"until": NOW, "topics": ["orders", "jo*"]},
                                   {"until_offset": 3, "topics": ["jobs"]}])
def test_an_end_of_a_queue_alone_is_refused(mixed, in_memory, given):
    with pytest.raises(InvalidArgumentError, match="jobs: a queue is restored as of its moment, 20") as refused:
        seglog.restore(mixed, in_memory / "back", **given)
    assert "choose a snapshot from before it" in refused.value.hint
    assert not (in_memory / "back").exists()


def test_a_queue_that_was_backed_up_before_that_time_is_restored(mixed, in_memory):
    run = seglog.restore(mixed, in_memory / "back", until=4 * 10**12)
    assert ([part.name for part in run.partitions], len(run.ledgers), run.left_out) == (["orders-0"], 2, {})


def test_the_command_names_what_it_leaves_out(mixed, in_memory):
    told = run("restore", mixed, in_memory / "back", "--until", NOW, status=7)
    assert "left out: jobs: a queue is restored as of its moment" in told.stderr
    *_, summary = seglog_json("restore", mixed, in_memory / "again", "--until", NOW, status=7)
    assert summary["left_out"].keys() == {"jobs", "orders"}


def test_an_end_before_all_records_is_told_and_the_status_is_1(data, store, in_memory):
    """Red: "1 partition, 0 B, restored", and status 0."""
    before = NOW - 1
    lines = seglog_json("restore", store, in_memory / "json", "--until", before, status=1)
    assert [(line["emptied"], line["next_offset"]) for line in lines[:-1]] == [(True, 0)]
    told = run("restore", store, in_memory / "back", "--until", before, status=1).stderr
    assert "no record was restored: all are behind the end that was asked for: orders-0" in told
    assert held(in_memory / "back/orders-0") == []
    with seglog.open(data.parent / "data/old-0", clock=ManualClock(before)) as log:
        log.append(b"old")
    seglog.backup(data, store)
    told = run("restore", store, in_memory / "both", "--until", before).stderr
    assert "restored empty, because all their records are behind the end that was asked for: orders-0" in told
