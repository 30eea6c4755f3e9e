"""Objects that hold what there is once: locks, descriptors, threads, or maps that are let go of together."""
from abc import abstractmethod
from collections.abc import Callable
from typing import NoReturn, SupportsIndex

from seglog.errors import InvalidArgumentError


class OpenHandle:
    """Refuses to be copied and pickled: closing the copy would close what the original holds."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., object], tuple[object, ...]]:
        # copy.copy, copy.deepcopy and pickle all come here.
        raise _refusal(self, "copied or pickled")


class PathHandle(OpenHandle):
    """Refuses to be copied. Pickled, it is opened again where it is loaded: by what `_reopening` says, for reading."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._reopening()

    @abstractmethod
    def _reopening(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """A function of a module, and its arguments."""

    def __copy__(self) -> NoReturn:
        raise _refusal(self, "copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise _refusal(self, "copied")


def _refusal(handle: object, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a {type(handle).__name__} is an open handle: it cannot be {what}",
        hint="share it between threads as it is, or open its path again",
    )
