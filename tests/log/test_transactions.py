"""Transactions: `log.producer`, `log.end_transaction`, and what becomes of those that nobody ends."""
import shutil
import subprocess
import sys
import threading

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    LogClosedError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    UnsupportedForMessageFormatError,
)
from seglog.format.batch import build_batch, end_marker
from seglog.segment.transaction_index import TransactionIndex
from support.faultfs import SlowSync
from support.waiting import wait_for

NOW = 1_790_000_000_000


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture(params=["batch", "never"])
def log(in_memory, clock, request):
    with seglog.open(in_memory / "orders-0", clock=clock, fsync=request.param) as opened:
        yield opened


def committed(log):
    return [record.value for record in log.read(isolation="read_committed")]


def batch_of(producer_id, epoch, sequence, value=b"raw"):
    return build_batch(
        [(b"k", value)], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True,
        timestamp=NOW,
    )


# --- what readers of committed data see ------------------------------------------------------------


def test_records_are_seen_together_when_they_are_committed(log):
    with log.producer(7) as producer:
        producer.begin()
        assert producer.append(b"one", key=b"k", headers=[("h", b"1")]) == 0
        assert producer.append_many([(b"k", b"two"), (b"k", b"three")]) == 2
        assert (committed(log), log.last_stable_offset) == ([], 0)
        assert producer.commit() == 3
    assert committed(log) == [b"one", b"two", b"three"]
    assert log.last_stable_offset == log.log_end_offset == 4
    assert log[0].headers == (("h", b"1"),)


def test_records_of_an_abort_are_never_seen_and_named_in_the_index(log):
    log.append(b"plain")
    with log.producer(7) as producer:
        producer.begin()
        producer.append(b"gone")
        assert producer.abort() == 2
    assert committed(log) == [b"plain"]
    assert [record.value for record in log.read()] == [b"plain", b"gone"]
    (index,) = [TransactionIndex(path.read_bytes()) for path in log.path.glob("*.txnindex")]
    assert [(t.producer_id, t.first_offset, t.last_offset) for t in index] == [(7, 1, 2)]


@pytest.mark.parametrize("how", [ValueError, KeyboardInterrupt])
def test_an_exception_in_with_aborts(log, how):
    producer = log.producer(7)

    def service():
        with producer:
            producer.begin()
            producer.append(b"gone")
            raise how

    with pytest.raises(how):
        service()
    assert committed(log) == []
    assert log.last_stable_offset == 2
    assert not producer.in_transaction


def test_what_is_not_committed_at_the_end_of_with_is_aborted(log):
    with log.producer(7) as producer:
        producer.begin()
        producer.append(b"gone")
    assert (committed(log), log.last_stable_offset) == ([], 2)


def test_a_transaction_without_records_writes_nothing(log):
    with log.producer(7) as producer:
        for end in (producer.commit, producer.abort):
            producer.begin()
            assert end() is None
    assert log.log_end_offset == 0


def test_transactions_of_one_producer_follow_each_other(log):
    with log.producer(7) as producer:
        for n, end in enumerate([producer.commit, producer.abort, producer.commit] * 3):
            producer.begin()
            producer.append_many([(None, b"%d" % n)] * 2)
            end()
    assert committed(log) == [b"%d" % n for n in range(9) if n % 3 != 1 for _ in range(2)]
    assert [(b.producer_epoch, b.base_sequence) for b in log.batches() if not b.is_control] == [
        (0, 2 * n) for n in range(9)
    ]


def test_others_write_between_and_the_last_stable_offset_waits_for_the_oldest(log):
    first, second = log.producer(1), log.producer(2)
    first.begin()
    second.begin()
    second.append(b"b")
    first.append(b"a")
    log.append(b"plain")
    second.commit()
    assert (committed(log), log.last_stable_offset) == ([b"b"], 1)
    first.commit()
    assert committed(log) == [b"b", b"a", b"plain"]


def test_the_last_records_are_counted_without_markers_and_committed_ones_without_aborted_and_open_ones(log):
    log.append(b"plain")
    with log.producer(7) as producer:
        for n, end in enumerate([producer.commit, producer.abort] * 20):
            producer.begin()
            producer.append(b"%d" % n)
            end()
        producer.begin()
        producer.append(b"open")
        log.flush()
        everything, seen = [record.value for record in log.read()], committed(log)
        assert (len(everything), len(seen)) == (42, 21)
        for n in range(44):
            assert [record.value for record in log.tail(n)] == everything[max(42 - n, 0):]
            tail = log.tail(n, isolation="read_committed")
            assert [record.value for record in tail] == seen[max(21 - n, 0):]
    log.delete_records(2)
    assert [record.value for record in log.tail(100)] == everything[2:]


def test_threads_share_a_producer(log):
    with log.producer(7) as producer:
        producer.begin()
        threads = [
            threading.Thread(target=lambda n=n: [producer.append(b"%d" % n) for _ in range(20)]) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.commit()
    assert sorted(committed(log)) == sorted(b"%d" % n for n in range(4) for _ in range(20))


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_batches_are_those_of_the_log(in_memory, clock, codec, timestamp_type):
    config = {"compression.type": codec, "message.timestamp.type": timestamp_type}
    with seglog.open(in_memory / "orders-0", clock=clock, config=config) as log, log.producer(7) as producer:
        producer.begin()
        producer.append(b"v" * 200, timestamp=NOW - 5)
        producer.commit()
        batch = next(log.batches())
        assert seglog.verify(log.path).findings == []
    assert (batch.codec, batch.timestamp_type) == (seglog.format.compression.Codec.of(codec),
                                                   ["CreateTime", "LogAppendTime"].index(timestamp_type))


# --- bytes as Kafka writes them ---------------------------------------------------------------------


@pytest.mark.parametrize("case", ["txn-v2-k282", "txn-v2-k391", "txn-v2-k411"])
def test_markers_are_kafkas(golden_kafka, in_memory, case):
    """The transactions of a golden log are ended here: the log is Kafka's to the byte."""
    (source,) = (golden_kafka / "cases" / case).glob("*-0")
    clock = ManualClock(0)
    markers = 0
    with (
        seglog.open_partition(source) as golden,
        seglog.open(in_memory / source.name, clock=clock, config={"seglog.timestamp.check": False}) as log,
    ):
        clock.set(next(golden.batches()).max_timestamp)
        for batch in golden.batches():
            if batch.base_offset != log.log_end_offset:     # offsets that no batch has
                log.append_batch(bytes(batch.raw()), assign_offsets=False, leader_epoch=batch.leader_epoch)
                continue
            if not batch.is_control:
                log.append_batch(bytes(batch.raw()), assign_offsets=False, leader_epoch=batch.leader_epoch)
                continue
            (record,) = batch
            commit = record.key == b"\0\0\0\1"
            clock.set(record.timestamp)
            known = [e for e in log.producers if e.producer_id == batch.producer_id]
            if record.value[2:] != b"\0\0\0\0" and not any(e.coordinator_epoch > 0 for e in known):
                log.append_batch(bytes(batch.raw()), assign_offsets=False)      # of a coordinator that we are not
                continue
            log.end_transaction(batch.producer_id, batch.producer_epoch, commit=commit)
            markers += 1
            (ours,) = log.batches(batch.base_offset)
            assert bytes(ours.raw()) == bytes(batch.raw())
        assert log.last_stable_offset == golden.last_stable_offset
        assert committed(log) == committed(golden)
    assert markers


# --- fencing ---------------------------------------------------------------------------------------


def test_a_second_producer_fences_the_first_and_aborts_what_it_left(log):
    first = log.producer(7)
    first.begin()
    first.append(b"of the first")
    second = log.producer(7)
    assert (first.epoch, second.epoch) == (0, 1)
    assert log.last_stable_offset == log.log_end_offset == 2
    for call in (lambda: first.append(b"late"), first.commit):
        with pytest.raises(ProducerFencedError) as refused:
            call()
        assert "open it again with log.producer(producer_id)" in refused.value.hint
    with pytest.raises(ProducerFencedError):
        first.begin()
    second.begin()
    second.append(b"of the second")
    second.commit()
    assert committed(log) == [b"of the second"]


def test_a_producer_that_has_written_nothing_fences_too(log):
    """Or a transaction that the first one begins late would be taken for the second one's."""
    first, second = log.producer(7), log.producer(7)
    with pytest.raises(ProducerFencedError):
        first.begin()
    with pytest.raises(InvalidProducerEpochError):
        log.append_batch(batch_of(7, 0, 0))
    with pytest.raises(ProducerFencedError):
        log.end_transaction(7, 0, commit=True)
    second.begin()
    second.append(b"v")
    log.truncate_to(0)
    with pytest.raises(InvalidProducerEpochError):
        log.append_batch(batch_of(7, 0, 0))


def test_an_epoch_goes_on_after_the_log_was_opened_again(in_memory):
    with seglog.open(in_memory / "orders-0") as log, log.producer(7) as producer:
        producer.begin()
        producer.append(b"one")
        producer.commit()
    with pytest.raises(LogClosedError):
        producer.begin()
    with seglog.open(in_memory / "orders-0") as log, log.producer(7) as producer:
        assert producer.epoch == 1
        producer.begin()
        producer.append(b"two")
        producer.commit()
        assert committed(log) == [b"one", b"two"]


def test_after_the_last_epoch_another_id_is_asked_for(log):
    log.append_batch(batch_of(7, 2**15 - 1, 0))
    with pytest.raises(InvalidProducerEpochError, match="last epoch") as refused:
        log.producer(7)
    assert "another producer id" in refused.value.hint


# --- what does not fit -------------------------------------------------------------------------------


def test_calls_that_do_not_fit_the_state_are_told_so(log):
    producer = log.producer(7)
    for call in (lambda: producer.append(b"v"), producer.commit, producer.abort):
        with pytest.raises(InvalidTxnStateError, match="in no transaction"):
            call()
    producer.begin()
    with pytest.raises(InvalidTxnStateError, match="is already in a transaction"):
        producer.begin()
    producer.append(b"v")
    assert log.end_transaction(7, 0, commit=False) == 1
    with pytest.raises(InvalidTxnStateError, match="ended by another caller"):
        producer.append(b"w")
    with pytest.raises(InvalidTxnStateError, match="ended by another caller"):
        producer.commit()
    assert producer.abort() is None
    with pytest.raises(InvalidTxnStateError, match="no transaction open"):
        log.end_transaction(7, 0, commit=True)
    with pytest.raises(InvalidTxnStateError, match="no transaction open"):
        log.end_transaction(8, 0, commit=True)
    assert committed(log) == []


def test_what_truncation_took_back_is_not_committed_with_the_rest(log):
    with log.producer(7) as producer:
        producer.begin()
        producer.append(b"one")
        log.truncate_to(0)
        with pytest.raises(InvalidTxnStateError, match="truncate_to"):
            producer.append(b"two")
        producer.abort()
        producer.begin()
        producer.append(b"three")
        producer.commit()
    assert committed(log) == [b"three"]


def test_an_encoded_batch_of_its_id_is_not_taken_for_a_repetition(log):
    producer = log.producer(7)
    producer.begin()
    producer.append(b"one")
    append_batch = log._appender.append_batch

    def raced(*args):
        log._appender.append_batch = append_batch
        log.append_batch(batch_of(7, 0, 1))
        return append_batch(*args)

    log._appender.append_batch = raced
    with pytest.raises(OutOfOrderSequenceError, match="already written with append_batch"):
        producer.append(b"two")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda p: p.append("text"), InvalidArgumentError),
        (lambda p: p.append(b"", timestamp=5), seglog.errors.InvalidTimestampError),
        (lambda p: p.append_many([]), InvalidArgumentError),
        (lambda p: p.append(b"v" * (2 << 20)), RecordTooLargeError),
    ],
)
def test_a_record_that_is_refused_leaves_the_transaction_open(log, call, error):
    with log.producer(7) as producer:
        producer.begin()
        producer.append(b"one")
        with pytest.raises(error):
            call(producer)
        producer.append(b"two")
        producer.commit()
    assert committed(log) == [b"one", b"two"]


@pytest.mark.parametrize("producer_id", [-1, 2**63, True, "7", None])
def test_a_producer_id_is_an_int_of_63_bits(log, producer_id):
    with pytest.raises(InvalidArgumentError, match=r"from 0 to 2\*\*63 - 1"):
        log.producer(producer_id)


def test_an_old_format_has_no_transactions(in_memory, clock):
    with seglog.open(in_memory / "orders-0", clock=clock, config={"message.format.version": 1}) as log:
        producer = log.producer(7)
        producer.begin()
        with pytest.raises(UnsupportedForMessageFormatError):
            producer.append(b"v")
        assert producer.commit() is None


# --- the timeout ---------------------------------------------------------------------------------------


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(in_memory, clock, caplog):
    config = {"transaction.max.timeout.ms": 5000}
    with seglog.open(in_memory / "orders-0", clock=clock, config=config) as log:
        producer, other = log.producer(7), log.producer(8)
        producer.begin()
        producer.append(b"slow", timestamp=NOW - 10**9)
        log._maintain()
        clock.advance(4999)
        other.begin()
        other.append(b"in time")
        log._maintain()
        assert log.last_stable_offset == 0
        clock.advance(1)
        log._maintain()
        assert log.last_stable_offset == 1
        assert "aborted the transaction of producer 7 at offset 0" in caplog.text
        for call in (producer.commit, producer.begin):
            with pytest.raises(ProducerFencedError):
                call()
        other.commit()
        assert committed(log) == [b"in time"]


def test_a_look_for_overdue_transactions_does_not_write_what_lingers(in_memory, clock):
    config = {"linger.ms": 3_600_000, "seglog.linger.bytes": 10_000, "transaction.max.timeout.ms": 5000}
    with seglog.open(in_memory / "orders-0", clock=clock, config=config, fsync="never") as log:
        log.append_batch(batch_of(7, 0, 0))
        log.append(b"lingers")
        log._maintain()        # what its thread calls
        assert (log.log_end_offset, log.stats().lingering_records) == (1, 1)
        clock.advance(5000)
        log._maintain()
        assert [r.value for r in log.read(isolation="read_committed")] == [b"lingers"]


def test_maintenance_returns_after_an_abort_that_another_thread_has_begun(in_memory, clock):
    fs, found = SlowSync(), []
    config = {"transaction.max.timeout.ms": 5000}
    with seglog.open(in_memory / "orders-0", clock=clock, config=config, fs=fs) as log:
        log.append_batch(batch_of(7, 0, 0))
        fs.armed = True
        clock.advance(5000)
        threads = [threading.Thread(target=log._maintain)]
        threads[0].start()
        assert fs.begun.wait(60)        # the marker is written, and not yet shown
        threads.append(threading.Thread(target=lambda: (log._maintain(), found.append(log.last_stable_offset))))
        threads[1].start()
        threads[1].join(0.2)
        fs.armed = False
        fs.go.set()
        for thread in threads:
            thread.join(60)
    assert found == [2]


def test_the_process_that_has_the_log_open_aborts_by_itself(in_memory):
    with seglog.open(in_memory / "orders-0", config={"transaction.max.timeout.ms": 100}) as log:
        log.append_batch(
            build_batch([(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        )
        wait_for(lambda: log.last_stable_offset == log.log_end_offset == 2)


def test_what_another_process_left_open_is_aborted_with_the_first_append(in_memory):
    code = (
        "import seglog, sys, os; log = seglog.open(sys.argv[1]); p = log.producer(7); p.begin(); p.append(b'dead'); "
        "os._exit(9)"
    )
    path = in_memory / "orders-0"
    subprocess.run([sys.executable, "-c", code, path], check=False)
    clock = ManualClock(seglog.clock.SystemClock().now_ms() + 10**6)
    with seglog.open(path, clock=clock) as log:
        log._maintain()        # it may be a mirror: nothing says that offsets are given out here
        assert (log.log_end_offset, log.last_stable_offset) == (1, 0)
        log.append(b"alive")
        log._maintain()
        # The log's own thread may be at it just then.
        wait_for(lambda: committed(log) == [b"alive"])


@pytest.mark.parametrize("own", ["record", "records", "ready"])
def test_a_mirror_that_takes_over_ends_what_its_source_left_open(in_memory, own):
    """Appends of its own left it a follower: the transaction stayed open, and committed readers before it."""
    clock = ManualClock(1_700_000_000_000)
    with seglog.open(in_memory / "a-0", clock=clock) as source, seglog.open(in_memory / "b-0", clock=clock) as mirrored:
        source.append(b"before")
        producer = source.producer(7)
        producer.begin()
        producer.append(b"left open")
        source.flush()
        seglog.mirror(source, mirrored)
        for _ in range(2):
            if own == "record":
                mirrored.append(b"own")
            elif own == "records":
                mirrored.append_many([(None, b"own")])
            else:
                mirrored.append_batch(seglog.build_batch([(None, b"own")], timestamp=clock.now_ms()))
        clock.set(clock.now_ms() + 10**6)
        mirrored._maintain()
        # The log's own thread may be at it just then.
        wait_for(lambda: committed(mirrored) == [b"before", b"own", b"own"])


def test_a_mirror_gets_no_markers_of_ours(in_memory, clock):
    config = {"transaction.max.timeout.ms": 1}
    with (
        seglog.open(in_memory / "a-0", clock=clock) as source,
        seglog.open(in_memory / "b-0", clock=clock, config=config) as mirrored,
    ):
        producer = source.producer(7)
        producer.begin()
        producer.append(b"v")
        source.flush()
        seglog.mirror(source, mirrored)
        clock.advance(10_000)
        mirrored._maintain()
        assert mirrored.log_end_offset == 1
        producer.commit()
        seglog.mirror(source, mirrored)
        assert committed(mirrored) == [b"v"]


# --- others see the same ----------------------------------------------------------------------------


def test_a_closed_directory_and_a_recovered_one_say_the_same(in_memory, clock, tmp_path):
    path = in_memory / "orders-0"
    with seglog.open(path, clock=clock, config={"segment.bytes": 400}) as log:
        for n, end in enumerate(["commit", "abort"] * 6):
            producer = log.producer(n % 3)
            producer.begin()
            producer.append_many([(b"k", b"%d" % n)] * 3)
            getattr(producer, end)()
        left = log.producer(9)
        left.begin()
        left.append(b"open")
        expected, stable = committed(log), log.last_stable_offset
        killed = tmp_path / "orders-0"
        shutil.copytree(path, killed)
        assert seglog.verify(path).findings == []
    assert expected == [b"%d" % n for n in range(0, 12, 2) for _ in range(3)]
    for directory in (path, killed):
        with seglog.open_partition(directory) as partition:
            assert (committed(partition), partition.last_stable_offset) == (expected, stable)
        with seglog.open(directory, clock=clock) as log:
            assert (committed(log), log.last_stable_offset) == (expected, stable)
            assert log.producer(9).epoch == 1
            assert log.last_stable_offset == log.log_end_offset


def test_a_marker_is_the_control_record_of_the_page(log):
    with log.producer(7) as producer:
        producer.begin()
        producer.append(b"v", timestamp=NOW)
        producer.commit()
    (_, marker) = log.batches()
    made = build_batch(
        [end_marker(True, 0)], control=True, transactional=True, producer_id=7, producer_epoch=0, timestamp=NOW,
        base_offset=1, leader_epoch=0,
    )
    assert bytes(marker.raw()) == made
