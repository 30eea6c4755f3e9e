"""A coroutine that runs in a callback of the loop up to its first wait, and is completed by a task.

A task needs a turn of the loop before it begins. (Python 3.12 has eager tasks for this, 3.11 has none.) Until its first
wait there is no current task, so the coroutine must not use what asks for one, such as `asyncio.timeout`.
"""
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Begun(Generic[Result]):
    """The rest of a coroutine that was begun with `send(None)`. Await it, or `close` it."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Result], waits_for: Any) -> None:
        """`waits_for`: what `send` returned."""
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Result]:
        # What the coroutine has yielded already goes to the task first; then as `yield from` does.
        coroutine, waits_for = self._coroutine, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    waits_for = coroutine.throw(error)
                else:
                    waits_for = coroutine.send(sent)
        except StopIteration as end:
            result: Result = end.value
            return result

    def close(self) -> None:
        """End it where it waits."""
        self._coroutine.close()
