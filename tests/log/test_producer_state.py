"""Producer state computed from batches is what brokers wrote into their snapshots and transaction indexes."""
from dataclasses import replace

import pytest

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError
from seglog.log.partition import Partition
from seglog.log.producer_snapshot import ProducerEntry, ProducerSnapshot
from seglog.log.producer_state import ProducerState
from seglog.segment.transaction_index import AbortedTransaction
from support.golden import golden_cases

ABORT, COMMIT = 0, 1
NEVER_COMPACTED = [
    pytest.param(case, id=case.name)
    for case in golden_cases()
    if not case.name.startswith("compact-") and list((case / f"{case.name}-0").glob("*.snapshot"))
]


@pytest.mark.parametrize("case", NEVER_COMPACTED)
def test_snapshots_and_aborted_transactions_are_those_of_the_broker(case):
    with Partition(case / f"{case.name}-0") as partition:
        state = ProducerState()
        snapshots = {s.stem: ProducerSnapshot.read(s).producers for s in partition.path.glob("*.snapshot")}
        for segment in partition.segments:
            aborted = []
            for batch in segment.batches():
                name = f"{batch.base_offset:020d}"
                if name in snapshots:
                    assert state.entries() == tuple(sorted(snapshots.pop(name), key=lambda e: e.producer_id))
                ended = state.add(batch)
                aborted += [ended] if ended else []
            assert aborted == list(segment.transaction_index or [])
        (_, at_the_end), = snapshots.items()
        assert state.entries() == tuple(sorted(at_the_end, key=lambda e: e.producer_id))


def batch(offset, producer_id=7, epoch=0, sequence=0, records=2, timestamp=1000, transactional=False, marker=None):
    builder = BatchBuilder(
        offset, producer_id=producer_id, producer_epoch=epoch, is_transactional=transactional or marker is not None,
        base_sequence=-1 if marker is not None else sequence, is_control=marker is not None,
    )
    if marker is not None:
        kind, coordinator_epoch = marker
        builder.append(
            offset, timestamp, (0).to_bytes(2) + kind.to_bytes(2), (0).to_bytes(2) + coordinator_epoch.to_bytes(4)
        )
    else:
        for i in range(records):
            builder.append(offset + i, timestamp + i, None, b"v")
    return scan(Window(builder.finish()))[0]


def state_after(*batches):
    state = ProducerState()
    ended = [state.add(b) for b in batches]
    return state, ended


def test_a_batch_without_a_producer_teaches_nothing():
    state, ended = state_after(batch(0, producer_id=-1, epoch=-1, sequence=-1))
    assert (state.entries(), ended) == ((), [None])


def test_the_last_batch_of_a_producer_is_remembered():
    state, _ = state_after(batch(0, sequence=0), batch(2, sequence=2, records=3, timestamp=2000))
    assert state.entries() == (ProducerEntry(7, 0, 4, 4, 2, 2002, -1, -1),)


def test_a_new_epoch_by_a_marker_forgets_the_batches_before_it():
    # KIP-890: the coordinator bumps the epoch with each marker.
    state, ended = state_after(batch(0, transactional=True), batch(2, epoch=1, timestamp=5000, marker=(COMMIT, 3)))
    assert state.entries() == (ProducerEntry(7, 1, -1, -1, 0, 5000, 3, -1),)
    assert ended == [None, None]


def test_an_abort_ends_the_transaction_and_tells_its_extent():
    state, ended = state_after(
        batch(0, transactional=True),
        batch(2, producer_id=8, transactional=True),
        batch(4, marker=(ABORT, 3)),
        batch(5, producer_id=8, marker=(ABORT, 3)),
    )
    # While 8's transaction is open, nothing behind its first offset is stable.
    assert ended == [None, None, AbortedTransaction(7, 0, 4, 2), AbortedTransaction(8, 2, 5, 6)]
    assert [e.current_txn_first_offset for e in state.entries()] == [-1, -1]


def test_an_abort_without_data_aborts_nothing():
    state, ended = state_after(batch(0, marker=(ABORT, 3)))
    assert ended == [None]
    assert state.entries() == (ProducerEntry(7, 0, -1, -1, 0, 1000, 3, -1),)


def test_a_state_goes_on_from_a_snapshot():
    entry = ProducerEntry(7, 0, 4, 4, 2, 2002, -1, 3)
    state = ProducerState([entry])
    assert state.entries() == (entry,)
    assert state.add(batch(9, marker=(ABORT, 1))) == AbortedTransaction(7, 3, 9, 10)


@pytest.mark.parametrize(("key", "value"), [
    (None, bytes(6)), (b"\0", bytes(6)), (bytes(4), None), (bytes(4), bytes(5)), (b"\0\0\0\7", bytes(6)),
])
def test_a_control_batch_that_is_no_marker_is_refused(key, value):
    builder = BatchBuilder(41, producer_id=7, producer_epoch=0, is_control=True, is_transactional=True)
    builder.append(41, 1000, key, value)
    with pytest.raises(CorruptRecordError) as e:
        ProducerState().add(scan(Window(builder.finish()))[0])
    assert (e.value.position, e.value.offset) == (0, 41)


# --- is a snapshot one of this log? --------------------------------------------------------------


SEEN = (batch(0, sequence=0), batch(2, sequence=2))
ENTRY = ProducerEntry(7, 0, 3, 3, 1, 1001, -1, -1)


@pytest.mark.parametrize("entries", [
    pytest.param([ENTRY], id="the same"),
    pytest.param([], id="the producer expired"),
    pytest.param([replace(ENTRY, last_offset=8, last_sequence=8)], id="its last batches were compacted away"),
    pytest.param([replace(ENTRY, producer_epoch=1, last_offset=-1, last_sequence=-1)], id="a marker was"),
    pytest.param([ENTRY, replace(ENTRY, producer_id=9)], id="all of another producer was"),
])
def test_a_snapshot_may_know_more_or_less_than_the_log(entries):
    state, _ = state_after(*SEEN)
    assert state.contradiction(entries, 10) is None


@pytest.mark.parametrize(("entry", "why"), [
    (replace(ENTRY, last_offset=10), "past the snapshot's own end"),
    (replace(ENTRY, current_txn_first_offset=10), "past the snapshot's own end"),
    (replace(ENTRY, last_offset=1, last_sequence=1), "ends at offset 1, the log's batch at 3"),
    (replace(ENTRY, last_sequence=2), "ends at sequence 2, the log at 3"),
    (replace(ENTRY, producer_epoch=-1), "has epoch -1, the log 0"),
])
def test_a_snapshot_that_is_behind_its_log_is_of_another(entry, why):
    state, _ = state_after(*SEEN)
    assert why in state.contradiction([entry], 10)
