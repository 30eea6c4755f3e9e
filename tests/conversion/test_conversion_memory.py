"""A conversion holds a slice of a segment in memory, however large the log is."""
import os
import subprocess
import sys

import pytest

from seglog._kernels.batch_builder import MessageSetBuilder
from seglog.format.compression import Codec, compress

# `make torture` sets SEGLOG_TORTURE: the full size; otherwise a twentieth.
SOURCE_BYTES = 200_000_000 if os.environ.get("SEGLOG_TORTURE") else 10_000_000
LIMIT_MIB = 100

CONVERT = """
import sys
from seglog.conversion.directory import plan_conversion

peak = 0.0

def look(done, total):
    global peak
    with open("/proc/self/status") as status:
        anonymous = next(line for line in status if line.startswith("RssAnon:"))
    peak = max(peak, int(anonymous.split()[1]) / 1024)

repack_bytes = int(sys.argv[3])
plan = plan_conversion(sys.argv[1], sys.argv[2], repack_bytes=repack_bytes, codec=sys.argv[4] or None)
look(0, 0)
plan.run(look)
print(peak)
"""


def make_segments(directory):
    """Bare messages and compressed batches of 64 KiB in turn, a segment each."""
    directory.mkdir()
    offset = size = 0
    values = [os.urandom(50) + bytes(50) for _ in range(64)]
    while size < SOURCE_BYTES:
        base = offset
        with open(directory / f"{base:020d}.log", "wb") as log:
            for _ in range(200):
                builder = MessageSetBuilder(1)
                for i in range(500):
                    builder.append(offset + i, 1000 + i, b"key", values[i % 64])
                log.write(builder.payload())
                offset += 500
                builder = MessageSetBuilder(1, wrapped_from=offset)
                for i in range(500):
                    builder.append(offset + i, 1000 + i, b"key", values[i % 64])
                log.write(builder.wrap(compress(Codec.LZ4, 1, builder.payload()), Codec.LZ4))
                offset += 500
            size += log.tell()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("logs") / "orders-0"
    make_segments(directory)
    return directory


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what memory is anonymous")
@pytest.mark.parametrize(("repack_bytes", "codec"), [(0, ""), (16384, "zstd"), (0, "none")])
def test_anonymous_memory_stays_small(source, tmp_path, repack_bytes, codec):
    (tmp_path / "made").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, str(source), str(tmp_path / "made/orders-0"), str(repack_bytes), codec],
        capture_output=True, text=True, check=True,
    )
    assert float(done.stdout) < LIMIT_MIB
