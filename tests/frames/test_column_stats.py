"""Column statistics: queries over tables skip what they rule out, and answer the same without, and with bad ones."""
import datetime as dt
import shutil
import struct
from contextlib import closing

import duckdb
import polars as pl
import pytest
from pyarrow import dataset

import seglog
import seglog.polars
from seglog._kernels.crc import crc32c
from seglog.errors import CorruptIndexError
from seglog.frames import part
from seglog.frames.bounds import Bounds, bounds_of_text
from seglog.segment.column_stats import ColumnStats, column_stats_bytes, column_stats_of, column_stats_path, padded
from seglog.segment.segment import Segment
from support.command import seglog as command
from support.command import seglog_json
from support.golden import golden_cases

NOW = 1_700_000_000_000
RECORDS = 4000


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two segments whose keys rise with the offset; the last one with keys that are null now and then."""
    path = tmp_path_factory.mktemp("stats") / "orders-0"
    with seglog.open(path, fsync="never", config={"segment.bytes": 1 << 20}) as log:
        for begin in range(0, RECORDS, 50):
            rows = range(begin, begin + 50)
            log.append_columns(
                keys=[None if begin > 3000 and n % 3 == 0 else b"user-%06d" % n for n in rows],
                values=[bytes(400)] * 50, timestamps=[NOW + n for n in rows],
            )
    assert len(list(path.glob("*.log"))) == 2
    command("index", "stats", path)
    return path


@pytest.fixture
def directory(built, tmp_path):
    return shutil.copytree(built, tmp_path / "orders-0")


@pytest.fixture
def read_bytes(monkeypatch):
    """Of the .log files, as far as batch headers were looked at."""
    sizes = []
    work = part.ScanPart.work

    def counted(self, *arguments, **options):
        sizes.append(self.size_bytes)
        return work(self, *arguments, **options)

    monkeypatch.setattr(part.ScanPart, "work", counted)
    return sizes


FILTERS = {
    "one key": ("key = 'user-001234'::blob", pl.col("key") == b"user-001234"),
    "keys from to": (
        "key >= 'user-000100'::blob and key < 'user-000300'::blob",
        pl.col("key").is_between(b"user-000100", b"user-000300", closed="left"),
    ),
    "the last keys": ("key > 'user-003990'::blob", pl.col("key") > b"user-003990"),
    "one of two keys": (
        "key in ('user-000007'::blob, 'user-000019'::blob)", pl.col("key").is_in([b"user-000007", b"user-000019"]),
    ),
    "no key has it": ("key = 'v'::blob", pl.col("key") == b"v"),
    "a key and a time": (
        f"key < 'user-002000'::blob and timestamp >= make_timestamptz({(NOW + 1900) * 1000})",
        (pl.col("key") < b"user-002000")
        & (pl.col("timestamp") >= pl.lit((NOW + 1900) * 1000).cast(pl.Datetime("us", "UTC"))),
    ),
}


def by_duckdb(directory, condition):
    topic = seglog.scan(directory).dataset()    # noqa: F841     (the name in the query)
    return duckdb.sql(f'select "offset", key from topic where {condition} order by all').fetchall()


def by_polars(directory, condition):
    return seglog.polars.scan_topic(directory).filter(condition).select("offset", "key").collect().rows()


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_on_keys_reads_less_and_finds_the_same(directory, read_bytes, name):
    of_sql, of_polars = FILTERS[name]
    with_stats = by_duckdb(directory, of_sql), by_polars(directory, of_polars)
    with_bytes = sum(read_bytes)
    for path in directory.glob("*.stats.index"):
        path.unlink()
    read_bytes.clear()
    without = by_duckdb(directory, of_sql), by_polars(directory, of_polars)
    assert with_stats == without
    assert without[0] == without[1]
    assert (len(without[0]) > 0) == (name != "no key has it")
    # (DuckDB's "in" of keys is not understood.)
    assert with_bytes < 0.75 * sum(read_bytes)


def test_text_is_compared_as_its_bytes(directory, read_bytes):
    topic = seglog.scan(directory, decode="utf8").dataset()     # noqa: F841
    assert duckdb.sql("""select "offset" from topic where key = 'user-000042'""").fetchall() == [(42,)]
    frame = seglog.polars.scan_topic(directory, decode="utf8").filter(pl.col("key") == "user-000042")
    assert frame.select("offset").collect().rows() == [(42,)]
    assert sum(read_bytes) < 2 * 300_000


def test_times_are_ruled_out_in_the_last_segment_as_well(directory, read_bytes):
    table = seglog.scan(directory, since=NOW + 3900, until=NOW + 3950).to_arrow()
    assert table["offset"].to_pylist() == [*range(3900, 3950)]
    assert sum(read_bytes) < 300_000


SEALED = {
    "a flipped bit": lambda raw: raw[:80] + bytes([raw[80] ^ 1]) + raw[81:],
    "a torn file": lambda raw: raw[:-1],
    "nothing": lambda _: b"",
    "bytes of another file": lambda _: b"\x7f" * 240,
    "another log's": lambda raw: sealed(raw[:20] + b"????" + raw[24:]),
    "another size": lambda raw: sealed(raw[:40] + struct.pack(">q", 10**6) + raw[48:]),
    "a batch elsewhere": lambda raw: sealed(raw[:48] + struct.pack(">q", 0) + raw[56:]),
    "runs in disorder": lambda raw: sealed(raw[:64] + raw[152:240] + raw[64:152] + raw[240:]),
    "no first run": lambda raw: sealed(without_first_run(raw)),
    "a first run that begins later": lambda raw: sealed(raw[:72] + struct.pack(">q", 43) + raw[80:]),
    "a newer version": lambda raw: raw[:4] + struct.pack(">i", 2) + raw[8:],
}


def without_first_run(raw):
    return raw[:16] + struct.pack(">i", struct.unpack_from(">i", raw, 16)[0] - 1) + raw[20:64] + raw[152:]


def sealed(raw):
    return raw[:8] + struct.pack(">I", crc32c(raw[12:])) + raw[12:]


@pytest.mark.parametrize("damage", SEALED)
def test_a_bad_file_never_gives_a_wrong_answer(directory, damage):
    path = min(directory.glob("*.stats.index"))
    path.write_bytes(SEALED[damage](path.read_bytes()))
    assert by_polars(directory, pl.col("key") == b"user-000042") == [(42, b"user-000042")]
    codes = {f.code for f in seglog.verify(directory).findings}
    assert codes <= {"stats_corrupt", "stats_stale", "stats_newer"}
    assert codes
    command("index", "stats", directory)
    assert not seglog.verify(directory, level="deep").findings


def test_a_log_that_grew_is_read_to_its_end_and_its_statistics_go(directory):
    with seglog.open(directory, fsync="never") as log:
        log.append(b"late", key=b"user-000001", timestamp=NOW + 10**6)
        assert [row[0] for row in by_polars(directory, pl.col("key") == b"user-000001")] == [1, RECORDS]
        log.roll()
    assert not column_stats_path(max(directory.glob("*.log"))).exists()
    assert [row[0] for row in by_polars(directory, pl.col("key") == b"user-000001")] == [1, RECORDS]
    assert {f.code for f in seglog.verify(directory).findings} <= set()
    *lines, _ = seglog_json("index", "stats", directory)
    assert [line["changed"] for line in lines] == [False, True, True]


def test_they_go_with_their_segments(directory):
    with seglog.open(directory, fsync="never", config={"segment.bytes": 1 << 20}) as log:
        second = log.segments[1].base_offset
        log.truncate_to(second + 60)
        assert [p.name for p in directory.glob("*.stats.index")] == [f"{0:020}.stats.index"]
        log.delete_records(second)
        log.delete_old_segments()
        assert not list(directory.glob("*.stats.index"))


def test_compaction_takes_them_away_with_the_segment_that_it_replaces(tmp_path):
    path = tmp_path / "orders-0"
    with seglog.open(path, fsync="never", config={"segment.bytes": 3000}) as log:
        for n in range(150):
            log.append(b"value %d" % n, key=b"key %d" % (n % 12), timestamp=NOW + n)
    command("index", "stats", path)
    before = len(list(path.glob("*.stats.index")))
    command("compact", path, "--apply")
    assert 0 < len(list(path.glob("*.stats.index"))) < before
    assert {f.code for f in seglog.verify(path, level="deep").findings} == set()
    rows = seglog.scan(path).to_arrow()["offset"].to_pylist()
    assert [row[0] for row in by_polars(path, pl.col("key") >= b"key 0")] == rows


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in golden_cases()[::2]])
def test_golden_log_answers_the_same_with_them(case, tmp_path):
    directory = shutil.copytree(case / f"{case.name}-0", tmp_path / f"{case.name}-0")
    rows = seglog.scan(directory).to_arrow().to_pylist()
    command("index", "stats", directory)
    assert seglog.scan(directory).to_arrow().to_pylist() == rows
    keys = sorted({row["key"] for row in rows if row["key"] is not None})
    for key in {*keys[:1], *keys[len(keys) // 2 :][:1], *keys[-1:]}:
        found = seglog.scan(directory)._narrowed(Bounds().compared("key", "==", key)).to_arrow().to_pylist()
        assert [row for row in found if row["key"] == key] == [row for row in rows if row["key"] == key]
    times = sorted({row["timestamp"] for row in rows if row["timestamp"] is not None})
    for time in times[:: max(len(times) // 3, 1)]:
        found = seglog.scan(directory, since=time, until=time + dt.timedelta(milliseconds=1)).to_arrow().to_pylist()
        assert found == [row for row in rows if row["timestamp"] == time]


def test_keys_keep_their_order_cut_and_filled_up():
    keys = sorted([b"", b"\0", b"a", b"a\0", b"ab", b"b" * 24, b"b" * 24 + b"a", b"b" * 25, b"\xff" * 40])
    assert [padded(key) for key in keys] == sorted(padded(key) for key in keys)


def test_a_run_without_keys_holds_none(tmp_path):
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        log.append_many([(None, b"1"), (None, b"2")])
    log, = (tmp_path / "orders-0").glob("*.log")
    with closing(Segment(log)) as segment:
        raw = column_stats_bytes(segment)
        stats = ColumnStats(raw, log)
        assert stats.describes(segment.window, 0)
        column_stats_path(log).write_bytes(raw)
        assert len(column_stats_of(log)) == 1
    assert (stats.runs[0].records, stats.runs[0].null_keys) == (2, 2)
    assert list(stats.spans(-1, 2**63 - 1, smallest_key=b"", largest_key=b"")) == []
    assert len(list(stats.spans(-1, 2**63 - 1))) == 1
    with pytest.raises(CorruptIndexError, match="bytes are less than the header of 64"):
        ColumnStats(raw[:63], log)


@pytest.mark.parametrize(("text", "low", "high"), [
    ('(key == "616263")', b"abc", b"abc"), ('((key >= "61") and (key < "62"))', b"a", b"b"),
    ('(key == "xyz")', None, None),
    ('(key == "")', b"", b""),
])
def test_the_text_of_a_filter_tells_bytes_in_hex(text, low, high):
    bounds = bounds_of_text(text)
    assert (bounds.smallest_key, bounds.largest_key) == (low, high)


@pytest.mark.parametrize("decode", [None, "utf8"])
@pytest.mark.parametrize("constant", ["100234", b"100234"])
def test_a_key_of_digits_is_found_by_text_and_by_bytes(tmp_path, decode, constant):
    """pyarrow shows b"1" and "31" alike, and compares either with a column of the other type."""
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        log.append(b"value", key=b"100234")
    command("index", "stats", tmp_path / "orders-0")
    topic = seglog.scan(tmp_path, columns=["offset", "topic", "key"], decode=decode).dataset()
    assert topic.to_table(filter=dataset.field("key") == constant).num_rows == 1
    both = (dataset.field("key") == constant) & (dataset.field("key") != b"100234".hex())
    assert topic.to_table(filter=both).num_rows == 1
    assert topic.to_table(filter=both & (dataset.field("topic") == "orders")).num_rows == 1


def test_the_command_shows_the_file_and_counts_it(directory):
    *_, summary = seglog_json("index", "stats", directory)
    assert (summary["rebuilt"], summary["unchanged"]) == (0, 2)
    assert seglog_json("ls", directory)[-1]["column_stats"] == 2
    first = seglog_json("dump", min(directory.glob("*.stats.index")))[0]
    assert (first["type"], first["first_offset"], first["records"] > 0) == ("run_stats", 0, True)
    checked = [line for line in seglog_json("verify", "--indexes", directory) if line["type"] == "index"]
    assert [line["ok"] for line in checked if line["file"].endswith(".stats.index")] == [True, True]
