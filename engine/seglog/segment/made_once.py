"""An attribute that is made when it is first asked for: most segments of a long log are never met."""
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

Made = TypeVar("Made")


class made_once(Generic[Made]):
    """`name = made_once(make)` in a class: `make(object)`, and from then on what that gave.

    No lock: two threads that ask at once both get what one of them made.
    """

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Made:
        made: Made = instance.__dict__.setdefault(self._name, self._make(instance))
        return made

    if TYPE_CHECKING:       # an assignment takes its place
        def __set__(self, instance: object, value: Made) -> None: ...
