"""The transaction index between reads: what is known stays, what was appended is read alone, and nothing is missed."""
import os
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog.errors import CorruptIndexError, UnsupportedVersionError
from seglog.format.batch import end_marker
from seglog.segment import transaction_index
from seglog.segment.transaction_index import (
    ENTRY_SIZE,
    AbortedTransaction,
    HeldTransactionIndex,
    TransactionIndex,
    encode,
)


@st.composite
def transactions(draw):
    """Aborted transactions as one log may have them: markers rise, and last stable offsets with them."""
    found, marker, stable = [], -1, 0
    for _ in range(draw(st.integers(0, 30))):
        first = draw(st.integers(max(marker - 20, 0), marker + 10)) if marker >= 0 else draw(st.integers(0, 10))
        marker = max(marker, first) + draw(st.integers(1, 10))
        stable = draw(st.integers(stable, marker + 1))
        found.append(AbortedTransaction(draw(st.integers(0, 3)), first, marker, stable))
    return found


@given(transactions(), st.integers(0, 30), st.integers(0, 400), st.integers(0, 100))
def test_a_search_finds_those_that_reach_into_a_range(entries, cut, start, length):
    raw, stop = encode(entries), start + length
    index = TransactionIndex(raw[: cut * ENTRY_SIZE])
    index.extend(raw[cut * ENTRY_SIZE :])       # in one step or in two, no matter
    assert list(index) == entries
    decided = next((n + 1 for n, e in enumerate(entries) if e.last_stable_offset >= stop), len(entries))
    reaching = [e for e in entries if e.last_offset >= start and e.first_offset < stop]
    found, complete = index.aborted_between(start, stop)
    # What a last stable offset rules out cannot be there; what is made up here may contradict itself.
    assert [e for e in reaching if e in entries[:decided]] == [e for e in found if e in entries[:decided]]
    assert set(found) <= set(reaching)
    assert not complete or any(e.last_stable_offset >= stop for e in entries)
    fields = array("q")
    assert index.put_between(start, stop, fields) == complete
    assert fields.tolist() == [n for e in found for n in (e.producer_id, e.first_offset, e.last_offset)]
    assert index.size_up_to(start) == sum(e.last_offset < start for e in entries) * ENTRY_SIZE


ENTRIES = [AbortedTransaction(7, n * 10, n * 10 + 5, n * 10 + 6) for n in range(100)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "00000000000000000000.txnindex"
    path.write_bytes(encode(ENTRIES[:50]))
    return path


def opened_for(action):
    """The transaction indexes that are opened while `action` runs."""
    found, active = [], True

    def hook(event, args):
        if active and event == "open" and str(args[0]).endswith(".txnindex"):
            found.append(args[0])

    sys.addaudithook(hook)
    try:
        action()
    finally:
        active = False
    return found


def test_a_file_that_stays_is_read_once(path):
    held = HeldTransactionIndex(path)
    first = held.now()
    assert list(first) == ENTRIES[:50]
    assert opened_for(held.now) == []
    assert held.now() is first


def test_of_a_file_that_grew_the_new_part_is_read(path, monkeypatch):
    held = HeldTransactionIndex(path)
    index = held.now()
    with path.open("ab") as file:
        file.write(encode(ENTRIES[50:]))
    reads = []
    read_file = transaction_index.read_file
    monkeypatch.setattr(
        transaction_index, "read_file", lambda path, start=0: reads.append(start) or read_file(path, start)
    )
    assert held.now() is index
    assert list(index) == ENTRIES
    assert reads == [49 * ENTRY_SIZE]       # the last entry that was known, to see that it is still there


@pytest.mark.parametrize("after", [ENTRIES[:20], ENTRIES[:30] + ENTRIES[60:90], []])
def test_a_file_that_was_cut_or_replaced_is_read_again(path, after):
    held = HeldTransactionIndex(path)
    held.now()
    for in_place in (True, False):
        if in_place:
            with path.open("r+b") as file:
                file.truncate(0)
                file.write(encode(after))
        else:
            aside = path.with_suffix(".tmp")
            aside.write_bytes(encode(after))
            os.replace(aside, path)
        assert list(held.now()) == after
    path.unlink()
    assert held.now() is None
    path.write_bytes(encode(ENTRIES))
    assert list(held.now()) == ENTRIES


@pytest.mark.parametrize(
    ("appended", "error"),
    [(b"\0", CorruptIndexError), (encode(ENTRIES[:1]), CorruptIndexError),
     (b"\0\1" + encode(ENTRIES[50:51])[2:], UnsupportedVersionError)],
)
def test_what_is_wrong_in_the_new_part_is_named_by_its_place(path, appended, error):
    held = HeldTransactionIndex(path)
    held.now()
    good = path.read_bytes()
    path.write_bytes(good + encode(ENTRIES[50:60]).replace(encode(ENTRIES[50:51]), appended, 1)
                     if len(appended) == ENTRY_SIZE else good + appended)
    for _ in range(2):      # and again: what was read of it is not believed
        with pytest.raises(error) as caught:
            held.now()
        assert (caught.value.file, caught.value.position) == (str(path), 50 * ENTRY_SIZE)
    path.write_bytes(good)
    assert list(held.now()) == ENTRIES[:50]


def test_a_consumer_that_polls_reads_each_transaction_index_once(tmp_path):
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        for n in range(20):
            producer = {"producer_id": n, "producer_epoch": 0, "transactional": True}
            log.append_batch(seglog.build_batch([(None, b"gone")] * 3, base_sequence=0, **producer))
            log.append_batch(seglog.build_batch([end_marker(False, 0)], control=True, **producer))
            assert list(log.read(isolation="read_committed")) == []
        log.append(b"kept")

        def poll():
            for start in range(0, log.log_end_offset, 7):
                assert [r.value for r in log.read(start=start, isolation="read_committed")] == [b"kept"]

        poll()
        assert opened_for(poll) == []
