"""`seglog demo`, which is `make demo`: the main job from end to end, on bytes that a real broker wrote."""
import os
from pathlib import Path

from support.command import partition_of, seglog, seglog_json

SAMPLE = Path(__file__).parents[2] / "tools/sample/orders-0"


def test_the_sample_is_what_a_real_broker_wrote(golden_kafka):
    real = partition_of(golden_kafka / "cases/mixed-formats-k282")
    assert {p.name: p.read_bytes() for p in SAMPLE.iterdir()} == {p.name: p.read_bytes() for p in real.iterdir()}


def test_the_demo_shows_verifies_seeks_converts_and_proves(tmp_path):
    here = os.getcwd()
    text = seglog("demo", "--no-spark", tmp_path / "demo").stdout
    assert os.getcwd() == here
    commands = [line.split()[2] for line in text.splitlines() if line.startswith("$ seglog ")]
    assert commands == ["ls", "dump", "verify", "seek", "convert", "verify", "ls"]
    assert "The same records: none was changed, lost or added.\n" in text
    old, new = tmp_path / "demo/old-log-dir/orders-0", tmp_path / "demo/new-log-dir/orders-0"
    assert {p.name: p.read_bytes() for p in old.iterdir()} == {p.name: p.read_bytes() for p in SAMPLE.iterdir()}
    assert {b["magic"] for b in seglog_json("dump", "--batches", new)} == {2}


def test_the_demo_in_json_is_the_commands_own_lines():
    lines = seglog_json("demo", "--no-spark")
    commands = [line["arguments"][0] for line in lines if line.get("type") == "command"]
    assert commands == ["ls", "dump", "verify", "seek", "convert", "verify", "ls"]
    assert (lines[-1]["type"], lines[-1]["same"]) == ("comparison", True)
    assert sum("type" not in line for line in lines) == 8       # the records that it dumps


def test_the_demo_is_safe_to_repeat(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for _ in range(2):
        seglog("demo", "--no-spark")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    assert "not empty" in seglog("demo", tmp_path, status=2).stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_the_sample_is_put_where_it_is_wanted(tmp_path):
    assert seglog("demo", "--sample", tmp_path / "kafka-logs").stdout == f"{tmp_path / 'kafka-logs/orders-0'}\n"
    copy = tmp_path / "kafka-logs/orders-0"
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == {p.name: p.read_bytes() for p in SAMPLE.iterdir()}
    assert "not empty" in seglog("demo", "--sample", tmp_path / "kafka-logs", status=2).stderr
    seglog("demo", "--sample", tmp_path / "more", tmp_path / "demo", status=2)
    assert [p.name for p in tmp_path.iterdir()] == ["kafka-logs"]
