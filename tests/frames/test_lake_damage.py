"""`seglog.write_table` from a damaged source: it counts and names the offsets that it skips."""
import logging

import pyarrow.dataset
import pytest

import seglog
from seglog.errors import CorruptRecordError

BATCHES, RECORDS = 30, 100


def flip(path, slot):
    """Flip a byte in the middle of a batch of the first segment; returns the offsets of the batch."""
    with seglog.open_partition(path) as partition:
        batch = next(batch for n, batch in enumerate(partition.batches()) if n == slot)
        file, position = partition.segments[0].path, batch.position + batch.size_bytes // 2
        lost = (batch.base_offset, batch.last_offset)
    data = bytearray(file.read_bytes())
    data[position] ^= 0x01
    file.write_bytes(data)
    return lost


def append(path, batches=BATCHES, **config):
    with seglog.open(path, fsync="never", config=config) as log:
        for n in range(batches):
            log.append_many([(None, b"%d of batch %d" % (m, n)) for m in range(RECORDS)])


@pytest.fixture
def damaged(tmp_path):
    path = tmp_path / "d/p-0"
    append(path)
    assert flip(path, BATCHES // 2) == (1500, 1599)
    return path


def scan(path, **options):
    return seglog.scan(path, on_corrupt="skip", isolation="read_uncommitted", **options)


def offsets(dst):
    return sorted(pyarrow.dataset.dataset(dst, format="parquet").to_table(columns=["offset"])["offset"].to_pylist())


def spans(lost):
    return [(one.first_offset, one.last_offset) for one in lost]


def test_skipped_offsets_are_counted_named_and_listed(damaged, tmp_path, caplog):
    rows = scan(damaged)
    with caplog.at_level(logging.WARNING, "seglog"):
        [written] = seglog.write_table(rows, tmp_path / "lk")
    assert (written.start_offset, written.stop_offset, written.rows) == (0, 3000, 2900)
    assert written.missing_offsets == 100
    assert spans(rows.lost) == [(1500, 1599)]
    [warning] = [record.getMessage() for record in caplog.records if "p-0" in record.getMessage()]
    assert "offsets 1500 to 1599" in warning
    assert "the table lacks them" in warning


def test_each_range_counts_what_is_missing_before_its_end(damaged, tmp_path):
    rows = scan(damaged)
    written = seglog.write_table(rows, tmp_path / "lk", file_bytes=1)
    assert sum(one.missing_offsets for one in written) == 100
    assert [one.missing_offsets for one in written if one.start_offset <= 1600 < one.stop_offset] == [100]
    assert spans(rows.lost) == [(1500, 1599)]


def test_a_later_run_does_not_count_it_again(damaged, tmp_path, caplog):
    seglog.write_table(scan(damaged), tmp_path / "lk")
    with seglog.open(damaged) as log:
        log.append(b"new")
    rows = scan(damaged)
    with caplog.at_level(logging.WARNING, "seglog"):
        caplog.clear()
        [written] = seglog.write_table(rows, tmp_path / "lk")
    assert (written.start_offset, written.rows, written.missing_offsets, rows.lost) == (3000, 1, 0, ())
    assert not [record for record in caplog.records if "the table lacks" in record.getMessage()]


def test_damage_behind_the_last_row_is_listed_and_added_once_the_source_is_whole(tmp_path, caplog):
    path = tmp_path / "d/p-0"
    append(path, 3)
    log = next(path.glob("*.log"))
    whole = log.read_bytes()
    assert flip(path, 2) == (200, 299)
    rows = scan(path)
    with caplog.at_level(logging.WARNING, "seglog"):
        [written] = seglog.write_table(rows, tmp_path / "lk")
    assert (written.stop_offset, written.missing_offsets) == (200, 0)
    assert [one.first_offset for one in rows.lost] == [200]
    assert "offsets 200 to 299 were skipped" in caplog.text
    log.write_bytes(whole)
    assert [one.rows for one in seglog.write_table(scan(path), tmp_path / "lk")] == [100]
    assert offsets(tmp_path / "lk") == [*range(300)]


def test_damage_at_the_end_of_a_segment_counts_up_to_the_next_one(tmp_path):
    path = tmp_path / "d/p-0"
    append(path, 9, **{"segment.bytes": 8000})
    with seglog.open_partition(path) as partition:
        first, second = partition.segments[0], partition.segments[1].base_offset
        *_, last = partition.batches(0, second)
    data = bytearray(first.path.read_bytes())
    data[last.position + 8:last.position + 12] = b"\xff\xff\xff\xff"        # its length
    first.path.write_bytes(data)
    rows = scan(path)
    [written] = seglog.write_table(rows, tmp_path / "lk")
    assert written.missing_offsets == 100
    assert spans(rows.lost) == [(last.base_offset, last.last_offset)]


@pytest.mark.parametrize("field", [8, 40], ids=["its length", "a record"])
def test_damage_in_the_last_batch_of_the_log_ends_where_the_log_does_if_its_header_is_whole(tmp_path, field):
    path = tmp_path / "d/p-0"
    append(path, 3)
    with seglog.open_partition(path) as partition:
        *_, last = partition.batches()
        log = partition.segments[0].path
    data = bytearray(log.read_bytes())
    data[last.position + field] ^= 0x7f
    log.write_bytes(data)
    rows = scan(path)
    assert rows.to_arrow().num_rows == 200
    with seglog.open_partition(path) as partition:
        read = partition.read(on_corrupt="skip")
        assert len(list(read)) == 200
    for lost in (rows.lost, read.lost):
        # A length that reaches beyond the file's end is an unfinished write, as for a broker: nothing was lost.
        assert spans(lost) == ([] if field == 8 else [(200, 299)])


@pytest.fixture
def transactions(tmp_path):
    """Batches [0, 2) committed, 3 and 4 aborted, 6 to 8 without a transaction, 9 and 10 committed; no snapshot."""
    path = tmp_path / "d/t-0"
    with seglog.open(path) as log:
        with log.producer(producer_id=7) as producer:
            for values, commits in (((b"a", b"b"), True), ((b"x", b"y"), False)):
                producer.begin()
                producer.append_many([(None, value) for value in values])
                (producer.commit if commits else producer.abort)()
        log.append_many([(None, value) for value in (b"c", b"d", b"e")])
        with log.producer(producer_id=7) as producer:
            producer.begin()
            producer.append_many([(None, value) for value in (b"f", b"g")])
            producer.commit()
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()
    return path


def committed(path):
    rows = seglog.scan(path, on_corrupt="skip", isolation="read_committed")
    values = rows.to_arrow()["value"].to_pylist()
    with seglog.open_partition(path) as partition:
        read = partition.read(on_corrupt="skip", isolation="read_committed")
        assert [record.value for record in read] == values
        assert set(spans(read.lost)) <= set(spans(rows.lost))       # a scan walks the whole segment
    return b"".join(values), spans(rows.lost)


@pytest.mark.parametrize(("slot", "values", "lost"), [
    (0, b"cdefg", [(0, 1)]),        # records of a transaction
    (1, b"abcdefg", [(2, 2)]),      # the marker that commits: the index of aborted transactions does not name it
    (2, b"abcdefg", [(3, 4)]),
    (4, b"abfg", [(6, 8)]),
    (5, b"abcde", [(9, 10)]),
    (6, b"abcde", [(11, 11)]),      # the last marker: its transaction counts as open
])
def test_committed_records_are_read_past_damage(transactions, slot, values, lost):
    flip(transactions, slot)
    with pytest.raises(CorruptRecordError):
        seglog.scan(transactions, isolation="read_committed").to_arrow()
    assert committed(transactions) == (values, lost)


def test_a_table_of_committed_records_passes_over_damage(transactions, tmp_path):
    flip(transactions, 4)
    [written] = seglog.write_table(transactions, tmp_path / "lk", on_corrupt="skip")
    assert (written.rows, written.missing_offsets) == (4, 3)
    assert offsets(tmp_path / "lk") == [0, 1, 9, 10]


def test_damage_outside_the_offsets_asked_for_does_not_count(damaged, tmp_path):
    for start, stop in ((0, 1500), (1600, 3000)):
        rows = scan(damaged, from_offset=start, to_offset=stop)
        [written] = seglog.write_table(rows, tmp_path / f"lk-{start}")
        assert (written.rows, written.missing_offsets, rows.lost) == (stop - start, 0, ())
