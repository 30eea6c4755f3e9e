"""What a fetch gives, as it lies on disk or converted, the parsers of kafka-python and aiokafka decode."""
import pytest

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from support.other_clients import read_by_aiokafka, read_by_kafka_python

NOW = 1_700_000_000_000
VALUES = [b"%d" % n * 40 for n in range(5)]


def by_aiokafka(raw):
    """Batch by batch: its reader takes the first batch's format for all that follow."""
    for batch in scan(Window(raw)):
        yield from read_by_aiokafka(batch.raw())


def knows(client, magic, codec):
    """Neither client knows the LZ4 frames of v0. kafka-python opens snappy by python-snappy alone, which tests lack."""
    if client is read_by_kafka_python and codec == "snappy":
        return False
    return (magic, codec) != (0, "lz4")


CASES = [
    pytest.param(client, magic, codec, versions, id=f"{client.__name__.partition('by_')[2]}-{codec}-as-v{magic}")
    for client in (by_aiokafka, read_by_kafka_python) for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    for magic in (0, 1, 2)
    # zstd came with v2: nobody gets it below. What the client gets is the older of the two formats.
    if (versions := [
        version for version in (0, 1, 2)
        if (codec != "zstd" or version == magic == 2) and knows(client, min(version, magic), codec)
    ])
]


def test_no_pair_of_format_and_codec_is_left_out_for_both_clients():
    shown = {(min(version, case.values[1]), case.values[2]) for case in CASES for version in case.values[3]}
    assert shown == {
        *((magic, codec) for magic in (0, 1, 2) for codec in ("none", "gzip", "snappy", "lz4")), (2, "zstd")
    } - {(0, "lz4")}


@pytest.mark.parametrize(("client", "magic", "codec", "versions"), CASES)
def test_clients_decode_what_a_fetch_gives(in_memory, client, magic, codec, versions):
    with seglog.open(in_memory / "orders-0", fsync="never", clock=ManualClock(NOW)) as log:
        for version in versions:
            log.configure({"message.format.version": version})
            log.append_batch(seglog.build_batch([(b"k", value) for value in VALUES], codec=codec, timestamp=NOW))
        offset, got = 0, []
        while raw := bytes(log.fetch(offset, magic=magic).view()):
            got += [(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value) for r in client(raw)]
            offset = got[-1][0] + 1
    assert got == [
        (n, NOW if min(versions[n // 5], magic) else -1, b"k", VALUES[n % 5]) for n in range(5 * len(versions))
    ]
