"""Topic compaction: the last message of a compacted batch, by its metadata and by opening it; a topic beside Pulsar's.

Pulsar's compaction runs in a separate JVM, with a reader and a ledger in memory: thread CPU time, the best of several
runs. Ours reads a managed ledger and writes a ledger.
"""
import random
import shutil
import sys
import tempfile
from pathlib import Path

from benches.runner import Bench, Fresh, Goal
from seglog.format.payload_compression import PayloadCodec
from seglog.ledger.compacted.raw_message import raw_message
from seglog.ledger.entry import Entry, build_entry
from seglog.ledger.message_batch import build_batch_entry
from seglog.ledger.message_position import last_message
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.pulsar_pb.entry_pb2 import MessageMetadata, SingleMessageMetadata
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService

BATCH, VALUE_BYTES = 100, 100
AT = Position(0, 0)
RUNS = 5


def batch_of(number: int, keys: list[str], codec: PayloadCodec, chance: random.Random, value_bytes: int) -> bytes:
    words = [chance.randbytes(7).hex().encode() for _ in range(32)]
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1_700_000_000_000 + number)
    return build_batch_entry(metadata, [
        (SingleMessageMetadata(partition_key=key), b" ".join(chance.choices(words, k=value_bytes // 15)))
        for key in keys
    ], codec)


def run(bench: Bench, directory: Path, count: int, *, with_java: bool) -> None:
    _last_message(bench)
    # With zstd, the compression library takes most of the time on both sides.
    for codec, goal in ((PayloadCodec.LZ4, Goal(3)), (PayloadCodec.ZSTD, Goal())):
        _compaction(bench, directory, count, codec, goal, with_java=with_java)


def _last_message(bench: Bench) -> None:
    case = "last message of a 1 MB batch"
    if not bench.wanted(case):
        return
    chance = random.Random(1)
    old = Entry(batch_of(0, [f"k{n}" for n in range(1000)], PayloadCodec.LZ4, chance, 1000))
    metadata = old.metadata
    metadata.compacted_batch_indexes.append(998)
    new = Entry(build_entry(metadata, old.payload()))
    turns = 500
    bench.compare(
        case, turns / 1e6, "M/s",
        {
            "by the metadata": lambda: [last_message(AT, new) for _ in range(turns)],
            "opened": lambda: [last_message(AT, old) for _ in range(turns)],
        },
        {("by the metadata", "opened"): Goal(100)},
    )


def _compaction(
    bench: Bench, directory: Path, count: int, codec: PayloadCodec, goal: Goal, *, with_java: bool
) -> None:
    case = f"compact a topic, {codec.name.lower()}"
    if not bench.wanted(case) or not with_java:
        return
    chance, batches = random.Random(2), max(count // BATCH, 1)
    path = directory / f"compacted-{codec.name}"
    with ManagedLedger(path, fsync="never") as topic:
        for n in range(batches):
            keys = [f"user-{chance.randrange(max(count // 10, 1))}" for _ in range(BATCH)]
            topic.add_entry(batch_of(n, keys, codec, chance, VALUE_BYTES))
        records = [raw_message(entry.position, entry.data) for entry in topic]

    def make() -> PulsarTopicCompactionService:
        copy = Path(tempfile.mkdtemp(dir=directory)) / "t"
        shutil.copytree(path, copy)
        return PulsarTopicCompactionService(ManagedLedger(copy, fsync="never"))

    def compact(service: PulsarTopicCompactionService) -> None:
        assert service.compact().count.entries_out == told[-1]["entries_out"]

    def drop(service: PulsarTopicCompactionService) -> None:
        service.close()
        service._topic.close()
        shutil.rmtree(service._topic.path.parent)

    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from support.pulsar_oracle import PulsarOracle, write_stream

    write_stream(directory / "in.bin", records)
    told = PulsarOracle().compact(directory / "in.bin", directory / "out.bin", retain=False, runs=RUNS)
    theirs = min(run["cpu_s"] for run in told)
    bench.beside(
        case, batches * BATCH / 1e6, "M msg/s", Fresh(make, compact, drop), "Pulsar 4.2.4", theirs, theirs, goal,
    )
