"""A log of messages with a time index, as a user of SQLite, lmdb or aiokafka would write it.

Each has the measured ones of `append(records)` as one transaction, batch or write, `get(offset)`, `seek(timestamp)`
(the first offset that is not earlier), `scan()` and `close()`. Records are the same as ours: (key, value, headers,
timestamp), with no key and no headers, so SQLite and lmdb need not store these.
"""
import os
import sqlite3
import struct
from bisect import bisect_left, bisect_right
from pathlib import Path

import lmdb
from aiokafka.record._crecords import DefaultRecordBatch, DefaultRecordBatchBuilder, MemoryRecords

Records = list[tuple[None, bytes, tuple[()], int]]

_MAP_BYTES = 8 << 30
_PAIR = struct.Struct(">QQ")
_KEY = struct.Struct(">Q")


class SqliteLog:
    """A table by sequence number with an index by time, in WAL mode."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._db = db = sqlite3.connect(path / "log.sqlite", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        db.execute("PRAGMA mmap_size=2000000000")
        db.execute("PRAGMA cache_size=-65536")
        db.execute("CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, ts INTEGER NOT NULL, val BLOB NOT NULL)")
        db.execute("CREATE INDEX IF NOT EXISTS log_ts ON log (ts)")
        last = db.execute("SELECT max(seq) FROM log").fetchone()[0]
        self._next = 0 if last is None else last + 1

    def append(self, records: Records) -> None:
        execute = self._db.execute
        execute("BEGIN")
        self._db.executemany(
            "INSERT INTO log VALUES (?, ?, ?)",
            [(seq, timestamp, value) for seq, (_, value, _, timestamp) in enumerate(records, self._next)],
        )
        execute("COMMIT")
        self._next += len(records)

    def close(self) -> None:
        self._db.close()


class LmdbLog:
    """Messages by sequence number in one tree, (time, sequence number) in another."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._env = lmdb.open(str(path), map_size=_MAP_BYTES, max_dbs=2, sync=durable, metasync=durable)
        self._messages = self._env.open_db(b"messages")
        self._times = self._env.open_db(b"times")
        with self._env.begin() as transaction:
            cursor = transaction.cursor(self._messages)
            self._next = _KEY.unpack(cursor.key())[0] + 1 if cursor.last() else 0

    def append(self, records: Records) -> None:
        key, pair, first = _KEY.pack, _PAIR.pack, self._next
        with self._env.begin(write=True) as transaction:
            if len(records) == 1:
                _, value, _, timestamp = records[0]
                transaction.put(key(first), value, append=True, db=self._messages)
                transaction.put(pair(timestamp, first), b"", append=True, db=self._times)
            else:
                transaction.cursor(self._messages).putmulti(
                    [(key(seq), value) for seq, (_, value, _, _) in enumerate(records, first)], append=True)
                transaction.cursor(self._times).putmulti(
                    [(pair(timestamp, seq), b"") for seq, (_, _, _, timestamp) in enumerate(records, first)],
                    append=True)
        self._next = first + len(records)

    def get(self, offset: int) -> bytes:
        with self._env.begin() as transaction:
            return transaction.get(_KEY.pack(offset), db=self._messages)

    def seek(self, timestamp: int) -> int:
        with self._env.begin() as transaction:
            cursor = transaction.cursor(self._times)
            cursor.set_range(_KEY.pack(timestamp))
            return _PAIR.unpack(cursor.key())[1]

    def scan(self) -> int:
        n = 0
        with self._env.begin() as transaction:
            for _key, _value in transaction.cursor(self._messages):
                n += 1
        return n

    def close(self) -> None:
        self._env.close()


class AiokafkaLog:
    """Batches from aiokafka's builder, written to a file; lists hold their positions."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._durable = durable
        self._fd = os.open(path / "00000000000000000000.log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._next = self._size = 0
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._timestamps: list[int] = []

    def append(self, records: Records) -> None:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        append = builder.append
        for i, (key, value, _, timestamp) in enumerate(records):
            append(i, timestamp, key, value, [])
        batch = builder.build()
        struct.pack_into(">q", batch, 0, self._next)
        self._offsets.append(self._next)
        self._positions.append(self._size)
        self._timestamps.append(records[-1][3])
        self._next += len(records)
        self._size += len(batch)
        os.write(self._fd, batch)
        if self._durable:
            os.fdatasync(self._fd)

    def _batch(self, slot: int) -> DefaultRecordBatch:
        begin = self._positions[slot]
        end = self._positions[slot + 1] if slot + 1 < len(self._positions) else self._size
        return DefaultRecordBatch(os.pread(self._fd, end - begin, begin))

    def get(self, offset: int) -> bytes:
        for record in self._batch(bisect_right(self._offsets, offset) - 1):
            if record.offset == offset:
                return record.value
        raise KeyError(offset)

    def seek(self, timestamp: int) -> int:
        for record in self._batch(bisect_left(self._timestamps, timestamp)):
            if record.timestamp >= timestamp:
                return record.offset
        raise KeyError(timestamp)

    def scan(self) -> int:
        n = 0
        records = MemoryRecords(os.pread(self._fd, self._size, 0))
        while (batch := records.next_batch()) is not None:
            for _ in batch:
                n += 1
        return n

    def close(self) -> None:
        os.close(self._fd)
