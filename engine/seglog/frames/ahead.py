"""Work done by several threads, its results taken in order, and only so much of it ahead of whoever takes them."""
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def in_order(work: Iterable[Callable[[], Result]], threads: int) -> Iterator[Result]:
    """What each piece of work gives, in their order. At most `threads` + 1 results are made or wait at a time.

    `work` itself is walked by the thread that takes the results. With one thread everything happens there.
    """
    if threads <= 1:
        for piece in work:
            yield piece()
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="seglog-scan")
    pending: deque[Future[Result]] = deque()
    try:
        for piece in work:
            pending.append(pool.submit(piece))
            del piece
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
