"""A process whose address space is limited: it maps no more than it reads, and the error names the limit it needs."""
import os
import re
import resource
import subprocess
import sys

import pytest

import seglog
from seglog.errors import StorageError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="how much is in use is read from /proc")

SEGMENT_BYTES = 160 << 20
PROGRAM = """
import re, sys
import seglog
from seglog.errors import StorageError
from seglog.errors import StorageError
def used_kib(kind):
    return int(re.search(kind + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
try:
    if sys.argv[2] == "scan":
        rows = sum(len(batch) for batch in seglog.scan(sys.argv[1]).batches())
    else:
        with seglog.open_partition(sys.argv[1]) as log:
            rows = sum(1 for _ in log.read())
except StorageError as error:
    print(error, error.hint, sep="\\n")
else:
    print(rows, used_kib("VmPeak"))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(segments)`: a log with so many, and the last one, which is small; and its end."""
    logs = {}

    def make(segments):
        if segments not in logs:
            path = tmp_path_factory.mktemp("data") / "orders-0"
            config = {"segment.bytes": SEGMENT_BYTES, "max.message.bytes": 2 << 20}
            with seglog.open(path, config=config, fsync="never") as log:
                while len(log.segments) <= segments:
                    log.append_many([(None, bytes(1 << 20))])
                logs[segments] = path, log.log_end_offset
        return logs[segments]

    return make


def said_by(path, how, limit_kib):
    """What a process says that reads a log under `ulimit -v`."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (limit_kib << 10, limit_kib << 10))

    command = [sys.executable, "-c", PROGRAM, str(path), how]
    # The C library reserves 64 MiB for each thread that allocates while another does: sometimes for none.
    env = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    return subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=True, env=env).stdout


@pytest.mark.parametrize(("how", "segments", "maps"), [("scan", 1, 1), ("scan", 4, 3), ("read", 4, 2)])
def test_segments_that_are_not_being_read_make_room_for_the_next_one(made, how, segments, maps):
    """Who goes from one segment to the next has both for a moment. A scan plans ahead, with a third."""
    path, end = made(segments)
    limit_kib = maps * (SEGMENT_BYTES >> 10) + (180 << 10)
    said = said_by(path, how, limit_kib)
    rows, used_kib = map(int, said.split())
    assert rows == end
    assert used_kib <= limit_kib


@pytest.mark.parametrize("how", ["scan", "read"])
def test_the_limit_that_the_error_asks_for_is_enough(made, how):
    path, end = made(4)
    said = said_by(path, how, 200 << 10)
    assert "limited to 200 MiB (RLIMIT_AS)" in said
    assert "max_map_count" not in said
    needed_kib = int(re.search(r"(\d+) KiB are enough", said)[1])
    assert said_by(path, how, needed_kib).startswith(f"{end} ")


def test_no_room_for_what_is_noted_beside_a_map_is_told_as_no_room_for_the_map(made, monkeypatch):
    def full(size_bytes):
        raise MemoryError

    path, _ = made(1)
    monkeypatch.setattr("seglog.segment.open_files.CheckedBatches", full)
    with seglog.open_partition(path) as log, pytest.raises(StorageError, match="cannot map: the kernel is out of"):
        next(log.read())
