"""Work done by several threads, its results taken in order, and only so much of it ahead of whoever takes them."""
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Generic, TypeVar

Result = TypeVar("Result")
# So long a thread waits for its next piece, then goes back to the pool, which ends it with the interpreter. One that
# waited on would keep the process of somebody who takes no more results, and does not close them, from ending.
_LINGER_S = 0.05


class _Place(Generic[Result]):
    """Where the result of a piece comes to, or its error. `pending`: held until it is there."""

    __slots__ = ("error", "pending", "result")
    result: Result

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.pending = Lock()
        self.pending.acquire()


class _Pieces(Generic[Result]):
    """The pieces of `work`, done by `threads` threads, as far as they are permitted."""

    def __init__(self, work: Iterator[Callable[[], Result]], threads: int) -> None:
        self._work = work
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="seglog-scan")
        self._counting = Lock()
        self._running = 0           # threads that take permits
        self._walking = Lock()
        self._is_over = False
        self._permits: SimpleQueue[bool] = SimpleQueue()            # one a piece; False: no more
        self.places: SimpleQueue[_Place[Result] | None] = SimpleQueue()     # in order; None: the end

    def permit(self) -> None:
        """Let one more piece be done."""
        self._permits.put(True)
        with self._counting:        # behind the permit: a thread that goes has looked for it before
            is_short = self._running < self._threads
            self._running += is_short
        if is_short:
            self._pool.submit(self._do)

    def stop(self) -> None:
        """Let no further piece be begun, and wait for those that were."""
        self._is_over = True
        for _ in range(self._threads):
            self._permits.put(False)
        self._pool.shutdown(wait=True)

    def _is_permitted(self) -> bool:
        while True:
            try:
                return self._permits.get(timeout=_LINGER_S)
            except Empty:
                with self._counting:
                    if self._permits.empty():
                        self._running -= 1
                        return False

    def _do(self) -> None:
        """One piece for each permit, until there is none, or no piece."""
        while self._is_permitted():
            place: _Place[Result] = _Place()
            piece: Callable[[], Result] | None = None
            try:
                piece = self._next(place)
                if piece is None:
                    return
                place.result = piece()
            except BaseException as error:
                place.error = error
            finally:
                place.pending.release()
                del place, piece        # an error's traceback keeps this frame: it shall keep no rows and no files

    def _next(self, place: _Place[Result]) -> Callable[[], Result] | None:
        with self._walking:
            if self._is_over:
                return None
            try:
                piece = next(self._work, None)
            except BaseException:
                self._is_over = True
                self.places.put(place)
                raise
            if piece is None:
                self._is_over = True
            self.places.put(None if piece is None else place)
            return piece


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
    pieces = _Pieces(work, threads)
    try:
        for _ in range(threads + 1):
            pieces.permit()
        while (place := pieces.places.get()) is not None:
            place.pending.acquire()
            if place.error is not None:
                try:
                    raise place.error
                finally:
                    del place
            yield place.result
            del place
            pieces.permit()
    finally:
        pieces.stop()
