"""What our compaction leaves, real Kafka takes for its own: loaded, indexes searched, records decoded, served."""
import json
import random

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.log.log import Log
from seglog.upkeep.cleaner import clean
from support.conversion import kept, rows
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

NOW = 1_700_000_000_000
MOST_RECORDS = 11       # of a batch that is appended
CONFIG = {
    "cleanup.policy": "compact", "segment.bytes": 20_000, "index.interval.bytes": 500, "segment.index.bytes": 8192,
}
KINDS = {
    f"v{magic}-{codec}{suffix}": (magic, codec, more)
    for magic in (0, 1, 2) for codec in ("none", "gzip", "lz4")
    for suffix, more in (
        ("", {}), ("-up", {"seglog.compaction.upgrade.format": True}),
        ("-merged", {"seglog.compaction.merge.bytes": 3000}),
        ("-up-merged", {"seglog.compaction.upgrade.format": True, "seglog.compaction.merge.bytes": 3000}),
    )
    if not (magic == 2 and "seglog.compaction.upgrade.format" in more)
    if magic == 2 or codec != "none" or suffix != "-merged"     # messages without a codec cannot be merged
}


def write(path, magic, codec, more):
    """Two rounds over skewed keys with tombstones, the second after the horizon of the first."""
    rng, clock = random.Random(f"{magic}{codec}"), ManualClock(NOW)
    config = CONFIG | more | {"delete.retention.ms": 1000}
    with Log(path, config=config, fsync="never", clock=clock) as log:
        for _ in range(2):
            for _ in range(120):
                records = [
                    (b"%d" % min(int(rng.paretovariate(0.7)), 300), None if rng.random() < 0.1 else rng.randbytes(60))
                    for _ in range(rng.randrange(1, MOST_RECORDS + 1))
                ]
                end = log.log_end_offset
                is_produced = magic == 2 and end % 9 == 0
                producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": end} if is_produced else {}
                raw = seglog.build_batch(
                    records, magic=magic, codec=codec, base_offset=end, timestamp=clock.now_ms() if magic else None,
                    **producer,
                )
                log.append_batch(raw, assign_offsets=False)
                clock.advance(10)
            log.roll()
            done = clean(log)
            assert done.outcome == "cleaned"
            clock.advance(5000)
        if "seglog.compaction.merge.bytes" in more:
            assert any(len(list(batch)) > MOST_RECORDS for batch in log.batches())
        for _ in range(20):
            log.append(b"v", key=b"k", timestamp=clock.now_ms())


@pytest.fixture(scope="module")
def compacted(tmp_path_factory):
    """{kind: directory of the log}, each in a log dir of its own with its topic configuration beside it."""
    made = {}
    for kind, how in KINDS.items():
        made[kind] = tmp_path_factory.mktemp(kind) / f"{kind}-0"
        write(made[kind], *how)
        (made[kind].parent / "case.json").write_text(json.dumps({"config": {k: str(v) for k, v in CONFIG.items()}}))
    return made


@pytest.fixture(params=VERSIONS)
def oracle(kafka_oracle, request):
    return kafka_oracle(request.param)


def test_it_is_loaded_whole_and_its_indexes_lead_where_they_say(oracle, compacted):
    for directory, found in oracle.check(compacted.values()).items():
        with seglog.open_partition(directory) as partition:
            end, segments = partition.log_end_offset, [s.base_offset for s in partition.segments]
        for start in ("clean", "unclean"):
            answer, where = found[start], (directory.name, start)
            assert "open_failed" not in answer, where
            assert answer["log_end_offset"] == end, where
            assert [segment["base_offset"] for segment in answer["segments"]] == segments, where
            assert all(s["all_crc_valid"] and s["index_sanity"] == "ok" for s in answer["segments"]), where
    for directory, found in oracle.index_check(compacted.values()).items():
        assert found["bad"] == [], directory.name


def test_every_record_is_decoded_as_we_do(oracle, compacted):
    for directory, records in oracle.dump(compacted.values()).items():
        assert [kept(record) for record in records] == [kept(row) for row in rows(directory)], directory.name


def test_a_broker_serves_it(oracle, compacted, tmp_path):
    boot = oracle.boot(compacted.values(), tmp_path / "broker", clean=False)
    for directory in compacted.values():
        with seglog.open_partition(directory) as partition:
            offsets = [record.offset for record in partition.read()]
        assert [record["offset"] for record in boot.records[directory.name]] == offsets, directory.name
