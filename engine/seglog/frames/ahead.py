"""Work done by several threads, its results taken in order, and only so much of it ahead of whoever takes them."""
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

Result = TypeVar("Result")


def in_order(work: Iterator[Callable[[], Result]], threads: int) -> Generator[Result, None, None]:
    """What each piece of work gives, in their order; what `work` raises, behind what came before.

    At most `threads` + 1 results are made or wait at a time. `work` is walked by these threads as well, one at a time:
    whoever has found a piece lets the next one look for its own, and does it. With one thread everything happens in
    the thread that takes the results. Close this before `work`.
    """
    if threads <= 1:
        for piece in work:
            yield piece()
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="seglog-scan")
    pending: deque[Future[tuple[Result] | None]] = deque()
    turn = Lock()       # free: the next one may walk
    try:
        while True:
            following = Lock()
            following.acquire()
            pending.append(pool.submit(_next_done, work, turn, following))
            turn = following
            if len(pending) > threads:
                done = pending.popleft().result()
                if done is None:
                    return
                yield done[0]
                del done
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _next_done(work: Iterator[Callable[[], Result]], turn: Lock, following: Lock) -> tuple[Result] | None:
    """The result of the next piece, found when it is our turn; None if there is none."""
    # Threads begin these calls in the order in which they were handed in: whom we wait for has a thread.
    turn.acquire()
    try:
        piece = next(work, None)
    finally:
        following.release()
    return None if piece is None else (piece(),)
