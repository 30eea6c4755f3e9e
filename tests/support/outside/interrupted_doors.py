"""Public doors whose threads are interrupted at random moments: named readers, followers, the cleaner, servers, event
loops, ledgers, delayed messages, shared queues.

    python -m support.outside.interrupted_doors '{"door": "cursor", "path": "data/orders-0", "threads": 8, ...}'

Prints what interrupted_worker prints. `seconds` ends it earlier.
"""
import itertools
import json
import os
import sys
import time
from contextlib import suppress

import seglog
from seglog.errors import IdleTimeoutError, LogClosedError, LogLockedError, OffsetOutOfRangeError
from seglog.upkeep.cleaner import clean
from support.outside.doors import HANG_S, Doors
from support.outside.interrupted_loop import LoopDoor
from support.outside.interrupted_queue import AttachedDoor
from support.outside.interrupted_topics import DelayedDoor, LedgerDoor, ManagedDoor

SMALL = {"segment.bytes": 4000, "index.interval.bytes": 500}
KEPT_RECORDS = 200
LOOK_EVERY = 200        # interrupts between two looks at what they left


class LogDoor(Doors):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.cut = 0                # how many cuts have begun: behind each, an offset may come again
        self.is_cutting = False     # stays so if a cut was interrupted

    def cut_off(self, log):
        self.is_cutting = True
        self.cut += 1
        log.truncate_to(max(log.log_end_offset - 3, log.log_start_offset))

    def opened(self):
        log = seglog.open(self.path, config=SMALL, fsync="never")
        while log.log_end_offset < KEPT_RECORDS:
            self.append(log)
        if log.log_end_offset - log.log_start_offset > 5 * KEPT_RECORDS:
            log.delete_records(log.log_end_offset - KEPT_RECORDS)
        return log

    def append(self, log):
        log.append(b"%d" % log.log_end_offset)

    def verify(self, config):
        for finding in seglog.verify(self.path, config=config).findings:
            if finding.severity != "note":
                self.violated(f"verify: {finding}")

    def finish(self):
        self.subject.close()
        self.subject = self.opened()
        for record in self.subject.read():
            if not record.value.isdigit():
                self.violated(f"offset {record.offset} holds what nobody appended")
        self.subject.close()
        self.verify(SMALL)


class CursorDoor(LogDoor):
    """Every thread reads under a name of its own, and half of them under one that they share, too; the log is cut
    meanwhile."""

    def __init__(self, threads, **arguments):
        super().__init__(threads=threads, **arguments)
        self.cursors = [None] * threads
        self.tried = [0] * threads      # what was last committed, perhaps
        self.held = [0] * threads       # what was last committed for sure
        self.seen = [-2] * threads      # the cut before which the two were so

    def deed_of_main(self, number):
        log = self.subject
        if self.turns % 20 == 0:
            self.cut_off(log)
        elif self.turns % 15 == 0:
            log.roll()
        elif self.turns % 3 == 0:
            self.append(log)
        else:
            self.deed(number)
        self.is_cutting = False     # an earlier cut that was interrupted has been completed before this

    def deed(self, number):
        log, cursor = self.subject, self.cursors[number]
        if cursor is None or cursor._log is not log:
            if cursor is not None:
                cursor.close()
                self.cursors[number] = None
            self.open_cursor(log, number)
            return
        cut = -1 if self.is_cutting else self.cut
        position = cursor.position
        is_still = self.cut == cut and not self.is_cutting
        if is_still and cut == self.seen[number] and position not in (self.held[number], self.tried[number]):
            self.violated(f"{number} stands at {position}, not at {self.held[number]} or {self.tried[number]}")
        self.seen[number] = -2
        self.held[number] = position
        self.seen[number] = cut
        try:
            last = None
            for record in itertools.islice(cursor.read(on_out_of_range="earliest"), 1 + number % 3):
                last = record
            goal = log.log_start_offset if last is None else last.offset + 1
            self.tried[number] = goal
            cursor.commit(goal)
            self.held[number] = goal
            if number % 2:
                with log.cursor("shared", shared=True) as shared:
                    before = shared.position
                    shared.commit(min(before + 1, log.log_end_offset))
        except OffsetOutOfRangeError as error:
            self.check_hides_none(error)
            self.seen[number] = -2      # cut meanwhile, or beyond the start
        except LogLockedError as error:
            self.violated(f"the shared name is in use: {error}")

    def open_cursor(self, log, number):
        """Whoever was interrupted before the call returned has nothing to close: the name is free again at once."""
        until = time.monotonic() + HANG_S
        while True:
            try:
                self.cursors[number] = log.cursor(f"reader-{number}")
                return
            except LogLockedError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.001)       # a thread may be about to drop it

    def finish(self):
        for cursor in filter(None, self.cursors):
            cursor.close()
        super().finish()
        with seglog.open(self.path, config=SMALL, fsync="never") as log:
            for number in range(len(self.cursors)):
                with log.cursor(f"reader-{number}") as cursor:
                    cursor.commit(log.log_end_offset)
                    if cursor.position != log.log_end_offset:
                        self.violated(f"{number} does not go on")


class FollowDoor(LogDoor):
    """Half of the threads append, and the main one cuts and rolls, the others follow: the log, or its directory."""

    TIMEOUT_S = 0.05

    def __init__(self, threads, **arguments):
        super().__init__(threads=threads, **arguments)
        self.quiet = 0

    def deed_of_main(self, number):
        log = self.subject
        if self.turns % 12 == 0:
            self.cut_off(log)
        elif self.turns % 7 == 0:
            log.roll()
        elif self.turns % 17 == 0:
            log.delete_records(max(log.log_end_offset - KEPT_RECORDS, log.log_start_offset))
        elif self.turns % 5 == 0:
            first = log.log_end_offset
            log.append_many([(None, b"%d" % (first + n)) for n in range(3)])
        else:
            self.append(log)
        self.is_cutting = False

    def deed(self, number):
        log = self.subject
        if number % 2:
            return self.append(log)
        if number % 4:
            return self.follow(log)
        with seglog.follow(self.path) as follower:
            return self.follow(follower)

    def follow(self, log):
        start = ("end", "start", log.log_start_offset)[self.turns % 3]
        before, cut = -1, -1 if self.is_cutting else self.cut
        try:
            for record in itertools.islice(
                    log.follow(start, timeout=self.TIMEOUT_S, on_out_of_range="earliest"), 50):
                if not record.value.isdigit():
                    self.violated(f"{record.offset} holds what nobody appended")
                if record.offset <= before and self.cut == cut:
                    self.violated(f"{record.offset} came after {before}")
                before = record.offset
        except IdleTimeoutError as error:
            self.check_hides_none(error)

    def look(self, sent):
        """In a thread that nobody interrupts, right behind interrupts after which nobody does anything any more."""
        if sent - self.looked < LOOK_EVERY:
            return
        self.looked = sent
        log = self.subject
        if log is None or self.is_opening:
            return
        self.is_quiet = True
        try:
            for target in self.targets:
                if target.ready:
                    self.send(target)

            def waits():
                with suppress(LogClosedError, IdleTimeoutError):
                    for _ in log.follow("end", timeout=self.TIMEOUT_S):
                        pass

            self.in_time(waits, "follow(timeout=0.05)")
            self.quiet += 1
        finally:
            self.is_quiet = False


class CleanerDoor(LogDoor):
    """Compaction, retention and housekeeping by the threads themselves; each key's last value stays."""

    CONFIG = SMALL | {"cleanup.policy": "compact"}

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.keys = itertools.count()

    def opened(self):
        log = seglog.open(self.path, config=self.CONFIG, fsync="never")
        for _ in range(100):
            self.append(log)
        return log

    def append(self, log):
        number = next(self.keys)
        log.append(b"%d" % number, key=b"%d" % (number % 7))

    def deed_of_main(self, number):
        if self.turns % 3 == 0:
            clean(self.subject)
        elif self.turns % 7 == 0:
            self.subject._maintain()
        else:
            self.deed(number)

    def deed(self, number):
        if number == 1:
            clean(self.subject)
        else:
            self.append(self.subject)

    def finish(self):
        clean(self.subject)
        self.subject.close()
        self.verify(self.CONFIG)
        with seglog.open(self.path, config=self.CONFIG) as log:
            if {record.key for record in log.read()} != {b"%d" % key for key in range(7)}:
                self.violated("a key is gone")


class ServeDoor(Doors):
    """A server begins and ends; whoever was interrupted in `with` holds nothing. Each thread has a log dir."""

    lull_s = 0.1

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.ports = set()

    def opened(self):
        self.deed(0)        # all is imported: CPython loses an exception that comes while it imports a codec
        return self

    def close(self):
        pass

    def deed_of_main(self, number):
        self.deed(number)

    def deed(self, number):
        """Nobody else has the log dir: if it is locked, an interrupt left it so."""
        server = seglog.serve(self.path / f"{number}", topics={"orders": 1}, fsync="never")
        is_in = False
        try:
            with server:
                is_in = True
                self.ports.add(server.port)
        finally:
            if is_in:       # `close` may have been interrupted; if the beginning was, there is nothing to close
                server.close()

    def finish(self):
        for number in range(len(self.targets)):
            self.deed(number)


DOORS = {
    "cursor": CursorDoor, "follow": FollowDoor, "cleaner": CleanerDoor, "serve": ServeDoor, "loop": LoopDoor,
    "ledger": LedgerDoor, "managed": ManagedDoor, "delayed": DelayedDoor, "attached": AttachedDoor,
}


def main():
    arguments = json.loads(sys.argv[1])
    DOORS[arguments.pop("door")](**arguments).run()


if __name__ == "__main__":
    main()
    os._exit(0)
