"""Directories that real Kafka wrote, opened here as logs that go on."""
import json
import shutil

import seglog
from seglog.format import names
from support.written_logs import CODECS, Producer, Writer

# Those that are Kafka's own, of the topic; what else case.json tells belongs to the driver.
KEYS = (
    "segment.bytes", "segment.index.bytes", "index.interval.bytes", "max.message.bytes", "message.timestamp.type",
    "cleanup.policy", "segment.ms",
)


LATER = {"min.compaction.lag.ms": 10**15}


def config_of(case):
    """The topic configuration that a golden directory was written with."""
    config = json.loads((case / "case.json").read_text())["config"]
    return {key: config[key] for key in KEYS if key in config}


class GoingOn(Writer):
    """A copy of a golden directory, in a log dir of its own. `clean`: under the mark of a clean stop.

    Its records stay as they are: a log that is compacted by itself leaves them for later, and so does one that ends
    transactions that were left open.
    """

    def __init__(self, case, log_dir, *, clean=False, **config):
        super().__init__(log_dir / f"{case.name}-0", config_of(case) | LATER | config)
        shutil.copytree(case / self.directory.name, self.directory)
        shutil.copy(case / "case.json", log_dir)
        if clean:
            (log_dir / names.CLEAN_SHUTDOWN).write_bytes(b"")
        self.clock.set(1_702_000_000_000)       # within that timeout of all golden logs
        self.producer = Producer(self, 9_000_000)

    def go_on(self, log, count=40):
        """Append by all doors that fit the format of the last batch; of v0 and v1 by encoded batches alone."""
        magic = max((batch.magic for batch in log.batches()), default=2)
        if magic == 2:
            for n in range(count // 4):
                log.append(b"one %d" % n, key=b"k%d" % n)
                log.append_many([(b"k%d" % m, b"many") for m in range(3)])
                log.append_batch(seglog.build_batch(
                    [(b"k%d" % n, b"ready", (("h", b"v"),))], codec=CODECS[n % 5], timestamp=self.clock.now_ms()))
                self.producer.send(log, keyed=True)
        else:
            for n in range(count):
                codec = CODECS[n % 4] if n % 2 else "none"
                timestamp = -1 if magic == 0 else self.clock.now_ms() + n
                records = [(b"k%d" % n, b"v" * (n % 60)) for _ in range(1 + n % 3)]
                raw = seglog.build_batch(records, magic=magic, codec=codec, timestamp=timestamp)
                log.append_batch(raw)
