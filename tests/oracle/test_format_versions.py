"""Logs of every message.format.version, and what they give to older clients: real Kafka reads both."""
import base64

import pytest

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.format.compression import decompressor
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

NOW = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def value(n):
    return b"%d" % n * 30


@pytest.fixture(params=VERSIONS)
def oracle(kafka_oracle, request):
    return kafka_oracle(request.param)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """{directory: its records as (offset, timestamp, value)}."""
    top = tmp_path_factory.mktemp("versions")
    made = {}
    for codec in CODECS:
        versions = [2] if codec == "zstd" else [0, 1, 2]
        for name, path in [(f"v{v}", [v]) for v in versions] + [("mixed", [*versions, *versions[::-1]])]:
            directory = top / f"{name}-{codec}" / "orders-0"
            rows = []
            config = {"segment.bytes": 20_000, "seglog.time.index.minute.enabled": False, "compression.type": codec}
            with seglog.open(directory, config=config, fsync="never", clock=ManualClock(NOW)) as log:
                for version in path:
                    log.configure({"message.format.version": version})
                    for came in (0, 1, 2):
                        time = {} if came == 0 else {"timestamp": NOW - 1000}
                        raw = seglog.build_batch([(b"k", value(n)) for n in range(30)], magic=came, **time)
                        log.append_batch(raw)
                        rows += [(len(rows) + n, NOW - 1000 if came and version else -1, value(n)) for n in range(30)]
                    log.append_many([(b"k", value(n)) for n in range(30)])
                    rows += [(len(rows) + n, NOW if version else -1, value(n)) for n in range(30)]
            made[directory] = rows
    return made


@pytest.fixture(scope="module")
def fetched(logs, tmp_path_factory):
    """The same logs as clients get them that know less: {directory: its records}."""
    top = tmp_path_factory.mktemp("fetched")
    made = {}
    for source, rows in logs.items():
        if "zstd" in source.parent.name:
            continue
        for magic in (0, 1):
            directory = top / f"{source.parent.name}-to-{magic}" / "orders-0"
            directory.mkdir(parents=True)
            raw, offset = b"", 0
            with seglog.open_partition(source) as partition:
                while piece := bytes(partition.fetch(offset, 4000 if magic else 1 << 20, magic=magic).view()):
                    whole = list(_batches(piece))
                    end = whole[-1].position + whole[-1].size_bytes
                    raw, offset = raw + piece[:end], whole[-1].last_offset + 1
            (directory / f"{0:020}.log").write_bytes(raw)
            made[directory] = [(n, time if magic else -1, text) for n, time, text in rows]
    return made


def _batches(raw):
    return scan(Window(raw), decompress=decompressor())


def test_kafka_loads_what_was_stored_in_every_version(oracle, logs):
    for directory, found in oracle.check(logs).items():
        for start in ("clean", "unclean"):
            answer, where = found[start], (directory.parent.name, start, found[start])
            assert "open_failed" not in answer, where
            assert not answer["log_truncated_or_changed"], where
            assert answer["log_end_offset"] == len(logs[directory]), where
            assert all(s["all_crc_valid"] and s["index_sanity"] == "ok" for s in answer["segments"]), where


@pytest.mark.parametrize("which", ["logs", "fetched"])
def test_kafka_reads_the_records(oracle, request, which):
    expected = request.getfixturevalue(which)
    for directory, records in oracle.dump(expected).items():
        found = [(r["offset"], r["timestamp"], base64.b64decode(r["value"])) for r in records]
        assert found == expected[directory], directory.parent.name


@pytest.mark.parametrize("which", ["logs", "fetched"])
def test_kafka_2_8_loads_and_reads_both(kafka_oracle, request, which):
    """The last release that still writes every format. It recovers all of it, as after a kill, and changes nothing."""
    expected = request.getfixturevalue(which)
    for directory, found in kafka_oracle("2.8.2").load(expected).items():
        assert found["unchanged"], directory.parent.name
        assert found["end"] == len(expected[directory]), directory.parent.name
        assert found["records"] == expected[directory], directory.parent.name
