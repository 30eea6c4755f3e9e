"""Ledgers beside the log, entries beside protobuf: add, read, seek, strip, columns; and the size of a ledger's file."""
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import seglog
from benches.runner import Bench, Fresh, Goal
from seglog._kernels.entry_columns import metadata_columns
from seglog._kernels.entry_frame import strip
from seglog.clock import ManualClock
from seglog.ledger.entry import Entry, build_entry
from seglog.ledger.stored_entry import StoredEntry
from seglog.pulsar_pb.entry_pb2 import BrokerEntryMetadata, MessageMetadata

ENTRY_BYTES = 1024
BATCH = 1000
NOW_MS = 1_700_000_000_000
LOG = {"max.message.bytes": "64MiB"}
TOPIC = {"managedLedgerMaxEntriesPerLedger": 10**9}
BOTH = TOPIC | {"brokerEntryMetadataInterceptors": "timestamp,index"}
SEEKS = 200


def entries_of(count: int) -> list[bytes]:
    """Entries as a producer sends them: 1 KB, properties, a key, a checksum."""
    chance = random.Random(3)
    made = []
    for n in range(count):
        metadata = MessageMetadata(
            producer_name="producer-7", sequence_id=n, publish_time=NOW_MS + n, partition_key=f"user-{n % 997}",
            uncompressed_size=900,
        )
        for name in ("region", "source", "trace"):
            metadata.properties.add(key=name, value=f"{name}-{n % 31}")
        made.append(build_entry(metadata, chance.randbytes(ENTRY_BYTES - metadata.ByteSize() - 10)))
    return made


def fresh_in(open_at: Callable[[Path], object], work: Callable[[object], object]) -> Fresh:
    """A contender that opens something in a new directory for each round."""
    made = {}

    def make() -> object:
        directory = tempfile.mkdtemp()
        thing = open_at(Path(directory, "orders-0"))
        made[id(thing)] = directory
        return thing

    def drop(thing: object) -> None:
        thing.close()   # type: ignore[attr-defined]
        shutil.rmtree(made.pop(id(thing)))

    return Fresh(make, work, drop)


def full_parse(entry: StoredEntry) -> int:
    """As before PIP-70: deserialize the message to read its publish time."""
    return entry.entry.metadata.publish_time


def protobuf_rows(stored: list[bytes]) -> list[tuple[object, ...]]:
    """The fields of metadata_columns, read with protobuf."""
    rows = []
    for data in stored:
        entry = Entry(data)
        broker = BrokerEntryMetadata.FromString(bytes(entry.broker_bytes()))
        m = MessageMetadata.FromString(bytes(entry.metadata_bytes()))
        rows.append((
            broker.broker_timestamp, broker.index, m.publish_time, m.sequence_id, m.deliver_at_time,
            m.uncompressed_size, m.num_messages_in_batch, m.compression, bool(m.encryption_keys), m.partition_key,
            list(m.compacted_batch_indexes),
        ))
    return rows


def rebuild(data: bytes) -> bytes:
    """The entry without its broker's part, parsed and built again."""
    entry = Entry(data)
    return build_entry(entry.metadata, entry.payload())


def run(bench: Bench, directory: Path, records: int) -> None:
    count = max(min(records // 20, 50_000) // BATCH, 1) * BATCH
    entries = entries_of(count)
    _adding(bench, entries)
    clock = ManualClock(NOW_MS)
    with ExitStack() as stack:
        topic = stack.enter_context(
            seglog.pulsar.ManagedLedger(directory / "topic", config=BOTH, fsync="never", clock=clock)
        )
        log = stack.enter_context(seglog.open(directory / "peer-0", fsync="never", config=LOG))
        for n in range(0, count, BATCH):
            clock.advance(BATCH)
            topic.add_entries(entries[n : n + BATCH])
            log.append_many([(None, entry) for entry in entries[n : n + BATCH]])
        _reading(bench, topic, log, count)
        _seeking(bench, topic, count)
        stored = [bytes(entry.data) for entry in topic.read_entries(seglog.pulsar.Position(0, 0), 5 * BATCH)]
    if bench.wanted("ledger file, 1 KB entries"):
        with seglog.pulsar.Ledger.create(directory / "ledger-1", 1, fsync="never") as ledger:
            for entry in entries[:BATCH]:
                ledger.add(entry)
            taken = ledger.length_bytes / sum(map(len, entries[:BATCH]))
        bench.limit("ledger file, 1 KB entries", "bytes/byte", "added one by one", taken, 1.12)
    bench.compare(
        "entry strip", len(stored) / 1e6, "M/s",
        {
            "strip": lambda: [strip(data) for data in stored],
            "parse and rebuild": lambda: [rebuild(data) for data in stored],
        },
        {("strip", "parse and rebuild"): Goal(20)},
    )
    bench.compare(
        "entry metadata columns", len(stored) / 1e6, "M/s",
        {"columns": lambda: metadata_columns(stored), "protobuf": lambda: protobuf_rows(stored)},
        {("columns", "protobuf"): Goal(8)},
    )


def _adding(bench: Bench, entries: list[bytes]) -> None:
    batches = [entries[n : n + BATCH] for n in range(0, len(entries), BATCH)]
    records = [[(None, entry) for entry in batch] for batch in batches]

    def log_at(path: Path) -> seglog.Log:
        return seglog.open(path, fsync="never", config=LOG)

    def topic_at(path: Path, config: dict[str, object]) -> seglog.pulsar.ManagedLedger:
        topic = seglog.pulsar.ManagedLedger(path, config=config, fsync="never")
        topic.add_entry(entries[0])     # creates its first ledger, as opening creates the log's segment
        return topic

    peer = fresh_in(log_at, lambda log: [log.append_many(batch) for batch in records])
    cases = {
        "ledger add, a batch of 1000": fresh_in(
            lambda path: seglog.pulsar.Ledger.create(path, 1, fsync="never"),
            lambda ledger: [ledger.add_many(batch) for batch in batches],
        ),
        "managed ledger add, of 1000": fresh_in(
            lambda path: topic_at(path, TOPIC),
            lambda topic: [topic.add_entries(batch) for batch in batches],
        ),
        "the same with time and index": fresh_in(
            lambda path: topic_at(path, BOTH),
            lambda topic: [topic.add_entries(batch) for batch in batches],
        ),
    }
    for case, ours in cases.items():
        contenders = {"seglog": ours, "Log.append_many": peer}
        bench.compare(case, len(entries) / 1e6, "M/s", contenders, {("seglog", "Log.append_many"): Goal(0.7)})


def _reading(bench: Bench, topic: seglog.pulsar.ManagedLedger, log: seglog.Log, count: int) -> None:
    chance = random.Random(5)
    numbers = [chance.randrange(count) for _ in range(min(count, 20_000))]
    positions = [seglog.pulsar.Position(0, n) for n in numbers]
    read = topic.read
    bench.compare(
        "managed ledger read one", len(numbers) / 1e6, "M/s",
        {"seglog": lambda: [read(at) for at in positions], "log[offset]": lambda: [log[n] for n in numbers]},
        {("seglog", "log[offset]"): Goal(0.7)},
    )


def _seeking(bench: Bench, topic: seglog.pulsar.ManagedLedger, count: int) -> None:
    chance = random.Random(6)
    times = [NOW_MS + chance.randrange(count) for _ in range(SEEKS)]

    def by_full_parse() -> None:
        for time in times:
            topic.find_newest_matching(lambda entry, time=time: full_parse(entry) < time)

    bench.compare(
        "seek by broker time", SEEKS / 1e6, "M/s",
        {
            "by broker time": lambda: [topic.position_at_time(time) for time in times],
            "through full parse": by_full_parse,
        },
        {("by broker time", "through full parse"): Goal(5)},
    )
