"""`seglog dump` of Kafka's internal topics: decoded by default, raw on request."""
import base64
import json
import shutil

import pytest

from seglog.reading.metadata_snapshot import snapshot_batches
from support.command import seglog, seglog_json
from support.internal_topics import KRAFT_VERSIONS, kraft, kraft_said

OFFSETS = "__consumer_offsets-0"


@pytest.fixture(params=KRAFT_VERSIONS)
def version(request):
    return request.param


def said(version, name):
    """(offset, key, value) as kafka-dump-log says, as JSON."""
    rows = kraft_said(version)[f"{name}/00000000000000000000.log"]
    return [(n, *(text if text in (None, "<DELETE>") else json.loads(text) for text in row)) for n, row in rows.items()]


def test_json_lines_have_what_the_records_say(version):
    for name in (OFFSETS, "__cluster_metadata-0"):
        lines = [line for line in seglog_json("dump", kraft(version) / name) if not line["control"]]
        assert [
            (line["offset"], line["key"], "<DELETE>" if line["value"] is None else line["value"]) for line in lines
        ] == said(version, name)


def test_text_and_templates_have_it_too(version):
    text = seglog("dump", kraft(version) / OFFSETS).output
    template = seglog("dump", kraft(version) / OFFSETS, "--format", "%k %s\n").output
    for _, key, value in said(version, OFFSETS):
        shown = "null" if value == "<DELETE>" else json.dumps(value, separators=(",", ":"))
        row = f"{json.dumps(key, separators=(',', ':'))}  {shown}"
        assert any(f"{row}{end}\n" in text for end in ("", "  [open]", "  [aborted]"))
        if shown != "null":
            assert f"{json.dumps(key, separators=(',', ':'))} {shown}\n" in template


def test_raw_gives_the_bytes():
    path = kraft("4.1.1") / OFFSETS
    for decode in ("raw", "base64"):
        raw = seglog_json("dump", path, "--decode", decode)
        assert base64.b64decode(raw[0]["key"])[:2] == b"\0\2"
    assert seglog("dump", path, "--format", "raw", "--limit", "1").stdout_bytes[:2] == b"\0\3"


def test_a_copy_of_another_name_is_raw_and_kafka_is_refused_for_it(tmp_path):
    copy = shutil.copytree(kraft("4.1.1") / OFFSETS, tmp_path / "copy-0")
    assert isinstance(seglog_json("dump", copy, "--limit", "1")[0]["key"], str)
    result = seglog("dump", copy, "--decode", "kafka", status=2)
    assert "has not the name of an internal topic" in result.stderr


def test_a_table_is_decoded_on_request(tmp_path):
    pytest.importorskip("pyarrow")
    rows = seglog("dump", kraft("4.4.0") / OFFSETS, "--format", "jsonl", "--decode", "kafka").output.splitlines()
    assert [json.loads(json.loads(row)["key"]) for row in rows] == [key for _, key, _ in said("4.4.0", OFFSETS)]


def test_what_does_not_decode_is_shown_as_bytes(tmp_path):
    import seglog as library

    with library.open(tmp_path / OFFSETS) as log:
        log.append(b"value", key=b"\0\x63key")
    line, = seglog_json("dump", tmp_path / OFFSETS)
    assert (line["key"], line["value"]) == ("AGNrZXk=", "dmFsdWU=")
    assert '0x00636b6579  "value"' in seglog("dump", tmp_path / OFFSETS).output


def test_control_records_of_kraft_are_decoded(version):
    line, = seglog_json("dump", "--control", kraft(version) / "__cluster_metadata-0")
    assert line["control_type"] == "LEADER_CHANGE"
    assert line["data"]["leaderId"] == 1
    assert 'LEADER_CHANGE {"version":' in seglog("dump", "--control", kraft(version) / "__cluster_metadata-0").output


def test_a_snapshot_of_the_metadata_log_is_shown_record_by_record(version):
    snapshots = sorted((kraft(version) / "__cluster_metadata-0").glob("*.checkpoint"))
    assert len(snapshots) >= 2
    for path in snapshots:
        lines = seglog_json("dump", path)
        assert (lines[0]["record"], lines[-1]["record"]) == ("SNAPSHOT_HEADER", "SNAPSHOT_FOOTER")
        expected = kraft_said(version)[f"__cluster_metadata-0/{path.name}"]
        assert [line["offset"] for line in lines[1:-1]] == list(expected)
        for line in lines[1:-1]:
            shown = {"type": line["record"], "version": line["version"], "data": line["data"]}
            assert shown == json.loads(expected[line["offset"]][1])
        text = seglog("dump", path).output
        assert "TOPIC_RECORD" in text or len(lines) < 10


def test_a_damaged_snapshot_is_refused_where_it_is_damaged(tmp_path):
    source = sorted((kraft("4.4.0") / "__cluster_metadata-0").glob("*.checkpoint"))[-1]
    raw = bytearray(source.read_bytes())
    whole = [batch.position + batch.size_bytes for batch in snapshot_batches(source)]
    for cut, place in ((len(raw) - 5, whole[-2]), (whole[0] + 9, whole[0])):
        (tmp_path / source.name).write_bytes(raw[:cut])
        assert f"byte {place}" in seglog("dump", tmp_path / source.name, status=1).stderr
    (tmp_path / source.name).write_bytes(b"")
    assert "no entries" in seglog("dump", tmp_path / source.name).output


@pytest.mark.parametrize("name", ["0-0.checkpoint", "0" * 20 + "-1.checkpoint", "9" * 20 + "-0000000001.checkpoint"])
def test_other_names_are_no_snapshots(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert "not a segment" in seglog("dump", tmp_path / name, status=4).stderr
