"""Work that waits for a disk or a server, some of it at a time."""
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item], at_a_time: int) -> Iterator[Result]:
    """What `work` gives for each item, in their order, by `at_a_time` threads. At most as many results wait.

    The caller's thread takes the items. The first error in their order is raised when those that are at work have
    ended; what was not begun by then is left out, as it is where the caller stops asking. One item alone needs no
    thread: to start one costs more than to store a small file.
    """
    left = iter(items)
    first = list(islice(left, 2))
    if len(first) < 2:
        yield from map(work, first)
        return
    pool, waiting = ThreadPoolExecutor(at_a_time), deque[Future[Result]]()
    try:
        for item in chain(first, left):
            waiting.append(pool.submit(work, item))
            if len(waiting) > at_a_time:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
