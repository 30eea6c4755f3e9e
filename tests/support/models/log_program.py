"""Random programs of everything that a log can do, each step compared with a plain model (support.log_model).

    Program(seed, directory).run(200)

The same seed makes the same program. A failure carries the steps up to it.

Crashes are of two kinds. A killed process: the directory as it is, opened by somebody else. A lost tail: of
what was not synced the end is missing, torn anywhere, and the index files end as they like.
"""
import os
import random
import shutil

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    InvalidProducerEpochError,
    NoRecordError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
)
from seglog.format.batch import end_marker
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment
from seglog.state.clean_marks import PARTITION_MARK
from support.columns import columns_of
from support.descriptors import rest
from support.log_model import ABORTED, COMMITTED, LogModel, ModelBatch, ModelRecord, Producer
from support.lookups import offset_at

NOW = 1_700_000_000_000
INDEX_SUFFIXES = (".index", ".timeindex", ".time.index")
V0, V1, V2 = range(3)


class Program:
    """One log in `directory`, and what it should say."""

    def __init__(self, seed, directory):
        self.rng = random.Random(seed)
        self.rng_of_ranges = random.Random(~seed)
        self.rng_of_rests = random.Random(seed + 0.5)
        self.seed = seed
        self.directory = directory
        self.life = 0               # a crash moves the log to a directory of its own
        self.clock = ManualClock(NOW)
        self.model = LogModel()
        self.waiting = []           # records that linger: they have offsets, and nobody sees them yet
        self.durable = 0            # the log said so
        self.new_producer = 1000
        self.producers = []
        self.backups = []           # [(path, records)]
        self.story = []
        self.log = None
        rng = self.rng
        self.fsync = rng.choice(["batch", "interval", "never"])
        self.config = {
            "segment.bytes": rng.choice([1200, 3000, 20_000]),
            "index.interval.bytes": rng.choice([1, 100, 400, 4096]),
            "segment.index.bytes": rng.choice([64, 256, 10 << 20]),
            "segment.ms": rng.choice([20_000, 7 * 86_400_000]),
            "compression.type": rng.choice(["producer", "producer", "zstd", "lz4", "gzip"]),
            "message.timestamp.type": rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
            "seglog.time.index.minute.enabled": rng.random() < 0.5,
            "seglog.time.index.ranges.enabled": self.rng_of_ranges.random() < 0.5,
            "num.recovery.threads.per.data.dir": rng.choice([1, 2]),
            "transaction.max.timeout.ms": 2**31 - 1,    # the model knows of no transaction that the log ends itself
        }
        if self.fsync == "interval":
            # The thread of the interval sleeps meanwhile, so that a program runs the same each time.
            self.config |= {"flush.ms": 3_600_000, "flush.messages": rng.choice([1, 10, 10_000])}
        if self.fsync != "batch" and rng.random() < 0.3:
            self.config |= {"linger.ms": 3_600_000, "seglog.linger.bytes": rng.choice([200, 2000])}
            self.config["message.timestamp.type"] = "CreateTime"    # else the time is that of the write

    # --- running

    def run(self, steps):
        deeds, weights = zip(*self.DEEDS, strict=True)
        try:
            self.open()
            for _ in range(steps):
                self.clock.advance(self.rng.choice([0, 0, 1, 50, 3000, 90_000]))
                deed = self.rng.choices(deeds, weights)[0]
                self.story.append(deed.__name__)
                if self.rng_of_rests.random() < 0.2:
                    self.say("after its descriptors were given back")
                    rest()
                deed(self)
                self.look()
            self.reopen()
            self.read_all()
            self.check_backups()
        except Exception as error:
            error.add_note("\n".join([
                f"seed {self.seed}, fsync={self.fsync}, {self.config}", f"in {self.path}",
                *(f"{n:4} {step}" for n, step in enumerate(self.story)),
            ]))
            raise
        finally:
            if self.log is not None:
                self.log.close()

    @property
    def path(self):
        return self.directory / f"life-{self.life}" / "orders-0"

    def open(self):
        self.log = seglog.open(self.path, config=self.config, fsync=self.fsync, clock=self.clock)
        self.compare_indexes(self.log.segments[:-1])

    def say(self, words):
        self.story[-1] += f" {words}"

    def look(self):
        """After each step: the ends."""
        log, model = self.log, self.model
        self.take_waiting()
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        least, most = model.last_stable_offsets
        assert least <= log.last_stable_offset <= most
        assert self.durable <= log.durable_offset <= model.end
        # (A follower's segment may begin behind a hole.)
        assert log.recovery_point <= max(log.durable_offset, log.segments[-1].base_offset)
        self.durable = log.durable_offset
        if self.fsync == "batch":
            assert self.durable == model.end

    def take_waiting(self):
        """What lingered and is written now."""
        while self.waiting and self.log.log_end_offset > self.model.end:
            batch = next(self.log.batches(self.model.end))
            count = batch.last_offset - self.model.end + 1
            self.model.add(ModelBatch(tuple(self.waiting[:count])))
            del self.waiting[:count]

    # --- making records

    def field(self):
        return self.rng.choice([None, b"", b"k", self.rng.randbytes(self.rng.randrange(60)), b"\0" * 40])

    def timestamp(self):
        """A timestamp, or None for the clock's."""
        if self.rng.random() < 0.6:
            return None
        return self.clock.now_ms() + self.rng.randrange(-600_000, 600_000)

    def headers(self):
        return self.rng.choice([(), (), (("name", b"value"),), (("a", None), ("a", b"1"))])

    def rows(self, count):
        """[(key, value, headers, timestamp)]"""
        return [(self.field(), self.field(), self.headers(), self.timestamp()) for _ in range(count)]

    def expected(self, rows, first, *, keeps_time=False):
        """The records that rows become, from the offset `first` on."""
        now = self.clock.now_ms()
        is_append_time = self.config["message.timestamp.type"] == "LogAppendTime" and not keeps_time
        return tuple(
            ModelRecord(first + n, now if timestamp is None or is_append_time else timestamp, key, value, headers)
            for n, (key, value, headers, timestamp) in enumerate(rows)
        )

    def written(self, records, producer=None):
        """The log has `records`, which begin at its end; in which batches, it says itself."""
        records = list(records)
        self.say(f"{records[0].offset}..{records[-1].offset}")
        for batch in self.log.batches(records[0].offset):
            mine = tuple(record for record in records if record.offset <= batch.last_offset)
            del records[: len(mine)]
            self.model.add(ModelBatch(mine, producer))
        assert records == []

    # --- appending

    def append_one(self):
        (row,) = self.rows(1)
        key, value, headers, timestamp = row
        offset = self.log.append(value, key=key, headers=headers, timestamp=timestamp)
        records = self.expected([row], offset)
        if "linger.ms" in self.config:
            assert offset == self.model.end + len(self.waiting)
            self.waiting += records
            self.take_waiting()
            return
        assert offset == self.model.end
        self.written(records)

    def append_many(self):
        rows = self.rows(self.rng.randint(1, 8))
        last = self.log.append_many(rows)
        self.take_waiting()
        assert last == self.model.end + len(rows) - 1
        self.written(self.expected(rows, self.model.end))

    def append_columns(self):
        rows = self.rows(self.rng.randint(1, 8))
        rows = [(key, value, (), timestamp) for key, value, _, timestamp in rows]
        columns = columns_of(seglog.build_batch(rows, timestamp=self.clock.now_ms()))
        last = self.log.append_columns(columns)
        self.take_waiting()
        assert last == self.model.end + len(rows) - 1
        self.written(self.expected(rows, self.model.end))

    def append_ready(self):
        rows, codec = self.rows(self.rng.randint(1, 5)), self.rng.choice(["none", "gzip", "snappy", "lz4", "zstd"])
        raw = seglog.build_batch(rows, codec=codec, timestamp=self.clock.now_ms(), base_offset=self.rng.choice([0, 77]))
        result = self.log.append_batch(raw)
        self.take_waiting()
        assert result == (self.model.end, self.model.end + len(rows) - 1, False)
        self.written(self.expected(rows, self.model.end))

    def append_of_leader(self):
        """A follower's append: offsets as they are, with holes, in every format."""
        magic = self.rng.choice([V0, V1, V2, V2])
        rows = self.rows(self.rng.randint(1, 4))
        if magic < V2:
            rows = [(key, value, (), timestamp if magic else None) for key, value, _, timestamp in rows]
        self.log.flush()
        self.take_waiting()
        first = self.model.end + self.rng.choice([0, 0, 1, 5])
        now = None if magic == V0 else self.clock.now_ms()
        raw = seglog.build_batch(rows, magic=magic, base_offset=first, timestamp=now)
        assert self.log.append_batch(raw, assign_offsets=False) == (first, first + len(rows) - 1, False)
        records = self.expected(rows, first, keeps_time=True)
        if magic == V0:
            records = [record._replace(timestamp=-1) for record in records]
        self.written(records)

    # --- producers

    def batch_of(self, producer_id, epoch, sequence, rows, *, transactional):
        return seglog.build_batch(
            rows, timestamp=self.clock.now_ms(), producer_id=producer_id, producer_epoch=epoch,
            base_sequence=sequence, transactional=transactional,
        )

    def known_producer(self):
        """(id, its last batch): one whose last batch still stands; None where there is none."""
        self.producers = [p for p in self.producers if self.model.last_of(p) is not None]
        if not self.producers:
            return None
        producer_id = self.rng.choice(self.producers)
        return producer_id, self.model.last_of(producer_id)

    def append_of_producer(self):
        known = self.known_producer() if self.rng.random() < 0.8 else None
        if known is None:
            producer_id, epoch, sequence = self.new_producer, 0, 0
            self.new_producer += 1
            self.producers.append(producer_id)
            transactional = self.rng.random() < 0.5
        else:
            producer_id, last = known
            epoch, sequence = last.producer.epoch, last.producer.last_sequence + 1
            transactional = last.producer.is_transactional
            if not transactional and self.rng.random() < 0.1:
                epoch, sequence = epoch + 1, 0
        rows = self.rows(self.rng.randint(1, 4))
        result = self.log.append_batch(self.batch_of(producer_id, epoch, sequence, rows, transactional=transactional))
        self.take_waiting()
        assert result == (self.model.end, self.model.end + len(rows) - 1, False)
        producer = Producer(producer_id, epoch, sequence, sequence + len(rows) - 1, transactional)
        self.written(self.expected(rows, self.model.end), producer)

    def send_again(self):
        known = self.known_producer()
        if known is None:
            return
        producer_id, last = known
        made = last.producer
        rows = [(b"again", None)] * len(last.records)
        raw = self.batch_of(producer_id, made.epoch, made.first_sequence, rows, transactional=made.is_transactional)
        if made.is_transactional and producer_id not in self.model.open_transactions():
            return
        assert self.log.append_batch(raw) == (last.first, last.last, True)

    def leave_a_gap(self):
        known = self.known_producer()
        if known is None:
            return
        producer_id, last = known
        made = last.producer
        transactional = made.is_transactional
        sequence = made.last_sequence + 2
        for epoch, error in ((made.epoch, OutOfOrderSequenceError), (made.epoch - 1, InvalidProducerEpochError)):
            if epoch >= 0:
                raw = self.batch_of(producer_id, epoch, sequence, [(None, b"x")], transactional=transactional)
                self.refused(lambda raw=raw: self.log.append_batch(raw), error)

    def end_transaction(self):
        ongoing = self.model.open_transactions()
        if not ongoing:
            return
        made = self.rng.choice(sorted(ongoing.values()))
        outcome = self.rng.choice([COMMITTED, ABORTED])
        key, value = end_marker(outcome == COMMITTED, 0)
        raw = seglog.build_batch(
            [(key, value)], timestamp=self.clock.now_ms(), producer_id=made.id, producer_epoch=made.epoch,
            transactional=True, control=True,
        )
        self.say(f"{made.id} {outcome}")
        self.log.append_batch(raw)
        self.take_waiting()
        marker = Producer(made.id, made.epoch, is_transactional=True, marker=outcome)
        self.written(self.expected([(key, value, (), None)], self.model.end), marker)

    # --- reading

    def read_all(self):
        self.log.flush()
        self.take_waiting()
        assert [as_model(r) for r in self.log.read(control=True)] == self.model.records(control=True)
        committed = [as_model(r) for r in self.log.read(isolation="read_committed")]
        assert committed == self.model.records(stop=self.log.last_stable_offset, committed=True)

    def read_some(self):
        start, stop = sorted(self.rng.randint(self.model.start, self.model.end) for _ in range(2))
        self.say(f"[{start}, {stop})")
        assert [as_model(r) for r in self.log.read(start, stop)] == self.model.records(start, stop)
        offsets = [offset for chunk in self.log.columns(start, stop) for offset in chunk.offset]
        assert [o for o in offsets if start <= o < stop] == [r.offset for r in self.model.records(start, stop)]

    def read_one(self):
        offset = self.rng.randint(self.model.start - 1, self.model.end)
        found = self.model.records(offset, offset + 1) if offset >= self.model.start else []
        if found:
            assert as_model(self.log[offset]) == found[0]
        else:
            inside = self.model.start <= offset < self.model.end
            self.refused(lambda: self.log[offset], NoRecordError if inside else OffsetOutOfRangeError)

    def read_by_time(self):
        known = [r.timestamp for r in self.model.records() if r.timestamp >= 0] or [NOW]
        since = self.rng.choice(known) + self.rng.choice([-1, 0, 1])
        until = since + self.rng.randrange(600_000)
        self.say(f"{since}")
        assert offset_at(self.log, since) == self.model.offset_at(since)
        found = [as_model(r) for r in self.log.read(since=since, until=until)]
        assert found == [r for r in self.model.records() if since <= r.timestamp < until]

    # --- cutting

    def flush(self):
        self.log.flush()
        self.take_waiting()
        assert self.log.durable_offset == self.model.end

    def roll(self):
        base = self.log.roll()
        self.take_waiting()
        assert base == self.model.end
        self.compare_indexes(self.log.segments[:-1])

    def truncate(self):
        self.log.flush()
        self.take_waiting()
        back = self.rng.choice([0, 1, 1, 2, 5, 20, 10_000])
        offset = max(self.model.end - back, self.model.start)
        self.say(f"to {offset}")
        end = self.log.truncate_to(offset)
        self.take_waiting()
        if offset < self.model.end:
            self.model.truncate(offset, self.log.segments[-1].base_offset)
        assert end == self.model.end
        self.durable = min(self.durable, end)
        if self.model.start > 0:
            self.refused(lambda: self.log.truncate_to(self.model.start - 1), OffsetOutOfRangeError)

    def delete(self):
        # A transaction whose beginning is gone is another matter: its producer is not asked for that here.
        before = self.rng.randint(self.model.start, self.log.last_stable_offset)
        self.say(f"before {before}")
        self.model.start = self.log.delete_records(before)
        self.take_waiting()
        assert self.model.start == before
        self.refused(lambda: self.log.delete_records(self.model.end + 1), OffsetOutOfRangeError)

    def back_up(self):
        """A backup is whole when it is made, and stays what it is: its files are names of the log's own."""
        path = self.directory / f"backup-{len(self.backups)}" / "orders-0"
        self.log.flush()
        self.take_waiting()
        assert self.log.snapshot(path) == self.model.end
        self.backups.append((path, self.model.records(control=True)))

    def check_backups(self):
        for path, expected in self.backups:
            with seglog.open(path, config=self.config, fsync=self.fsync) as log:
                assert [as_model(r) for r in log.read(control=True)] == expected

    # --- going and coming back

    def reopen(self):
        self.log.close()
        self.model_waiting_written()
        if self.rng.random() < 0.2:
            self.drop_indexes()
        self.open()
        assert self.log.recovery.lost == ()
        self.durable = self.model.end

    def model_waiting_written(self):
        """What lingered was written by close; in how many batches, is seen later."""
        if self.waiting:
            with seglog.open_partition(self.path) as closed:
                for batch in closed.batches(self.model.end):
                    count = batch.last_offset - self.model.end + 1
                    self.model.add(ModelBatch(tuple(self.waiting[:count])))
                    del self.waiting[:count]
        assert self.waiting == []

    def drop_indexes(self):
        """A log dir copied without them, or by a tool that knows none."""
        for name in sorted(os.listdir(self.path)):
            if name.endswith(INDEX_SUFFIXES) and self.rng.random() < 0.5:
                (self.path / name).unlink()
            elif name.endswith(".ranges.index"):
                self.spoil_ranges(self.path / name)

    def spoil_ranges(self, path):
        """What a crash, a disk or somebody else may make of time ranges."""
        raw = path.read_bytes()
        match self.rng_of_ranges.randrange(4):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(raw[: self.rng_of_ranges.randrange(len(raw))])
            case 2:
                path.write_bytes(bytes(len(raw)))

    def be_killed(self):
        """What was written is there; nothing else was done."""
        self.move()
        self.open()
        assert self.log.recovery.lost == ()
        self.durable = self.model.end

    def lose_the_tail(self):
        """What was not synced is there up to some byte, and the file may be longer than that; indexes are anything."""
        segment, durable = self.log.segments[-1], self.log.durable_offset
        found = self.log.find_offset(durable) if durable < self.model.end else None
        safe = segment.size_bytes if found is None else found[1].position
        batches = [batch for batch in self.model.batches if batch.first >= durable]
        is_dirty = (self.path / PARTITION_MARK).exists()        # else all was synced
        self.move()
        path = self.path / segment.path.name
        raw = path.read_bytes()[: segment.size_bytes]
        cut = self.rng.randint(safe, len(raw))
        torn = self.rng.choice([b"", b"\0" * 700, self.torn_append()])
        self.say(f"at byte {cut} of {path.name}, safe are {safe} of {len(raw)}, then {len(torn)} bytes")
        path.write_bytes(raw[:cut] + torn)
        for suffix in INDEX_SUFFIXES:
            index = path.with_suffix(suffix)
            if is_dirty and index.exists():
                index.write_bytes(index.read_bytes()[: self.rng.randrange(100)] + b"\0" * self.rng.choice([0, 0, 12]))
        self.open()
        whole = sum(batch.last < self.log.log_end_offset for batch in batches)
        self.model.lose(len(batches) - whole, self.log.segments[-1].base_offset)
        self.durable = self.model.end

    def torn_append(self):
        """The beginning of a batch that was being written."""
        raw = seglog.build_batch([(None, b"torn" * 20)], base_offset=self.model.end, timestamp=NOW)
        return raw[: self.rng.randrange(len(raw))]

    def move(self):
        """The log dir as it is now, elsewhere; the log that had it open goes."""
        before = self.path
        self.life += 1
        self.log._tail.ranges.wait()        # so that a program runs the same each time
        shutil.copytree(before.parent, self.path.parent)
        self.log.close()
        shutil.rmtree(before.parent)
        self.waiting = []

    # --- helpers

    def compare_indexes(self, segments):
        """The index files of closed segments are what their log makes."""
        for segment in segments:
            alone = Segment(segment.path)
            try:
                right = index_bytes(alone, self.log.config)
            finally:
                alone.close()
            for suffix, raw in right.files(self.log.config):
                assert segment.path.with_suffix(suffix).read_bytes() == raw, (segment.path.name, suffix)

    def refused(self, call, error):
        before = self.log.log_end_offset
        try:
            call()
        except error:
            assert self.log.log_end_offset == max(before, self.log.log_end_offset)
        else:
            raise AssertionError(f"not refused with {error.__name__}")

    DEEDS = (
        (append_one, 30), (append_many, 10), (append_columns, 5), (append_ready, 6), (append_of_leader, 4),
        (append_of_producer, 12), (send_again, 3), (leave_a_gap, 2), (end_transaction, 5),
        (read_all, 3), (read_some, 6), (read_one, 5), (read_by_time, 5),
        (flush, 3), (roll, 4), (truncate, 3), (delete, 3), (back_up, 1),
        (reopen, 4), (be_killed, 3), (lose_the_tail, 4),
    )


def as_model(record):
    return ModelRecord(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
