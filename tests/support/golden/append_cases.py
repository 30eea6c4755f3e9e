"""Encoded batches for an append, good ones and bad ones, each with the settings of the log it is meant for."""
import random
from dataclasses import dataclass, field

from seglog.format.compression import Codec, compress
from support import plain_format as plain
from support.mutations import mend_checksums, mutate

NOW = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass
class Case:
    raw: bytes
    settings: dict = field(default_factory=dict)
    first_offset: int = 0
    leader_epoch: int = 0
    is_coordinator: bool = False


def make_case(number):
    rng = random.Random(number)
    raw = _v2(rng) if rng.random() < 0.5 else _legacy(rng, rng.randrange(2))
    if rng.random() < 0.15:
        raw = mend_checksums(mutate(rng, raw))
    elif rng.random() < 0.03:
        raw = mutate(rng, raw)
    settings = {
        "compression.type": "producer" if rng.random() < 0.6 else rng.choice(CODECS),
        "message.timestamp.type": "LogAppendTime" if rng.random() < 0.25 else "CreateTime",
        "cleanup.policy": "compact" if rng.random() < 0.2 else "delete",
        "max.message.bytes": 200 if rng.random() < 0.05 else 1 << 20,
    }
    if rng.random() < 0.3:
        settings["message.timestamp.before.max.ms"] = 1000
        settings["message.timestamp.after.max.ms"] = 500
    return Case(raw, settings, rng.randrange(10**6), rng.randrange(50), rng.random() < 0.15)


def _timestamps(rng, n):
    style = rng.random()
    if style < 0.1:
        return [-1] * n
    spread = 800 if style < 0.8 else 3000
    return [-1 if rng.random() < 0.05 else NOW + rng.randint(-spread, min(spread, 400)) for _ in range(n)]


def _key(rng):
    return None if rng.random() < 0.05 else rng.choice([b"", b"k", b"key %d" % rng.randrange(99)])


def _value(rng):
    return None if rng.random() < 0.1 else rng.randbytes(rng.choice([0, 3, 70])) * rng.randint(1, 4)


def _order(rng, n):
    """Relative offsets: from 0 on, or not quite."""
    offsets = list(range(n))
    style = rng.random()
    if style < 0.06:
        return sorted(rng.sample(range(3 * n), n))
    if style < 0.1:
        rng.shuffle(offsets)
    return offsets


def _v2(rng):
    n = rng.choice([1, 1, 2, 3, 9])
    codec = rng.randrange(5) if rng.random() < 0.6 else 0
    timestamps, deltas = _timestamps(rng, n), _order(rng, n)
    base = timestamps[0] if rng.random() < 0.9 else NOW
    payload = b"".join(
        plain.record_v2(
            delta, timestamp - base, _key(rng), _value(rng), [(b"h", b"x"), (b"", None)][: rng.choice([0, 0, 1, 2])]
        )
        for delta, timestamp in zip(deltas, timestamps, strict=True)
    )
    if rng.random() < 0.02:
        payload += b"\0"
    header = {"count": n, "base_timestamp": base, "max_timestamp": max(timestamps)}
    if rng.random() < 0.1:
        header["max_timestamp"] += rng.choice([-5, 5, 10**6])
    if rng.random() < 0.04:
        header["count"] += rng.choice([-1, 1])
    if rng.random() < 0.04:
        header["last_offset_delta"] = n + rng.choice([-2, 0, 5])
    attributes = codec
    if rng.random() < 0.35:
        header |= {"producer_id": 7, "producer_epoch": 1, "base_sequence": rng.choice([0, 5, 2**31 - 1, -1])}
        attributes |= rng.choice([0, plain.TRANSACTIONAL])
    for bit in (plain.CONTROL, plain.LOG_APPEND_TIME, plain.DELETE_HORIZON, 0x80, 0x100, 7):
        if rng.random() < 0.02:
            attributes |= bit
    stored = bytes(compress(codec, 2, payload)) if codec else payload
    batch = plain.batch_v2(stored, attributes=attributes, leader_epoch=rng.choice([-1, 3]), **header)
    return batch * 2 if rng.random() < 0.03 else batch


def _legacy(rng, magic):
    n = rng.choice([1, 2, 3, 9])
    timestamps = _timestamps(rng, n)
    codec = rng.choice([Codec.GZIP, Codec.SNAPPY, Codec.LZ4]) if rng.random() < 0.6 else Codec.NONE
    order = _order(rng, n) if codec else range(n)
    made = [
        plain.message(offset, _key(rng), _value(rng), magic=magic, timestamp=timestamp)
        for offset, timestamp in zip(order, timestamps, strict=True)
    ]
    if rng.random() < 0.02:
        made[-1] = plain.message(n - 1, b"k", magic=1 - magic, timestamp=NOW)
    if rng.random() < 0.02:
        made[0] = made[0][:-1] + bytes([made[0][-1] ^ 1])
    if not codec:
        return b"".join(made)
    offset = max(order) if rng.random() < 0.8 else rng.choice([0, n - 1])
    attributes = codec | (plain.LOG_APPEND_TIME if magic and rng.random() < 0.03 else 0)
    timestamp = max(timestamps) if rng.random() < 0.8 else NOW - 3
    value = bytes(compress(codec, magic, b"".join(made)))
    wrapped = plain.message(offset, None, value, magic=magic, timestamp=timestamp, attributes=attributes)
    return wrapped * 2 if rng.random() < 0.03 else wrapped
