"""Old brokers live, and a broker of today over what old ones wrote.

Of the eight versions `make oracle` runs four, for each takes half a minute: 0.8.2.2, v0 and a consumer of its own
kind; 0.10.2.2, v1 and the first time indexes; 1.1.1, v2 with transactions, and the last whose indexes name first
offsets; 3.3.2. SEGLOG_OLD_BROKERS=all runs all eight. `make test` holds the golden data of all.
"""
import os
import shutil

import pytest

import seglog
from oracle.old_brokers.make_golden import make
from seglog.format.compression import compress
from support import plain_format as plain
from support.old_brokers import VERSIONS, numbers
from support.old_directories import (
    CONFIG,
    MODERN,
    Recovered,
    client_cases,
    directory_of,
    partitions,
    reads_as_consumed,
)

pytestmark = pytest.mark.oracle

ALL = os.environ.get("SEGLOG_OLD_BROKERS") == "all"
LIVE = VERSIONS if ALL else ("0.8.2.2", "0.10.2.2", "1.1.1", "3.3.2")


@pytest.fixture(scope="module", params=LIVE)
def written(request, tmp_path_factory, kafka_oracle):
    """(version, what it and its clients wrote, read and recovered)"""
    work = tmp_path_factory.mktemp("old")
    make(request.param, work / request.param, work / "work")
    return request.param, work / request.param


def test_an_old_brokers_directories_read_as_its_own_consumer_reads_them(written):
    _, made = written
    for file in sorted((made / "consumed").iterdir()):
        assert reads_as_consumed(made / "logs" / file.stem, file) > 0
        assert seglog.verify(made / "logs" / file.stem, level="deep", config=CONFIG).ok
    for file in made.glob("committed/*"):
        assert reads_as_consumed(made / "logs" / file.stem, file, isolation="read_committed") > 0


def test_recovery_after_kill_9_is_that_of_the_old_broker(written, tmp_path):
    version, made = written
    for killed in sorted((made / "killed").glob("*-0")):
        recovered = Recovered(version, killed, tmp_path / killed.name / killed.name)
        recovered.log_is_the_same()
        recovered.indexes_lead_to_the_same()
        recovered.state_is_the_same()
        recovered.nothing_was_torn()


# --- a broker of today -------------------------------------------------------------------------------


def test_a_broker_of_today_serves_what_old_ones_wrote(kafka_oracle, tmp_path):
    """Formats v0 and v1, which 4.0 writes no more. (Each takes a consumer a second: those of v2 wait for ALL.)"""
    directories = {}
    for p in partitions("logs"):
        version, directory = p.values
        if not directory.name.startswith("__") and (
            ALL or numbers(version) < (0, 11) or directory.name == "switched-0"
        ):
            directories[f"{version.replace('.', '_')}-{directory.name}"] = directory
    directories |= {f"{case.values[0].name}-by-a-client-0": directory_of(case.values[0]) for case in client_cases()}
    for name, directory in directories.items():
        shutil.copytree(directory, tmp_path / "logs" / name)
    served = kafka_oracle(MODERN).boot([tmp_path / "logs" / name for name in directories], tmp_path / "work")
    assert not served.summary["consume_errors"]
    for name, directory in directories.items():
        with seglog.open_partition(directory) as partition:
            ours = [(r.offset, r.timestamp) for r in partition.read()]
        assert ours == [(r["offset"], r["timestamp"]) for r in served.records[name]], name


def mixed_wrappers():
    """{name: a wrapper, with its offset}: messages of the other format, or of both, in wrappers of v0 and v1."""
    made = {}
    for magic in (0, 1):
        for inside in ((0,), (1,), (0, 1), (1, 0)):
            for attributes in (plain.GZIP, plain.GZIP | plain.LOG_APPEND_TIME, plain.LZ4):
                stored = range(len(inside)) if magic else range(100, 100 + len(inside))
                messages = b"".join(
                    plain.message(offset, b"k%d" % n, b"value", magic=inner, timestamp=1700000000000 + n)
                    for n, (offset, inner) in enumerate(zip(stored, inside, strict=True)))
                value = bytes(compress(attributes & 7, magic, messages))
                last = 99 + len(inside)
                made[f"v{magic}-around-{'-'.join(map(str, inside))}-{attributes}"] = plain.message(
                    last, None, value, magic=magic, timestamp=1700000000500, attributes=attributes)
    return made


def test_kafka_reads_messages_of_another_format_in_a_wrapper_as_we_do(kafka_oracle, tmp_path):
    directories = {}
    for name, raw in mixed_wrappers().items():
        directory = tmp_path / f"{name}-0"
        directory.mkdir()
        (directory / f"{100:020d}.log").write_bytes(raw)
        directories[directory] = raw
    dumped = kafka_oracle(MODERN).dump(directories)
    for directory in directories:
        with seglog.open_partition(directory) as partition:
            ours = [(r.offset, r.timestamp) for r in partition.read()]
        assert ours == [(r["offset"], r["timestamp"]) for r in dumped[directory]], directory.name
        assert ours
