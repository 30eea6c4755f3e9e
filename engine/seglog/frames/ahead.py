"""Runs work in several threads, yields the results in order, and limits how far the threads run ahead."""
import math
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Generic, TypeVar

Result = TypeVar("Result")
# How long a thread waits for its next piece before it returns to the pool, which ends it with the interpreter. If it
# waited longer, a process that takes no more results, and does not close the iterator, could not end.
_LINGER_S = 0.05
# How long the consumer waits for another thread to find its piece, before it waits for its next result instead. Of a
# file a piece is found in 0.1 ms; of a store it may have to be fetched.
_PATIENCE_S = 0.002


class _Place(Generic[Result]):
    """Holds the result of a piece, or its error. `pending`: locked until one of them is set."""

    __slots__ = ("error", "pending", "piece", "result")
    result: Result

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.pending = Lock()
        self.pending.acquire()
        # Kept until the consumer has moved on. The files of the last piece of a segment are unmapped with it, which
        # takes as long as decoding half of it: otherwise it would happen while a thread iterates, and others wait.
        self.piece: Callable[[], Result] | None = None


class _Pieces(Generic[Result]):
    """The pieces of `work`, one for each permit, run by `helpers` threads, and by the consumer while it waits."""

    def __init__(self, work: Iterator[Callable[[], Result]], helpers: int) -> None:
        self._work = work
        self._helpers = helpers
        self._pool = ThreadPoolExecutor(helpers, thread_name_prefix="seglog-scan")
        self._counting = Lock()
        self._running = 0           # threads that take permits
        self._walking = Lock()
        self._is_over = False
        self._permits: SimpleQueue[bool] = SimpleQueue()            # one for each piece; False ends it
        self._places: SimpleQueue[_Place[Result] | None] = SimpleQueue()     # in order; None ends it

    def permit(self) -> None:
        """Permit one more piece."""
        self._permits.put(True)
        with self._counting:        # after the permit: a thread that ends has checked for permits under this lock
            is_short = self._running < self._helpers
            self._running += is_short
        if is_short:
            self._pool.submit(self._do)

    def help(self) -> bool:
        """Run one piece in this thread, if one is permitted and left, and no other thread takes long to find its own.
        Returns whether it did."""
        try:
            self._permits.get_nowait()
        except Empty:
            return False
        if self._run_next(_PATIENCE_S):
            return True
        self._permits.put(True)
        return False

    def first(self) -> _Place[Result] | None:
        """The place of the next result; None if there is none. Runs pieces in this thread until that one has begun."""
        while True:
            try:
                return self._places.get_nowait()
            except Empty:
                if not self.help():
                    return self._places.get()

    def stop(self) -> None:
        """Start no further piece, and wait for those that have started."""
        self._is_over = True
        for _ in range(self._helpers):
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
        """Run one piece for each permit, until permits or pieces run out."""
        while self._is_permitted() and self._run_next():
            pass

    def _run_next(self, patience_s: float = math.inf) -> bool:
        """Run the next piece; its error goes to its place. Returns False if none is left, or after `patience_s`."""
        if not self._may_walk(patience_s):
            return False
        place: _Place[Result] = _Place()
        try:
            try:
                place.piece = self._next(place)
            finally:
                self._walking.release()
            if place.piece is None:
                return False
            place.result = place.piece()
        except BaseException as error:
            place.error = error
            if not isinstance(error, Exception):
                raise               # an interrupt of this thread: its consumer must not wait for earlier results first
        finally:
            place.pending.release()
            del place               # an error's traceback keeps this frame, which must not keep rows or files
        return True

    def _may_walk(self, patience_s: float) -> bool:
        """Lock `_walking`, unless it takes longer than `patience_s`, or no piece is wanted any more: an interrupt of
        the consumer could leave it locked."""
        while not self._walking.acquire(timeout=min(patience_s, _LINGER_S)):
            patience_s -= _LINGER_S
            if patience_s <= 0 or self._is_over:
                return False
        return True

    def _next(self, place: _Place[Result]) -> Callable[[], Result] | None:
        if self._is_over:
            return None
        try:
            piece = next(self._work, None)
        except BaseException:
            self._is_over = True
            self._places.put(place)
            raise
        if piece is None:
            self._is_over = True
        self._places.put(None if piece is None else place)
        return piece


def in_order(work: Iterator[Callable[[], Result]], threads: int) -> Generator[Result, None, None]:
    """Yield the result of each piece of work, in order; an error of `work` is raised after the results before it.

    At most 2 * `threads` results are being made or wait at a time: with fewer, a thread waits for the consumer, which
    takes results only between pieces of its own. `threads` - 1 threads run pieces, and so does the consumer's thread
    while the next result is not ready: if it only waited, each result would cost a switch of threads.
    All of them iterate over `work`, one at a time: a thread that has taken a piece lets the next one take its own, and
    runs the piece. With `threads` = 1 everything happens in the consumer's thread. Close this before `work`.
    """
    if threads <= 1:
        for piece in work:
            yield piece()
        return
    pieces = _Pieces(work, threads - 1)
    try:
        for _ in range(2 * threads):
            pieces.permit()
        while (place := pieces.first()) is not None:
            while not place.pending.acquire(blocking=False):
                if not pieces.help():
                    place.pending.acquire()
                    break
            if place.error is not None:
                try:
                    raise place.error
                finally:
                    del place
            yield place.result
            del place.result
            pieces.permit()
    finally:
        pieces.stop()
