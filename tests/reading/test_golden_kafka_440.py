"""Partition directories that Kafka 4.4.0 wrote, against what it read, and what its loader found in them."""
import base64
import gzip
import json
import shutil

import pytest

import seglog
from seglog.reading.partition import open_partition
from seglog.segment.transaction_index import TransactionIndex
from seglog.verification.verify import verify
from support.golden import unpack

CASES = [pytest.param(case, id=case.name) for case in sorted((unpack("kafka_440") / "cases").iterdir())]


@pytest.fixture(params=CASES)
def case(request):
    return request.param


def directory(case):
    return case / f"{case.name}-0"


def config(case):
    return json.loads((case / "case.json").read_text())["config"]


def rows(case):
    with gzip.open(case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def text(field):
    return None if field is None else base64.b64encode(field).decode()


def test_every_record_is_what_kafka_read(case):
    with open_partition(directory(case)) as partition:
        found = [
            (record.offset, record.timestamp, text(record.key), [[name, text(value)] for name, value in record.headers])
            for record in partition.read(control=True)
        ]
    assert found == [(row["offset"], row["timestamp"], row["key"], row["headers"]) for row in rows(case)]


def test_aborted_transactions_are_those_that_kafka_read(case):
    index = json.loads((case / "index.json").read_text())
    told = [entry for segment in index["segments"] for entry in segment.get("aborted_txns") or ()]
    paths = sorted(directory(case).glob("*.txnindex"))
    assert [entry._asdict() for path in paths for entry in TransactionIndex(path.read_bytes())] == told


def test_verify_raises_no_false_alarm(case):
    findings = verify(directory(case), config=config(case)).findings
    findings = [finding.code for finding in findings if finding.severity != "note"]
    assert findings == []


def test_an_opening_after_any_stop_ends_where_kafka_ends(case, tmp_path):
    check = case / "check-4.4.0.json"
    if not check.exists():
        pytest.skip("Kafka was asked to open only the other cases")
    theirs = json.loads(check.read_text())
    copy = shutil.copytree(directory(case), tmp_path / "copy" / directory(case).name)
    with seglog.open(copy, fsync="never", config=config(case)) as log:
        assert (log.log_start_offset, log.log_end_offset) == (
            theirs["unclean"]["log_start_offset"], theirs["unclean"]["log_end_offset"]
        )
