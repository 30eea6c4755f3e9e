"""What the conversion made, real Kafka takes for its own: loaded after any stop, searched, and served to a consumer."""
import errno
import gzip
import json

import pytest

from seglog.conversion.directory import plan_conversion
from seglog.errors import StorageError
from seglog.fs.staging import Staging, leftovers
from support.conversion import UnsyncedFs, config_of, converted, copied, kept, source_of
from support.golden import golden_cases
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

CASES = {case.name: case for case in golden_cases()}
# Those that a real broker was found to serve as they are (tests/oracle/kafka), and some more: 33 of all kinds.
SERVED = [
    "v0-none-ct-k282", "v0-gzip-ct-k391", "v0-lz4-ct-k282", "v0-snappy-ct-k391", "v1-none-ct-k282", "v1-none-lat-k391",
    "v1-gzip-ct-k391", "v1-gzip-lat-k391", "v1-snappy-ct-k391", "v1-lz4-ct-k391", "v1-lz4-lat-k391",
    "mixed-formats-k391", "mixed-formats-k282", "compact-v1-gzip-pass2-k391", "compact-v0-none-pass1-k391",
    "compact-v2-mixed-pass2-k391", "compact-v2-mixed-pass1-k411", "v2-zstd-ct-k391", "v2-none-lat-k391",
    "v2-gzip-ct-k282", "txn-v2-k391", "txn-v2-k411", "bigoffset-v1-k391", "bigoffset-v2-k391", "ts-odd-v1-k391",
    "ts-odd-v2-k391", "big-v1-snappy-k282", "big-v0-lz4-k282", "big-v2-zstd-k411", "crash-v1-k391", "rollms-v1-k391",
    "idempotent-v2-k282", "conv-p1-t0-k282",
]
PROFILES = {
    "default": {},
    "repacked": {"repack_bytes": 16384},
    "recompressed": {"codec": "lz4"},
    "split": {"split": True},
}


@pytest.fixture(scope="module", params=PROFILES)
def profile(request):
    return request.param


@pytest.fixture(scope="module")
def targets(profile, tmp_path_factory):
    """{name of the case: its converted directory, with case.json beside it}."""
    options = dict(PROFILES[profile])
    more = ("segment.bytes",) if options.pop("split", False) else ()
    made = {}
    for name, case in CASES.items():
        log_dir = tmp_path_factory.mktemp(name)
        made[name] = converted(source_of(case), log_dir / f"{name}-0", config=config_of(case, *more), **options).target
        (log_dir / "case.json").write_bytes((case / "case.json").read_bytes())
    return made


@pytest.fixture(params=VERSIONS)
def oracle(kafka_oracle, request):
    return kafka_oracle(request.param)


def changed(answer, *suffixes):
    return [f for f in answer["files_changed"] if f["file"].endswith(suffixes)]


def test_a_log_is_loaded_clean_and_unclean_as_it_is(oracle, targets):
    checks = oracle.check(targets.values())
    for name, target in targets.items():
        clean, unclean = checks[target]["clean"], checks[target]["unclean"]
        for answer in (clean, unclean):
            assert "open_failed" not in answer, (name, answer)
            assert not answer["log_truncated_or_changed"], name
            assert answer["records"] == len(records(CASES[name])), name
            assert all(s["all_crc_valid"] and s["index_sanity"] == "ok" for s in answer["segments"]), name
            # Recovery rebuilds the indexes of a log: to the same bytes.
            assert not changed(answer, ".index", ".timeindex"), name
        assert not clean["index_rebuilt_or_changed"], name
        assert not clean["kafka_log_messages"], name
        # A broker removes a snapshot at the log's start; else a clean start changes nothing.
        first = min(target.glob("*.log")).stem
        assert {f["file"] for f in clean["files_changed"]} <= {f"{first}.snapshot"}, name


def test_an_unclean_start_makes_no_more_of_the_state_than_of_the_sources(kafka_oracle, profile, targets):
    if profile != "default":
        pytest.skip("other batches, other state")
    oracle = kafka_oracle("4.1.1")
    sources = {name: source_of(CASES[name]) for name in targets if not name.startswith("crash-")}
    before, after = oracle.check(sources.values()), oracle.check([targets[name] for name in sources])
    for name, source in sources.items():
        suffixes = (".txnindex", ".snapshot")
        strays = "mixed-formats" in name        # which are left behind
        assert strays or changed(after[targets[name]]["unclean"], *suffixes) == changed(
            before[source]["unclean"], *suffixes
        ), name


def test_no_index_entry_leads_astray(oracle, targets):
    for answer in oracle.index_check(targets.values()).values():
        assert not answer["bad"], answer


def records(case):
    with gzip.open(case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def test_kafka_reads_the_records_that_it_read_before(oracle, targets):
    found = oracle.dump(targets.values())
    for name, target in targets.items():
        assert [kept(row) for row in found[target]] == [kept(row) for row in records(CASES[name])], name
        assert {row["magic"] for row in found[target]} <= {2}


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_broker_serves_the_records_of_the_source(kafka_oracle, targets, profile, tmp_path, clean):
    if not clean and profile != "default":
        pytest.skip("an unclean start is asked of the default profile")
    dirs = [targets[name] for name in SERVED]
    boot = kafka_oracle("4.1.1").boot(dirs, tmp_path / "broker", clean=clean)
    assert boot.summary["consume_errors"] == 0
    fields = ("offset", "timestamp", "timestamp_type", "key", "key_sha256", "value", "value_sha256", "headers")
    for name, target in zip(SERVED, dirs, strict=True):
        expected = [kept(row) for row in records(CASES[name]) if not row["control"]]
        assert [{f: row.get(f) for f in fields} for row in boot.records[target.name]] == [
            {f: row.get(f) for f in fields} for row in expected
        ], name
        assert boot.partitions[target.name]["log_bytes_unchanged"], name
    # Aborted transactions stay aborted.
    for name in ("txn-v2-k391", "txn-v2-k411"):
        assert 0 < len(boot.committed[f"{name}-0"]) < len(boot.records[f"{name}-0"])


def test_committed_records_are_those_of_the_source(kafka_oracle, targets, profile, tmp_path):
    if profile not in ("default", "split"):
        pytest.skip("asked of the default profile, and where transaction indexes are divided")
    names = ["txn-v2-k391", "txn-v2-k411", "txn-v2-k282", "compact-v2-mixed-pass1-k411"]
    oracle = kafka_oracle("4.1.1")
    before = oracle.boot([source_of(CASES[name]) for name in names], tmp_path / "a")
    after = oracle.boot([targets[name] for name in names], tmp_path / "b")
    for name in names:
        keep = ("offset", "key", "value", "timestamp")
        assert [[row[k] for k in keep] for row in after.committed[f"{name}-0"]] == [
            [row[k] for k in keep] for row in before.committed[f"{name}-0"]
        ]


def test_a_broker_removes_a_staging_in_its_log_dir(kafka_oracle, tmp_path, monkeypatch):
    """What a killed conversion leaves where the log dir is a file system of its own."""
    class LogDirOfItsOwn(UnsyncedFs):
        def rename(self, source, target):
            raise StorageError("cannot rename", file=source, errno=errno.EXDEV)

    class Killed(BaseException):
        pass

    def kill(done, total):
        raise Killed

    case = CASES["v1-gzip-ct-k391"]
    source = copied(source_of(case), tmp_path / "logs" / "orders-0")
    (tmp_path / "made").mkdir()
    monkeypatch.setattr(Staging, "discard", Staging.keep)
    with pytest.raises(Killed):
        plan_conversion(source, tmp_path / "made/orders-0", fs=LogDirOfItsOwn()).run(kill)
    left, = leftovers(tmp_path / "made")
    assert left.parent == tmp_path / "made"
    assert list(left.iterdir())
    boot = kafka_oracle("4.1.1").boot([source_of(case)], tmp_path / "broker", beside=[left])
    assert boot.summary["consume_errors"] == 0
    assert left.name not in boot.summary["directories"]
