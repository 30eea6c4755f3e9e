"""Wrong offsets, which no checksum covers: every door says so, and none gives a part for the whole.

A base offset (v2), the offset of a message or wrapper (v0, v1), and offset deltas inside a v2 batch.
"""
import os
import struct

import pytest

import seglog
from seglog.errors import CorruptRecordError, NoRecordError, OffsetOutOfRangeError
from support import plain_format as plain
from support.command import seglog as command
from support.damaged_offsets import (
    BATCHES,
    KINDS,
    ROLLED_AT,
    is_disorder,
    of_columns,
    or_damage,
    read_by_all_doors,
    rows,
    write,
)
from support.lookups import offset_at

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
BITS = range(64) if FULL else (0, 2, 9, 33, 63)


@pytest.fixture(scope="module", params=KINDS)
def written(request, tmp_path_factory):
    return write(request.param, tmp_path_factory.mktemp(request.param) / "damaged-0")


@pytest.fixture(scope="module")
def v2(tmp_path_factory):
    return write("v2", tmp_path_factory.mktemp("every-bit") / "damaged-0")


def each_flip(log, bits, slots=range(BATCHES)):
    for slot in slots:
        for bit in bits:
            offset, delta, headers = log.flipped(slot, bit)
            log.put_offset(log.batches[slot], offset)
            try:
                yield slot, bit, delta, headers
            finally:
                log.put_offset(log.batches[slot], log.batches[slot].base_offset)


def test_every_bit_of_every_base_offset_is_told_by_every_door(v2):
    for slot, bit, delta, headers in each_flip(v2, range(64)):
        check(v2, slot, delta, headers, f"batch {slot}, bit {bit}", slot + bit)


def test_in_every_format(written):
    for slot, bit, delta, headers in each_flip(written, BITS):
        check(written, slot, delta, headers, f"{written.kind}, batch {slot}, bit {bit}", slot + bit)


def check(log, slot, delta, headers, label, turn):
    damaged, truth = log.batches[slot], log.records
    if is_disorder(headers):
        check_told(log, damaged, truth, label, turn)
    elif not log.kind.endswith("-gzip"):
        # The last batch of the log, with a higher offset: compaction leaves such holes. All doors say the same.
        check_agreed(log, [
            (offset + delta, *rest) if damaged.records[0][0] <= offset <= damaged.last_offset else (offset, *rest)
            for offset, *rest in truth
        ], label)
    elif log.kind == "v2-gzip":
        check_agreed(log, None, label)
    else:
        check_inside(log, truth, label)


def check_told(log, damaged, truth, label, turn):
    """In `make test` one start in turn, every seventh record by itself, and past the damage by one of two doors: `turn`
    says which."""
    first = damaged.records[0][0]
    starts = [None, 0, 5, first, first + 1, truth[-1][0]]
    starts = starts if FULL else [starts[turn % len(starts)]]
    with seglog.open_partition(log.directory) as partition:
        for (door, start), found in read_by_all_doors(partition, *starts).items():
            expected = [row for row in truth if row[0] >= (start or 0)]
            assert found is None or ((start or 0) > first and found == expected), (label, door, start, found)
        for offset, timestamp, value in truth if FULL else truth[turn % 7 :: 7]:
            assert or_damage(lambda o=offset: partition[o].value) in (value, None), (label, offset)
            if timestamp >= 0:
                at = next(o for o, t, _ in truth if t >= timestamp)
                assert or_damage(lambda t=timestamp: offset_at(partition, t)) in (at, None), (label, timestamp)
        assert or_damage(lambda: partition.log_end_offset) in (log.end_offset, None), label
        found = partition.read(on_corrupt="skip")
        kept, lost = rows(found), found.lost
        assert set(kept) < set(truth), (label, kept)
        assert kept == sorted(kept), (label, kept)
        for offset, *_ in set(truth) - set(kept):
            assert any(r.first_offset <= offset and (r.last_offset < 0 or offset <= r.last_offset) for r in lost), (
                label, offset, lost)
        assert set(truth) - set(kept) == set(damaged.records), label
        if FULL or turn % 2 == 0:
            found = partition.columns(on_corrupt="skip")
            assert of_columns(found) == kept, label
            assert found.lost, label
        if FULL or turn % 2 == 1:
            found = partition.batches(on_corrupt="skip")
            assert [r for b in found for r in rows(b)] == kept, label
            assert found.lost, label


def check_agreed(log, expected, label):
    with seglog.open_partition(log.directory) as partition:
        expected = expected or rows(partition.read())
        assert len(expected) == len(log.records), label
        for (door, start), found in read_by_all_doors(partition, None, 0, 7, expected[-1][0]).items():
            assert found == [row for row in expected if row[0] >= (start or 0)], (label, door, start)
        for offset, timestamp, value in expected:
            assert partition[offset].value == value, (label, offset)
            if timestamp >= 0:
                at = next(o for o, t, _ in expected if t >= timestamp)
                assert offset_at(partition, timestamp) == at, (label, timestamp)
        assert partition.log_end_offset == expected[-1][0] + 1, label


def check_inside(log, truth, label):
    """A wrapper whose offset is right among the others': what is inside tells, or all are given."""
    with seglog.open_partition(log.directory) as partition:
        found = read_by_all_doors(partition, None)
        assert found["records", None] == found["columns", None] == found["read", None], label
        if found["records", None] is not None:
            assert [value for *_, value in found["records", None]] == [value for *_, value in truth], label


@pytest.mark.parametrize("kind", KINDS)
def test_reading_a_log_that_is_open_tells_it(kind, tmp_path):
    """Of such a log the end is known, too: it is what was published."""
    log = write(kind, tmp_path / "live-0")
    for slot, bit, _, headers in each_flip(log, (0, 4, 20, 63), (0, 1, 6, ROLLED_AT - 1, ROLLED_AT, BATCHES - 1)):
        damaged = log.batches[slot]
        log.put_offset(damaged, damaged.base_offset)
        with seglog.open(log.directory, config={"index.interval.bytes": 200}, fsync="never") as opened:
            log.put_offset(damaged, headers[slot][0])
            if not is_disorder(headers) and slot != BATCHES - 1:
                continue
            for (door, start), found in read_by_all_doors(opened, None, 0, damaged.records[0][0]).items():
                assert found is None, (kind, slot, bit, door, start)
            for offset, _, value in log.records:
                assert or_damage(lambda o=offset: opened[o].value) in (value, None), (kind, slot, bit, offset)
            found = opened.read(on_corrupt="skip")
            kept = rows(found)
            assert found.lost, (kind, slot, bit)
            assert set(log.records) - set(kept) == set(damaged.records), (kind, slot, bit)
            log.put_offset(damaged, damaged.base_offset)


def test_commands_tell_it(written):
    # In `make test` one of two bits, in turn by kind.
    bits = (3, 63) if FULL else ((3, 63)[KINDS.index(written.kind) % 2],)
    for slot, bit, _, headers in each_flip(written, bits, (0, 4, ROLLED_AT, BATCHES - 1)):
        if not is_disorder(headers):
            continue
        label = (written.kind, slot, bit)
        assert command("verify", written.directory, status=1), label
        for options in ([], ["--batches"], ["--json"], ["--batches", "--json"]):
            refused = command("dump", *options, written.directory, status=1)
            assert "offset" in refused.stderr, label
            assert written.batches[slot].path.name in refused.stderr, label
        assert "skipped" in command("dump", "--on-corrupt", "skip", written.directory, status=7).stderr, label


def test_the_error_names_file_position_and_offset(v2):
    damaged = v2.batches[5]
    v2.put_offset(damaged, damaged.base_offset + 2**20)
    try:
        with seglog.open_partition(v2.directory) as partition, pytest.raises(CorruptRecordError) as error:
            list(partition)
    finally:
        v2.put_offset(damaged, damaged.base_offset)
    assert (str(error.value.file), error.value.position, error.value.offset) == (
        str(damaged.path), damaged.position, damaged.base_offset)
    assert str(damaged.base_offset + 2**20) in str(error.value)


def test_the_end_of_a_log_is_not_learned_from_a_damaged_last_batch(tmp_path):
    """1 000 batches; the sign bit, and an ordinary one, of the last base offset."""
    directory = tmp_path / "long-0"
    with seglog.open(directory, fsync="never") as log:
        for n in range(1000):
            log.append(b"%d" % n)
    with seglog.open_partition(directory) as partition:
        segment, found = partition.find_offset(999)
        path = segment.path
    for offset in (999 - 2**63, 487):
        with open(path, "r+b") as file:
            file.seek(found.position)
            file.write(struct.pack(">q", offset))
        with seglog.open_partition(directory) as partition:
            for door in (partition.read, partition.batches, lambda p=partition: p._records_in_files(start=500)):
                given = []
                with pytest.raises(CorruptRecordError):
                    given.extend(door())
                assert len(given) in (499, 999)
            with pytest.raises(CorruptRecordError):
                print(partition.log_end_offset)
            assert partition[998].value == b"998"
            rest = partition.read(on_corrupt="skip")
            assert len(list(rest)) == 999
            assert [(r.first_offset, r.reason) for r in rest.lost] == [
                (999, f"an offset at or below the one before it: offset {offset}, expected 999 or above")]


# --- inside a batch ----------------------------------------------------------------------------


def put_segment(directory, *raw):
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(b"".join(raw))
    return directory


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("deltas", [(0, 5, 2), (0, 0, 1), (2, 1, 3), (0, 1, 9), (-1, 1, 2)])
def test_a_wrong_offset_delta_is_damage_for_every_door(deltas, codec, tmp_path):
    from seglog.format.compression import Codec, compress
    payload = b"".join(plain.record_v2(d, i, None, b"%d" % i) for i, d in enumerate(deltas))
    if codec == "gzip":
        payload = compress(Codec.GZIP, 2, payload)
    damaged = plain.batch_v2(
        payload, count=3, base_offset=2, last_offset_delta=5, base_timestamp=10, max_timestamp=12,
        attributes=1 if codec == "gzip" else 0)
    whole = plain.batch_v2(plain.record_v2(0, 0, None, b"w"), base_offset=8, base_timestamp=20, max_timestamp=20)
    before = plain.batch_v2(plain.record_v2(0, 0, None, b"b"), base_offset=0, base_timestamp=1, max_timestamp=1)
    directory = put_segment(tmp_path / "deltas-0", before, damaged, whole)
    with seglog.open_partition(directory) as partition:
        for stop in (None, 4, 6, 8):
            for start in (None, 2, 3):
                for door in (
                    lambda a=start, b=stop: list(partition._records_in_files(a, b)),
                    lambda a=start, b=stop: list(partition.columns(a, b)),
                    lambda a=start, b=stop: [list(batch) for batch in partition.batches(a, b)],
                ):
                    assert or_damage(door) is None, (start, stop)
        for offset in range(2, 8):
            assert or_damage(lambda o=offset: partition[o].value) is None, offset
        assert or_damage(lambda: offset_at(partition, 11)) is None
        assert partition[0].value == b"b"
        assert partition[8].value == b"w"
        for door, items in ((partition.read, rows), (partition.columns, of_columns)):
            found = door(on_corrupt="skip")
            assert [value for *_, value in items(found)] == [b"b", b"w"]
            assert [(r.first_offset, r.last_offset) for r in found.lost] == [(2, 7)]
    assert command("verify", "--level", "deep", directory, status=1)


def test_holes_and_empty_batches_of_compaction_are_no_damage(tmp_path):
    directory = put_segment(
        tmp_path / "compacted-0",
        plain.batch_v2(b"", count=0, base_offset=3, last_offset_delta=4, base_timestamp=-1, max_timestamp=-1),
        plain.batch_v2(
            plain.record_v2(2, 0, None, b"a") + plain.record_v2(7, 0, None, b"b"), count=2, base_offset=8,
            last_offset_delta=11),
        plain.batch_v2(plain.record_v2(0, 0, None, b"c"), base_offset=2**31 + 50),
    )
    with seglog.open_partition(directory) as partition:
        assert rows(partition.read()) == [(10, 0, b"a"), (15, 0, b"b"), (2**31 + 50, 0, b"c")]
        assert of_columns(partition.columns()) == rows(partition.read())
        assert [b.last_offset for b in partition.batches()] == [7, 19, 2**31 + 50]
        for offset in (3, 8, 19, 20):
            with pytest.raises(NoRecordError):
                partition[offset]
        assert (partition[10].value, partition[15].value, partition[2**31 + 50].value) == (b"a", b"b", b"c")
        with pytest.raises(OffsetOutOfRangeError):
            partition[2**31 + 51]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_with_a_null_value_is_called_that(magic, tmp_path):
    directory = put_segment(
        tmp_path / "null-0", plain.message(0, None, None, magic=magic, attributes=plain.GZIP))
    with seglog.open_partition(directory) as partition:
        for door in (partition.read, partition.columns, lambda: next(partition.batches()).base_offset):
            with pytest.raises(CorruptRecordError, match="compressed message whose value is null") as error:
                list(door())
            assert (error.value.position, error.value.offset) == (0, 0)
