"""Work done by several threads, its results taken in order, and only so much of it ahead of whoever takes them."""
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Generic, TypeVar

Result = TypeVar("Result")


class _Place(Generic[Result]):
    """Where the result of a piece comes to, or its error. `pending`: held until it is there."""

    __slots__ = ("error", "pending", "result")
    result: Result

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.pending = Lock()
        self.pending.acquire()


class _Pieces(Generic[Result]):
    """The pieces of `work`, done by threads that each call `do`."""

    def __init__(self, work: Iterator[Callable[[], Result]]) -> None:
        self._work = work
        self._walking = Lock()
        self._is_over = False
        self.permits: SimpleQueue[bool] = SimpleQueue()             # one a piece; False: no more
        self.places: SimpleQueue[_Place[Result] | None] = SimpleQueue()     # in order; None: the end

    def do(self) -> None:
        """One piece for each permit, until there is none, or no piece."""
        while self.permits.get():
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

    def stop(self) -> None:
        """Let no further piece be begun."""
        self._is_over = True

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
    pieces = _Pieces(work)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="seglog-scan")
    try:
        for _ in range(threads + 1):
            pieces.permits.put(True)
        for _ in range(threads):
            pool.submit(pieces.do)
        while (place := pieces.places.get()) is not None:
            place.pending.acquire()
            if place.error is not None:
                try:
                    raise place.error
                finally:
                    del place
            yield place.result
            del place
            pieces.permits.put(True)
    finally:
        pieces.stop()
        for _ in range(threads):
            pieces.permits.put(False)
        pool.shutdown(wait=True)
