"""Calls of tasks that a thread makes together, while others gather for its next turn."""
import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from seglog.loop.home import HomeLoop

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Together(Generic[Item, Answer]):
    """Calls that tasks make while a thread works are made together by its next turn. Runs in the loop.

    `work` gets the items in order, and returns an answer for each; an exception as an answer is raised in its task.
    """

    def __init__(self, home: HomeLoop, work: Callable[[list[Item]], "list[Answer | BaseException]"]) -> None:
        self._home = home
        self._work = work
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._made: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._is_working = False

    def under_way(self) -> "list[asyncio.Future[Answer]]":
        """The answers that are still to come."""
        return [answer for _, answer in (*self._made, *self._waiting)]

    def do(self, item: Item) -> "asyncio.Future[Answer]":
        self._home.check()
        answer: asyncio.Future[Answer] = self._home.loop.create_future()
        self._waiting.append((item, answer))
        if not self._is_working:
            # Not at once: other tasks that are ready now come along.
            self._is_working = True
            self._home.loop.call_soon(self._begin)
        return answer

    def _begin(self) -> None:
        calls = [call for call in self._waiting if not call[1].cancelled()]
        self._made, self._waiting = calls, []
        self._is_working = bool(calls)
        if calls:
            done = self._home.by_thread(self._work, [item for item, _ in calls])
            done.add_done_callback(lambda done: self._answer(calls, done))

    def _answer(
        self, calls: "list[tuple[Item, asyncio.Future[Answer]]]",
        done: "asyncio.Future[list[Answer | BaseException]]",
    ) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        answers = [error] * len(calls) if error is not None else done.result()
        for (_, future), answer in zip(calls, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._begin()
