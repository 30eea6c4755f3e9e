"""Producer state computed from batches is what brokers wrote into their snapshots and transaction indexes."""
import random

import pytest

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from seglog.reading.partition import Partition
from seglog.segment.transaction_index import AbortedTransaction
from seglog.state import producer_state
from seglog.state.producer_snapshot import ProducerEntry, ProducerSnapshot
from seglog.state.producer_state import BATCHES_REMEMBERED, Duplicate, Origin, ProducerBatch, ProducerState
from support.golden import golden_cases
from support.producers import ABORT, COMMIT, batch

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
    pytest.param([ENTRY._replace(last_offset=8, last_sequence=8)], id="its last batches were compacted away"),
    pytest.param([ENTRY._replace(producer_epoch=1, last_offset=-1, last_sequence=-1)], id="a marker was"),
    pytest.param([ENTRY, ENTRY._replace(producer_id=9)], id="all of another producer was"),
])
def test_a_snapshot_may_know_more_or_less_than_the_log(entries):
    state, _ = state_after(*SEEN)
    assert state.contradiction(entries, 10) is None


@pytest.mark.parametrize(("entry", "why"), [
    (ENTRY._replace(last_offset=10), "past the snapshot's own end"),
    (ENTRY._replace(current_txn_first_offset=10), "past the snapshot's own end"),
    (ENTRY._replace(last_offset=1, last_sequence=1), "ends at offset 1, the log's batch at 3"),
    (ENTRY._replace(last_sequence=2), "ends at sequence 2, the log at 3"),
    (ENTRY._replace(producer_epoch=-1), "has epoch -1, the log 0"),
])
def test_a_snapshot_that_is_behind_its_log_is_of_another(entry, why):
    state, _ = state_after(*SEEN)
    assert why in state.contradiction([entry], 10)


# --- what an append is refused ------------------------------------------------------------------

LAST = 2**31 - 1


def appended(*batches, state=None):
    state = ProducerState() if state is None else state
    for one in batches:
        state.apply(state.prepare([one]))
    return state


@pytest.mark.parametrize("sequence", [0, 1, 77, LAST])
def test_a_producer_that_is_not_known_begins_anywhere(sequence):
    # Its batches may be gone by retention, or it expired.
    state = appended(batch(0, sequence=sequence, records=1))
    assert state.entries()[0].last_sequence == sequence


def test_a_known_producer_goes_on_with_the_next_sequence():
    state = appended(batch(0, sequence=0), batch(2, sequence=2))
    for sequence in (1, 3, 5, LAST):
        words = f"sequence {sequence} of epoch 0, expected 4; its last is 3"
        with pytest.raises(OutOfOrderSequenceError, match=words) as e:
            state.prepare([batch(4, sequence=sequence, records=1)])
        assert e.value.offset == 4
    assert state.prepare([batch(4, sequence=4)])


def test_sequences_begin_again_after_the_largest():
    state = appended(batch(0, sequence=LAST - 1, records=3))
    assert state.entries()[0].last_sequence == 0
    assert state.prepare([batch(3, sequence=LAST - 1, records=3)]) == Duplicate(0, 2, 1002)
    with pytest.raises(OutOfOrderSequenceError, match="expected 1;"):
        state.prepare([batch(3, sequence=0)])
    appended(batch(3, sequence=1), state=state)
    state = appended(batch(0, sequence=LAST, records=1), batch(1, sequence=0))
    assert state.entries()[0].last_sequence == 1


def test_a_new_epoch_begins_at_sequence_zero():
    state = appended(batch(0, epoch=3, sequence=40))
    with pytest.raises(OutOfOrderSequenceError, match="sequence 42 of epoch 4, expected 0; its last is 41 of epoch 3"):
        state.prepare([batch(2, epoch=4, sequence=42)])
    appended(batch(2, epoch=4, sequence=0), state=state)
    assert state.entries()[0].last_sequence == 1


@pytest.mark.parametrize("zombie", [
    pytest.param(batch(2, epoch=2, sequence=2), id="data"),
    pytest.param(batch(2, epoch=2, marker=(COMMIT, 9)), id="marker"),
])
def test_an_old_epoch_is_fenced(zombie):
    state = appended(batch(0, epoch=3))
    for origin in (Origin.CLIENT, Origin.COORDINATOR):
        with pytest.raises(InvalidProducerEpochError, match="epoch 2, but its last epoch is 3"):
            state.prepare([zombie], origin)
    state.apply(state.prepare([zombie], Origin.REPLICATION))
    assert state.entries()[0].producer_epoch == 2


def test_after_a_marker_of_the_same_epoch_sequences_go_on():
    state = appended(batch(0, transactional=True), batch(2, marker=(COMMIT, 1)))
    with pytest.raises(OutOfOrderSequenceError, match="expected 2"):
        state.prepare([batch(3, sequence=1, records=1)])
    assert state.prepare([batch(3, sequence=2, transactional=True)])


def test_after_a_marker_that_bumps_the_epoch_they_begin_at_zero():
    state = appended(batch(0, transactional=True), batch(2, epoch=1, marker=(COMMIT, 1)))
    with pytest.raises(OutOfOrderSequenceError, match="expected 0"):
        state.prepare([batch(3, epoch=1, sequence=2, transactional=True)])
    assert state.prepare([batch(3, epoch=1, sequence=0, transactional=True)])


def test_plain_records_are_refused_while_a_transaction_is_open():
    state = appended(batch(0, transactional=True))
    with pytest.raises(InvalidTxnStateError, match="its transaction from offset 0 is open"):
        state.prepare([batch(2, sequence=2)])
    assert appended(batch(2, marker=(ABORT, 0)), batch(3, sequence=2), state=state)


def test_a_marker_of_a_coordinator_that_was_replaced_is_refused():
    state = appended(batch(0, marker=(COMMIT, 5)))
    with pytest.raises(InvalidTxnStateError, match="has coordinator epoch 4, below the last one, 5"):
        state.prepare([batch(1, marker=(COMMIT, 4))])
    assert state.prepare([batch(1, marker=(COMMIT, 4))], Origin.REPLICATION)


def test_what_a_coordinator_writes_is_not_asked_for_sequences():
    # A group coordinator's transactional offsets carry a producer id and no sequence.
    state = ProducerState()
    for offset in (0, 2):
        state.apply(state.prepare([batch(offset, sequence=-1, transactional=True)], Origin.COORDINATOR))
    assert state.entries() == (ProducerEntry(7, 0, -1, 3, 1, 1001, -1, 0),)


def test_a_refused_append_changes_nothing():
    state = appended(batch(0))
    before = state.entries()
    with pytest.raises(OutOfOrderSequenceError):
        state.prepare([batch(2, sequence=2), batch(4, sequence=9)])
    state.prepare([batch(2, sequence=2), batch(4, producer_id=8, transactional=True)])
    assert (state.entries(), state.first_undecided_offset) == (before, None)


# --- what is known again ------------------------------------------------------------------------


def test_the_last_five_batches_are_known_again():
    sent = [batch(2 * i, sequence=2 * i, timestamp=100 * i) for i in range(BATCHES_REMEMBERED + 1)]
    state = appended(*sent)
    assert [state.prepare([again]) for again in sent[1:]] == [
        Duplicate(2 * i, 2 * i + 1, 100 * i + 1) for i in range(1, BATCHES_REMEMBERED + 1)
    ]
    with pytest.raises(OutOfOrderSequenceError, match="expected 12"):
        state.prepare([sent[0]])


def test_a_batch_is_known_by_its_epoch_and_both_its_sequences():
    state = appended(batch(0, sequence=0, records=3))
    for other in (batch(3, sequence=0, records=2), batch(3, sequence=1, records=2)):
        with pytest.raises(OutOfOrderSequenceError):
            state.prepare([other])
    appended(batch(3, epoch=1, sequence=0, records=3), state=state)
    assert state.prepare([batch(6, epoch=1, sequence=0, records=3)]) == Duplicate(3, 5, 1002)
    with pytest.raises(InvalidProducerEpochError):
        state.prepare([batch(6, sequence=0, records=3)])


def test_after_a_snapshot_only_the_last_batch_is_known_again():
    sent = [batch(0, sequence=0), batch(2, sequence=2)]
    state = ProducerState(appended(*sent).entries())
    assert state.prepare([sent[1]]) == Duplicate(2, 3, 1001)
    with pytest.raises(OutOfOrderSequenceError):
        state.prepare([sent[0]])


def test_only_a_client_repeats_itself():
    again = batch(0)
    state = appended(again)
    assert not isinstance(state.prepare([again], Origin.COORDINATOR), Duplicate)
    assert not isinstance(state.prepare([again], Origin.REPLICATION), Duplicate)


def test_several_batches_are_a_repetition_only_together():
    sent = [batch(0, sequence=0), batch(2, sequence=2)]
    state = ProducerState()
    state.apply(state.prepare(sent))
    assert state.prepare(sent) == Duplicate(0, 3, 1001)
    with pytest.raises(OutOfOrderSequenceError, match="sequence 2 of epoch 0, expected 4"):
        state.prepare([sent[1], batch(4, sequence=4)])
    with pytest.raises(OutOfOrderSequenceError, match="sequence 0 of epoch 0, expected 4"):
        state.prepare([batch(0, producer_id=-1, epoch=-1, sequence=-1), sent[0]])


# --- what is decided ----------------------------------------------------------------------------


def test_readers_of_committed_data_wait_for_the_oldest_open_transaction():
    state = appended(batch(0), batch(2, producer_id=8, transactional=True), batch(4, producer_id=9, transactional=True))
    assert (state.first_undecided_offset, state.last_stable_offset(6)) == (2, 2)
    assert state.last_stable_offset(1) == 1
    appended(batch(6, producer_id=8, marker=(COMMIT, 0)), state=state)
    assert (state.first_undecided_offset, state.last_stable_offset(7)) == (4, 4)
    appended(batch(7, producer_id=9, marker=(ABORT, 0)), state=state)
    assert (state.first_undecided_offset, state.last_stable_offset(8)) == (None, 8)


def test_a_marker_that_readers_do_not_see_decides_nothing():
    state = appended(batch(0, transactional=True), batch(2, marker=(COMMIT, 0)))
    assert [state.last_stable_offset(end) for end in (1, 2, 3)] == [0, 0, 3]
    state.on_high_watermark_updated(2)
    assert state.last_stable_offset(2) == 0
    state.on_high_watermark_updated(3)
    # What readers saw is never asked again from before: forgotten.
    assert state.last_stable_offset(2) == 2


def test_a_batch_that_ends_before_it_begins_is_refused():
    good = batch(0, records=3)
    raw = bytearray(good.raw())
    raw[0:8] = (2**63 - 2).to_bytes(8, "big")       # the checksum does not cover it
    state = ProducerState()
    with pytest.raises(CorruptRecordError, match=f"ends at offset {-2**63}, before it begins"):
        state.add(scan(Window(bytes(raw)))[0])
    assert len(state) == 0
    state.add(good)
    assert len(state) == 1


def test_an_open_transaction_in_a_snapshot_is_still_open():
    entry = ProducerEntry(7, 0, 4, 40, 2, 2002, -1, 30)
    earlier = entry._replace(producer_id=8, current_txn_first_offset=20)
    none = entry._replace(producer_id=9, current_txn_first_offset=-1)
    state = ProducerState([entry, earlier, none])
    assert state.last_stable_offset(50) == 20
    assert state.add(batch(50, producer_id=8, marker=(ABORT, 0))) == AbortedTransaction(8, 20, 50, 30)
    assert state.last_stable_offset(51) == 30


def test_a_producer_expires_unless_its_transaction_is_open():
    state = appended(batch(0, timestamp=1000), batch(2, producer_id=8, timestamp=1000, transactional=True))
    state.remove_expired(now_ms=1001 + 99, expiration_ms=100)
    assert len(state) == 2
    state.remove_expired(now_ms=1001 + 100, expiration_ms=100)
    assert [e.producer_id for e in state.entries()] == [8]
    # It may begin anywhere again.
    assert state.prepare([batch(4, sequence=99)])


# --- what was read from a snapshot, and is opened where it is needed ------------------------------


def entry(producer_id, timestamp, first_offset=-1, last_offset=5):
    return ProducerEntry(producer_id, 1, 7, last_offset, 0, timestamp, 3, first_offset)


def written(producer_id, offset, timestamp, transactional=False):
    return ProducerBatch(producer_id, 1, offset, offset, 8, timestamp, transactional)


@pytest.mark.parametrize("seed", range(20))
def test_a_state_read_from_a_snapshot_goes_on_as_one_of_its_entries(seed):
    chooser = random.Random(seed)
    entries = [
        entry(n * 3, chooser.randrange(1000), chooser.choice([-1, -1, -1, -2, n]), chooser.choice([5, 5, -1]))
        for n in range(50)
    ]
    chooser.shuffle(entries)
    lazy = ProducerState.from_snapshot(ProducerSnapshot.of(entries).to_bytes())
    plain = ProducerState(entries)
    for offset in range(100, 200):
        match chooser.choice(["write", "write", "write", "expire", "snapshot"]):
            case "write":
                batch = written(chooser.randrange(160), offset, chooser.randrange(3000), chooser.random() < 0.2)
                assert lazy.replay(batch) == plain.replay(batch)
            case "expire":
                now_ms = chooser.randrange(3000)
                lazy.remove_expired(now_ms, 800)
                plain.remove_expired(now_ms, 800)
            case "snapshot":
                assert lazy.to_snapshot() == ProducerSnapshot.of(plain.entries()).to_bytes()
        assert len(lazy) == len(plain) == len(plain.entries())
        assert lazy.entries() == plain.entries()
        assert lazy.first_undecided_offset == plain.first_undecided_offset


def test_a_producer_that_writes_nothing_costs_no_object(monkeypatch):
    raw = ProducerSnapshot.of([entry(n, 1000) for n in range(500)]).to_bytes()
    made, whole = [], producer_state._from_fields
    monkeypatch.setattr(producer_state, "_from_fields", lambda *fields: made.append(fields) or whole(*fields))
    state = ProducerState.from_snapshot(raw)
    state.remove_expired(2000, 5000)
    state.replay(written(7, 100, 2000))
    state.to_snapshot()
    state.replay(written(7, 101, 2000))
    assert state.to_snapshot() != raw
    assert [fields[0] for fields in made] == [7]


def test_of_many_producers_that_expired_so_many_go_at_a_time():
    state = ProducerState(entry(n, 1000) for n in range(10))
    state.replay(written(3, 100, 1000))
    state.remove_expired(9000, 8000, at_most=4)
    assert len(state) == 6
    state.remove_expired(9000, 8000, at_most=4)
    state.remove_expired(9000, 8000, at_most=4)
    assert len(state) == 0
    assert state.entries() == ()


def test_what_is_frozen_is_the_snapshot_of_that_moment():
    state = ProducerState(entry(n, 1000) for n in range(3000))
    before, frozen = state.to_snapshot(), state.frozen()
    state.replay(written(7, 5000, 2000))
    state.remove_expired(9000, 8000)
    assert frozen.encode() == before != state.to_snapshot()
