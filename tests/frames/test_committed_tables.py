"""`seglog.write_table` into Delta and Iceberg tables: all rows once, on from where the last commit ends. And into all
three formats by processes that are killed."""
import contextlib
import datetime as dt
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import uuid
import warnings
from decimal import Decimal
from pathlib import Path

import deltalake
import duckdb
import polars
import pyarrow
import pyarrow.dataset
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, NestedField, StringType

import seglog
from seglog.errors import InvalidArgumentError, LogLockedError, MissingLibraryError, StorageError
from seglog.frames.delta import DeltaTable
from seglog.frames.iceberg import OFFSETS_KEY, IcebergTable
from seglog.fs.files import OsFileSystem
from support.schemas import avro, framed, write_schemas, write_topic
from support.waiting import wait_for

T = 1_700_006_400_000       # 2023-11-15T00:00:00Z
HOUR_MS = 3_600_000
FORMATS = ["delta", "iceberg"]
# `make torture` sets SEGLOG_TORTURE: 200 kills of each; otherwise three.
KILLS, SHARES = (20, 10) if os.environ.get("SEGLOG_TORTURE") else (3, 1)
ANY_TIME = {"message.timestamp.before.max.ms": 2**63 - 1, "message.timestamp.after.max.ms": 2**63 - 1}


def append(path, start, stop, **config):
    """Record n is of hour n // 100."""
    with seglog.open(path, fsync="never", config={"segment.bytes": 6_000, "retention.ms": -1, **config}) as log:
        for n in range(start, stop, 10):
            log.append_many([(b"k", b"v%d" % m, (), T + m // 100 * HOUR_MS + m) for m in range(n, n + 10)])


@pytest.fixture
def data(tmp_path):
    for partition in range(2):
        append(tmp_path / f"data/orders-{partition}", 0, 900)
    return tmp_path / "data"


def newest(dst):
    """The metadata of an Iceberg table in a directory."""
    return str(dst / f"metadata/v{iceberg_version(dst)}.metadata.json")


def iceberg_version(dst):
    return max((int(path.name[1:].split(".")[0]) for path in dst.glob("metadata/v*.metadata.json")), default=0)


def commits(dst, table_format):
    """How many there are; the first one makes the table. Of Parquet, the files and one more."""
    if table_format == "parquet":
        return 1 + len(list(dst.glob("**/[!.]*.parquet")))
    return len(list(dst.glob("_delta_log/*.json"))) if table_format == "delta" else iceberg_version(dst)


def delta_rows(dst):
    return deltalake.DeltaTable(dst).to_pyarrow_table()


def iceberg_rows(dst):
    return StaticTable.from_metadata(newest(dst)).scan().to_arrow()


def parquet_rows(dst):
    return pyarrow.dataset.dataset(dst, format="parquet", partitioning="hive").to_table()


def by_polars(dst, table_format):
    if table_format == "parquet":
        return polars.scan_parquet(dst / "**/*.parquet", hive_partitioning=True).collect().to_arrow()
    if table_format == "delta":
        return polars.read_delta(str(dst)).to_arrow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # of a plug-in that plans faster
        return polars.scan_iceberg(newest(dst)).collect().to_arrow()


def by_duckdb(dst, table_format):
    """The data files that the table names, read by another reader of Parquet."""
    if table_format == "delta":
        table = deltalake.DeltaTable(dst)
        files, by_hive = table.file_uris(), bool(table.metadata().partition_columns)
    elif table_format == "parquet":
        files, by_hive = f"{dst}/**/*.parquet", True
    else:
        files = [task.file.file_path.removeprefix("file://")
                 for task in StaticTable.from_metadata(newest(dst)).scan().plan_files()]
        by_hive = False
    with duckdb.connect() as connection:
        return connection.read_parquet(files, hive_partitioning=by_hive, union_by_name=True).to_arrow_table()


def table_of(dst, table_format):
    if table_format == "parquet":
        return parquet_rows(dst)
    return delta_rows(dst) if table_format == "delta" else iceberg_rows(dst)


COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")


def rows(table):
    columns = {name: table[name].to_pylist() for name in COLUMNS if name in table.column_names}
    return sorted(zip(*columns.values(), strict=True), key=lambda row: row[:3])


def model(data):
    """The rows as the log itself has them."""
    found = []
    for path in sorted(path for path in data.glob("*-[0-9]") if path.is_dir()):
        topic, _, partition = path.name.rpartition("-")
        with seglog.open_partition(path) as log:
            found += [
                (topic, int(partition), one.offset, dt.datetime.fromtimestamp(one.timestamp / 1000, dt.UTC), one.key,
                 one.value)
                for one in log.read(isolation="read_committed")
            ]
    return sorted(found, key=lambda row: row[:3])


@pytest.mark.parametrize("directories", [None, ("date",), ("topic", "date", "hour"), ()])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_run_writes_all_rows_and_the_next_one_what_came_since(data, tmp_path, table_format, directories):
    dst = tmp_path / "lake"
    written = seglog.write_table(data, dst, format=table_format, partition_by=directories, file_bytes=20_000)
    assert len(written) > 2
    for partition in range(2):      # the ranges follow each other
        ends = [0, *(one.stop_offset for one in written if one.partition == partition)]
        assert ends[1:] == sorted(ends[1:])
        assert [one.start_offset for one in written if one.partition == partition] == ends[:-1]
    assert sum(one.rows for one in written) == 1800
    assert seglog.write_table(data, dst, format=table_format) == []
    append(data / "orders-1", 900, 1000)
    [more] = seglog.write_table(data, dst, format=table_format, partition_by=directories)
    assert (more.partition, more.start_offset, more.stop_offset, more.rows) == (1, 900, 1000, 100)
    expected = model(data)
    assert len(expected) == 1900
    for read in (table_of, by_polars, by_duckdb):
        found = read(dst, table_format)
        if read is not by_duckdb or "topic" not in (directories or ("topic",)):
            assert rows(found) == expected, read
        assert sorted(found["offset"].to_pylist()) == sorted(row[2] for row in expected)
    assert not list(dst.rglob("*.tmp"))


def test_days_and_hours_are_columns_of_a_delta_table(data, tmp_path):
    seglog.write_table(data, tmp_path / "lake", format="delta", partition_by=["date", "hour"])
    table = deltalake.DeltaTable(tmp_path / "lake")
    assert table.metadata().partition_columns == ["date", "hour"]
    assert len(table.file_uris()) == 9
    found = table.to_pyarrow_table(filters=[("hour", "=", 3)])
    assert {str(day) for day in found["date"].to_pylist()} == {"2023-11-15"}
    assert sorted(found["offset"].to_pylist()) == sorted([*range(300, 400)] * 2)
    early = table.to_pyarrow_dataset().to_table(
        filter=pyarrow.compute.field("timestamp") < dt.datetime(2023, 11, 15, 1, tzinfo=dt.UTC))
    assert early.num_rows == 200


def test_hours_of_an_iceberg_table_prune_its_files(data, tmp_path):
    seglog.write_table(data, tmp_path / "lake", format="iceberg", partition_by=["hour", "date"])
    table = StaticTable.from_metadata(newest(tmp_path / "lake"))
    assert [str(field.transform) for field in table.spec().fields] == ["hour"]
    scan = table.scan(row_filter="timestamp < '2023-11-15T01:00:00+00:00'")
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow().num_rows == 200


@pytest.mark.parametrize("table_format", FORMATS)
def test_late_rows_and_rows_without_a_day_are_in_the_table(tmp_path, table_format):
    path = tmp_path / "data/t-0"
    times = [T, T - 86_400_000, -1, 0, 253_402_300_800_000, 9_000_000_000_000_000, T, -62_135_596_800_001]
    with seglog.open(path, fsync="never", config={"seglog.timestamp.check": False, **ANY_TIME}) as log:
        for time in times:
            if time >= -1:
                log.append(b"%d" % time, timestamp=time)
    dst = tmp_path / "lake"
    seglog.write_table(path, dst, format=table_format, partition_by=["date"])
    with seglog.open(path, fsync="never", config={"seglog.timestamp.check": False, **ANY_TIME}) as log:
        log.append(b"late", timestamp=T - 30 * 86_400_000)
    assert [one.rows for one in seglog.write_table(path, dst, format=table_format)] == [1]
    found = table_of(dst, table_format)
    assert sorted(zip(found["offset"].to_pylist(), found["value"].to_pylist(), strict=True)) == [
        *enumerate(b"%d" % time for time in times[:7]), (7, b"late"),
    ]


@pytest.mark.parametrize("table_format", FORMATS)
def test_only_committed_rows_are_written_and_others_once_they_are(tmp_path, table_format):
    path, dst = tmp_path / "data/t-0", tmp_path / "lake"
    with seglog.open(path) as log, log.producer(producer_id=3) as producer:
        producer.begin()
        producer.append(b"gone")
        producer.abort()
        producer.begin()
        producer.append(b"kept")
        assert seglog.write_table(log, dst, format=table_format) == []
        producer.commit()
        assert [one.rows for one in seglog.write_table(log, dst, format=table_format)] == [1]
    assert table_of(dst, table_format)["value"].to_pylist() == [b"kept"]


@pytest.mark.parametrize("table_format", FORMATS)
def test_fields_that_a_newer_schema_adds_are_added(tmp_path, table_format):
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": "int"},
        {"name": "in", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "long"}]}}]}
    inner = schema["fields"][1]["type"]
    newer = schema | {"fields": [
        schema["fields"][0] | {"type": "int"},
        {"name": "in", "type": inner | {"fields": [*inner["fields"], {"name": "y", "type": ["null", "string"]}]}},
        {"name": "c", "type": "string"}]}
    dst = tmp_path / "lake"
    path = write_topic(tmp_path / "d/t-0", [framed(1, avro(schema, {"a": 1, "in": {"x": 2}}))])
    write_schemas(tmp_path / "d", ("t-value", 1, 1, schema))
    seglog.write_table(path, dst, format=table_format, decode={"value": "avro"})
    shutil.rmtree(tmp_path / "d/_schemas-0")
    write_schemas(tmp_path / "d", ("t-value", 1, 1, schema), ("t-value", 2, 2, newer))
    with seglog.open(path, fsync="never") as log:
        log.append(framed(2, avro(newer, {"a": 3, "in": {"x": 4, "y": "Y"}, "c": "C"})))
    assert [one.rows for one in seglog.write_table(path, dst, format=table_format, decode={"value": "avro"})] == [1]
    old = seglog.Typed("avro", schema=json.dumps(schema))       # fewer fields: the others are null
    with seglog.open(path, fsync="never") as log:
        log.append(framed(2, avro(newer, {"a": 5, "in": {"x": 6, "y": "Y"}, "c": "C"})))
    seglog.write_table(path, dst, format=table_format, decode={"value": old})
    table = table_of(dst, table_format)
    found = [value for _, value in sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True),
                                          key=lambda pair: pair[0])]
    assert found == [
        {"a": 1, "in": {"x": 2, "y": None}, "c": None}, {"a": 3, "in": {"x": 4, "y": "Y"}, "c": "C"},
        {"a": 5, "in": {"x": 6, "y": None}, "c": None},
    ]
    with pytest.raises(InvalidArgumentError, match="holds value as"):
        seglog.write_table(path, dst, format=table_format)
    other = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    with pytest.raises(InvalidArgumentError, match="holds a as int32, but this run writes it as string"):
        seglog.write_table(path, dst, format=table_format, decode={
            "value": seglog.Typed("avro", schema=json.dumps(other), frame="none")})


KINDS = {"type": "record", "name": "All", "fields": [
    {"name": "n", "type": ["null", "int"]}, {"name": "f", "type": "float"}, {"name": "b", "type": "bytes"},
    {"name": "fx", "type": {"type": "fixed", "name": "Fx", "size": 3}},
    {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
    {"name": "l", "type": {"type": "array", "items": "string"}},
    {"name": "m", "type": {"type": "map", "values": "long"}},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
    {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "tm", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "tu", "type": {"type": "long", "logicalType": "time-micros"}},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tl", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
]}


@pytest.mark.parametrize("table_format", FORMATS)
def test_every_type_of_avro_is_stored(tmp_path, table_format):
    one = {
        "n": None, "f": 1.5, "b": b"\0x", "fx": b"abc", "e": "B", "l": ["x", "y"], "m": {"k": 1},
        "d": Decimal("12345678901234567890.25"), "u": uuid.UUID(int=7), "day": dt.date(2023, 11, 15),
        "tm": dt.time(1, 2, 3, 4000), "tu": dt.time(1, 2, 3, 4), "ts": dt.datetime(2023, 11, 15, 1, tzinfo=dt.UTC),
        "tl": dt.datetime(2023, 11, 15, 1),
    }
    path = write_topic(tmp_path / "d/t-0", [framed(1, avro(KINDS, one)), None])
    write_schemas(tmp_path / "d", ("t-value", 1, 1, KINDS))
    dst = tmp_path / "lake"
    seglog.write_table(path, dst, format=table_format, decode={"value": "avro"})
    told = table_of(dst, table_format)
    found = dict(zip(told["offset"].to_pylist(), told["value"].to_pylist(), strict=True))
    expected = one | {"m": [("k", 1)]}
    if table_format == "delta":     # it has neither times of day nor bytes of a fixed length
        expected |= {"u": one["u"].bytes, "tm": 3_723_004, "tu": 3_723_000_004}
    else:
        found[0]["u"] = found[0]["u"] if isinstance(found[0]["u"], uuid.UUID) else uuid.UUID(bytes=found[0]["u"])
    assert found[0] == expected
    assert found[1] is None


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_type_that_a_table_cannot_store_is_refused_by_its_name(tmp_path, table_format):
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}}]}
    path = write_topic(tmp_path / "d/t-0", [])
    typed = seglog.Typed("avro", schema=json.dumps(schema), frame="none")
    with pytest.raises(InvalidArgumentError, match=r"cannot store the column value\.d, which is decimal256\(50, 2\)"):
        seglog.write_table(path, tmp_path / "lake", format=table_format, decode={"value": typed})
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("table_format", FORMATS)
def test_what_is_no_table_of_ours_is_refused(data, tmp_path, table_format):
    def write(dst=tmp_path / "lake", **options):
        return seglog.write_table(data, dst, format=table_format, **options)

    for bad in ("s3://bucket/table", 5, "", str(data / "orders-0" / "00000000000000000000.log")):
        with pytest.raises(InvalidArgumentError):
            write(bad)
    for bad in ("day", ["day"], ["topic", "topic"], ["hour"]):
        with pytest.raises(InvalidArgumentError, match="partition_by"):
            write(partition_by=bad)
    with pytest.raises(InvalidArgumentError, match="not among the columns"):
        write(columns=["value"])
    with pytest.raises(InvalidArgumentError, match="format must be"):
        seglog.write_table(data, tmp_path / "lake", format="orc")
    seglog.write_table(data, tmp_path / "parquet")
    with pytest.raises(InvalidArgumentError, match=f"no {table_format.title()} table"):
        write(tmp_path / "parquet")
    write(partition_by=["date"])
    with pytest.raises(InvalidArgumentError, match="partitioned"):
        write(partition_by=["topic"])
    shutil.rmtree(data / "orders-1")
    seglog.open(data / "orders-1").close()
    with pytest.raises(InvalidArgumentError, match="the log ends at offset 0"):
        write()
    assert len(rows(table_of(tmp_path / "lake", table_format))) == 1800


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_directory_holds_one_run_at_a_time(data, tmp_path, table_format):
    kinds = {"delta": DeltaTable, "iceberg": IcebergTable}
    running = kinds[table_format](tmp_path / "lake", None, file_bytes=20_000, compression="zstd").add(seglog.scan(data))
    next(running)
    with pytest.raises(LogLockedError, match="another run"):
        seglog.write_table(data, tmp_path / "lake", format=table_format)
    list(running)
    assert rows(table_of(tmp_path / "lake", table_format)) == model(data)


def test_a_run_elsewhere_that_no_lock_excludes_is_refused_by_the_commit(data, tmp_path, monkeypatch):
    """Two machines may have a directory over a network where locks do not reach."""
    monkeypatch.setattr("seglog.frames.delta.locked", lambda fs, path: contextlib.nullcontext())
    (tmp_path / "lake").mkdir()
    first = DeltaTable(tmp_path / "lake", None, file_bytes=20_000, compression="zstd").add(seglog.scan(data))
    next(first)
    seglog.write_table(data, tmp_path / "lake", format="delta")
    with pytest.raises(LogLockedError, match="another run has written"):
        list(first)
    assert rows(delta_rows(tmp_path / "lake")) == model(data)


@pytest.fixture
def catalog(tmp_path):
    found = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    found.create_namespace("db")
    yield found
    found.close()


@pytest.fixture
def table(data, catalog):
    schema = pyarrow.schema([
        ("key", pyarrow.binary()), ("value", pyarrow.binary()), ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()), ("offset", pyarrow.int64()), ("timestamp", pyarrow.timestamp("us", "UTC")),
        ("note", pyarrow.string()),
    ])
    return catalog.create_table("db.orders", schema)


def test_a_table_of_a_catalog_gets_the_rows_beside_what_others_write(data, table, catalog):
    assert sum(one.rows for one in seglog.write_table(data, table, format="iceberg", file_bytes=20_000)) == 1800
    found = catalog.load_table("db.orders")
    assert rows(found.scan().to_arrow()) == model(data)
    assert json.loads(found.current_snapshot().summary[OFFSETS_KEY]) == {"orders-0": 900, "orders-1": 900}
    found.append(pyarrow.table({"note": ["of another writer"]}))
    assert seglog.write_table(data, table, format="iceberg") == []
    append(data / "orders-0", 900, 910)
    seglog.write_table(data, table, format="iceberg")
    found = catalog.load_table("db.orders").scan().to_arrow()
    assert found.num_rows == 1811
    assert rows(found.filter(pyarrow.compute.is_null(found["note"]))) == model(data)


def test_a_rival_in_a_catalog_is_refused_and_another_writer_is_not(data, table, catalog):
    first = IcebergTable(table, None, file_bytes=20_000, compression="zstd").add(seglog.scan(data))
    next(first)
    catalog.load_table("db.orders").append(pyarrow.table({"note": ["of another writer"]}))
    next(first)         # pyiceberg commits again, upon the other's snapshot
    seglog.write_table(data, catalog.load_table("db.orders"), format="iceberg")
    with pytest.raises(LogLockedError, match="another run has written"):
        list(first)
    found = catalog.load_table("db.orders").scan().to_arrow()
    assert rows(found.filter(pyarrow.compute.is_null(found["note"]))) == model(data)


def test_a_rollback_takes_the_offsets_back_and_expired_snapshots_do_not(data, table, catalog):
    first, *_ = seglog.write_table(data, table, format="iceberg", file_bytes=20_000)
    begin = table.snapshots()[0].snapshot_id
    table.refresh().manage_snapshots().rollback_to_snapshot(begin).commit()
    assert table.refresh().scan().to_arrow().num_rows == first.rows
    seglog.write_table(data, table, format="iceberg")
    assert rows(table.refresh().scan().to_arrow()) == model(data)
    table.append(pyarrow.table({"note": ["of another writer"]}))
    ids = {one.snapshot_id for one in table.refresh().snapshots()} - {table.current_snapshot().snapshot_id}
    table.maintenance.expire_snapshots().by_ids(list(ids)).commit()
    assert OFFSETS_KEY not in table.refresh().current_snapshot().summary.additional_properties
    assert seglog.write_table(data, table, format="iceberg") == []


def test_a_table_whose_required_column_is_not_written_is_refused(data, catalog):
    table = catalog.create_table("db.own", Schema(
        NestedField(1, "offset", LongType(), required=False), NestedField(2, "owner", StringType(), required=True)))
    with pytest.raises(InvalidArgumentError, match="needs a value for the column owner"):
        seglog.write_table(data, table, format="iceberg")


@pytest.mark.parametrize("told", ["{", "[]", '{"t-0": -1}', '{"t-0": "1"}'])
def test_damaged_offsets_of_a_table_are_refused(data, table, catalog, told):
    table.append(pyarrow.table({"note": ["x"]}), snapshot_properties={OFFSETS_KEY: told})
    with pytest.raises(StorageError, match="damaged"):
        seglog.write_table(data, table, format="iceberg")


@pytest.mark.parametrize(("table_format", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_library_that_is_missing_is_named(data, tmp_path, monkeypatch, table_format, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingLibraryError, match=rf"pip install 'seglog\[{table_format}\]'"):
        seglog.write_table(data, tmp_path / "lake", format=table_format)


class Full(OsFileSystem):
    """A volume that is full after so many synced files."""

    def __init__(self, syncs):
        self.left = syncs

    def sync_file(self, path):
        self._one()
        super().sync_file(path)

    def replace(self, source, target):
        self._one()
        super().replace(source, target)

    def _one(self):
        self.left -= 1
        if self.left < 0:
            raise StorageError("no space left on device")


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_full_volume_loses_and_doubles_nothing(data, tmp_path, table_format):
    kinds = {"delta": DeltaTable, "iceberg": IcebergTable}
    failed = 0
    for syncs in range(60):
        table = kinds[table_format](
            tmp_path / "lake", ("date",), file_bytes=20_000, compression="zstd", fs=Full(syncs))
        try:
            list(table.add(seglog.scan(data)))
            break
        except StorageError as error:
            assert "no space" in str(error)     # noqa: PT017
            failed += 1
    assert failed > 2
    seglog.write_table(data, tmp_path / "lake", format=table_format)
    assert rows(table_of(tmp_path / "lake", table_format)) == model(data)
    if table_format == "iceberg":       # which a full volume may have left behind
        hint = tmp_path / "lake/metadata/version-hint.text"
        assert hint.read_text() == str(iceberg_version(tmp_path / "lake"))


@pytest.mark.long
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("table_format", ["parquet", *FORMATS])
def test_a_table_is_whole_however_often_its_writer_is_killed(in_memory, table_format, share):
    data, chance = in_memory / "data", random.Random(40 + share)
    for partition in range(3):
        append(data / f"orders-{partition}", 0, 1500)
    expected = model(data)
    kills = tables = interrupted = 0
    while kills < KILLS:
        dst = in_memory / f"lake-{tables}"
        by = ("", "date", "topic,date,hour")[tables % 3]
        tables += 1
        while True:
            child = subprocess.Popen(
                [sys.executable, "-m", "support.killed_table", str(data), str(dst), table_format, by],
                stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1],
            )
            assert child.stdout.readline() == "begun\n"
            if kills < KILLS:       # before the table is there, or some time after one of the next commits
                goal = commits(dst, table_format) + chance.randrange(4)
                wait_for(lambda: commits(dst, table_format) >= goal or child.poll() is not None, 60)  # noqa: B023
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(chance.random() * 0.15)
                child.send_signal(signal.SIGKILL)
            child.wait()
            is_done = child.stdout.read() == "done\n"
            child.stdout.close()
            if is_done:
                break
            kills += 1
            if commits(dst, table_format) > 1:
                found = rows(table_of(dst, table_format))
                interrupted += bool(found)
                assert len(found) == len(set(found))
                assert set(found) <= set(expected)
        for read in (table_of, by_polars, by_duckdb):
            assert rows(read(dst, table_format)) == expected
        by = by.split(",") if by else ()
        assert seglog.write_table(data, dst, format=table_format, partition_by=by) == []
        if table_format == "iceberg":
            assert (dst / "metadata/version-hint.text").read_text() == str(iceberg_version(dst))
    assert interrupted
    print(f"{table_format}: {kills} kills, {interrupted} between two commits, {tables} tables")


@pytest.mark.parametrize("table_format", ["parquet", *FORMATS])
def test_what_could_not_be_decoded_is_counted(tmp_path, table_format):
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
    path = write_topic(tmp_path / "d/t-0", [b"\x02", b"", b""])
    typed = seglog.Typed("avro", schema=schema, frame="none")
    scan = seglog.scan(path, decode={"value": typed}, on_undecodable="null")
    assert [one.rows for one in seglog.write_table(scan, tmp_path / "lake", format=table_format)] == [3]
    assert scan.undecodable == {"value": 2}
