"""The timer of groups and transactions: many calls that are due together let the loop go on."""
import asyncio
import time

from seglog.clock import SystemClock
from seglog.coordinators.timer import Timer

CALLS, CALL_S = 40, 0.001


def test_calls_that_are_due_together_let_others_run_between_them():
    async def run():
        timer, done, seen = Timer(SystemClock()), [], set()

        def call():
            time.sleep(CALL_S)
            done.append(1)

        for _ in range(CALLS):
            timer.call_in(0, call)
        running = asyncio.get_running_loop().create_task(timer.run())
        while len(done) < CALLS:
            await asyncio.sleep(0)
            seen.add(len(done))
        running.cancel()
        assert len(seen) > CALLS // 10

    asyncio.run(run())


def test_a_call_in_pieces_ends_and_lets_others_run_between_them():
    async def run():
        timer, done, seen = Timer(SystemClock()), [], set()

        def steps():
            for _ in range(CALLS):
                time.sleep(CALL_S)
                done.append(1)
                yield

        running = asyncio.get_running_loop().create_task(timer.run())
        timer.in_pieces(steps())
        while len(done) < CALLS:
            await asyncio.sleep(0)
            seen.add(len(done))
        running.cancel()
        assert len(seen) > CALLS // 10

    asyncio.run(run())
