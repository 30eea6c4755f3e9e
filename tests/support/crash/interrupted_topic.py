"""A process whose work on a topic with delayed messages is interrupted again and again, as by Ctrl-C.

    python interrupted_topic.py DIRECTORY SEED INTERRUPTS signal|async

`signal`: the main thread adds, reads, acknowledges, cancels and reschedules, and each act may be interrupted. `async`:
threads read and acknowledge, and get exceptions from outside (PyThreadState_SetAsyncExc). Now and then everything is
closed, which must not hang, and opened again. At the end nothing that was published is lost, and nothing that was
cancelled comes. Prints what it did; a hang ends it with a traceback of every thread.
"""
import ctypes
import faulthandler
import random
import signal
import sys
import threading
import time
from pathlib import Path

from seglog.errors import LogClosedError, LogFailedError
from seglog.ledger.managed import relocated_entries
from seglog.pulsar import ManagedLedger
from seglog.topic import delayed_index
from seglog.topic.delayed_delivery import DelayedDelivery
from support.topics import delayed, message, numbers

HANG_S = 240
KINDS = ({"enableBucketDelayedDeliveryTracker": False}, {}, {"enableShareDelayedMessageIndex": True})
SETTINGS = {
    "delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 8,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 5, "delayedDeliveryMaxNumBuckets": 3,
    "seglog.delayed.relocate": True,
}
CONFIG = {"managedLedgerMaxEntriesPerLedger": 12, "defaultRetentionTimeInMinutes": -1}


class Interrupt(BaseException):
    """From outside."""


class Topic:
    def __init__(self, directory, seed):
        self.path = Path(directory) / "t"
        self.chance = random.Random(seed)
        self.made = 0
        self.published = {}     # number -> position, where the add returned
        self.acknowledged = set()       # begun to be acknowledged
        self.cancelling, self.cancelled = set(), set()      # begun to be cancelled; told that it is
        self.opened = 0
        self.open()

    def open(self):
        self.opened += 1
        delayed_index.RELOCATE_EVERY_NS = relocated_entries.TIDY_EVERY_NS = 20_000_000
        self.log = ManagedLedger(self.path, config=CONFIG, fsync="never")
        cursor = self.log.open_cursor("one", "earliest")
        self.delivery = DelayedDelivery(self.log, SETTINGS | KINDS[self.opened % 3])
        self.dispatcher = self.delivery.dispatcher(cursor)

    def close(self):
        """Also after a failure, after which the log only lets go."""
        try:
            self.delivery.close()
        except (LogFailedError, LogClosedError):
            self.delivery.close()
        self.log.close()

    # --- acts --------------------------------------------------------------------------------

    def publish(self):
        for _ in range(self.chance.randrange(1, 6)):
            number = self.made
            self.made += 1
            now = time.time_ns() // 10**6
            # Few are for long: a ledger of which one is left is relocated.
            delay = 600_000 if self.chance.random() < 0.06 else self.chance.choice([None, 0, 5, 50])
            entry = message(number) if delay is None else delayed(number, now + delay)
            self.published[number] = self.log.add_entry(entry)

    def read(self):
        got = self.dispatcher.read(self.chance.choice([1, 5, 50]), timeout=self.chance.choice([0, 0, 0.002]))
        assert not self.cancelled & set(numbers(got))
        for entry in got:
            if self.opened % 2 or self.chance.random() < 0.9:
                self.acknowledged.add(entry.entry.fields().sequence_id)
                self.dispatcher.cursor.acknowledge(entry.position)

    def cancel(self):
        if self.published:
            number = self.chance.randrange(max(self.made - 20, 0), self.made)
            if number in self.published:
                self.cancelling.add(number)
                if self.dispatcher.cancel(self.published[number]):
                    self.cancelled.add(number)

    def reschedule(self):
        if self.published:
            number = self.chance.randrange(max(self.made - 20, 0), self.made)
            if number in self.published:
                at = time.time_ns() // 10**6 + self.chance.choice([0, 10, 100, 600_000])
                self.delivery.tracker(self.dispatcher.cursor).reschedule(*self.published[number], at)

    # --- the end -----------------------------------------------------------------------------

    def drain(self):
        """Everything that is owed, by a clock that has gone on."""
        class Later:
            @staticmethod
            def now_ms():
                return 2 * 10**12

            monotonic_ns = staticmethod(time.monotonic_ns)

        got = set()
        with ManagedLedger(self.path, config=CONFIG) as log, DelayedDelivery(log, SETTINGS, clock=Later()) as delivery:
            with delivery.dispatcher(log.open_cursor("one")) as dispatcher:
                while entries := dispatcher.read(1000):
                    got.update(numbers(entries))
                    dispatcher.cursor.acknowledge_many(entry.position for entry in entries)
            assert log.open_cursor("one").backlog == 0
        missing = self.published.keys() - got - self.acknowledged - self.cancelling
        assert not missing, f"never given: {sorted(missing)}"
        assert not got & self.cancelled, f"given though cancelled: {sorted(got & self.cancelled)}"


def by_signals(topic, interrupts):
    """Each act of the main thread may be interrupted, at any of its steps."""
    seen = reopened = 0

    def interrupt(*_):
        raise Interrupt

    signal.signal(signal.SIGALRM, interrupt)
    acts = [topic.publish] * 2 + [topic.read] * 4 + [topic.cancel, topic.reschedule]
    while seen < interrupts:
        act = topic.chance.choice(acts)
        try:
            try:
                wait_s = topic.chance.choice([1e-4, 4e-4, 2e-3]) * topic.chance.random() + 1e-6
                signal.setitimer(signal.ITIMER_REAL, wait_s)
                act()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            seen += 1
        except (LogFailedError, LogClosedError):
            signal.setitimer(signal.ITIMER_REAL, 0)
            reopened += 1
            topic.close()
            topic.open()
        if topic.chance.random() < 0.002:
            topic.close()
            topic.open()
    return seen, reopened


def by_threads(topic, interrupts):
    """Threads that read get exceptions; the main thread publishes, and closes while they read."""
    seen = 0
    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    while seen < interrupts:
        stop = threading.Event()

        def consume(stop=stop):
            while not stop.is_set():
                try:
                    consume_until(stop)
                    return
                except Interrupt:
                    pass

        def consume_until(stop):
            while not stop.is_set():
                try:
                    for entry in topic.dispatcher.read(5, timeout=0.01):
                        topic.acknowledged.add(entry.entry.fields().sequence_id)
                        topic.dispatcher.cursor.acknowledge(entry.position)
                except Interrupt:
                    pass
                except (LogFailedError, LogClosedError):
                    return

        threads = [threading.Thread(target=consume, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(60):
            try:
                topic.publish()
            except (LogFailedError, LogClosedError):
                break
            for thread in threads:
                if thread.is_alive():
                    seen += throw(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupt))
            time.sleep(topic.chance.random() * 1e-3)
        stop.set()
        topic.close()
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive()
        topic.open()
    return seen, 0


def main(directory, seed, interrupts, how):
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    topic = Topic(directory, int(seed))
    seen, reopened = (by_signals if how == "signal" else by_threads)(topic, int(interrupts))
    topic.close()
    topic.drain()
    print(f"{seen} interrupts, {len(topic.published)} published, {len(topic.cancelled)} cancelled, {reopened} reopened")


if __name__ == "__main__":
    main(*sys.argv[1:])
