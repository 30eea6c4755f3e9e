"""What people try first, before they read a page: each is refused with the call that they meant."""
import datetime as dt
import time
from contextlib import ExitStack

import pytest

import seglog
import seglog.aio
import seglog.pulsar
from seglog.clock import ManualClock, SystemClock
from seglog.errors import InvalidArgumentError, LeaseLostError, OffsetOutOfRangeError, SeglogError
from seglog.fs.files import OsFileSystem
from seglog.tools import cli
from seglog.tools import queue as queue_command
from support.command import seglog as seglog_command


def hint_of(work):
    with pytest.raises(SeglogError) as caught:
        work()
    return caught.value.hint


@pytest.fixture
def log(tmp_path):
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        log.append_many([(b"k", b"%d" % n) for n in range(3)])
        yield log


# --- names and paths ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "meant"), [("orders", "orders-0"), ("my-orders", "my-orders-0")])
def test_a_topic_without_a_partition_gets_its_number(tmp_path, name, meant):
    hint = hint_of(lambda: seglog.open(tmp_path / name))
    assert meant in hint
    seglog.open(tmp_path / meant).close()


@pytest.mark.parametrize("name", ["orders-0.bak", "orders-00", "out.parquet", "a b"])
def test_no_name_is_made_up_for_something_else(tmp_path, name):
    assert hint_of(lambda: seglog.open(tmp_path / name)) == "name it <topic>-<partition>, such as orders-0"


HOME_DOORS = {
    "open": lambda: seglog.open("~/data/orders-0"),
    "open_dir": lambda: seglog.open_dir("~"),
    "Queue": lambda: seglog.Queue("~/jobs"),
    "Topic": lambda: seglog.Topic("~/topic"),
    "serve": lambda: seglog.serve("~/data").__enter__(),
}


@pytest.mark.parametrize("door", HOME_DOORS)
def test_no_directory_named_tilde_is_made(tmp_path, monkeypatch, door):
    monkeypatch.chdir(tmp_path)
    assert "expanduser" in hint_of(HOME_DOORS[door])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_named_tilde_that_exists_may_be_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    seglog.open("~/orders-0").close()


# --- offsets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read", [lambda log: log[-1], lambda log: list(log.read(-2)), lambda log: next(log.follow(-1))]
)
def test_an_offset_from_the_end_names_tail(log, read):
    with pytest.raises(OffsetOutOfRangeError):
        read(log)
    assert "tail(n)" in hint_of(lambda: read(log))
    assert "valid range" in hint_of(lambda: log[99])


def test_words_for_an_offset(log):
    assert "leave start out" in hint_of(lambda: log.read("earliest"))
    assert hint_of(lambda: next(log.follow("earliest"))) == 'pass "start", "end", an offset or a time'
    assert "read(start, stop)" in hint_of(lambda: log[0:2])
    assert "read(start, stop)" not in hint_of(lambda: log["a"])


# --- times -------------------------------------------------------------------------------------


def test_a_duration_is_not_a_time_and_the_hint_makes_one(tmp_path):
    clock = ManualClock(1_700_000_000_000)
    with seglog.open(tmp_path / "times-0", fsync="never", clock=clock) as log:
        log.append(b"old")
        clock.advance(7_200_000)
        log.append(b"new")
        assert 'pass "-1h"' in hint_of(lambda: log.read(since="1h"))
        assert [record.value for record in log.read(since="-1h")] == [b"new"]
        assert "datetime.now(UTC) - it" in hint_of(lambda: log.read(since=dt.timedelta(hours=1)))


def test_a_date_names_its_text(log):
    day = dt.date(2026, 11, 30)
    assert 'pass "2026-11-30"' in hint_of(lambda: log.read(since=day))
    assert list(log.read(since="2100-01-01")) == []
    assert "datetime" not in hint_of(lambda: log.read(since="yesterday"))
    assert "a datetime" in hint_of(lambda: log.read(since=object()))


def test_a_path_of_bytes_is_decoded_by_its_owner():
    assert hint_of(lambda: seglog.open(b"orders-0")) == "pass os.fsdecode(path)"
    with pytest.raises(InvalidArgumentError, match="not NoneType"):
        seglog.open(None)


# --- a queue -----------------------------------------------------------------------------------


@pytest.fixture(params=["alone", "owner", "attached"])
def jobs(tmp_path, request):
    """A queue; one that is shared, by its owner, and by a second opening, which sends each call to the owner."""
    is_shared = request.param != "alone"
    with ExitStack() as opened:
        for _ in range(1 + (request.param == "attached")):
            queue = opened.enter_context(
                seglog.Queue(tmp_path / "jobs", fsync="never", attach=is_shared, max_attempts=2)
            )
        yield queue


@pytest.mark.parametrize("wrong", [-1, dt.timedelta(-1), 1e10])
def test_a_delay_of_another_size_is_refused_in_the_same_words_wherever_the_queue_is(jobs, wrong):
    job = jobs.get_many(1, timeout=0) or (jobs.put(b"mail"), jobs.get(timeout=0))[1]
    for call in (lambda: jobs.put(b"x", delay=wrong), lambda: jobs.put_many([b"x"], delay=wrong),
                 lambda: job.nack(delay=wrong)):
        with pytest.raises(InvalidArgumentError, match="delay must be from 0 seconds to a hundred years, not "):
            call()
    assert jobs.stats().backlog == 1


@pytest.mark.parametrize("wrong", [-1, "10s"])
def test_a_timeout_of_a_put_is_looked_at_though_nothing_waits(jobs, wrong):
    with pytest.raises(InvalidArgumentError, match="timeout must be "):
        jobs.put(b"x", timeout=wrong)
    assert jobs.stats().backlog == 0


@pytest.mark.parametrize(("wrong", "told"), [
    (5, "a key must be text or bytes, not 5"), ("\ud800", "a key must be text that UTF-8 can encode, not '\\ud800'"),
])
def test_what_is_no_key_is_refused_in_the_same_words_wherever_the_queue_is(jobs, wrong, told):
    for call in (lambda: jobs.put(b"x", key=wrong), lambda: jobs.put_many([(wrong, b"x")])):
        with pytest.raises(InvalidArgumentError) as refused:
            call()
        assert str(refused.value).startswith(told)
    assert jobs.stats().backlog == 0


def test_an_exception_is_not_a_reason(jobs):
    jobs.put(b"mail")
    job = jobs.get(timeout=5)
    error = KeyError("address")
    assert "repr(error)" in hint_of(lambda: job.nack(reason=error))
    assert not job.is_settled
    assert jobs.stats().in_flight == 1
    job.nack(0, reason=repr(error))
    with jobs.get(timeout=5) as job:
        job.nack(reason="no address")
    assert [job.reason for job in jobs.dead] == ["no address"]


def test_one_job_where_several_are_taken(jobs):
    assert "even for one" in hint_of(lambda: jobs.put_many(b"mail"))
    jobs.put(b"mail")
    job = jobs.get(timeout=5)
    assert "even for one" in hint_of(lambda: jobs.ack(job))
    assert "even for one" in hint_of(lambda: jobs.ack(job.id))
    assert "get()" in hint_of(lambda: jobs.ack([job.id]))
    assert "even for one" in hint_of(lambda: jobs.release(job))
    jobs.ack([job])
    assert jobs.stats().backlog == 0


def test_a_job_that_is_finished_does_not_need_a_longer_lease(jobs):
    jobs.put(b"mail")
    job = jobs.get(timeout=5)
    job.ack()
    with pytest.raises(LeaseLostError, match="it is acknowledged"):
        job.nack()
    assert "is_settled" in hint_of(job.nack)


def test_fields_of_a_job(jobs):
    assert "str(" in hint_of(lambda: jobs.put(b"mail", properties={"user": 17}))
    with pytest.raises(InvalidArgumentError, match="properties must be a mapping"):
        jobs.put(b"mail", properties="user")
    assert "str(" in hint_of(lambda: jobs.put(b"mail", key=17))
    assert 'key="' in hint_of(lambda: jobs.put(b"mail", unique_for=60))
    with pytest.raises(InvalidArgumentError, match=r"delay must be .*0 seconds"):
        jobs.put(b"mail", delay=-1)
    assert jobs.stats().backlog == 0


PATH_DOORS = {
    "Queue": seglog.Queue,
    "shared Queue": lambda path: seglog.Queue(path, attach=True),
    "Topic": seglog.Topic,
    "ManagedLedger": seglog.pulsar.ManagedLedger,
    "Ledger": lambda path: seglog.pulsar.Ledger.create(path, 0),
    "aio.Queue": seglog.aio.Queue,
    "aio.Topic": seglog.aio.Topic,
}


@pytest.mark.parametrize("path", [None, 5, b"jobs", "a\0b"])
@pytest.mark.parametrize("door", PATH_DOORS)
def test_a_path_that_is_none(tmp_path, monkeypatch, door, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="a path must"):
        PATH_DOORS[door](path)
    assert list(tmp_path.iterdir()) == []


# --- commands ----------------------------------------------------------------------------------


def first_and_hint(*words, status):
    first, *_, last = seglog_command(*words, status=status).stderr.splitlines()
    return first, last


def test_the_words_of_other_tools_name_our_commands():
    known = {*cli.COMMANDS, "--version"}
    assert set(cli._MEANT.values()) <= known
    assert not set(cli._MEANT) & known
    for given, meant in cli._MEANT.items():
        assert f"did you mean '{meant}'" in first_and_hint(given, "logs", status=2)[0]
    for slip, meant in (("verfy", "verify"), ("reprot", "report"), ("recove", "recover")):
        assert f"did you mean '{meant}'" in first_and_hint(slip, status=2)[0]
    assert "did you mean" not in first_and_hint("zzz", status=2)[0]


def test_the_words_of_other_queues_name_our_commands():
    known = queue_command.command.commands
    assert {meant.split()[0] for meant in queue_command.MEANT.values()} <= {*known}
    assert not {*queue_command.MEANT} & {*known}
    for given in ("add", "get", "dead", "size"):
        assert f"did you mean 'queue {queue_command.MEANT[given]}'" in first_and_hint("queue", given, status=2)[0]
    assert "did you mean 'queue put'" in first_and_hint("queue", "pit", status=2)[0]


def test_a_topic_where_a_partition_is_read(tmp_path, log):
    missing, partition = tmp_path / "orders", tmp_path / "orders-0"
    for words in (["dump"], ["ls"], ["verify"], ["seek", "--offset", 0]):
        assert str(partition) in first_and_hint(*words, missing, status=3)[1]
    assert first_and_hint("dump", tmp_path / "order", status=3)[1] == "  try: check the path"
    for read in (seglog.open_partition, seglog.follow, lambda path: seglog.scan(path).to_arrow()):
        assert str(partition) in hint_of(lambda read=read: read(missing))
        assert hint_of(lambda read=read: read(tmp_path / "order")) == "check the path"


def test_a_partition_where_a_topic_is_chosen(tmp_path, log):
    assert first_and_hint("dump", tmp_path, "--topic", "orders-0", status=4)[1].endswith(f"{tmp_path}/orders-0")
    assert "seglog ls" in first_and_hint("dump", tmp_path, "--topic", "bills", status=4)[1]
    seglog.backup(tmp_path / "orders-0", tmp_path / "store")
    words = ("restore", tmp_path / "store", tmp_path / "to", "--topic", "orders-0")
    assert first_and_hint(*words, status=2)[1].endswith("--partition orders-0")
    store, to = tmp_path / "store", tmp_path / "to"
    hint = hint_of(lambda: seglog.restore(store, to, topics=["orders-0"]))
    assert hint.endswith('partitions=["orders-0"]')
    assert not (tmp_path / "to").exists()


# --- a queue, once more ------------------------------------------------------------------------


@pytest.mark.parametrize("config", [5, "maxMessageSize=5", [("maxMessageSize", 5)]])
@pytest.mark.parametrize("door", [seglog.Queue, seglog.Topic, seglog.pulsar.ManagedLedger])
def test_a_config_that_is_no_mapping(tmp_path, door, config):
    with pytest.raises(InvalidArgumentError, match="must be a mapping"):
        door(tmp_path / "made", config=config)
    assert not (tmp_path / "made").exists()


def test_a_start_and_a_producer_of_a_topic(tmp_path):
    with seglog.Topic(tmp_path / "topic") as topic:
        assert '"earliest"' in hint_of(lambda: topic.subscribe("s", start="beginning"))
        with topic.producer("p"):
            assert "choose another name" in hint_of(lambda: topic.producer("p"))


def test_whether_to_wait_may_be_anything(jobs):
    jobs.put_many([b"one", b"two"])
    jobs.get(timeout=5).ack(wait=[])
    jobs.ack([jobs.get(timeout=5)], wait=dt.timedelta(1))
    assert jobs.stats().backlog == 0


@pytest.mark.parametrize("door", [seglog.Queue, seglog.Topic, seglog.pulsar.ManagedLedger, seglog.open_dir])
@pytest.mark.parametrize("below", ["", "below"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, door, below):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(SeglogError, match="symbolic link"):
        door(tmp_path / "link" / below)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_backup_of_what_holds_a_log_dir_names_the_log_dir(tmp_path):
    with seglog.open(tmp_path / "broker/data/orders-0", fsync="never") as log:
        log.append(b"lamp")
    (tmp_path / "broker/config").mkdir()
    hint = hint_of(lambda: seglog.backup(tmp_path / "broker", tmp_path / "store"))
    assert hint == f"pass the log dir in it, {tmp_path}/broker/data"
    seglog.backup(tmp_path / "broker/data", tmp_path / "store")
    assert "or the directory above" in hint_of(lambda: seglog.backup(tmp_path / "broker/config", tmp_path / "store"))


# --- a clock -----------------------------------------------------------------------------------


class HalfAClock:
    def now_ms(self):
        return 1_700_000_000_000


@pytest.mark.parametrize("wrong", [time.time, 1_700_000_000_000, {}, "utc", dt.UTC, SystemClock, HalfAClock()])
def test_what_is_no_clock_is_refused_before_anything_is_made(tmp_path, wrong):
    path = tmp_path / "new-0"
    for opened in (
        seglog.open, seglog.Queue, seglog.Topic, seglog.pulsar.ManagedLedger,
        lambda path, **options: seglog.open(path, attach=True, **options),
        lambda path, **options: seglog.Queue(path, attach=True, **options),
    ):
        with pytest.raises(InvalidArgumentError, match=r"a clock must have now_ms\(\) and monotonic_ns\(\), "):
            opened(path, clock=wrong)
        assert not path.exists()


@pytest.mark.parametrize("wrong", [1, 0, "local", OsFileSystem])
def test_what_is_no_file_system_is_refused_before_anything_is_made(tmp_path, wrong):
    """Red: AttributeError: 'int' object has no attribute 'mkdir'."""
    with seglog.open(tmp_path / "data/orders-0") as log:
        log.append(b"one")
    path = tmp_path / "new-0"
    for opened in (
        seglog.open, seglog.open_dir, seglog.Queue, seglog.pulsar.ManagedLedger,
        lambda path, fs: seglog.backup(tmp_path / "data", path, fs=fs),
        lambda path, fs: seglog.recover(tmp_path / "data/orders-0", path, mode="quarantine", fs=fs),
    ):
        with pytest.raises(InvalidArgumentError, match=r"fs must be a seglog\.fs\.files\.FileSystem, "):
            opened(path, fs=wrong)
        assert not path.exists()


@pytest.mark.parametrize("wrong", [0.5, "random", {}])
def test_what_is_no_chance_is_refused_before_a_job_fails(tmp_path, wrong):
    with pytest.raises(InvalidArgumentError, match="chance must be a function, "):
        seglog.Queue(tmp_path / "jobs", chance=wrong)
