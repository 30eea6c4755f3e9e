"""Reading partition directories: windows, damage, tails, lifetimes."""
import datetime as dt
import gzip
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from contextlib import nullcontext

import pytest

import seglog
from seglog._kernels.crc import crc32c
from seglog.errors import CorruptRecordError, InvalidArgumentError, NotALogError, StorageError
from seglog.reading.partition import open_partition
from seglog.reading.times import to_timestamp_ms
from seglog.state.checkpoints import format_offset_checkpoint
from support.golden import golden_cases

CASES = [pytest.param(case, id=case.name) for case in golden_cases()]


def expected(case):
    with gzip.open(case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture
def copy(golden_kafka, tmp_path):
    """A golden partition directory that may be changed."""
    def make(case):
        source = next((golden_kafka / case).glob("*-0"))
        return shutil.copytree(source, tmp_path / source.name)
    return make


@pytest.mark.parametrize("case", CASES)
def test_records_and_columns_are_those_that_kafka_decodes(case):
    rows = expected(case)
    with open_partition(case / f"{case.name}-0") as p:
        records = list(p.read(control=True))
        assert [(r.offset, r.timestamp) for r in records] == [(r["offset"], r["timestamp"]) for r in rows]
        data = [r["offset"] for r in rows if not r["control"]]
        assert [r.offset for r in p.read()] == data
        assert [o for chunk in p.columns() for o in chunk.offset] == data
        assert sum(max(b.count, 0) for b in p.batches() if b.magic == 2) == sum(r["magic"] == 2 for r in rows)


@pytest.mark.parametrize("name", ["txn-v2-k391", "mixed-formats-k391", "compact-v1-gzip-pass1-k391", "v0-gzip-ct-k282"])
def test_a_window_of_offsets_holds_just_those(golden_kafka, name):
    case = golden_kafka / "cases" / name
    offsets = [r["offset"] for r in expected(case)]
    with open_partition(case / f"{name}-0") as p:
        for start in range(offsets[0], offsets[-1] + 2, 7):
            for stop in (start, start + 1, start + 5, offsets[-1] + 9):
                window = [r.offset for r in p._records_in_files(start, stop, control=True)]
                assert window == [o for o in offsets if start <= o < stop]
                assert [r.offset for r in p._records_in_files(start, stop, control=True, on_corrupt="skip")] == window
                held = {r.offset for b in p.batches(start, stop) for r in b}
                assert held.issuperset(window)


def test_a_window_of_time_holds_just_those_in_log_order(golden_kafka):
    case = golden_kafka / "cases" / "ts-odd-v2-k391"
    rows = expected(case)
    times = sorted({r["timestamp"] for r in rows})
    with open_partition(case / "ts-odd-v2-k391-0") as p:
        for since in times[::5]:
            for until in times[::7]:
                got = [r.offset for r in p.read(since=since, until=until, control=True)]
                assert got == [r["offset"] for r in rows if since <= r["timestamp"] < until]


def test_the_log_start_offset_of_the_log_dir_hides_what_lies_below(golden_kafka, copy):
    path = copy("cases/v2-lz4-ct-k391")
    offsets = [r["offset"] for r in expected(golden_kafka / "cases/v2-lz4-ct-k391")]
    raw = format_offset_checkpoint({("v2-lz4-ct-k391", 0): 30})
    (path.parent / "log-start-offset-checkpoint").write_bytes(raw)
    with open_partition(path) as p:
        assert p.log_start_offset == 30
        assert [r.offset for r in p.read(control=True)] == [o for o in offsets if o >= 30]
        assert p.offset_for_time(0).offset >= 30
        assert p.offset_for_time(-2).offset == 30


# --- damage ----------------------------------------------------------------------------------


def test_a_flipped_bit_in_the_middle_raises_with_file_byte_and_offset(golden_kafka):
    path = golden_kafka / "corrupt/v2-lz4-ct-k391--flip-earlier-seg/v2-lz4-ct-k391--flip-earlier-seg-0"
    with open_partition(path) as p, pytest.raises(CorruptRecordError) as e:
        list(p.read())
    assert e.value.file == str(path / "00000000000000000000.log")
    assert (e.value.position, e.value.offset) == (2480, 57)


def test_skipping_goes_on_after_the_damage_and_reports_what_is_lost(golden_kafka):
    path = golden_kafka / "corrupt/v2-lz4-ct-k391--flip-earlier-seg/v2-lz4-ct-k391--flip-earlier-seg-0"
    whole = [r["offset"] for r in expected(golden_kafka / "cases/v2-lz4-ct-k391")]
    with open_partition(path) as p:
        found = p.read(control=True, on_corrupt="skip")
        got = [r.offset for r in found]
    (gap,) = found.lost
    assert (gap.position, gap.size_bytes, gap.first_offset) == (2480, 272, 57)
    assert got == [o for o in whole if not gap.first_offset <= o <= gap.last_offset]
    assert len(got) < len(whole)


@pytest.mark.parametrize("source", ["v2-lz4-ct-k391", "v1-gzip-ct-k391"])
def test_columns_skip_what_records_skip(copy, source):
    path = copy(f"cases/{source}")
    log = min(path.glob("*.log"))
    with open_partition(path) as p:
        batches = list(p.batches())
    raw = bytearray(log.read_bytes())
    raw[batches[1].position + batches[1].size_bytes - 1] ^= 1       # a checksum that does not fit
    raw[batches[4].position + 8] ^= 1                               # a size that cannot be
    log.write_bytes(raw)
    with open_partition(path) as p:
        records, columns = p.read(on_corrupt="skip"), p.columns(on_corrupt="skip")
        offsets, chunks = [r.offset for r in records], list(columns)
        lost, lost_of_columns = records.lost, columns.lost
        with pytest.raises(CorruptRecordError):
            list(p.columns())
    assert [o for chunk in chunks for o in chunk.offset] == offsets
    assert lost_of_columns == lost
    assert len(lost) == 2


def test_columns_skip_a_batch_that_does_not_open(copy):
    """Its checksum is right: whoever wrote it wrote it so."""
    path = copy("cases/v2-none-ct-k391")
    log = min(path.glob("*.log"))
    with open_partition(path) as p:
        batch = list(p.batches())[2]
    raw = bytearray(log.read_bytes())
    start, end = batch.position, batch.position + batch.size_bytes
    raw[start + 61] ^= 0x40                                         # the first record's length
    struct.pack_into(">I", raw, start + 17, crc32c(bytes(raw[start + 21 : end])))
    log.write_bytes(raw)
    with open_partition(path) as p:
        records, columns = p.read(on_corrupt="skip"), p.columns(on_corrupt="skip")
        offsets, chunks = [r.offset for r in records], list(columns)
        lost, lost_of_columns = records.lost, columns.lost
    assert [o for chunk in chunks for o in chunk.offset] == offsets
    assert [(gap.position, gap.size_bytes) for gap in lost_of_columns] == [(batch.position, batch.size_bytes)]
    assert [gap.position for gap in lost] == [batch.position]


@pytest.mark.parametrize("kind", ["tail-cut7", "tail-cut-17", "zero-tail"])
@pytest.mark.parametrize("source", ["v1-none-ct-k391", "v2-lz4-ct-k391", "txn-v2-k391"])
def test_a_write_that_did_not_finish_ends_the_data(golden_kafka, source, kind):
    case = golden_kafka / "corrupt" / f"{source}--{kind}"
    check = json.loads((case / "check-3.9.1.json").read_text())["unclean"]
    with open_partition(case / f"{case.name}-0") as p:
        assert p.log_end_offset == check["log_end_offset"]
        assert sum(1 for _ in p.read(control=True)) == check["records"]


def test_a_batch_cut_short_is_damage_where_another_segment_follows(golden_kafka, copy):
    path = copy("cases/v2-none-ct-k391")
    first, *_ = sorted(path.glob("*.log"))
    first.write_bytes(first.read_bytes()[:-3])
    with open_partition(path) as p, pytest.raises(CorruptRecordError):
        list(p.read())


@pytest.mark.parametrize("kind", [
    "index-bad-last", "index-empty", "index-missing", "index-odd-size", "index-swapped", "index-zero-tail",
    "timeindex-empty", "timeindex-missing", "timeindex-odd-size",
])
@pytest.mark.parametrize("source", ["v1-none-ct-k391", "v2-lz4-ct-k391"])
def test_an_index_that_misleads_costs_time_and_nothing_else(golden_kafka, source, kind):
    case = golden_kafka / "corrupt" / f"{source}--{kind}"
    rows = expected(golden_kafka / "cases" / source)
    undamaged = golden_kafka / "cases" / source / f"{source}-0"
    with open_partition(case / f"{case.name}-0") as p, open_partition(undamaged) as q:
        assert p.log_end_offset == q.log_end_offset
        for r in rows:
            assert p.find_offset(r["offset"])[1] == q.find_offset(r["offset"])[1]
            assert p.offset_for_time(r["timestamp"]) == q.offset_for_time(r["timestamp"])


@pytest.mark.parametrize("source", ["v1-none-ct-k391", "v2-lz4-ct-k391"])
def test_a_time_entry_that_forgets_an_earlier_record_is_not_believed(copy, golden_kafka, source):
    """Each entry leads to a batch with just that largest timestamp; batches before may have later ones."""
    path = copy(f"cases/{source}")
    rows = expected(golden_kafka / "cases" / source)
    targets = {r["timestamp"] + more for r in rows for more in (0, 1)}
    answers = {t: next((r["offset"] for r in rows if r["timestamp"] >= t), None) for t in targets}
    index = min(path.glob("*.timeindex"))
    with open_partition(path) as p:
        batches = [(b.max_timestamp, b.last_offset) for b in p.batches() if b.last_offset < p.segments[1].base_offset]
    assert batches != sorted(batches)
    for entry in batches:
        index.write_bytes(struct.pack(">qi", *entry))
        with open_partition(path) as p:
            found = {t: p.offset_for_time(t) for t in targets}
        assert {t: f and f.offset for t, f in found.items()} == answers


# --- opening and closing ---------------------------------------------------------------------


def test_a_directory_without_a_segment_is_not_a_log(tmp_path):
    with pytest.raises(NotALogError):
        open_partition(tmp_path)


def test_whatever_cannot_be_opened_is_an_error_of_ours(golden_kafka, tmp_path):
    log = min((golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0").glob("*.log"))
    with pytest.raises(NotALogError):
        open_partition(log)
    with pytest.raises(StorageError):
        open_partition(tmp_path / "nowhere-0")


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "00000000000000000000.txnindex"])
def test_a_pipe_in_a_file_s_place_is_not_waited_for(copy, name):
    path = copy("cases/v2-none-ct-k391")
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with open_partition(path) as p, pytest.raises(StorageError, match="not a regular file"):
        print(p.leader_epochs, p.segments[0].transaction_index)


def test_the_directory_one_stands_in_has_its_name(copy, monkeypatch):
    path = copy("cases/v2-lz4-ct-k391")
    (path.parent / "log-start-offset-checkpoint").write_bytes(format_offset_checkpoint({("v2-lz4-ct-k391", 0): 30}))
    (path / "below").mkdir()
    for place, spelt in ((path, "."), (path / "below", "..")):
        monkeypatch.chdir(place)
        with open_partition(spelt) as p:
            assert (p.topic, p.partition, p.log_start_offset) == ("v2-lz4-ct-k391", 0, 30)


@pytest.mark.parametrize("time", [1.5, None, True, dt.date(2023, 11, 14), "yesterday", 2**63, "9" * 30])
def test_what_is_no_time_is_refused(golden_kafka, time):
    with open_partition(golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0") as p, \
            pytest.raises(InvalidArgumentError):
        p.offset_for_time(time)


def test_records_outlive_their_partition(golden_kafka):
    path = golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0"
    p = open_partition(path)
    records = list(p.read())
    chunk = next(iter(p.columns()))
    p.close()
    p.close()
    assert records[3].value == chunk[3][3]


def test_an_unknown_way_with_damage_is_refused(golden_kafka):
    with open_partition(golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0") as p, \
            pytest.raises(InvalidArgumentError, match="raise"):
        p.read(on_corrupt="ignore")


@pytest.mark.parametrize(("when", "ms"), [
    (1700000000000, 1700000000000),
    ("1700000000000", 1700000000000),
    ("-1", -1),
    ("2026-11-01", 1793491200000),
    ("2026-11-01T12:00:00Z", 1793534400000),
    ("2026-11-01T13:00:00+01:00", 1793534400000),
    (dt.datetime(2026, 11, 1, tzinfo=dt.UTC), 1793491200000),
    ("-2h", 1700000000000 - 7_200_000),
    ("-90s", 1700000000000 - 90_000),
])
def test_times_are_given_as_people_give_them(when, ms):
    assert to_timestamp_ms(when, now_ms=1700000000000) == ms


@pytest.mark.parametrize("make", [str, dt.datetime.fromisoformat], ids=["text", "datetime"])
def test_a_bound_between_two_milliseconds_does_not_reach_the_record_before_it(tmp_path, make):
    second = dt.datetime(2026, 11, 29, 15, 0, 20, tzinfo=dt.UTC)
    with seglog.open(tmp_path / "p-0") as log:
        log.append(b"early", timestamp=second)
        log.append(b"late", timestamp=second + dt.timedelta(milliseconds=1))
        bound = make("2026-11-29T15:00:20.000999+00:00")
        assert [r.value for r in log.read(since=bound)] == [b"late"]
        assert [r.value for r in log.read(until=bound)] == [b"early"]
        assert log.offset_for_time(bound).offset == 1


@pytest.mark.parametrize("when", ["yesterday", "-2x", "", dt.datetime(2026, 11, 1), True])
def test_a_time_that_says_nothing_is_refused(when):
    with pytest.raises(InvalidArgumentError):
        to_timestamp_ms(when)


@pytest.mark.parametrize("ask", [
    lambda log, when: list(log.read(since=when)),
    lambda log, when: list(log.read(until=when)),
    lambda log, when: log.offset_for_time(when),
    lambda log, when: seglog.scan(log, since=when),
    lambda log, when: seglog.scan(log, until=when),
], ids=["read since", "read until", "offset_for_time", "scan since", "scan until"])
@pytest.mark.parametrize("doors", ["log", "partition", "follower"])
def test_a_time_in_seconds_is_refused_by_every_search(tmp_path, ask, doors):
    with seglog.open(tmp_path / "p-0") as log:
        log.append(b"x", timestamp=1_700_000_000_000)
        with {"log": lambda: nullcontext(log), "partition": lambda: seglog.open_partition(tmp_path / "p-0"),
              "follower": lambda: seglog.follow(tmp_path / "p-0")}[doors]() as opened:
            for when in (1_700_000_000, "1700000000", 10**8, 10**11 - 1):
                with pytest.raises(InvalidArgumentError, match="milliseconds") as error:
                    ask(opened, when)
                assert f"{int(when)}000" in error.value.hint
            for when in (0, 5, 10**8 - 1, 10**11, "1970-01-20", dt.datetime(1970, 1, 20, tzinfo=dt.UTC)):
                ask(opened, when)       # what tests write, and days of 1970 that are named
        with pytest.raises(InvalidArgumentError, match="milliseconds"):
            log.follow("1700000000")    # (a number is an offset there)


@pytest.mark.parametrize("writes", [True, False])
def test_a_log_is_loaded_from_its_pickle_as_a_reader(in_memory, writes):
    config = {"max.decompressed.message.bytes": 5000, "segment.bytes": 200}
    with seglog.open(in_memory / "orders-0", config=config) as log:
        log.append_many([(b"k", b"v")] * 3)
        log.roll()
        log.append(b"last")
        with log if writes else seglog.open_partition(in_memory / "orders-0", config=config) as given:
            code = (
                "import pickle, sys; loaded = pickle.load(sys.stdin.buffer); print(type(loaded).__name__, "
                "loaded.config.max_decompressed_message_bytes, [record.value for record in loaded.read()])"
            )
            found = subprocess.run(
                [sys.executable, "-c", code], input=pickle.dumps(given), capture_output=True, check=True
            )
    assert found.stdout.decode().strip() == "Partition 5000 [b'v', b'v', b'v', b'last']"
