"""scan(decode="kafka"): rows of internal topics say what kafka-dump-log says."""
import json
import shutil

import pytest

import seglog
from seglog._kernels.batch_builder import BatchBuilder
from seglog.errors import CorruptRecordError, InvalidArgumentError
from support.internal_topics import kraft, kraft_said
from support.old_directories import root as old_brokers

COLUMNS = ["key", "value", "offset"]


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__cluster_metadata"])
def test_rows_say_what_kafkas_own_tool_says(topic):
    expected = []
    for file, rows in sorted(kraft_said("4.4.0").items()):
        if file.startswith(topic) and file.endswith(".log"):
            expected += [(key, None if value == "<DELETE>" else value, offset) for offset, (key, value) in rows.items()]
    sources = sorted(path for path in kraft("4.4.0").glob(f"{topic}-*") if any(path.glob("*.log")))
    table = seglog.scan(sources, decode="kafka", columns=COLUMNS).to_arrow()
    assert [tuple(row.values()) for row in table.to_pylist()] == expected


def test_everything_but_keys_and_values_stays():
    """Of brokers of every age: offsets, timestamps and their types, holes, filters."""
    for path in sorted(old_brokers().glob("*/logs/__consumer_offsets-0")):
        rest = [name for name in seglog.scan(path).columns if name not in ("key", "value")]
        plain, said = seglog.scan(path), seglog.scan(path, decode="kafka")
        assert said.select(rest).to_arrow() == plain.select(rest).to_arrow()
        assert said.to_arrow().select(rest) == plain.to_arrow().select(rest)
        some = seglog.scan(path, decode="kafka", from_offset=3, to_offset=9).to_arrow()["offset"].to_pylist()
        assert some == [n for n in plain.to_arrow()["offset"].to_pylist() if 3 <= n < 9]


def test_bytes_that_do_not_decode_are_a_json_string_in_base64(tmp_path):
    path = tmp_path / "__consumer_offsets-0"
    with seglog.open(path) as log:
        log.append(b"\xff\0", key=b"\0\x63")
        log.append(None, key=b"\0\2\0\1g")
    rows = seglog.scan(path, decode="kafka", columns=COLUMNS).to_arrow().to_pylist()
    assert rows[0] == {"key": '"AGM="', "value": '"/wA="', "offset": 0}
    assert rows[1] == {"key": '{"type":"2","data":{"group":"g"}}', "value": None, "offset": 1}
    assert json.loads(rows[0]["key"]) == "AGM="


def test_a_filter_on_keys_is_of_what_they_say():
    """Statistics of keys are of the bytes: they must not leave rows out."""
    polars = pytest.importorskip("polars")
    path = kraft("4.4.0") / "__consumer_offsets-0"
    frame = seglog.polars.scan_topic(path, decode="kafka")
    wanted = '{"type":"2","data":{"group":"readers"}}'
    assert frame.filter(polars.col("key") == wanted).collect().height == sum(
        key == wanted for key, _ in kraft_said("4.4.0")["__consumer_offsets-0/00000000000000000000.log"].values()
    ) > 1


def test_a_damaged_batch_is_raised_or_skipped(tmp_path):
    path = shutil.copytree(kraft("4.4.0") / "__consumer_offsets-0", tmp_path / "__consumer_offsets-0")
    log = path / "00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[-3] ^= 1
    log.write_bytes(raw)
    with pytest.raises(CorruptRecordError):
        seglog.scan(path, decode="kafka").to_arrow()
    skipping = seglog.scan(path, decode="kafka", on_corrupt="skip")
    assert skipping.to_arrow().num_rows > 10
    assert len(skipping.lost) == 1


def test_another_topic_and_another_word_are_refused(tmp_path):
    with seglog.open(tmp_path / "orders-0") as log:
        log.append(b"x")
    with pytest.raises(InvalidArgumentError, match="'orders' is not the name of an internal topic"):
        seglog.scan(tmp_path / "orders-0", decode="kafka").to_arrow()
    with pytest.raises(InvalidArgumentError, match='decode must be one of "utf8", "json"'):
        seglog.scan(tmp_path / "orders-0", decode={"value": "kafka"})


def test_log_append_time_and_headers_stay(tmp_path):
    batch = BatchBuilder(0, log_append_time=9)
    batch.append(0, 5, b"\0\2\0\1g", None, [("h", b"\0")])
    path = tmp_path / "__consumer_offsets-0"
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(batch.finish())
    plain = seglog.scan(path, columns=["timestamp", "timestampType", "headers"])
    said = seglog.scan(path, columns=plain.columns, decode="kafka")
    assert said.to_arrow() == plain.to_arrow()
