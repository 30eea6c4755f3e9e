"""Base classes of objects that own locks, descriptors, threads or maps, and therefore must not be copied."""
from abc import abstractmethod
from collections.abc import Callable
from typing import NoReturn, SupportsIndex

from seglog.errors import InvalidArgumentError


class OpenHandle:
    """Refuses copying and pickling: closing the copy would close what the original holds."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., object], tuple[object, ...]]:
        # copy.copy, copy.deepcopy and pickle all come here.
        raise _refusal(self, "copied or pickled")


class PathHandle(OpenHandle):
    """Refuses copying. Unpickling opens the path again for reading, with the function that `_reopening` returns."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._reopening()

    @abstractmethod
    def _reopening(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """A module-level function, and its arguments."""

    def __copy__(self) -> NoReturn:
        raise _refusal(self, "copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise _refusal(self, "copied")


def _refusal(handle: object, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a {type(handle).__name__} is an open handle: it cannot be {what}",
        hint="share it between threads as it is, or open its path again",
    )
