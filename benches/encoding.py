"""Building batches from records in memory, including CRCs, beside aiokafka's builder: from lists and Arrow columns."""
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from benches import data, peers
from benches.runner import Bench, Goal
from seglog import build_batch
from seglog.config import LogConfig
from seglog.format.batch import BatchEncoder

# what: records per batch, goals of lists and of columns
CASES = {
    "100 a batch": (100, Goal(3, 5), Goal(2)),
    "10 000 a batch": (10_000, Goal(4, 5), Goal(6, 8)),
}
SHARE = 0.2         # of the records


def each(make: Callable[..., object], batches: list, *arguments: object) -> None:
    """Build the batches one after another, dropping each, as a log does after writing it."""
    for batch in batches:
        make(batch, *arguments)


def one(log: BatchEncoder, records: list, now: int) -> None:
    for key, value, headers, _ in records:
        log.one(now, key, value, headers)


def _matrix(bench: Bench, count: int, log: BatchEncoder, now: int) -> None:
    """100-byte values as rows of a numpy array."""
    matrices = [np.full((10_000, 100), n % 251, "u1") for n in range(max(count // 10_000, 1))]
    records = [[(None, row.tobytes(), (), now) for row in matrix] for matrix in matrices]
    bench.compare(
        "encode 10 000 a batch, matrix", len(matrices) / 100, "M rec/s",
        {
            "seglog": partial(each, log.columns, [{"value": matrix} for matrix in matrices], now),
            "aiokafka": partial(peers.aiokafka_build, records),
        },
        {("seglog", "aiokafka"): Goal(8)},
    )


def run(bench: Bench, count: int) -> None:
    count = int(count * SHARE)
    names = [f"encode {name}, {what}" for name in CASES for what in ("lists", "columns")]
    names += ["encode 10 000 a batch, matrix", "encode 1 a batch", "encode 100 a batch, build_batch"]
    if not any(map(bench.wanted, names)):
        return
    keys, values, timestamps = data.messages(count)
    now = timestamps[-1]
    log = BatchEncoder(LogConfig(max_message_bytes=1 << 30))
    amount = count / 1e6
    for name, (size, list_goal, column_goal) in CASES.items():
        starts = range(0, count, size)
        records = [
            [(keys[i], values[i], (), timestamps[i]) for i in range(start, min(start + size, count))]
            for start in starts
        ]
        columns = [
            pa.record_batch({
                "key": pa.array(keys[start : start + size], pa.binary()),
                "value": pa.array(values[start : start + size], pa.binary()),
                "timestamp": pa.array(timestamps[start : start + size]),
            })
            for start in starts
        ]
        theirs = partial(peers.aiokafka_build, records)
        bench.compare(
            f"encode {name}, lists", amount, "M rec/s",
            {"seglog": partial(each, log.many, records, now), "aiokafka": theirs},
            {("seglog", "aiokafka"): list_goal},
        )
        bench.compare(
            f"encode {name}, columns", amount, "M rec/s",
            {"seglog": partial(each, log.columns, columns, now), "aiokafka": theirs},
            {("seglog", "aiokafka"): column_goal},
        )
    _matrix(bench, count, log, now)
    rows = [(key, value, (), now) for key, value in zip(keys, values, strict=True)]
    bench.compare(
        "encode 1 a batch", amount, "M rec/s",
        {"seglog": partial(one, log, rows, now), "aiokafka": partial(peers.aiokafka_build, [[row] for row in rows])},
        {("seglog", "aiokafka"): Goal(2, 3)},
    )
    hundreds = [rows[start : start + 100] for start in range(0, count, 100)]
    bench.compare(
        "encode 100 a batch, build_batch", amount, "M rec/s",
        {"seglog": partial(each, build_batch, hundreds), "aiokafka": partial(peers.aiokafka_build, hundreds)},
        {("seglog", "aiokafka"): Goal(2.5)},
    )
