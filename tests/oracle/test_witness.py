"""The witness is to be believed: what the oracle says today about golden directories is what golden data remembers."""
import gzip
import json
import re

import pytest

from support.golden import unpack
from support.kafka_oracle import VERSIONS, OracleError

pytestmark = pytest.mark.oracle

# One of each kind: formats, codecs, transactions, compaction, a dead broker's zero tails, several formats in one log.
CASES = [
    "v0-gzip-ct-k282", "v0-lz4-ct-k391", "v1-none-ct-k391", "v1-snappy-lat-k391", "v2-zstd-ct-k411", "v2-lz4-ct-k391",
    "txn-v2-k391", "compact-v1-gzip-pass2-k391", "crash-v1-k391", "mixed-formats-k391", "bigoffset-v1-k391",
]


def directory(root, group, name):
    return root / group / name / f"{name}-0"


def recorded(path):
    """A golden answer, one JSON line or many."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return rows if ".jsonl" in path.name else rows[0]


@pytest.fixture
def cases(golden_kafka):
    return [directory(golden_kafka, "cases", name) for name in CASES]


@pytest.fixture(params=VERSIONS)
def oracle(kafka_oracle, request):
    return kafka_oracle(request.param)


def test_records_and_batches_are_what_golden_remembers(oracle, cases):
    records, batches = oracle.dump(cases), oracle.batches(cases)
    for case in cases:
        assert records[case] == recorded(case.parent / "expected.jsonl.gz"), case.name
        assert batches[case] == recorded(case.parent / "batches.jsonl.gz"), case.name


def test_indexes_are_what_golden_remembers(oracle, cases):
    whole = [case for case in cases if not case.name.startswith("crash-")]  # messages there name the directory
    for case, index in oracle.index(whole).items():
        expected = recorded(case.parent / "index.json")
        assert index == expected | {"read_by": f"kafka {oracle.version}"}, case.name


def test_lookups_are_what_golden_remembers(kafka_oracle, cases):
    # v0 has no time: the largest timestamp of such a segment is that of its file, which an archive need not keep.
    timed = [case for case in cases if not case.name.startswith(("v0-", "mixed-", "compact-"))]
    for case, lookups in kafka_oracle("3.9.1").lookups(timed).items():
        assert lookups == recorded(case.parent / "lookups.json.gz"), case.name


def test_starts_are_what_golden_remembers(oracle, golden_kafka):
    golden, count = (unpack("kafka_440"), 6) if oracle.version == "4.4.0" else (golden_kafka, 97)
    answers = sorted(golden.glob(f"*/*/check-{oracle.version}.json"))
    assert len(answers) == count
    dirs = {path: directory(golden, path.parent.parent.name, path.parent.name) for path in answers}
    checks = oracle.check(dirs.values())
    for path, partition in dirs.items():
        assert without_run(checks[partition]) == without_run(recorded(path)), partition.name


def without_run(check):
    """A check without what differs from run to run: how long it took, and the temporary directory in messages."""
    text = re.sub(r"/[^\s,\"]*/oracle\d+/", "DIR/", json.dumps(check))
    return json.loads(re.sub(r'"load_ms": [0-9.]+', '"load_ms": 0', text))


def test_only_a_dead_brokers_indexes_are_bad(oracle, golden_kafka):
    cases = sorted(golden_kafka.glob("cases/*/*-0"))
    bad = {case.name for case, answer in oracle.index_check(cases).items() if answer["bad"]}
    assert bad == {case.name for case in cases if case.name.startswith("crash-")}
    assert len(bad) == 7


def test_configuration_reaches_the_log(oracle, golden_kafka):
    case = directory(golden_kafka, "cases", "v2-none-ct-k411")
    recovered = oracle.check([case], config={"index.interval.bytes": 1})[case]["unclean"]
    batches = oracle.batches([case])[case]
    segments = {batch["segment"] for batch in batches}
    # One entry for each batch but the first of a segment.
    assert sum(segment["index_entries"] for segment in recovered["segments"]) == len(batches) - len(segments)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_broker_serves_golden_directories(kafka_oracle, golden_kafka, tmp_path, clean):
    dirs = [directory(golden_kafka, "cases", name) for name in ("v1-gzip-ct-k391", "txn-v2-k411")]
    leftover = tmp_path / f"orders-0.{'0123456789abcdef' * 2}-delete"
    leftover.mkdir()
    boot = kafka_oracle("4.1.1").boot(dirs, tmp_path / "broker", clean=clean, beside=[leftover])
    assert boot.summary["consume_errors"] == 0
    for case in dirs:
        expected = [row for row in recorded(case.parent / "expected.jsonl.gz") if not row["control"]]
        fields = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
        assert [[r[f] for f in fields] for r in boot.records[case.name]] == [[r[f] for f in fields] for r in expected]
        assert boot.partitions[case.name]["log_bytes_unchanged"]
    # A reader of committed records sees no aborted ones, and the broker removes what ends in -delete.
    assert 0 < len(boot.committed["txn-v2-k411-0"]) < len(boot.records["txn-v2-k411-0"])
    assert leftover.name not in boot.summary["directories"]


def test_a_broker_refuses_a_directory_that_is_no_partition(kafka_oracle, golden_kafka, tmp_path):
    stranger = tmp_path / "seglog-staging"
    stranger.mkdir()
    case = directory(golden_kafka, "cases", "v2-none-ct-k411")
    with pytest.raises(OracleError, match=stranger.name):
        kafka_oracle("4.1.1").boot([case], tmp_path / "broker", beside=[stranger])


def test_a_lock_held_by_a_jvm_is_seen_by_another(oracle, tmp_path):
    lock = tmp_path / ".lock"
    assert oracle.try_lock(lock)
    with oracle.lock_held(lock):
        assert not oracle.try_lock(lock)
    assert oracle.try_lock(lock)
