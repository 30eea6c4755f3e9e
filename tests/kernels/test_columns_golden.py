"""What real Kafka wrote, as columns, against what real Kafka read: every golden directory, in chunks and at once."""
import base64
import gzip
import hashlib
import json
from itertools import pairwise

from seglog._kernels.arena import ArenaPool
from seglog._kernels.canonical import update_digest
from seglog._kernels.columns import chunks, decode
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format.compression import decompressor
from support.columns import rows_of
from support.golden import golden_cases

# Longer values are given as size and digest.
MAX_VALUE_BYTES = 4096


def text(field):
    return None if field is None else base64.b64encode(field).decode()


def line_of(row):
    offset, timestamp, key, value, headers = row
    line = {"offset": offset, "timestamp": timestamp, "key": text(key)}
    line["headers"] = [[name, text(field)] for name, field in headers]
    if value is not None and len(value) > MAX_VALUE_BYTES:
        return line | {"value_size": len(value), "value_sha256": hashlib.sha256(value).hexdigest()}
    return line | {"value": text(value)}


def tables(partition):
    for log in sorted(partition.glob("*.log")):
        yield scan(Window(log.read_bytes(), log.name), decompress=decompressor())


def digest(columns):
    hasher = hashlib.sha256()
    for each in columns:
        update_digest(each, hasher)
    return hasher.hexdigest()


def test_every_golden_record_reads_as_kafka_read_it(golden_kafka):
    pool = ArenaPool()
    cases = records = 0
    for answers in sorted(golden_kafka.rglob("expected.jsonl.gz")):
        [partition] = answers.parent.glob("*-0")
        with gzip.open(answers, "rt") as lines:
            expected = [json.loads(line) for line in lines]
        found = [line_of(row) for t in tables(partition) for c in chunks(t, pool, 5000) for row in rows_of(c)]
        assert found == [{name: e[name] for name in f} for f, e in zip(found, expected, strict=True)], partition
        cases += 1
        records += len(found)
    assert cases > 129
    assert records > 19_000
    assert pool.used_bytes == 0


def test_chunks_of_every_size_make_the_same_stream():
    pool = ArenaPool()
    for case in golden_cases()[::6]:
        for table in tables(case / f"{case.name}-0"):
            whole = decode(table, 0, len(table), pool)
            sizes = [1, 700, 1 << 20]
            found = {digest(chunks(table, pool, size)) for size in sizes}
            assert found == {digest([whole])}
            assert all(a < b for a, b in pairwise(whole.offset))


def test_control_batches_left_out_leave_the_data(golden_kafka):
    left_out = 0
    for case in golden_cases():
        if not case.name.startswith(("txn-", "compact-v2-mixed")):
            continue
        for table in tables(case / f"{case.name}-0"):
            data = [row for batch in table if not batch.is_control for row in batch]
            columns = decode(table, 0, len(table), ArenaPool(), include_control=False)
            assert list(columns.offset) == [record.offset for record in data]
            left_out += sum(batch.count for batch in table if batch.is_control)
    assert left_out > 10


def test_kafkas_own_conversion_to_v2_changes_no_digest(golden_kafka):
    # MemoryRecords.filterTo of 4.1.1: the same records in another format, so the same stream.
    pool = ArenaPool()
    pairs = sorted((golden_kafka / "convert/up-at-rest").iterdir())
    assert len(pairs) == 72
    for pair in pairs:
        before, after = (
            digest(chunks(scan(Window((pair / name).read_bytes()), decompress=decompressor()), pool))
            for name in ("input.log", "output.log")
        )
        assert before == after, pair.name
