"""What real Kafka wrote, read by the kernels, against what real Kafka read: 129 partition directories."""
import base64
import gzip
import hashlib
import json
from pathlib import Path

import pytest

from seglog._kernels.segment_scan import Status, find_batch, scan
from seglog._kernels.window import Window
from seglog.errors import SeglogError
from seglog.format.compression import decompressor
from support import plain_format as plain

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
CONTROL_TYPES = {0: "ABORT", 1: "COMMIT"}
# Longer values are given as size and digest.
MAX_VALUE_BYTES = 4096

CASES = 129
DAMAGED = 79


def json_lines(path: Path):
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def logs(partition: Path):
    return sorted(partition.glob("*.log"))


def batch_line(log, batch):
    return {
        "segment": log.name, "position": batch.position, "size": batch.size_bytes, "magic": batch.magic,
        "base_offset": batch.base_offset, "last_offset": batch.last_offset, "codec": CODECS[batch.codec],
        "timestamp_type": TIMESTAMP_TYPES[batch.timestamp_type], "max_timestamp": batch.max_timestamp,
        "crc": batch.crc, "crc_valid": batch.crc_is_valid(), "count": None if batch.count < 0 else batch.count,
        "producer_id": batch.producer_id, "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence, "last_sequence": batch.last_sequence,
        "transactional": batch.is_transactional, "control": batch.is_control,
        "leader_epoch": batch.leader_epoch, "delete_horizon_ms": batch.delete_horizon_ms,
    }


def text(field):
    return None if field is None else base64.b64encode(field).decode()


def record_line(log, batch, index, record):
    line = {
        "offset": record.offset, "timestamp": record.timestamp,
        "timestamp_type": TIMESTAMP_TYPES[record.timestamp_type], "key": text(record.key),
        "headers": [[name, text(field)] for name, field in record.headers], "sequence": record.sequence,
        "record_size": record.size_bytes, "index_in_batch": index, "magic": batch.magic,
        "codec": CODECS[batch.codec], "batch_base_offset": batch.base_offset,
        "batch_last_offset": batch.last_offset, "batch_crc": batch.crc, "segment": log.name,
        "batch_position": batch.position, "batch_size": batch.size_bytes, "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch, "base_sequence": batch.base_sequence,
        "transactional": batch.is_transactional, "control": batch.is_control, "leader_epoch": batch.leader_epoch,
    }
    if record.value is not None and len(record.value) > MAX_VALUE_BYTES:
        line["value_size"] = len(record.value)
        line["value_sha256"] = hashlib.sha256(record.value).hexdigest()
    else:
        line["value"] = text(record.value)
    if batch.delete_horizon_ms is not None:
        line["delete_horizon_ms"] = batch.delete_horizon_ms
    if batch.is_control:
        line["control_type"] = CONTROL_TYPES[int.from_bytes(record.key[2:4])]
    return line


def scanned(log, *, check_crc=True):
    return scan(Window(log.read_bytes(), log.name), check_crc=check_crc, decompress=decompressor())


def partitions(golden_kafka):
    """(partition directory, its expected.jsonl, its batches.jsonl) of every golden case, pairs' included."""
    for expected in sorted(golden_kafka.rglob("expected.jsonl.gz")):
        [partition] = expected.parent.glob("*-0")
        yield partition, json_lines(expected), json_lines(expected.parent / "batches.jsonl.gz")


def test_every_golden_batch_and_record_reads_as_kafka_read_it(golden_kafka):
    cases = 0
    for partition, expected_records, expected_batches in partitions(golden_kafka):
        cases += partition.parent.parent.name == "cases"
        seen_batches, seen_records = [], []
        for log in logs(partition):
            table = scanned(log)
            assert table.stop in (Status.OK, Status.ZEROS), (log, table)
            assert [r.offset for r in table.records()] == [r.offset for batch in table for r in batch]
            for batch in table:
                seen_batches.append(batch_line(log, batch))
                assert batch.find_bad_message() == -1
                seen_records += [record_line(log, batch, i, r) for i, r in enumerate(batch)]
        assert seen_batches == expected_batches, partition
        assert seen_records == expected_records, partition
    assert cases == CASES


def test_plain_python_reads_every_golden_batch_as_the_kernel_does(golden_kafka):
    """The twin of the other tests is itself held against real bytes."""
    decompress = decompressor()
    for partition in sorted((golden_kafka / "cases").glob("*/*-0")):
        for log in logs(partition):
            for batch in scanned(log):
                records = [plain.PlainRecord(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]
                assert plain.decode_batch(bytes(batch.raw()), lambda *a: bytes(decompress(*a))) == records
                assert plain.crc_fits(bytes(batch.raw()))


def test_the_search_finds_every_golden_batch(golden_kafka):
    for partition in sorted((golden_kafka / "cases").glob("*/*-0")):
        for log in logs(partition):
            window = Window(log.read_bytes())
            position = 0
            for batch in scan(window):
                assert find_batch(window, batch.position, batch.last_offset) == batch.position
                # From inside the batch before it, a message of that one may be found: a v0 wrapper
                # holds absolute offsets, and LZ4 stores what it cannot compress.
                assert position <= find_batch(window, position, batch.last_offset) <= batch.position
                position = batch.position + 1


def test_every_damaged_directory_reads_to_an_answer(golden_kafka):
    """79 kinds of damage, to logs and to indexes: the readers raise what they raise on purpose, or read on."""
    damaged = sorted((golden_kafka / "corrupt").iterdir())
    assert len(damaged) == DAMAGED
    for directory in damaged:
        [partition] = directory.glob("*-0")
        for log in logs(partition):
            table = scanned(log)
            for batch in table:
                list(batch)
            if table.stop not in (Status.OK, Status.LIMIT):
                found, expected = table.stop_details()
                assert found != expected
            for batch in scanned(log, check_crc=False):
                error = error_of(batch)
                assert error is None or (error.file, error.position) == (log.name, batch.position)


def error_of(batch):
    try:
        list(batch)
    except SeglogError as e:
        return e
    return None


@pytest.mark.parametrize("kind", ["flip-earlier-seg", "magic-7", "tail-cut7"])
def test_damage_stops_the_scan_with_its_reason(golden_kafka, kind):
    reason = {
        "flip-earlier-seg": {Status.BAD_CRC}, "magic-7": {Status.BAD_MAGIC}, "tail-cut7": {Status.SHORT},
    }[kind]
    directories = [d for d in (golden_kafka / "corrupt").iterdir() if d.name.endswith("--" + kind)]
    assert directories
    for directory in directories:
        stops = {scanned(log).stop for log in directory.glob("*-0/*.log")}
        assert stops - {Status.OK} == reason, directory
