"""The event loops that seglog.aio is tried on: asyncio's own and, where it is installed, uvloop."""
import asyncio
import gc

import pytest

try:
    import uvloop
except ImportError:
    uvloop = None

LOOPS = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(
        uvloop and uvloop.new_event_loop, id="uvloop",
        marks=pytest.mark.skipif(uvloop is None, reason="uvloop is not installed: it has no wheel for each Python"),
    ),
]
in_both_loops = pytest.mark.parametrize("new_loop", LOOPS)


def run_in(new_loop, coroutine, seconds=60):
    """`asyncio.run` in such a loop, with a limit. What the loop would only have logged is an error here."""
    complaints = []

    async def limited():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        return await asyncio.wait_for(coroutine, seconds)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        answer = runner.run(limited())
        gc.collect()        # what nobody took is told of when it is collected
    assert not complaints, complaints
    return answer


async def end_following(tasks, readers):
    """Cancel the tasks and wait until they ended, then close their readers."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for reader in readers:
        await reader.close()
