"""The integration tests of rust-rdkafka, unchanged, over our server.

    make clients TESTS=tests/clients/test_rust_rdkafka.py

Needs cargo and its registry, make and a C compiler: it builds a librdkafka of its own.
"""
import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import seglog

pytestmark = pytest.mark.clients

VERSION = "0.39.0"
AS_KAFKA = "4.0"
# As its authors set up their broker.
CONFIG = {"num.partitions": 3, "node.id": 0}
# Some of its tests ask for "localhost" whatever they are told.
LISTEN = "127.0.0.1:9092"
AGAIN_MAX = 2
NOT_RUN = {"test_base_producer_timeout": "it fails if the first message to a new topic is delivered within 100 ms"}
FAILURES = {"test_configs": "changes a setting of the broker: the server's own are given when it is started"}
COUNT_MIN = 35


@pytest.fixture(scope="module")
def programs(kept):
    """The directory of its sources, and the programs with its integration tests."""
    for program in ("cargo", "make", "cc"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: it fetches or builds rust-rdkafka")
    work = kept / f"rust-rdkafka-{VERSION}"
    (work / "fetch/src").mkdir(parents=True, exist_ok=True)
    sources = work / "sources"

    def cargo(*arguments, cwd):
        done = subprocess.run(["cargo", *arguments], cwd=cwd, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    if not sources.exists():
        (work / "fetch/src/lib.rs").touch()
        (work / "fetch/Cargo.toml").write_text(
            f'[package]\nname = "fetch"\nversion = "0.0.0"\n\n[dependencies]\nrdkafka = "={VERSION}"\n')
        packages = json.loads(cargo("metadata", "--format-version", "1", cwd=work / "fetch"))["packages"]
        found, = (one["manifest_path"] for one in packages if one["name"] == "rdkafka")
        shutil.copytree(os.path.dirname(found), work / "sources.new", dirs_exist_ok=True)
        (work / "sources.new").replace(sources)
    told = cargo(
        "test", "--no-run", "--tests", "--target-dir", str(work / "target"), "--message-format", "json", cwd=sources)
    made = [json.loads(line) for line in told.splitlines()]
    return sources, [
        one["executable"] for one in made
        if one["reason"] == "compiler-artifact" and one["executable"] and one["target"]["kind"] == ["test"]
    ]


def outcomes(sources, program, server, names=()):
    """{test: "ok" or "FAILED"}, and what the program told."""
    environment = {**os.environ, "KAFKA_HOST": server.bootstrap_servers, "KAFKA_VERSION": AS_KAFKA, "RUST_LOG": "off"}
    done = subprocess.run(
        [program, "--exact", *(names or (f"--skip={name}" for name in NOT_RUN))], cwd=sources, env=environment,
        capture_output=True, text=True, check=False, timeout=600)
    found = re.findall(r"^test (\S+) \.\.\. (ok|FAILED|ignored)", done.stdout, re.MULTILINE)
    return dict(found), done.stdout


def is_wrong(name, found):
    return (found[name] == "FAILED") is not (name in FAILURES)


def test_rust_rdkafka_is_content(programs, tmp_path):
    sources, tests = programs
    with (
        seglog.serve(tmp_path / "data", listen=[LISTEN], fsync="interval", config=CONFIG) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        ended = list(pool.map(lambda program: outcomes(sources, program, server), tests))
        for number, program in enumerate(tests):
            found, told = ended[number]
            failed = sorted(name for name in found if is_wrong(name, found))
            # Limits of the tests themselves pass on a busy machine: such tests run again, by themselves.
            if 0 < len(failed) <= AGAIN_MAX:
                again, told = outcomes(sources, program, server, failed)
                found |= again
            assert not any(is_wrong(name, found) for name in found), told[-6000:]
    assert sum(len(found) for found, _ in ended) >= COUNT_MIN
