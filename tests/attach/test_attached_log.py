"""Several processes with one log: the first owns it, others append through it and read its files."""
import _thread
import asyncio
import inspect
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

import seglog
import seglog.aio
from seglog.attach import shared_handle, shared_log
from seglog.attach.shared_log import SOCKET, SharedLog
from seglog.errors import (
    ForkedHandleError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTimestampError,
    LogClosedError,
    LogFailedError,
    LogLockedError,
    RecordTooLargeError,
    SharedLogError,
    StorageError,
    UnsupportedForMessageFormatError,
)
from seglog.format.batch import end_marker
from seglog.fs import local_socket
from seglog.metrics import PROCESS
from support.told_process import Other
from support.waiting import wait_for

OPENING = "log = seglog.open(path, attach=True)"


class Stop(Exception):
    """From a signal."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders-0"


@pytest.fixture
def owner(path):
    with Other(path, OPENING) as other:
        yield other


@pytest.fixture
def log(owner, path):
    with seglog.open(path, attach=True) as attached:
        assert "attached" in repr(attached)
        yield attached


def values_of(log):
    return [record.value for record in log.read()]


def test_an_attached_process_appends_through_the_owner_and_reads_what_it_appended(owner, log, path):
    assert owner.does("log.append(b'of the owner', key='k')") == 0
    assert log.append(b"one", key="k", headers=[("h", b"x")], timestamp=1_700_000_000_000) == 1
    assert log.append_many([(None, b"two"), ("k", None)]) == 3
    assert log.append_columns(values=[b"a", b"b", b"c"]) == 6
    result = log.append_batch(seglog.build_batch([(b"k", b"built")]))
    assert result == (7, 7, False)
    record = log[1]
    assert (record.key, record.value, record.headers, record.timestamp) == (
        b"k", b"one", (("h", b"x"),), 1_700_000_000_000)
    assert values_of(log) == [b"of the owner", b"one", b"two", None, b"a", b"b", b"c", b"built"]
    assert [r.offset for r in log.tail(2)] == [6, 7]
    assert owner.does("[r.value for r in log.read(start=6)]") == [b"c", b"built"]
    assert log.log_end_offset == log.durable_offset == log.high_watermark == log.last_stable_offset == 8
    assert (log.topic, log.partition, log.fsync, log.leader_epoch) == ("orders", 0, "batch", 0)
    assert not seglog.verify(path).findings


def test_named_readers_and_follow_work_in_every_process(owner, log):
    with log.cursor("mailer") as cursor:
        assert owner.fails("log.cursor('mailer')") == "LogLockedError"
        owner.does("log.append_many([(None, b'a'), (None, b'b')])")
        wait_for(lambda: log.log_end_offset == 2)       # a thread of the owner tells readers
        for record in cursor.read():
            cursor.commit(record)
        assert (cursor.position, cursor.lag) == (2, 0)
    assert owner.does("(lambda c: (c.position, c.close()))(log.cursor('mailer'))") == (2, None)
    records = log.follow("start", timeout=60)
    assert [next(records).value for _ in range(2)] == [b"a", b"b"]
    owner.tell("time.sleep(0.1), log.append(b'c')")
    assert next(records).value == b"c"
    owner.answer()
    owner.tell("[next(r).value for r in [log.follow(timeout=60)]]")
    while log.append(b"d") and not owner_has_answered(owner):
        time.sleep(0.01)
    assert owner.answer() == [b"d"]


def owner_has_answered(owner):
    import select

    return bool(select.select([owner.process.stdout], [], [], 0)[0])


CASES = [
    lambda log: log.append("text"), lambda log: log.append(b"x", b"y"), lambda log: log.append(b"x", key=5),
    lambda log: log.append(b"x", headers={"a": b"b"}), lambda log: log.append(b"x", timestamp="yesterday?"),
    lambda log: log.append(b"x", timestamp=5), lambda log: log.append(b"x" * (2 << 20)),
    lambda log: log.append_many([]), lambda log: log.append_many([b"x"]), lambda log: log.append_many([(None, 5)]),
    lambda log: log.append_many([(None, b"x" * (2 << 20))]), lambda log: log.append_many(5),
    lambda log: log.append_columns(), lambda log: log.append_columns(values=[5]),
    lambda log: log.append_batch(b"x" * 100), lambda log: log.append_batch("x"),
    lambda log: log.append_batch(seglog.build_batch([(None, b"x")])[:-1]),
    lambda log: log[99], lambda log: log.read(start=99), lambda log: log.delete_records(99), lambda log: log["x"],
    lambda log: log.snapshot(log.path), lambda log: log.cursor("/"), lambda log: log.get(None),
    lambda log: log.when_durable(5, print), lambda log: next(log.follow(timeout=0)),
]


def test_wrong_arguments_raise_the_same_errors_in_both_kinds_of_process(log, tmp_path):
    with seglog.open(tmp_path / "plain-0") as plain:
        for number, case in enumerate(CASES):
            raised = []
            for one in (plain, log):
                with pytest.raises(seglog.SeglogError) as told:
                    case(one)
                raised.append((type(told.value), told.value.what.replace("plain-0", "orders-0"), told.value.hint))
            assert raised[0] == raised[1], number
    assert log.log_end_offset == 0


def test_the_settings_of_the_owner_decide_in_every_process(path):
    config = {"compression.type": "gzip", "cleanup.policy": "compact", "max.message.bytes": 1000}
    with Other(path, f"log = seglog.open(path, attach=True, config={config!r})"), \
            seglog.open(path, attach=True) as log:
        with pytest.raises(InvalidRecordError, match="key"):
            log.append(b"x")
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
            log.append(os.urandom(2000), key="k")
        log.append(b"x" * 2000, key="k")
        [batch] = log.batches()
        assert batch.codec == 1
        assert log.config.compression_type == "gzip"
        assert log.settings["compression.type"] == ("gzip", "given", True)


def test_options_that_differ_from_the_owners_are_named_with_both_values(owner, path, caplog):
    with caplog.at_level(logging.WARNING, "seglog"):
        seglog.open(path, attach=True).close()
        assert not caplog.records
        seglog.open(path, attach=True, fsync="never", config={"segment.bytes": "1MiB"}).close()
    [record] = caplog.records
    assert "fsync is 'never' here and 'batch' there" in record.getMessage()
    assert "config.segment.bytes is '1048576' here and None there" in record.getMessage()


REFUSED = {
    "truncate_to": (0,), "replace_segments": ([], []), "configure": ({},), "delete_old_segments": (), "producer": (7,),
    "end_transaction": (7, 0), "check_batch": (b"",), "append_checked": (None,), "on_published": (print,),
}


@pytest.mark.parametrize("is_owner", [False, True])
def test_what_is_not_for_a_shared_log_is_refused_by_name_whoever_owns_it(path, is_owner):
    with (Other(path, OPENING) if not is_owner else seglog.open(path, attach=True)) as other:
        log = other if is_owner else seglog.open(path, attach=True)
        assert log.is_owner is is_owner
        for name, arguments in REFUSED.items():
            with pytest.raises(SharedLogError, match=name):
                getattr(log, name)(*arguments)
        plain, marker = seglog.build_batch([(None, b"x")]), end_marker(True, 0)
        for batch, options in (
            (plain, {"assign_offsets": False}), (plain, {"leader_epoch": 3}), (plain, {"from_coordinator": True}),
            (seglog.build_batch([(None, b"x")], magic=1), {}),
            (seglog.build_batch([marker], control=True, transactional=True, producer_id=1, producer_epoch=0), {}),
            (seglog.build_batch([(None, b"x")], transactional=True, producer_id=1, producer_epoch=0,
                                base_sequence=0), {}),
        ):
            with pytest.raises(SharedLogError, match="attach=True"):
                log.append_batch(batch, **options)
        assert log.log_end_offset == 0
        log.close()


def test_every_public_name_of_a_log_is_decided_on():
    """Whatever Log gets anew: an attached process has no LogTail, so a method that is only inherited would fail."""
    inherited = {
        name for name in dir(SharedLog)
        if not name.startswith("_") and inspect.getattr_static(SharedLog, name) is inspect.getattr_static(
            seglog.Log, name, None)
    }
    assert inherited == {"get", "high_watermark"}     # they call others


def test_records_in_old_formats_cannot_be_shared(path):
    with pytest.raises(UnsupportedForMessageFormatError, match="producers"):
        seglog.open(path, attach=True, config={"message.format.version": "0.10.0"})
    seglog.open(path, config={"message.format.version": "0.10.0"}).close()      # nobody holds it


def test_calls_that_one_process_can_make_for_all_are_made_by_the_owner(owner, log, tmp_path):
    log.append_many([(None, b"%d" % n) for n in range(10)])
    assert log.roll() == 10
    assert log.append(b"x") == 10
    assert log.delete_records(10) == 10
    assert log.log_start_offset == 10
    assert log.snapshot(tmp_path / "copy-0") == 11
    with seglog.open_partition(tmp_path / "copy-0") as copy:
        assert values_of(copy) == [b"x"]
    assert not (tmp_path / "copy-0" / SOCKET).exists()
    log.flush()
    assert (log.stats().appends, log.stats().log_end_offset) == (2, 11)
    assert log.recovery_point == 10
    assert log.cleaner_offset is None
    assert [segment.base_offset for segment in log.segments] == [10]


@pytest.mark.parametrize("fsync", ["batch", "never"])
def test_an_append_that_does_not_wait_is_called_back_when_it_is_durable(path, fsync):
    with Other(path, f"log = seglog.open(path, attach=True, fsync={fsync!r})"), \
            seglog.open(path, attach=True, fsync=fsync) as log:
        called = []
        for n in range(50):
            written = log.append(b"%d" % n, wait=False)
            assert written.result == n
            log.when_durable(written, called.append)
        wait_for(lambda: len(called) == 50)
        assert called == [None] * 50
        assert log.durable_offset == 50
        assert log.append_batch(seglog.build_batch([(None, b"x")]), wait=False).result.first_offset == 50


def test_a_producer_with_an_id_of_its_own_keeps_it(owner, log):
    def batch(sequence):
        return seglog.build_batch([(None, b"%d" % sequence)], producer_id=7, producer_epoch=0, base_sequence=sequence)

    assert log.append_batch(batch(0)) == (0, 0, False)
    assert log.append_batch(batch(0)) == (0, 0, True)
    assert log.append_batch(batch(1)) == (1, 1, False)
    with pytest.raises(seglog.errors.OutOfOrderSequenceError):
        log.append_batch(batch(5))
    assert values_of(log) == [b"0", b"1"]


# --- the owner ends ------------------------------------------------------------------------------


def test_when_the_owner_is_killed_an_attached_process_takes_over(owner, log, path):
    records = log.follow("start", timeout=60)
    owner.does("log.append(b'a')")
    assert next(records).value == b"a"
    with Other(path, OPENING) as third:
        third.stop()
        owner.kill()
        assert log.append(b"b") == 1
        assert log.is_owner
        third.send(signal.SIGCONT)
        assert third.does("log.append(b'c')") == 2
        assert [next(records).value for _ in range(2)] == [b"b", b"c"]      # it goes on
        assert values_of(log) == [b"a", b"b", b"c"]
        log.close()
        assert third.does("log.append(b'd')") == 3
        assert third.does("log.is_owner") is True
    assert seglog.verify(path).ok


def test_a_takeover_begins_no_new_log_in_place_of_one_that_was_removed(owner, log, path):
    log.append(b"before")
    shutil.rmtree(path)
    owner.kill()
    with pytest.raises(StorageError, match="removed while processes shared it"):
        log.append(b"after")
    assert not path.exists()


def test_a_cursor_of_an_attached_process_stays_valid_when_it_takes_over(owner, log):
    """And sees what this process appends then, as soon as that returns."""
    with log.cursor("mailer") as cursor:
        owner.does("log.append_many([(None, b'a'), (None, b'b')])")
        wait_for(lambda: log.log_end_offset == 2)
        first, _ = cursor.read()
        owner.kill()
        log.append(b"c")
        cursor.commit(first)
        assert [r.value for r in cursor.read()] == [b"b", b"c"]
        for n in range(20):
            log.append(b"%d" % n)
            assert cursor.lag == 3 + n


# What the owner does instead of answering: then what it was asked for is done, and nobody knows.
DIES = """
from seglog.attach import channel
def send(self, header, values=(), deadline=None, send=channel.Channel.send):
    if 'results' in header:
        os.kill(os.getpid(), signal.SIGKILL)
    send(self, header, values, deadline)
channel.Channel.send = send
"""
APPENDS = {
    "append": (lambda log: log.append(b"v0"), 1, lambda last: last),
    "append_many": (lambda log: log.append_many([(None, b"v%d" % n) for n in range(9)]), 9, lambda last: last),
    "several batches": (
        lambda log: log.append_many([(None, b"v%d" % n) for n in range(400)], atomic=False), 400, lambda last: last),
    "append_batch": (
        lambda log: log.append_batch(seglog.build_batch([(None, b"v0"), (None, b"v1")])), 2, lambda r: r.last_offset),
    "a producer's": (lambda log: log.append_batch(seglog.build_batch(
        [(None, b"v0")], producer_id=7, producer_epoch=0, base_sequence=0)), 1, lambda r: r.last_offset),
}


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("name", APPENDS)
def test_an_append_whose_answer_dies_with_the_owner_is_appended_once(path, name, rolls):
    """Also if the log is rolled meanwhile, and if a log remembers fewer batches of a producer than the call had."""
    call, count, last_of = APPENDS[name]
    config = {"max.message.bytes": 200}
    opening = f"log = seglog.open(path, attach=True, config={config!r})"
    with Other(path, opening) as owner, seglog.open(path, attach=True, config=config) as log:
        owner.does("log.append(b'before')")
        owner.does(DIES.replace("os.kill(", "log.roll(), os.kill(") if rolls else DIES)
        assert last_of(call(log)) == count
        assert log.is_owner
        assert values_of(log) == [b"before", *(b"v%d" % n for n in range(count))]
        assert last_of(call(log)) == (count if name == "a producer's" else 2 * count)
    assert seglog.verify(path).ok


def test_a_snapshot_whose_answer_dies_with_the_owner_is_not_refused_by_the_next(owner, log, tmp_path):
    """It is there: the next owner would say that its directory exists."""
    log.append_many([(None, b"a"), (None, b"b")])
    owner.does(DIES.replace("'results' in header", "'offset' in header"))
    assert log.snapshot(tmp_path / "copy-0") == 2
    assert log.is_owner
    with seglog.open_partition(tmp_path / "copy-0") as copy:
        assert [r.value for r in copy.read()] == [b"a", b"b"]
    with pytest.raises(InvalidArgumentError, match="exists"):
        log.snapshot(tmp_path / "copy-0")


def test_an_append_of_which_a_part_was_written_when_the_owner_died_is_completed(path):
    config = {"max.message.bytes": 200}
    opening = f"log = seglog.open(path, attach=True, config={config!r})"
    dies = "a = seglog.Log.append_checked\n" \
        "n = []\n" \
        "def die(self, *args, **options):\n" \
        "    n.append(1)\n" \
        "    if len(n) == 15: os.kill(os.getpid(), signal.SIGKILL)\n" \
        "    return a(self, *args, **options)\n" \
        "seglog.Log.append_checked = die"
    with Other(path, opening) as owner, seglog.open(path, attach=True, config=config) as log:
        owner.does(dies)
        assert log.append_many([(None, b"v%d" % n) for n in range(400)], atomic=False) == 399
        assert values_of(log) == [b"v%d" % n for n in range(400)]


def test_a_producers_next_epoch_is_not_taken_for_the_one_before(owner, log, path):
    """Its sequence numbers begin with 0 again. Another process appended the epoch before."""
    with Other(path, OPENING) as other:
        other.does(
            "log.append_batch(seglog.build_batch([(None, b'0')], producer_id=7, producer_epoch=0, base_sequence=0))")
        owner.does("def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\nseglog.Log.append_checked = die")
        batch = seglog.build_batch([(None, b"1")], producer_id=7, producer_epoch=1, base_sequence=0)
        assert log.append_batch(batch) == (1, 1, False)
        assert values_of(log) == [b"0", b"1"]


def gathered(path, config, sizes):
    """What tasks are told that append values of these sizes together, and the sizes in the log."""
    async def append():
        async with seglog.aio.open(path, attach=True, config=config) as log:
            told = await asyncio.gather(*(log.append(bytes(size)) for size in sizes), return_exceptions=True)
            return [one if isinstance(one, int) else type(one) for one in told]

    told = asyncio.run(append())
    with seglog.open_partition(path) as partition:
        return told, [len(record.value) for record in partition.read()]


def test_a_task_whose_record_does_not_fit_into_a_frame_does_not_repeat_the_frames_before(owner, path, monkeypatch):
    monkeypatch.setattr(shared_log, "FRAME_BYTES", 1000)
    monkeypatch.setattr(shared_log, "VALUES_BYTES_MAX", 2000)
    told, sizes = gathered(path, None, [800, 801, 4000, 802])
    assert told == [0, 1, RecordTooLargeError, 2]
    assert sizes == [800, 801, 802]


def test_tasks_whose_records_the_next_owner_refuses_do_not_repeat_what_the_last_one_wrote(path):
    with Other(path, "log = seglog.open(path, attach=True)") as owner:
        owner.does(
            "a = seglog.Log.append_checked\n"
            "n = []\n"
            "def die(self, *args, **options):\n"
            "    n.append(1)\n"
            "    if len(n) == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    return a(self, *args, **options)\n"
            "seglog.Log.append_checked = die")
        told, sizes = gathered(path, {"max.message.bytes": 300}, [10, 11, 900, 12])
    assert told == [0, 1, RecordTooLargeError, 2]
    assert sizes == [10, 11, 12]


def test_batches_and_records_of_one_loop_keep_the_order_of_the_calls(owner, path):
    async def append():
        async with seglog.aio.open(path, attach=True) as log:
            batch = seglog.build_batch([(None, b"1")])
            return await asyncio.gather(
                log.append(b"0"), log.append_batch(batch), log.append(b"2"), log.append(b"3"), log.append_batch(batch))

    assert asyncio.run(append()) == [0, (1, 1, False), 2, 3, (4, 4, False)]


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_closed_log_still_says_what_it_was(path, is_owner):
    with Other(path, "" if is_owner else OPENING):
        with seglog.open(path, attach=True, config={"max.message.bytes": 2000}) as log:
            assert log.is_owner is is_owner
        assert (log.topic, log.partition, log.config.max_message_bytes) == ("orders", 0, 2000 if is_owner else 1048588)


# --- strange ways to use it ----------------------------------------------------------------------


def test_a_link_and_a_relative_path_of_the_same_log_meet_in_one_owner(owner, path, tmp_path):
    os.symlink(tmp_path, tmp_path / "link")
    os.symlink(path, tmp_path / "other-5")
    relative = os.path.relpath(path)
    for other in (tmp_path / "link" / "orders-0", relative, tmp_path / "other-5"):
        with seglog.open(other, attach=True) as log:
            assert not log.is_owner
            log.append(b"x")
    assert owner.does("log.log_end_offset") == 3
    # And the other way round.
    owner.kill()
    with seglog.open(tmp_path / "link" / "orders-0", attach=True) as log, Other(path, OPENING) as other:
        assert log.is_owner
        assert other.does("log.append(b'x')") == 3
        assert log.log_end_offset == 4


def test_two_handles_of_one_process_share_it(path):
    with seglog.open(path, attach=True) as one:
        two = seglog.open(path, attach=True)
        assert (one.append(b"a"), two.append(b"b")) == (0, 1)
        assert (one.is_owner, two.is_owner) == (True, False)
        one.close()
        assert two.append(b"c") == 2
        assert values_of(two) == [b"a", b"b", b"c"]
        two.close()


def test_a_log_that_was_opened_for_one_process_is_locked_for_those_that_attach(path, monkeypatch):
    monkeypatch.setattr(shared_handle, "OPENING_S", 0.1)
    with Other(path, "log = seglog.open(path)"), pytest.raises(LogLockedError) as told:
        seglog.open(path, attach=True)
    assert "attach=True" in told.value.hint


def test_a_log_that_is_shared_is_locked_for_those_that_do_not_attach(owner, path):
    with pytest.raises(LogLockedError) as told:
        seglog.open(path)
    assert "attach=True" in told.value.hint


def test_the_socket_is_for_its_user_only_and_goes_with_the_owner(path):
    with seglog.open(path, attach=True):
        mode = os.stat(path / SOCKET).st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert not seglog.verify(path).findings
    assert not (path / SOCKET).exists()
    assert not seglog.verify(path).findings


@pytest.mark.parametrize("is_owner", [False, True])
def test_a_forked_child_is_refused_and_closes_without_harm(path, is_owner):
    with Other(path, OPENING) as first, Other(path, OPENING) as second:
        forker = first if is_owner else second
        forker.does("""
def tell():
    told = 0
    for call in (lambda: log.append(b'x'), log.flush, lambda: log.append_many([(None, b'x')])):
        try:
            call()
        except seglog.errors.ForkedHandleError:
            told += 1
    log.close()
    return told
""")
        status = forker.does("(lambda pid: os.waitpid(pid, 0)[1] if pid else os._exit(tell()))(os.fork())")
        assert os.waitstatus_to_exitcode(status) == 3
        assert second.does("log.append(b'x')") == 0
        assert first.does("log.append(b'x')") == 1


def test_a_child_forked_by_the_owner_does_not_keep_the_others_from_taking_over(owner, log):
    child = owner.does("(lambda pid: pid or time.sleep(600))(os.fork())")
    try:
        owner.kill()
        assert log.append(b"x") == 0
        os.kill(child, 0)       # it lives
    finally:
        os.kill(child, signal.SIGKILL)


PREFORK = """
import os, sys
path, workers, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import seglog
for number in range(workers):
    if not os.fork():
        log = seglog.open(path, attach=True, fsync="never")
        for n in range(count):
            log.append(b"%d.%d" % (number, n))
        log.close()
        os._exit(0)
for _ in range(workers):
    assert os.wait()[1] == 0
"""


def test_workers_that_were_forked_before_they_open_it_share_one_log(path):
    """As gunicorn's do. The first one that is done closes the log under the others."""
    subprocess.run([sys.executable, "-c", PREFORK, path, "4", "100"], check=True, timeout=120)
    with seglog.open(path) as log:
        assert not log.recovery.lost
        found = [record.value for record in log.read()]
    for number in range(4):
        of_one = [value for value in found if value.startswith(b"%d." % number)]
        assert of_one == [b"%d.%d" % (number, n) for n in range(100)]


def test_reading_goes_on_while_the_owner_is_stopped_and_close_ends_the_waits(owner, path):
    log = seglog.open(path, attach=True)
    log.append(b"x")
    owner.stop()
    raised = []

    def call(work):
        try:
            work()
        except LogClosedError as error:
            raised.append(error)

    threads = [threading.Thread(target=call, args=(work,)) for work in (
        lambda: log.append(b"y"), log.flush, lambda: log.append_many([(None, b"z")]))]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(log._role._busy) == len(threads))
    assert values_of(log) == [b"x"]
    log.close()
    for thread in threads:
        thread.join(60)
    assert len(raised) == len(threads)
    with pytest.raises(LogClosedError):
        log.append(b"x")
    with pytest.raises(LogClosedError):
        log.read()
    log.close()


@pytest.mark.usefixtures("no_collector_hooks")
def test_an_interrupted_append_is_there_once_or_never_and_the_next_one_goes_on(owner, log):
    """What a caller with a timeout sees of an owner that is stopped: its own exception."""
    def stop(*_):
        raise Stop

    log.append(b"first")
    before = signal.signal(signal.SIGALRM, stop)
    owner.stop()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stop):
            log.append(b"x")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    owner.send(signal.SIGCONT)
    last = log.append(b"y")
    wait_for(lambda: sorted(values_of(log)) in ([b"first", b"x", b"y"], [b"first", b"y"]))
    assert log[last].value == b"y"


def test_metrics_say_which_process_shows_those_of_the_log(owner, log):
    of_owner = owner.does("__import__('seglog.metrics').metrics.PROCESS.text().splitlines()")
    assert f'seglog_log_attached{{path="{log.path}"}} 0' in of_owner
    assert any(line.startswith(f'seglog_log_end_offset{{path="{log.path}"') for line in of_owner)
    shown = f'seglog_log_attached{{path="{log.path}"}}'
    assert f"{shown} 1\n" in PROCESS.text()
    assert f'seglog_log_end_offset{{path="{log.path}"' not in PROCESS.text()
    owner.kill()
    wait_for(lambda: log.is_owner)
    assert f"{shown} 0\n" in PROCESS.text()
    assert f'seglog_log_end_offset{{path="{log.path}"' in PROCESS.text()
    log.close()
    assert shown not in PROCESS.text()


def interrupted_opening(path, number):
    """Open it with an interrupt at an instruction of SharedHandle._share. Returns whether it came."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_name != "_share":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == number:
                raise Stop
        return trace

    sys.settrace(trace)
    try:
        seglog.open(path, attach=True).close()
    except Stop:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.usefixtures("no_collector_hooks", "owner")
def test_an_interrupt_while_it_attaches_leaves_no_socket_and_no_thread(path):
    threads = _thread._count()
    number = 1
    assert connections() == set()
    while interrupted_opening(path, number):
        wait_for(lambda: connections() == set() and _thread._count() <= threads, 20)
        number += 1
    assert number > 20


def connections():
    """Open sockets that are connected to an owner."""
    return {one for one in local_socket._OPEN if one.fileno() >= 0}


EXITS = """
import sys, threading
import seglog
log = seglog.open(sys.argv[1], attach=True)
log.append(b"x")
log.append(b"x", wait=False)
threading.Thread(target=lambda: list(log.follow("start")), daemon=True).start()
"""


@pytest.mark.parametrize("is_attached", [False, True])
def test_an_interpreter_that_ends_without_closing_ends_at_once_and_loses_nothing(path, is_attached):
    def ends():
        child = subprocess.run([sys.executable, "-c", EXITS, path], timeout=120, capture_output=True, text=True,
                               check=False)
        assert child.returncode == 0
        assert "Traceback" not in child.stderr

    if is_attached:
        with Other(path, OPENING) as owner:
            ends()
            owner.does("log.flush()")       # nobody waited for the second one
            assert owner.does("[r.value for r in log.read()]") == [b"x", b"x"]
    else:
        ends()
        with seglog.open(path, attach=True) as log:
            assert values_of(log) == [b"x", b"x"]


def test_a_full_disk_in_the_owner_is_told_to_every_process_and_reading_works(owner, log):
    log.append(b"x")
    owner.does("""
import errno
from seglog.fs import files
def write(self, *args):
    raise OSError(errno.ENOSPC, "No space left on device")
tail = log._role.opened._tail
def change(*args, **options):
    raise seglog.errors.LogFailedError.since(seglog.errors.StorageError("no space left", errno=errno.ENOSPC))
object_ = log._role.opened
object_.append_checked = change
""")
    with pytest.raises(LogFailedError, match="no space left") as told:
        log.append(b"y")
    assert "free space" in told.value.hint
    assert told.value.errno == 28
    assert values_of(log) == [b"x"]


def test_tasks_of_an_attached_process_append_and_follow(owner, path):
    async def main():
        async with seglog.aio.open(path, attach=True) as log:
            following = log.follow("start")
            offsets = await asyncio.gather(*(log.append(b"%d" % n) for n in range(200)))
            assert offsets == list(range(200))
            assert await log.append_many([(None, b"a"), (None, b"b")]) == 201
            with pytest.raises(InvalidArgumentError):
                await log.append("text")
            answers = await asyncio.gather(
                log.append(b"c"), log.append(b"x" * (2 << 20)), log.append(b"d", timestamp=5), log.append(b"e"),
                return_exceptions=True)
            assert (answers[0], answers[3]) == (202, 203)
            assert [type(answer) for answer in answers[1:3]] == [RecordTooLargeError, InvalidTimestampError]
            assert (await log.append_batch(seglog.build_batch([(None, b"f")]))).first_offset == 204
            assert await log.append_columns(values=[b"g"]) == 205
            assert [(await anext(following)).value for _ in range(200)] == [b"%d" % n for n in range(200)]
            assert [r.value async for r in log.read(start=200)] == [b"a", b"b", b"c", b"e", b"f", b"g"]
            assert [r.value async for r in log.tail(2)] == [b"f", b"g"]
            owner.kill()
            assert await asyncio.gather(*(log.append(b"h") for _ in range(3))) == [206, 207, 208]
            assert log.blocking.is_owner
            with pytest.raises(SharedLogError):
                await log.truncate_to(0)
            with pytest.raises(SharedLogError):
                await log.producer(7)
            await log.flush()
            assert (await log.stats()).log_end_offset == 209
            async with log.cursor("mailer") as cursor:
                assert await cursor.lag() == 209
            return log

    log = asyncio.run(main())
    assert log.closed
    assert seglog.verify(path).ok


def test_a_new_log_and_one_that_must_exist(tmp_path):
    with pytest.raises(seglog.errors.StorageError):
        seglog.open(tmp_path / "no-0", attach=True, create=False)
    with pytest.raises(InvalidArgumentError, match="name"):
        seglog.open(tmp_path / "no", attach=True)
    assert not list(tmp_path.iterdir())


def test_a_log_in_a_process_that_was_forked_after_the_opening_is_opened_again_there(path):
    with seglog.open(path, attach=True) as log:
        log.append(b"parent")
        child = os.fork()
        if not child:
            try:
                try:
                    log.append(b"x")
                except ForkedHandleError:
                    own = seglog.open(path, attach=True)
                    os._exit(0 if own.append(b"child") == 1 and not own.is_owner else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert values_of(log) == [b"parent", b"child"]
