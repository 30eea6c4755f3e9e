"""`seglog dump` of the files beside the log, against what real Kafka read in them (index.json)."""
import json

import pytest

from support.command import seglog, seglog_json
from support.golden import golden_cases


def clean_cases():
    return [case for case in golden_cases() if not case.name.startswith("crash-")]


def test_index_entries_equal_kafkas_in_every_case():
    for case in clean_cases():
        directory = case / f"{case.name}-0"
        for segment in json.loads((case / "index.json").read_text())["segments"]:
            log = directory / segment["segment"]
            if log.with_suffix(".index").exists():
                got = seglog_json("dump", log.with_suffix(".index"))
                assert [[e["offset"], e["position"]] for e in got] == segment["offset_index"], case.name
                assert {e["type"] for e in got} <= {"offset_index_entry"}
            if log.with_suffix(".timeindex").exists():
                got = seglog_json("dump", log.with_suffix(".timeindex"))
                assert [[e["timestamp"], e["offset"]] for e in got] == segment["time_index"], case.name


def test_snapshots_and_epochs_equal_kafkas_in_every_case():
    for case in clean_cases():
        directory = case / f"{case.name}-0"
        golden = json.loads((case / "index.json").read_text())
        for snapshot in golden["producer_snapshots"]:
            got = seglog_json("dump", directory / snapshot["file"])
            assert [p["producer_id"] for p in got] == [p["producer_id"] for p in snapshot["producers"]], case.name
        if golden.get("leader_epoch_checkpoint"):
            got = seglog_json("dump", directory / "leader-epoch-checkpoint")
            real = golden["leader_epoch_checkpoint"].splitlines()[2:]
            assert [f"{e['epoch']} {e['start_offset']}" for e in got] == real


def test_aborted_transactions(golden_kafka):
    directory = golden_kafka / "cases/txn-v2-k391/txn-v2-k391-0"
    first = seglog_json("dump", directory / "00000000000000000000.txnindex")[0]
    assert first == {
        "type": "aborted_transaction", "schema": 1, "file": "00000000000000000000.txnindex", "entry": 0, "version": 0,
        "producer_id": 2002, "first_offset": 0, "last_offset": 5, "last_stable_offset": 6,
    }


def test_text_is_a_table(golden_kafka):
    directory = golden_kafka / "cases/txn-v2-k391/txn-v2-k391-0"
    name, head, *rows = seglog("dump", directory / "00000000000000000000.index").stdout.splitlines()
    assert name == "00000000000000000000.index"
    assert head.split() == ["entry", "offset", "position"]
    assert rows


def test_preallocated_zeros_are_no_entries_and_are_told(golden_kafka):
    index = golden_kafka / "cases/crash-v1-k391/crash-v1-k391-0/00000000000000000000.index"
    assert "zeros after its entries" in seglog("dump", index).stderr


def test_checkpoints_of_a_log_dir_and_metadata_of_a_partition(tmp_path):
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n2\norders 0 42\nmy.topic-x 7 9\n")
    (tmp_path / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAA\n")
    got = seglog_json("dump", tmp_path / "recovery-point-offset-checkpoint")
    assert [(e["type"], e["topic"], e["partition"], e["offset"]) for e in got] == [
        ("checkpoint", "orders", 0, 42), ("checkpoint", "my.topic-x", 7, 9)
    ]
    metadata, = seglog_json("dump", tmp_path / "partition.metadata")
    assert (metadata["version"], metadata["topic_id"]) == (0, "AAAAAAAAQACAAAAAAAAAAA")


@pytest.mark.parametrize(
    ("name", "raw", "code"),
    [
        ("00000000000000000000.index", b"1234567", "corrupt_index"),
        ("00000000000000000000.snapshot", b"\0\1", "corrupt_snapshot"),
        ("leader-epoch-checkpoint", b"0\nx\n", "corrupt_checkpoint"),
        ("partition.metadata", b"version: 0\n", "corrupt_checkpoint"),
    ],
)
def test_a_damaged_one_is_status_1_with_its_own_code(tmp_path, name, raw, code):
    (tmp_path / name).write_bytes(raw)
    result = seglog("dump", tmp_path / name, status=1)
    assert len(result.stderr.splitlines()) == 3
    assert f"[{code}]" in result.stderr
