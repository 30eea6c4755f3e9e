"""A topic as years of upgrades leave it: segments of v0, v1 and v2 in every codec, compacted, with transactions.

What its records are is known here, and not read back from anything.
"""
import base64
import random
from dataclasses import dataclass, field
from pathlib import Path

from seglog.format.batch import build_batch, end_marker
from seglog.format.names import file_name

CODECS = {0: ("none", "gzip", "snappy", "lz4"), 1: ("none", "gzip", "snappy", "lz4"),
          2: ("none", "gzip", "snappy", "lz4", "zstd")}
TIME_MS = 1_700_000_000_000


@dataclass
class MixedPartition:
    """`records` are rows as a consumer gets them, `committed` those that a reader of committed data gets."""

    records: list[dict] = field(default_factory=list)
    committed: list[dict] = field(default_factory=list)


def write_mixed_topic(log_dir: Path, topic: str, partitions=4, segments=12, batches=6, seed=1):
    """Write the partitions; {directory name: MixedPartition}."""
    made = {}
    for partition in range(partitions):
        name = f"{topic}-{partition}"
        (log_dir / name).mkdir(parents=True)
        made[name] = _write_partition(log_dir / name, random.Random(f"{seed} {name}"), segments, batches)
    return made


def _write_partition(directory, chance, segments, batches):
    made = MixedPartition()
    offset, sequences = 0, {}
    for segment in range(segments):
        magic = 3 * segment // segments
        log = b""
        base_offset = offset
        for _ in range(batches):
            if magic == 2 and chance.random() < 0.4:
                raw, offset = _transaction(made, chance, offset, sequences, 3 + segment // 4)
            else:
                rows = _rows(chance, magic, offset, chance.randrange(1, 9))
                raw = build_batch(
                    [_as_built(row, magic) for row in rows], magic=magic, codec=chance.choice(CODECS[magic]),
                    base_offset=offset, **({"leader_epoch": 3 + segment // 4} if magic == 2 else {}),
                )
                _keep(made, rows)
                offset += len(rows)
            # Compaction took some batches away; not the first one of a segment.
            log += raw
            offset += chance.choice((0, 0, 0, 1, 17))
        (directory / file_name(base_offset, ".log")).write_bytes(log)
    return made


def _transaction(made, chance, offset, sequences, epoch):
    producer_id = chance.randrange(100, 104)
    rows = _rows(chance, 2, offset, chance.randrange(1, 6))
    sequence = sequences.get(producer_id, 0)
    sequences[producer_id] = sequence + len(rows)
    common = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True, "leader_epoch": epoch}
    raw = build_batch(
        [_as_built(row, 2) for row in rows], codec=chance.choice(CODECS[2]), base_offset=offset, base_sequence=sequence,
        **common,
    )
    offset += len(rows)
    commits = chance.random() < 0.6
    raw += build_batch([end_marker(commits, 0)], base_offset=offset, timestamp=TIME_MS, control=True, **common)
    made.records += map(_as_consumed, rows)
    if commits:
        made.committed += map(_as_consumed, rows)
    return raw, offset + 1


def _rows(chance, magic, offset, count):
    rows = []
    for n in range(count):
        key = None if chance.random() < 0.1 else b"k-%d" % chance.randrange(50)
        value = None if chance.random() < 0.1 else b"v-%d " % (offset + n) * chance.randrange(1, 40)
        headers = [("trace", b"%d" % n), ("trace", None)][: chance.randrange(3)] if magic == 2 else []
        time = -1 if magic == 0 else TIME_MS + 1000 * offset + n
        rows.append({"offset": offset + n, "timestamp": time, "key": key, "value": value, "headers": headers})
    return rows


def _as_built(row, magic):
    return row["key"], row["value"], row["headers"], None if magic == 0 else row["timestamp"]


def _keep(made, rows):
    made.records += map(_as_consumed, rows)
    made.committed += map(_as_consumed, rows)


def _as_consumed(row):
    """As golden expected.jsonl has it."""
    def text(data):
        return None if data is None else base64.b64encode(data).decode()

    return {
        "offset": row["offset"], "timestamp": row["timestamp"], "key": text(row["key"]), "value": text(row["value"]),
        "headers": [[key, text(value)] for key, value in row["headers"]],
    }
