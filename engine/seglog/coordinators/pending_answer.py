"""An answer that a callback delivers to a waiting request, whose client may be gone by then."""
import asyncio
from collections.abc import Generator
from typing import Generic, TypeVar

Result = TypeVar("Result")


class PendingAnswer(Generic[Result]):
    """Await it once; call `give` at most once. A result that comes after the wait was cancelled is dropped."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def give(self, result: Result) -> None:
        if not self._future.done():
            self._future.set_result(result)

    def __await__(self) -> Generator[None, None, Result]:
        return self._future.__await__()
