"""The topic `_schemas` in a backup and on a store: typed columns find it there as they do on a disk."""
import json
import pickle

import pytest

import seglog
from seglog.errors import CorruptRecordError, InvalidArgumentError
from support.command import seglog as seglog_command
from support.objects_on_disk import ObjectsOnDisk
from support.schemas import avro, framed, schema_key, schema_value, write_schemas, write_topic

V1 = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}
V2 = {"type": "record", "name": "Order", "fields": [
    {"name": "amount", "type": "long"}, {"name": "currency", "type": "string", "default": "EUR"}]}
ROWS = [{"amount": 1, "currency": "EUR"}, {"amount": 2, "currency": "USD"}]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    write_schemas(path, ("orders-value", 1, 1, V1), ("orders-value", 2, 2, V2))
    write_topic(path / "orders-0", [framed(1, avro(V1, {"amount": 1})), framed(2, avro(V2, ROWS[1]))])
    return path


@pytest.fixture(params=["backup", "store"])
def kept(request, data, tmp_path, monkeypatch):
    """The log dir in another place; and the function that keeps it there as it is now."""
    if request.param == "backup":
        def keep():
            seglog.backup(data, tmp_path / "backups")

        keep()
        return f"{tmp_path}/backups#latest", keep
    url = ObjectsOnDisk(tmp_path / "objects", monkeypatch).bucket("bucket") + "/logs"

    def keep():
        for path in data.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                copy = tmp_path / "objects/bucket/logs" / path.relative_to(data)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())

    keep()
    return url, keep


def values(path, **options):
    return seglog.scan(path, decode={"value": "avro"}, **options).to_arrow()["value"].to_pylist()


def test_values_are_read_by_the_schemas_beside_them(kept):
    where, _ = kept
    assert values(f"{where}/orders-0") == ROWS
    assert values(f"{where}/orders-*") == ROWS


def test_schemas_may_be_named_where_they_are_kept(kept, tmp_path):
    where, _ = kept
    elsewhere = write_topic(tmp_path / "elsewhere/orders-0", [framed(2, avro(V2, ROWS[1]))])
    assert values(elsewhere, schemas=where) == ROWS[1:]
    assert values(elsewhere, schemas=f"{where}/_schemas-0") == ROWS[1:]
    with pytest.raises(InvalidArgumentError, match="there is no topic _schemas"):
        values(elsewhere, schemas=f"{where}/orders-0")
    with pytest.raises(InvalidArgumentError, match="there is no topic _schemas"):
        values(elsewhere, schemas=f"{where}/nothing-*")


def test_parts_take_the_schemas_along(kept):
    where, _ = kept
    scan = seglog.scan(f"{where}/orders-0", decode={"value": "avro"})
    (part,) = pickle.loads(pickle.dumps(scan.parts()))
    import pyarrow

    assert [row for rows in part.batches() for row in pyarrow.record_batch(rows)["value"].to_pylist()] == ROWS


def test_a_later_version_is_found_and_a_deleted_one_is_not(kept, data):
    where, keep = kept
    with seglog.open(data / "_schemas-0") as log:
        log.append(schema_value("orders-value", 2, 2, V2, deleted=True), key=schema_key("orders-value", 2))
    keep()
    assert values(f"{where}/orders-0") == [{"amount": 1}, {"amount": 2}]


def test_a_topic_that_is_no_registrys_is_named_where_it_is(kept, data):
    where, keep = kept
    with seglog.open(data / "_schemas-0") as log:
        log.append(b"{", key=schema_key("orders-value", 3))
    keep()
    with pytest.raises(CorruptRecordError, match="not a record of a schema registry") as caught:
        values(f"{where}/orders-0")
    assert caught.value.file.endswith("/_schemas-0")
    assert caught.value.offset == 3


def test_dump_shows_typed_values_of_a_backup(data, tmp_path):
    seglog.backup(data, tmp_path / "backups")
    done = seglog_command(
        "dump", f"{tmp_path}/backups#latest/orders-0", "--format", "jsonl", "--decode", "value=avro"
    )
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == ROWS
