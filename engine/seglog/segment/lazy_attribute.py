"""An attribute that is computed at its first use: most segments of a long log are never used."""
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

Made = TypeVar("Made")


class lazy_attribute(Generic[Made]):
    """`name = lazy_attribute(make)` in a class: `make(object)` is called at the first use, and its result kept.

    No lock: if two threads ask at once, both get the same one of the two results.
    """

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Made:
        if instance is None:        # of the class: for help() and the like
            return cast(Made, self)
        made: Made = instance.__dict__.setdefault(self._name, self._make(instance))
        return made

    if TYPE_CHECKING:       # an assignment replaces it
        def __set__(self, instance: object, value: Made) -> None: ...
