"""A broker's work on batches that it need not open: fetches without a copy, appends in place, mirrors; and its
conversions for clients from before Kafka 0.11.
"""
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import seglog
from benches import data, java, peers
from benches.appending import Place, our_log
from benches.runner import Bench, Goal
from seglog import build_batch
from seglog.reading.reader import LogReader

BATCH_BYTES = 16384
SLICE_BYTES = 1 << 20
NOW = 1_700_000_000_000
APPENDS = 300

# These cases have short runs, so on a shared machine the best of only a few runs would be chance.
ROUNDS = 4
DRAIN = """
import socket, sys
port, size = map(int, sys.argv[1:])
connection, sink = socket.create_connection(("127.0.0.1", port)), bytearray(size)
while connection.recv_into(sink, flags=getattr(socket, "MSG_TRUNC", 0)):
    pass
"""

# codec: the goal, and the codec of the incoming batches if the log's codec differs. It decompresses faster than the
# log's own codec would, which flatters recompression.
IN_PLACE = {"gzip": (Goal(8), "lz4"), "lz4": (Goal(3.5), "snappy"), "zstd": (Goal(2.5), "lz4")}


def run(bench: Bench, directory: Path, count: int, *, with_java: bool) -> None:
    place = Place(directory)
    _zero_copy(bench, place, count)
    for codec, (goal, other) in IN_PLACE.items():
        _in_place(bench, place, codec, goal, other)
    for magic, codec, share in [(2, "none", 0.3), (1, "none", 0.3), (2, "lz4", 0.3), (2, "zstd", 0.3)]:
        _mirror(bench, place, magic, codec, int(count * share))
    for codec, share, goal in [("none", 1.0, Goal(4)), ("lz4", 0.25, Goal(1.8))]:
        _down(bench, place, codec, int(count * share), goal if with_java else None)


@contextmanager
def stored(place: Place, magic: int, codec: str, count: int) -> Iterator[tuple[LogReader, Path]]:
    """A partition of one segment with its indexes, written by a Kafka client's builder, and the segment's file."""
    path = place.new()
    file = path / "orders-0" / f"{0:020}.log"
    file.parent.mkdir()
    file.write_bytes(data.segment(magic, codec, BATCH_BYTES, count))
    seglog.open(file.parent, config={"segment.bytes": "1GiB"}).close()      # indexes it
    with seglog.open_partition(file.parent) as partition:
        yield partition, file
    shutil.rmtree(path)


# --- fetches -----------------------------------------------------------------------------------------


@contextmanager
def drained() -> Iterator[socket.socket]:
    """A TCP connection to another process that receives everything without copying it.

    Clients are separate processes too. A thread of this process would request the GIL whenever data arrives, which
    costs the sender more the more Python it runs between its sends.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = subprocess.Popen([sys.executable, "-S", "-c", DRAIN, str(server.getsockname()[1]), str(SLICE_BYTES)])
        out, _ = server.accept()
    with out:
        yield out
    client.wait()


def asked_offsets(partition: LogReader) -> list[int]:
    """The offsets that a client requests in turn: it continues after the last complete batch, and fetches a cut one
    again."""
    offsets, begin = [0], 0
    for batch in partition.batches():
        if batch.position + batch.size_bytes > begin + SLICE_BYTES:
            offsets.append(batch.base_offset)
            begin = batch.position
    return offsets


def _zero_copy(bench: Bench, place: Place, count: int) -> None:
    name = "fetch, slices of 1 MiB"
    if not bench.wanted(name):
        return
    with stored(place, 2, "none", count) as (partition, file), drained() as out, open(file, "rb") as raw:
        offsets = asked_offsets(partition)
        slices = [partition.fetch(offset, SLICE_BYTES) for offset in offsets]
        ranges = [(found.position, found.size_bytes) for found in slices]

        def ours() -> None:
            for offset in offsets:
                partition.fetch(offset, SLICE_BYTES).send(out)

        def bare() -> None:
            for position, left in ranges:
                while left:
                    sent = os.sendfile(out.fileno(), raw.fileno(), position, left)
                    position, left = position + sent, left - sent

        bench.compare(
            name, sum(size for _, size in ranges) / (1 << 20), "MiB/s", {"seglog": ours, "os.sendfile": bare},
            {("seglog", "os.sendfile"): Goal(1 / 1.1)}, rounds=ROUNDS,
        )


def _down(bench: Bench, place: Place, codec: str, count: int, java_goal: Goal | None) -> None:
    """All of a segment for a client that only knows v1. Kafka and we check no CRC; aiokafka's parser checks them."""
    name = f"fetch of v2 {codec} as v1"
    beside_java = f"{name}, downConvert"
    if not (bench.wanted(name) or bench.wanted(beside_java)):
        return
    with stored(place, 2, codec, count) as (partition, file):
        segment = file.read_bytes()

        def ours() -> int:
            made, offset, end = 0, 0, partition.log_end_offset
            while offset < end:
                found = partition.fetch(offset, len(segment), magic=1)
                made += sum(map(len, found))
                offset = found.next_offset
            return made

        bench.compare(
            name, count / 1e6, "M rec/s",
            {"seglog": ours, "aiokafka": lambda: peers.aiokafka_to_v1(segment, data.CODECS[codec])},
            {("seglog", "aiokafka"): Goal()},
        )
        if java_goal is not None and bench.wanted(beside_java):
            bench.beside(beside_java, count / 1e6, "M rec/s", ours, "Kafka 3.9.1", *java.down_convert(segment, 1),
                         java_goal)


# --- appends -----------------------------------------------------------------------------------------


def _in_place(bench: Bench, place: Place, codec: str, goal: Goal, other: str) -> None:
    """Batches of 16 KB, compressed by the producer, whose records the log checks: stored unchanged, or recompressed
    because the topic requires its own codec. One format and one codec are stored.

    "not opened" is the same batch as a follower takes it, checking only its header and CRC. What remains of that is
    "bare writes", which every kind of append needs.

    v1 beside v0, whose wrappers must always be recompressed for their offsets: v1 was made to avoid this (KIP-31).
    """
    records = [(key, value, (), NOW) for key, value, _ in zip(*data.messages(140), strict=True)]
    turns = APPENDS if bench.repetitions > 1 else 10
    batch = build_batch(records, codec=codec)
    kept = [build_batch(records, codec=codec, base_offset=n * len(records), leader_epoch=0) for n in range(turns)]
    recompressed = f"recompressed from {other}"

    def follow(log: seglog.Log) -> None:
        for one in kept:
            log.append_batch(one, assign_offsets=False)

    def write(out: BareWrites) -> None:
        for one in kept:
            out.write(one)

    def opener(settings: dict[str, object]) -> partial[seglog.Log]:
        return partial(
            our_log, fsync="never", config={**settings, "message.timestamp.before.max.ms": (1 << 63) - 1})

    def append(batch: bytes, log: seglog.Log) -> None:
        for _ in range(turns):
            log.append_batch(batch)

    asks = {"compression.type": codec}
    bench.compare(
        f"append of a ready batch, {codec}", turns / 1e3, "k app/s",
        {
            "seglog": place.fresh(opener(asks), partial(append, batch)),
            "not opened": place.fresh(opener(asks), follow),
            recompressed: place.fresh(opener(asks), partial(append, build_batch(records, codec=other))),
            "bare writes": place.fresh(BareWrites, write),
        },
        {
            ("seglog", recompressed): goal, ("not opened", recompressed): goal,
            ("bare writes", recompressed): Goal(),
        },
        rounds=ROUNDS,
    )
    if codec == "zstd":     # no format below v2 has it
        return
    old = [(key, value, (), None) for key, value, _, _ in records]
    wrappers = {
        "seglog": (build_batch(records, codec=codec, magic=1), {"message.format.version": 1}),
        "v0 wrapper": (build_batch(old, codec=codec, magic=0), {"message.format.version": 0}),
    }
    bench.compare(
        f"append of a v1 wrapper, {codec}", turns / 1e3, "k app/s",
        {who: place.fresh(opener(settings), partial(append, raw)) for who, (raw, settings) in wrappers.items()},
        {("seglog", "v0 wrapper"): goal},
    )


# --- mirrors -----------------------------------------------------------------------------------------


def _mirror(bench: Bench, place: Place, magic: int, codec: str, count: int) -> None:
    """A segment into another log, beside reading and appending its records, and beside only writing its bytes.

    From a log of ours, whose bytes nobody else changes; from a directory that a broker may hold, each run is copied
    first. For uncompressed v2 the bare writes take a tenth of decoding and appending, so no mirror can be 15 times as
    fast. For v1, where each message is a batch, decoding costs more.
    """
    name = f"mirror, v{magic} {codec}"
    if not bench.wanted(name):
        return
    config = {
        "compression.type": codec if codec != "none" else "uncompressed", "message.format.version": magic,
        "message.timestamp.before.max.ms": (1 << 63) - 1,
    }
    with stored(place, magic, codec, count) as (partition, file):
        segment = file.read_bytes()
        source = seglog.open(file.parent, fsync="never", config={"segment.bytes": "1GiB"})

        def mirrored(src: LogReader, log: seglog.Log) -> None:
            assert seglog.mirror(src, log).size_bytes == len(segment)

        def decoded(log: seglog.Log) -> None:
            batch: list[tuple[object, ...]] = []
            size = 0
            for record in partition.read():
                batch.append((record.key, record.value, record.headers, record.timestamp))
                size += len(record.value)
                if size >= BATCH_BYTES:
                    log.append_many(batch)
                    batch, size = [], 0
            if batch:
                log.append_many(batch)

        def written(out: BareWrites) -> None:
            for first in range(0, len(segment), SLICE_BYTES):
                out.write(segment[first : first + SLICE_BYTES])

        opener = partial(our_log, fsync="never", config=config)
        bench.compare(
            name, len(segment) / 1e6, "MB/s",
            {
                "seglog": place.fresh(opener, partial(mirrored, source)),
                "from a directory": place.fresh(opener, partial(mirrored, partition)),
                "decode and append": place.fresh(opener, decoded),
                "bare writes": place.fresh(BareWrites, written),
            },
            {
                ("seglog", "decode and append"): Goal(15 if codec != "none" or magic == 1 else None),
                ("from a directory", "decode and append"): Goal(15 if codec != "none" else None),
                ("seglog", "bare writes"): Goal(),
                ("bare writes", "decode and append"): Goal(),
            },
        )
        source.close()


class BareWrites:
    """The lower limit of a mirror: write the same bytes to a file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path / "bare", os.O_WRONLY | os.O_CREAT)

    def write(self, raw: bytes) -> None:
        os.write(self._fd, raw)

    def close(self) -> None:
        os.close(self._fd)
