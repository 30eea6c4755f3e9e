"""A process that writes a log with keys and compacts it, and notes each call. Public doors of seglog, and its cleaner.

Notes (notes.py; the witness is swap_witness.py):

    give KEY NUMBER         a record is about to be appended; then
    took KEY NUMBER         append returned
    compact, compacted      the log is about to be compacted, and was
    close, closed           close() returned
"""
import seglog
from seglog.upkeep.cleaner import clean
from support.outside.worker import Worker

CONFIG = {"cleanup.policy": "compact", "segment.bytes": 3000, "index.interval.bytes": 200}
KEYS = 17


def value_of(number):
    return b"%d." % number + b"v" * (number % 80)


def number_of(value):
    return int(bytes(value).split(b".")[0])


class SwapWorker(Worker):
    """`steps` appends before each of three compactions: of more segments each time, and the last one's result again."""

    def open(self):
        self.log = seglog.open(self.path, config=CONFIG, fsync=self.fsync)

    def close(self):
        self.note("close")
        self.log.close()
        self.note("closed")

    def let_go(self):
        self.log.close()

    def do(self, deed, chance):
        key, number = chance.randrange(KEYS), self.numbers(1)[0]
        self.note("give", key, number)
        self.log.append(value_of(number), key=b"%d" % key)
        self.note("took", key, number)

    def alone(self, chance, steps):
        for _ in range(3):
            for _ in range(steps):
                self.do("append", chance)
            self.log.roll()
            self.note("compact")
            clean(self.log)
            self.note("compacted")


def main():
    SwapWorker.main()
