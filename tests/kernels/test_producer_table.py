"""The rows of a log's producers: ProducerTable against a dict, and its snapshots against those of plain Python."""
import random
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.producer_table import ProducerTable
from seglog.state.producer_snapshot import ENTRY_SIZE, ProducerEntry, ProducerSnapshot

CHUNK_ROWS = 1024
FIELDS_BITS = (64, 16, 32, 64, 32, 64, 32, 64)
ids = st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1])
moments = st.integers(-1, 5)
steps = st.lists(
    st.tuples(st.just("put"), ids, moments, st.integers(-1, 2))
    | st.tuples(st.just("expire"), moments, st.integers(0, 3))
    | st.tuples(st.just("freeze")),
    max_size=40,
)


def row(producer_id, timestamp=0, first_offset=-1):
    return (producer_id, 1, 2, 3, 4, timestamp, 5, first_offset)


def snapshot_of(rows):
    return ProducerSnapshot.of(ProducerEntry(*rows[producer_id]) for producer_id in sorted(rows)).to_bytes()


@given(steps)
def test_a_table_agrees_with_a_dict_and_what_is_frozen_stays_as_it_was(program):
    table, twin, frozen = ProducerTable(), {}, []
    for step in program:
        match step:
            case "put", producer_id, timestamp, first_offset:
                twin[producer_id] = row(producer_id, timestamp, first_offset)
                table.put(*twin[producer_id])
            case "expire", until, at_most:
                may_go = {n for n, (*_, at, _, first) in twin.items() if at <= until and first < 0}
                gone = table.expire(until, at_most)
                assert set(gone) <= may_go
                assert len(gone) == min(at_most, len(may_go))
                for producer_id in gone:
                    del twin[producer_id]
            case _:
                frozen.append((table.freeze(), snapshot_of(twin)))
    for producer_id in range(-4, 5):
        assert table.get(producer_id) == twin.get(producer_id)
    assert len(table) == len(twin)
    assert sorted(table.open_transactions()) == sorted((r[7], r[0]) for r in twin.values() if r[7] >= 0)
    assert table.freeze().rows() == [twin[n] for n in sorted(twin)]
    for rows, raw in (*frozen, (table.freeze(), snapshot_of(twin))):
        assert rows.encode() == raw
        assert len(rows) == (len(raw) - 10) // ENTRY_SIZE


def test_rows_of_many_chunks_are_found_changed_frozen_and_dropped():
    table, twin, rng = ProducerTable(), {}, random.Random(1)
    many = [rng.randrange(-(2**63), 2**63) for _ in range(5 * CHUNK_ROWS)]
    for producer_id in many:
        twin[producer_id] = row(producer_id, rng.randrange(100))
        table.put(*twin[producer_id])
    frozen, before = table.freeze(), snapshot_of(twin)
    for producer_id in rng.sample(many, CHUNK_ROWS):
        twin[producer_id] = row(producer_id, 1000)
        table.put(*twin[producer_id])
    while gone := table.expire(50, 100):
        for producer_id in gone:
            assert twin.pop(producer_id)[5] <= 50
    assert all(r[5] > 50 for r in twin.values())
    assert frozen.encode() == before
    assert table.freeze().encode() == snapshot_of(twin)
    assert table.expire(2**63 - 1, 2**62)
    assert len(table) == 0
    assert table.freeze().encode() == snapshot_of({})


def test_what_is_loaded_is_as_we_would_write_it():
    entries = [
        ProducerEntry(7, 1, 9, -1, 9, 3, -1, -1),       # without an offset there is no batch
        ProducerEntry(8, 1, 9, -5, 9, 3, -1, -7),
        ProducerEntry(9, 1, 9, 5, 9, 3, -1, 0),
        ProducerEntry(9, 2, 9, 5, 9, 3, -1, 4),         # the later one
    ]
    raw = ProducerSnapshot.of(entries).to_bytes()
    table = ProducerTable()
    table.load(raw[10:] + b"half an entry")
    assert table.freeze().rows() == [
        (7, 1, -1, -1, 0, 3, -1, -1), (8, 1, -1, -1, 0, 3, -1, -1), (9, 2, 9, 5, 9, 3, -1, 4),
    ]
    assert table.open_transactions() == [(4, 9)]


@given(st.binary(max_size=4 * ENTRY_SIZE))
def test_any_bytes_are_loaded_and_written_with_the_fields_of_plain_python(raw):
    table = ProducerTable()
    table.load(raw)
    whole = [struct.unpack(">qhiqiqiq", raw[at : at + ENTRY_SIZE]) for at in range(0, len(raw) - 45, ENTRY_SIZE)]
    twin = {}
    for producer_id, epoch, sequence, offset, delta, at, coordinator, first in whole:
        batch = (sequence, offset, delta) if offset >= 0 else (-1, -1, 0)
        twin[producer_id] = (producer_id, epoch, *batch, at, coordinator, max(first, -1))
    assert table.freeze().encode() == snapshot_of(twin)


@pytest.mark.parametrize("field", range(8))
def test_a_field_that_the_file_has_no_room_for_is_refused(field):
    table = ProducerTable()
    fields = list(row(1))
    fields[field] = 1 << (FIELDS_BITS[field] - 1)
    with pytest.raises(OverflowError):
        table.put(*fields)
    assert len(table) == 0


def test_a_snapshot_is_encoded_while_other_threads_change_the_table():
    table = ProducerTable()
    for n in range(50 * CHUNK_ROWS):
        table.put(*row((n * 7919) % (50 * CHUNK_ROWS)))
    frozen, found = table.freeze(), []
    before = frozen.encode()
    threads = [threading.Thread(target=lambda: found.append(frozen.encode())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(50 * CHUNK_ROWS):
        table.put(*row(n, 1))
    for thread in threads:
        thread.join()
    assert found == [before, before]
    assert table.freeze().encode() != before
