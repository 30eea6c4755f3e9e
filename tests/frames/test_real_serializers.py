"""What Confluent's own serializers wrote in Avro, by three versions of a schema, in JSON and in Protobuf: each door
has, row by row, what fastavro, json and protobuf read."""
import deltalake
import duckdb
import polars as pl
import pyarrow.dataset
import pytest
from pyiceberg.table import StaticTable

import seglog
import seglog.polars
from support.real_serializers import TOPICS, same_form, write_all


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("real") / "data"
    return path, write_all(path)


def by_scan(scan, _):
    return scan.to_arrow().select(["partition", "offset", "value"]).to_pylist()


def by_polars(scan, _):
    return seglog.polars.scan_topic(scan).select("partition", "offset", "value").collect().to_dicts()


def by_duckdb(scan, _):
    dataset = scan.dataset()        # noqa: F841
    found = duckdb.sql('select "partition", "offset", value from dataset')
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def by_parquet(scan, path):
    seglog.write_table(scan, path)
    table = pyarrow.dataset.dataset(path, partitioning="hive").to_table()
    return table.select(["partition", "offset", "value"]).to_pylist()


def by_delta(scan, path):
    seglog.write_table(scan, path, format="delta")
    return deltalake.DeltaTable(str(path)).to_pyarrow_table(columns=["partition", "offset", "value"]).to_pylist()


def by_iceberg(scan, path):
    seglog.write_table(scan, path, format="iceberg")
    found = StaticTable.from_metadata(str(path)).scan(selected_fields=("partition", "offset", "value"))
    return found.to_arrow().to_pylist()


def by_polars_from_delta(scan, path):
    seglog.write_table(scan, path, format="delta")
    return pl.read_delta(str(path), columns=["partition", "offset", "value"]).to_dicts()


DOORS = [by_scan, by_polars, by_duckdb, by_parquet, by_delta, by_iceberg, by_polars_from_delta]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("topic", TOPICS)
def test_each_door_has_what_the_library_reads(written, tmp_path, topic, door):
    data, expected = written
    typed = seglog.Typed(topic, subject=f":.{topic}:{topic}-value")
    rows = door(seglog.scan(data / f"{topic}-*", decode={"value": typed}), tmp_path / "table")
    rows.sort(key=lambda row: (row["partition"], row["offset"]))
    found = [same_form(topic, row["value"]) for row in rows]
    assert len(found) == len(TOPICS[topic]["values"])
    for got, one in zip(found, expected[topic], strict=True):
        assert got == same_form(topic, one)
