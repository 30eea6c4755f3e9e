"""A log in the event loop of the main thread, which ^C cancels as `asyncio.run` does; other threads append to it."""
import asyncio
import itertools

import seglog.aio
from seglog.errors import IdleTimeoutError
from support.outside.doors import Doors

SMALL = {"segment.bytes": 4000, "index.interval.bytes": 500}
KEPT_RECORDS = 200
DEEDS_MAX = 100         # of a loop, if no interrupt comes


class LoopDoor(Doors):
    """The main thread runs one loop after the other. Whoever awaits an append and gets its offset finds it there."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.values = itertools.count()
        self.acknowledged = {}      # offset: value

    def main_deed(self, number):
        self.shelter()
        try:
            with asyncio.Runner() as runner:
                runner.run(self.live())
        finally:
            self.is_opening, self.subject = True, None

    async def live(self):
        """Sheltered but for the deeds: an interrupt between two loops would find nobody."""
        main = self.targets[0]
        async with seglog.aio.open(self.path, config=SMALL) as log:
            self.subject, self.is_opening = log.blocking, False
            try:
                main.is_sheltered = False
                for _ in range(DEEDS_MAX):
                    self.turns += 1
                    await self.act(log)
                    self.done += 1
            finally:
                main.is_sheltered = True
                self.is_opening = True
                while not main.ready and not asyncio.current_task().cancelling():
                    await asyncio.sleep(0)      # the one that is on its way cancels this

    async def act(self, log):
        if self.turns % 12 == 0:
            await log.roll()
        elif self.turns % 9 == 0:
            await log.delete_records(max(log.log_end_offset - KEPT_RECORDS, log.log_start_offset))
        elif self.turns % 5 == 0:
            await self.follow(log)
        elif self.turns % 4 == 0:
            await self.append_many(log)
        elif self.turns % 3 == 0:
            async for record in log.read(max(log.log_end_offset - 20, log.log_start_offset)):
                self.check(record)
        else:
            await asyncio.gather(*(self.append(log) for _ in range(self.turns % 8)))

    async def append(self, log):
        value = b"%d" % next(self.values)
        self.acknowledged[await log.append(value)] = value

    async def append_many(self, log):
        values = [b"%d" % next(self.values) for _ in range(3)]
        last = await log.append_many([(None, value) for value in values])
        self.acknowledged.update(zip(range(last - 2, last + 1), values, strict=True))

    async def follow(self, log):
        follower = log.follow("end", timeout=0.02)
        taking = asyncio.create_task(self.take(follower))
        try:
            await self.append(log)
            await taking
        finally:
            taking.cancel()
            await follower.aclose()

    async def take(self, records):
        before = -1
        try:
            async for record in records:
                self.check(record)
                if record.offset <= before:
                    self.violated(f"{record.offset} came after {before}")
                before = record.offset
        except IdleTimeoutError as error:
            self.check_hides_none(error)

    def check(self, record):
        if not record.value.isdigit():
            self.violated(f"{record.offset} holds what nobody appended")

    def deed(self, number):
        """Of the other threads, which block."""
        log = self.subject
        if log is not None:
            value = b"%d" % next(self.values)
            self.acknowledged[log.append(value)] = value

    def finish(self):
        with seglog.open(self.path, config=SMALL) as log:
            found = {record.offset: bytes(record.value) for record in log.read()}
            for offset, value in self.acknowledged.items():
                if offset >= log.log_start_offset and found.get(offset) != value:
                    self.violated(f"{value} was acknowledged at {offset}, where {found.get(offset)} is")
        if len(set(found.values())) != len(found):
            self.violated("a record is there twice")
        for finding in seglog.verify(self.path, config=SMALL).findings:
            if finding.severity != "note":
                self.violated(f"verify: {finding}")
