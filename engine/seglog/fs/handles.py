"""Objects that hold what there is once: locks, descriptors, threads, or maps that are let go of together."""
from typing import NoReturn, SupportsIndex

from seglog.errors import InvalidArgumentError


class OpenHandle:
    """Refuses to be copied and pickled: closing the copy would close what the original holds."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # copy.copy, copy.deepcopy and pickle all come here.
        raise InvalidArgumentError(
            f"a {type(self).__name__} is an open handle: it cannot be copied or pickled",
            hint="share it between threads as it is, or open its path again",
        )
