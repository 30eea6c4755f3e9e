"""Four threads that use one object at the same time, as its documentation says they must not.

    python shared_objects.py CASE SECONDS

Prints what was raised, as JSON {"words": how often}. The interpreter switches threads wherever it can; what must not
happen is that it ends.
"""
import faulthandler
import json
import random
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from pathlib import Path

from pyroaring import BitMap

import seglog
from seglog._kernels.arena import ArenaPool
from seglog._kernels.avro_column import AvroColumn, AvroLayout, AvroProgram, Instruction, NodeKind
from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog._kernels.batch_encode import encode_records
from seglog._kernels.batch_filter import BatchFilter
from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.batch_pieces import BatchPieces
from seglog._kernels.columns import chunks
from seglog._kernels.due_rows import DueRows
from seglog._kernels.due_runs import DueRuns
from seglog._kernels.entry_batch import EntryBatch
from seglog._kernels.growing_batch import GrowingBatch
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.key_map import KeyMap
from seglog._kernels.message_packer import MessagePacker
from seglog._kernels.pending_set import PendingSet
from seglog._kernels.position_union import PositionUnion
from seglog._kernels.producer_table import ProducerTable
from seglog._kernels.segment_scan import BatchFinder, scan
from seglog._kernels.snapshot_encode import SegmentEncoder
from seglog._kernels.snapshot_metadata import MetadataReader
from seglog._kernels.time_ranges import TimeRangesBuilder
from seglog._kernels.topic_rows import RowLayout, topic_rows
from seglog._kernels.window import Window
from seglog.format.compression import compress, decompressor
from seglog.fs.mapping import Advice, Mapping

THREADS = 4


def slow_compress(codec, payload):
    first = bytes(payload)
    time.sleep(0)
    return compress(codec, 2, first if bytes(payload) == first else b"changed meanwhile")


class SlowHeaders:
    """Headers of a record, given one by one, with room for other threads between them."""

    def __iter__(self):
        for number in range(20):
            time.sleep(0)
            yield f"header {number}", bytes(random.randrange(200))


class SlowInt(int):
    def __index__(self):
        time.sleep(0)
        return int(self)

    __int__ = __index__


def batches(codec, count=40, records=500, base=0):
    """v2 batches of different sizes."""
    made = []
    for _ in range(count):
        rows = [(b"k%d" % n, bytes([n % 251]) * random.randrange(200)) for n in range(random.randrange(1, records))]
        made.append(bytes(encode_records(rows, base, 5, codec=codec, compress=lambda c, p: compress(c, 2, p))))
        base += len(rows)
    return b"".join(made)


def table_of(codec, **options):
    return scan(Window(batches(codec, **options)), decompress=decompressor())


class Shared:
    """An object that is made anew when it has come to its end."""

    def __init__(self, make):
        self.make, self.it = make, make()

    def use(self):
        it = self.it
        try:
            next(it)
        except StopIteration:
            self.it = self.make()


def opened_log(codec):
    log = seglog.open(Path(tempfile.mkdtemp()) / "t-0", config={"compression.type": codec}, fsync="never")
    for _ in range(40):
        log.append_many([(b"key %d" % n, bytes([n % 251]) * 50) for n in range(500)])
    return log


def read_of_log(codec):
    return [Shared(opened_log(codec).read).use]


def records_of_table(codec):
    return [Shared(table_of(codec).records).use]


def iterator_of_batch():
    batch = table_of(1, count=1, records=100)[0]
    return [Shared(batch.__iter__).use]


def column_chunks():
    table, pool = table_of(1), ArenaPool(64 << 10)
    return [Shared(lambda: chunks(table, pool)).use]


def rows_of_topic():
    table, pool, layout = table_of(1), ArenaPool(64 << 10), RowLayout(["key", "timestampType", "offset"], "t", 0)
    return [Shared(lambda: topic_rows(table, pool, layout, low_ms=1)).use]


def columns_of_log():
    return [Shared(opened_log("gzip").columns).use]


def finder():
    window = Window(b"\1" * 20_000 + batches(0, count=1))
    found = BatchFinder(window)
    return [lambda: found.find(0), lambda: found.find(10)]


def packer_of(packer, table, *, release=True):
    def add():
        start = random.randrange(len(table))
        packer.add(table, start, min(start + 5, len(table)))

    return [add, add, packer.finish, lambda: packer.take().release()]


def batch_packer():
    packer = BatchPacker(codec=1, compress=slow_compress, repack_bytes=1 << 20)
    return packer_of(packer, table_of(1))


def message_packer():
    return packer_of(MessagePacker(1, codec=1, compress=slow_compress, repack_bytes=1 << 16), table_of(0))


def map_of_keys():
    table, packed, keys = table_of(0, count=10), table_of(1, count=10), KeyMap(64 << 20)
    filter_ = BatchFilter(keys, latest_offset=1 << 40, now_ms=1, delete_retention_ms=1, decompress=decompressor(),
                          compress=compress)
    second = BatchFilter(keys, latest_offset=1 << 40, now_ms=1, delete_retention_ms=1)

    def put():
        for _ in range(100):
            keys.put(random.randbytes(8), 5)

    return [
        lambda: keys.add_batches(packed), lambda: filter_.add(table, 0, len(table)),
        lambda: second.add(table, 0, len(table)), lambda: filter_.take().release(), put, put,
        lambda: second.take().release(), lambda: keys.get(b"k1"),
    ]


def batch_pieces():
    pieces = BatchPieces(table_of(1, count=1, records=5_000), 0)
    counts = (2, 3, 7)
    return [
        lambda: pieces.route(random.choice(counts), 0),
        lambda: pieces.piece(0, random.randrange(100), slow_compress),
        lambda: pieces.piece(1, random.randrange(100), slow_compress),
    ]


def index_builder():
    table, builder = table_of(0, count=2_000, records=2), IndexBuilder(0, 0)
    return [
        lambda: builder.add(table, 0, len(table), 0), builder.take_offset_entries, builder.take_time_entries,
        lambda: builder.add_one(1 << 20, 5, 100),
    ]


def time_ranges():
    table, builder = table_of(1), TimeRangesBuilder(0, 100)
    return [lambda: builder.add(table, decompressor()), builder.finish]


def growing_batch():
    batch = GrowingBatch(64 << 20, 1, slow_compress, False)
    plain = GrowingBatch(64 << 20, 0, None, False)
    return [
        *3 * [lambda: batch.add(b"k", bytes(random.randrange(5_000)), (), 5)], lambda: batch.take(0, 5),
        *3 * [lambda: plain.add(b"k", bytes(random.randrange(500_000)), (), 5)], lambda: plain.take(0, 5),
        lambda: plain.add(b"k", None, SlowHeaders(), 5),
    ]


def entry_batch():
    batch = EntryBatch()
    return [
        lambda: batch.add([bytes(100_000)], [SlowInt(5)]), lambda: batch.add(3 * [bytes(100)], 3 * [SlowInt(5)]),
        lambda: batch.take(0),
    ]


def builders():
    shared = [BatchBuilder(0), MessageSetBuilder(1)]

    def append():
        shared[0].append(shared[0].count, 5, b"k", b"v", SlowHeaders())

    def finish():
        builder, shared[0] = shared[0], BatchBuilder(0)
        builder.finish()

    return [append, append, append, finish, lambda: shared[0].payload(), lambda: shared[1].payload(),
            lambda: shared[1].append(shared[1].count, 5, b"k", bytes(1_000))]


def random_rows(n):
    rows = DueRows()
    for _ in range(n):
        rows.append(random.randrange(10**6), random.randrange(50), random.randrange(10**6))
    return rows


def avro_column():
    layout = AvroLayout([(NodeKind.STRUCT_NODE, 0, 2), (NodeKind.FIXED_NODE, 8, 0), (NodeKind.VAR_NODE, 0, 0)])
    program = AvroProgram(
        layout, [Instruction.LONG, 1, Instruction.STRING, 2, Instruction.RECORD, 0, 2, 0, 2], b"")
    values = b"".join(b"\x0a\x04%02d" % (n % 100) for n in range(20_000))
    ends, shared, kept = array("i", range(0, 4 * 20_001, 4)), [AvroColumn(layout)], []

    def renew():
        shared[0] = AvroColumn(layout)

    def take():
        kept[:] = shared[0].buffers()
        renew()

    def decode():
        if len(shared[0]) > 200_000:
            renew()
        shared[0].decode(ends, values, None, 0, 0, 20_000, schema_id=7)

    return [lambda: shared[0].add(7, program), decode, decode, decode, decode, take, renew]


def due_rows():
    shared, pending = [random_rows(30_000)], PendingSet(BitMap)
    encoder, union, runs = SegmentEncoder(1_000, 100), PositionUnion(), DueRuns()

    def renew():
        shared[0] = random_rows(3_000)

    def sort_and_encode():
        rows = random_rows(3_000)
        rows.sort()
        encoder.encode(rows, 0, True)

    def append():
        for _ in range(50):
            shared[0].append(1, 1, 1)

    return [
        lambda: shared[0].sort(), lambda: shared[0].encode(0, len(shared[0])), append, append,
        lambda: shared[0].extend(random_rows(1_000)), lambda: shared[0].drop(min(len(shared[0]), 100)),
        lambda: shared[0].entries_by_ledger(0, len(shared[0])), lambda: union.add_rows(shared[0]), union.bitmaps,
        lambda: runs.add_run(0, shared[0]), renew, sort_and_encode, lambda: pending.keep_pending(shared[0], {}),
        runs.clear, lambda: list(shared[0]),
    ]


def due_runs():
    runs, pending = DueRuns(), {0: PendingSet(BitMap), 1: PendingSet(BitMap)}
    n = 20_000

    def columns():
        return (array("q", [random.randrange(10**6) for _ in range(n)]), array("q", [7] * n),
                array("q", sorted(random.sample(range(10**8), n))))

    made = [columns() for _ in range(4)]

    def push():
        for _ in range(200):
            runs.push_new(random.randrange(10**6), 1, random.randrange(10**8), pending[0])

    return [
        lambda: runs.push_range(*random.choice(made), 0, n),
        lambda: runs.push_neighbours(*random.choice(made), 0, -1, n, pending[0]),
        push, push, lambda: runs.pop(random.randrange(10**6), 1_000, pending, {}), lambda: runs.take(5_000),
        lambda: runs.has_due(10**5, pending, {}), lambda: runs.rows_of(0), lambda: runs.hand_over(0, 1),
        lambda: runs.drop_owner(1), lambda: runs.rows_between(0, 10**6, pending, {}),
        lambda: runs.hand_over_due(0, 1, 10**5, pending), runs.clear, runs.next_at,
    ]


def snapshot_metadata():
    rows = random_rows(20_000)
    rows.sort()
    encoded, _ = SegmentEncoder(1_000, 100).encode(rows, 0, True)
    entry = b"".join(part for _, part, _, _ in encoded)
    shared = [MetadataReader(), PositionUnion()]

    def renew():
        shared[:] = MetadataReader(), PositionUnion()

    return [lambda: shared[0].unite(Window(entry), shared[1], -1), lambda: shared[0].describe(Window(entry)), renew,
            lambda: shared[1].bitmaps()]


def file_map():
    path = Path(tempfile.mkdtemp()) / "bytes"
    path.write_bytes(bytes(8 << 20))
    shared = [Mapping(path)]

    def renew():
        mapped, shared[0] = shared[0], Mapping(path)
        mapped.close()

    def advise():
        shared[0].advise(Advice.DONT_NEED)

    def check():
        memory = bytearray(b"x" * (8 << 20))        # lies where a map was
        time.sleep(0)
        assert memory.count(b"x") == len(memory)

    return [renew, renew, advise, advise, check, lambda: memoryview(shared[0])[100:200].tobytes()]


def producer_table():
    table = ProducerTable()

    def put():
        for _ in range(100):
            table.put(random.randrange(5_000), 0, 0, 0, 0, random.randrange(1_000), 0, random.choice([-1, 5]))

    return [put, put, table.open_transactions, lambda: table.expire(500, 1_000), lambda: table.freeze().encode(),
            lambda: table.freeze().rows()]


def log_itself():
    log = opened_log("none")
    return [
        lambda: log.append(b"v"), lambda: log.append_many([(None, b"v")] * 10),
        lambda: list(log.read(log.log_end_offset - 50)),
        lambda: log[random.randrange(100)], log.flush, lambda: log.find_offset(500),
        lambda: log.offset_for_time(random.randrange(10**12, 2 * 10**12)),
    ]


CASES = {
    **{f"read-{codec}": lambda codec=codec: read_of_log(codec) for codec in ("gzip", "lz4", "zstd", "snappy")},
    "records-none": lambda: records_of_table(0),
    "records-gzip": lambda: records_of_table(1),
    **{made.__name__: made for made in (
        iterator_of_batch, column_chunks, rows_of_topic, columns_of_log, finder, batch_packer, message_packer,
        map_of_keys, batch_pieces, index_builder, time_ranges, growing_batch, entry_batch, builders, due_rows, due_runs,
        avro_column, snapshot_metadata, file_map, producer_table, log_itself,
    )},
}


def main(case, seconds):
    faulthandler.enable()
    sys.setswitchinterval(1e-6)
    actions = CASES[case]()
    raised, ends = Counter(), time.monotonic() + seconds

    def work(seed):
        choose = random.Random(seed).choice
        while time.monotonic() < ends:
            try:
                choose(actions)()
            except Exception as error:      # counted by its words
                raised[f"{type(error).__name__}: {error}"] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(raised))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
