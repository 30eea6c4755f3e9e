"""An answer that a callback delivers to a waiting request, whose client may be gone by then."""
import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

Result = TypeVar("Result")


class PendingAnswer(Generic[Result]):
    """Await it, or pass a function to `then`: the last one who asked gets the result, unless the wait was
    cancelled. Call `give` at most once."""

    __slots__ = ("_is_given", "_result", "_then")

    _result: Result

    def __init__(self) -> None:
        self._is_given = False
        self._then: Callable[[Result], object] | None = None

    def give(self, result: Result) -> None:
        self._is_given, self._result = True, result
        if self._then is not None:
            self._then(result)

    def then(self, function: Callable[[Result], object]) -> None:
        """Call `function` with the result: now, or in the call of `give`."""
        if self._is_given:
            function(self._result)
        else:
            self._then = function

    def __await__(self) -> Generator[None, None, Result]:
        if not self._is_given:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._then = lambda _: None if future.done() else future.set_result(None)
            yield from future.__await__()
        return self._result
