"""`seglog seek` finds what the real log found, and says how."""
import json
import shutil

import pytest

from support.command import golden_lines, partition_of, seglog, seglog_json


def run(*arguments, status=0):
    return seglog("seek", *arguments, status=status)


def found(*arguments):
    line, = seglog_json("seek", *arguments)
    return line


def case_of(golden_kafka, name):
    """The partition, and its records."""
    case = golden_kafka / "cases" / name
    return partition_of(case), golden_lines(case, "expected")


@pytest.mark.parametrize("name", ["v0-gzip-ct-k282", "v1-lz4-lat-k391", "txn-v2-k411", "compact-v2-mixed-pass2-k391"])
def test_an_offset_leads_to_its_record_or_to_the_next(golden_kafka, name):
    path, records = case_of(golden_kafka, name)
    for offset in range(records[0]["offset"], records[-1]["offset"], 7):
        answer = found(path, "--offset", offset)
        expected = next(r for r in records if r["offset"] >= offset)
        if answer["record"] is not None:    # else the batch that covers it is empty behind the offset
            assert answer["record"] == expected
            assert (answer["segment"], answer["position"]) == (expected["segment"], expected["batch_position"])
        assert answer["batch"]["last_offset"] >= offset


@pytest.mark.parametrize("name", ["v1-gzip-ct-k391", "ts-odd-v2-k411", "v2-none-lat-k282"])
def test_a_time_leads_to_the_first_record_in_log_order_at_or_after_it(golden_kafka, name):
    path, records = case_of(golden_kafka, name)
    for time in sorted({r["timestamp"] + d for r in records[::9] for d in (0, 1) if r["timestamp"] >= 0}):
        answer = found(path, "--time", time)
        expected = next((r for r in records if r["timestamp"] >= time), None)
        assert answer["record"] == expected
        assert answer["target"] == {"timestamp": time}


def test_special_times_by_word_and_by_number(golden_kafka):
    name = "ts-odd-v2-k411"
    path, records = case_of(golden_kafka, name)
    for word, number in (("latest", -1), ("earliest", -2), ("max-timestamp", -3)):
        by_word, by_number = found(path, "--time", word), found(path, "--time", number)
        assert by_word == by_number
    assert found(path, "--time", "earliest")["offset"] == records[0]["offset"]
    latest = found(path, "--time", "latest")
    assert (latest["offset"], latest["record"]) == (records[-1]["offset"] + 1, None)
    largest = max(r["timestamp"] for r in records)
    assert found(path, "--time", "max-timestamp")["timestamp"] == largest


def test_how_it_was_found_names_the_index_entries(golden_kafka):
    name = "mixed-formats-k282"
    how = found(case_of(golden_kafka, name)[0], "--offset", 44)["found_by"]
    assert how == {
        "time_index_entry": None, "offset_index_entry": {"offset": 41, "position": 2077}, "scanned_bytes": 250,
    }
    text = run(case_of(golden_kafka, name)[0], "--time", "2023-11-14T22:16:20Z").stdout
    assert (
        "found by  time index (2023-11-14 22:16:17.903Z by offset 55), offset index (offset 55 at byte 2,549), "
        "then 273 bytes of batches\n"
    ) in text


def test_text_shows_batch_and_record(golden_kafka):
    text = run(case_of(golden_kafka, "txn-v2-k411")[0], "--offset", 1).stdout
    for word in ("segment", "batch", "record", "key", "value", "found by"):
        assert f"\n  {word} " in text


def test_a_time_after_all_is_no_error(golden_kafka):
    path = case_of(golden_kafka, "v2-none-ct-k411")[0]
    assert found(path, "--time", "2200-01-01")["record"] is None
    assert "nothing there" in run(path, "--time", "2200-01-01").stdout


def test_an_offset_outside_is_status_2_and_names_the_valid_range(golden_kafka):
    path, records = case_of(golden_kafka, "v2-none-ct-k411")
    for offset in (-1, records[-1]["offset"] + 1):
        what = run(path, "--offset", offset, status=2).stderr.splitlines()[0]
        assert f"valid are {records[0]['offset']}…{records[-1]['offset']}" in what
        assert "[offset_out_of_range]" in what


@pytest.mark.parametrize("wrong", [[], ["--offset", "1", "--time", "2"], ["--time", "tomorrow"], ["--offset", "x"]])
def test_what_cannot_be_meant_is_status_2(golden_kafka, wrong):
    result = run(case_of(golden_kafka, "v2-none-ct-k411")[0], *wrong, status=2)
    assert len(result.stderr.splitlines()) == 3
    assert "[usage]" in result.stderr


def test_every_partition_of_a_log_dir_answers(golden_kafka, tmp_path):
    for name in ("v1-none-ct-k391", "v2-none-ct-k391"):
        shutil.copytree(case_of(golden_kafka, name)[0], tmp_path / f"{name}-0")
    answers = [json.loads(line) for line in run(tmp_path, "--offset", 3, "--json").stdout.splitlines()]
    assert [a["partition"] for a in answers] == ["v1-none-ct-k391-0", "v2-none-ct-k391-0"]
    assert [a["record"]["offset"] for a in answers] == [3, 3]
