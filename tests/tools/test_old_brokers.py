"""The tools on what clients sent through old brokers: wrappers whose time, or format, is not that of their messages."""
import os

import pytest

from seglog.verification.findings import KINDS, Severity
from support.command import seglog, seglog_json
from support.old_brokers import VERSIONS
from support.old_directories import CONFIG, MODERN, Read, directory_of, parse, root

SETTINGS = [word for key, value in CONFIG.items() for word in ("--config", f"{key}={value}")]
# The time of a wrapper of these is that of its first message; that of the others' wrappers, of v0, is none.
CASES = ("franz-go-gzip", "franz-go-lz4", "kafka-node-gzip", "kafka-node-snappy")
FORMAT_CASES = ("kafka-node-gzip", "kafka-node-snappy")
TIME_CASES = ("franz-go-gzip", "franz-go-lz4", "franz-go-snappy")


@pytest.fixture(params=CASES)
def case(request):
    return root() / "clients" / request.param


def times_of(records: list[Read]) -> list[int]:
    """Some, spread over the log."""
    return sorted(int(r.timestamp) for r in records)[:: 37 if os.environ.get("SEGLOG_TORTURE") else 90]


def test_dump_since_prints_every_record_from_a_time_on(case):
    records = parse(case / f"consumed-{MODERN}.txt")
    for time in times_of(records):
        wanted = [r.offset for r in records if int(r.timestamp) >= time]
        assert [line["offset"] for line in seglog_json("dump", directory_of(case), "--since", time)] == wanted
        lines = seglog_json("dump", directory_of(case), "--since", time, "--on-corrupt", "skip")
        assert [line["offset"] for line in lines] == wanted


def test_dump_batches_since_prints_every_batch_with_a_record_from_a_time_on(case):
    records = parse(case / f"consumed-{MODERN}.txt")
    for time in times_of(records):
        last_offsets = {line["last_offset"] for line in seglog_json("dump", "--batches", directory_of(case))}
        since = seglog_json("dump", "--batches", directory_of(case), "--since", time)
        batches = [line["last_offset"] for line in since]
        wanted = [r.offset for r in records if int(r.timestamp) >= time]
        held = {min(last for last in last_offsets if last >= offset) for offset in wanted}
        assert set(batches) >= held
        assert min(batches) == min(held)


def test_seek_finds_the_first_record_at_or_after_a_time(case):
    records = parse(case / f"consumed-{MODERN}.txt")
    for time in times_of(records):
        found, = seglog_json("seek", directory_of(case), "--time", time)
        assert found["record"]["offset"] == next(r.offset for r in records if int(r.timestamp) >= time)


def codes(directory, level, status=0):
    lines = seglog_json("verify", directory, "--level", level, *SETTINGS, status=status)
    return {line["code"] for line in lines if line.get("type") == "finding"}


@pytest.mark.parametrize("name", CASES)
def test_a_clean_directory_of_odd_wrappers_passes_verify_and_deep_verify_names_them(name):
    directory = directory_of(root() / "clients" / name)
    odd = {"wrapper_format"} if name in FORMAT_CASES else {"wrapper_time"}
    usual = codes(directory, "crc")
    assert codes(directory, "deep") - usual == odd
    assert all(KINDS[code].severity == Severity.NOTE for code in usual | odd)


@pytest.mark.parametrize("name", ["sarama-gzip", "kafka-go-lz4", "kafkajs-snappy", "confluent-kafka-gzip"])
def test_deep_verify_finds_nothing_more_where_wrappers_tell_the_truth(name):
    directory = directory_of(root() / "clients" / name)
    assert codes(directory, "deep") == codes(directory, "crc") <= {"timeindex_none"}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_an_old_broker_stopped_cleanly_left_is_clean(version):
    """With notes at most: 0.10.0 had no time index, 0.10.2 gave one of v0 its own clock, a cleaner fills no .index."""
    log_dir = root() / version / "logs"
    lines = seglog_json("verify", log_dir, "--level", "deep", *SETTINGS, status=1)
    names = {line["partition"] for line in lines if line["type"] == "partition"}
    # The broker was later killed with these; they were taken out of its log dir, and stand in another one.
    elsewhere = {line["partition"] for line in lines if line.get("code") == "partition_missing"}
    assert elsewhere
    assert all(name.startswith("killed-") for name in elsewhere)
    assert names - elsewhere == {path.name for path in log_dir.iterdir() if path.is_dir()}
    for line in lines:
        if line["type"] == "finding" and line["partition"] not in elsewhere:
            assert {
                "timeindex_none": version == "0.10.0.1",
                "timeindex_loose": (version, line["partition"]) == ("0.10.2.2", "switched-0"),
                "index_undecided": line["partition"] == "compacted-0",
                "segment_gap_compacted": line["partition"] == "compacted-0",
            }.get(line["code"]), line


def test_a_conversion_is_promised_and_keeps_every_record(case, tmp_path):
    directory, target = directory_of(case), tmp_path / "logs" / f"{case.name}-0"
    target.parent.mkdir()
    assert "refuse" not in seglog("convert", directory, status=None).output
    seglog("convert", directory, target)
    records = parse(case / f"consumed-{MODERN}.txt")
    assert [(line["offset"], line["timestamp"]) for line in seglog_json("dump", target)] == [
        (r.offset, int(r.timestamp)) for r in records]
