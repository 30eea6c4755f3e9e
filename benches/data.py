"""Messages and segments to read, made by aiokafka's builders, so that we do not only read our own output."""
import functools
import random
import struct

from aiokafka.record._crecords import DefaultRecordBatchBuilder, LegacyRecordBatchBuilder

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@functools.cache
def messages(count: int, value_bytes: int = 100) -> tuple[list[bytes], list[bytes], list[int]]:
    """Keys (8 B), JSON-like values (zstd compresses them about 2.8 times), timestamps that advance by 0-3 ms."""
    rnd = random.Random(1)
    users = [f"user-{rnd.randrange(20000):05d}" for _ in range(997)]
    keys, values, timestamps = [], [], []
    now = 1_700_000_000_000
    for i in range(count):
        now += rnd.randrange(4)
        keys.append(b"k%07d" % rnd.randrange(1 << 20))
        value = (
            f'{{"id":{i:08d},"u":"{users[i % 997]}","amt":{rnd.randrange(10**7):07d},'
            f'"st":"{("open", "paid", "void")[i % 3]}","h":"{rnd.getrandbits(64):016x}"'
        ).encode()
        value += b',"p":"%x' % rnd.getrandbits(96)
        while len(value) < value_bytes - 2:
            value += b" field=value; lorem ipsum dolor sit amet,"
        values.append((value[: value_bytes - 2] + b'"}')[:value_bytes])
        timestamps.append(now)
    return keys, values, timestamps


@functools.cache
def segment(magic: int, codec: str, batch_bytes: int, count: int, value_bytes: int = 100) -> bytes:
    """The bytes of a .log: `count` records in batches of about `batch_bytes`, numbered from 0 as by a broker."""
    keys, values, timestamps = messages(count, value_bytes)
    out = bytearray()
    i = 0
    while i < count:
        if magic == 2:
            builder = DefaultRecordBatchBuilder(2, CODECS[codec], 0, -1, -1, -1, batch_bytes)
        else:
            builder = LegacyRecordBatchBuilder(magic, CODECS[codec], batch_bytes)
        first = i
        while i < count and builder.append(i - first, timestamps[i], keys[i], values[i], []) is not None:
            i += 1
        batch = bytearray(builder.build())
        if magic == 2:
            struct.pack_into(">q", batch, 0, first)
        elif codec == "none":
            pos, offset = 0, first
            while pos < len(batch):
                struct.pack_into(">q", batch, pos, offset)
                pos += 12 + struct.unpack_from(">i", batch, pos + 8)[0]
                offset += 1
        else:
            struct.pack_into(">q", batch, 0, i - 1)
        out += batch
    return bytes(out)
