"""What was converted to v0 and v1, real Kafka loads as it is after any stop, and finds the source's records in it."""
import base64

import pytest

from seglog.conversion.losses import LOSS_KINDS
from seglog.reading.partition import Partition
from support.conversion import config_of, converted, source_of
from support.golden import golden_cases

from .test_conversion import VERSIONS, changed, records

pytestmark = pytest.mark.oracle

CASES = {case.name: case for case in golden_cases()}
FIELDS = ("key", "key_size", "key_sha256", "value", "value_size", "value_sha256")


@pytest.fixture(scope="module", params=[0, 1])
def to(request):
    return request.param


@pytest.fixture(scope="module", params=["keep", "drop"])
def aborted(request):
    return request.param


@pytest.fixture(scope="module")
def targets(to, aborted, tmp_path_factory):
    """{name of the case: its converted directory, with case.json beside it}."""
    made = {}
    for name, case in CASES.items():
        if aborted == "drop" and "txn" not in name:
            continue
        log_dir = tmp_path_factory.mktemp(name)
        with Partition(source_of(case)) as partition:
            has_zstd = any(batch.codec == 4 for batch in partition.batches())
        made[name] = converted(
            source_of(case), log_dir / f"{name}-0", config=config_of(case), to=to, allow_lossy=LOSS_KINDS,
            aborted=aborted, codec="gzip" if has_zstd else None,
        ).target
        (log_dir / "case.json").write_bytes((case / "case.json").read_bytes())
    return made


@pytest.fixture(params=VERSIONS)
def oracle(kafka_oracle, request):
    return kafka_oracle(request.param)


def without_commit(rows):
    """The offsets of records whose transaction was aborted, or has no end."""
    gone, open_ = set(), {}
    for row in rows:
        if row["control"]:
            offsets = open_.pop(row["producer_id"], [])
            if base64.b64decode(row["key"])[3] == 0:        # an abort marker
                gone.update(offsets)
        elif row["transactional"]:
            open_.setdefault(row["producer_id"], []).append(row["offset"])
    return gone.union(*open_.values())


def expected(name, to, aborted):
    """The rows of the source that have a place in the target, with what the format keeps of them."""
    rows = records(CASES[name])
    undecided = without_commit(rows) if aborted == "drop" else set()
    rows = [row for row in rows if not row["control"] and row["offset"] not in undecided]
    return [
        {
            "offset": row["offset"],
            "timestamp": row["timestamp"] if to else -1,
            "timestamp_type": (
                "NoTimestampType" if to == 0
                else "CreateTime" if row["timestamp_type"] == "NoTimestampType" else row["timestamp_type"]
            ),
            **{field: row[field] for field in FIELDS if field in row},
        }
        for row in rows
    ]


def test_kafka_reads_what_the_format_can_hold(oracle, targets, to, aborted):
    found = oracle.dump(targets.values())
    for name, target in targets.items():
        rows = found[target]
        assert {row["magic"] for row in rows} <= {to}, name
        fields = ("offset", "timestamp", "timestamp_type", *FIELDS)
        assert [{f: row[f] for f in fields if f in row} for row in rows] == expected(name, to, aborted), name


def test_a_log_is_loaded_clean_and_unclean_as_it_is(oracle, targets, to, aborted):
    checks = oracle.check(targets.values())
    for name, target in targets.items():
        clean, unclean = checks[target]["clean"], checks[target]["unclean"]
        for answer in (clean, unclean):
            assert "open_failed" not in answer, (name, answer)
            assert not answer["log_truncated_or_changed"], name
            assert answer["records"] == len(expected(name, to, aborted)), name
            assert all(s["all_crc_valid"] and s["index_sanity"] == "ok" for s in answer["segments"]), name
            assert not changed(answer, ".index", ".timeindex"), name
        assert not clean["index_rebuilt_or_changed"], name


def test_no_index_entry_leads_astray(oracle, targets):
    for answer in oracle.index_check(targets.values()).values():
        assert not answer["bad"], answer
