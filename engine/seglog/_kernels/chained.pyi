from collections.abc import Iterable
from typing import Generic, TypeVar, final

_T = TypeVar("_T")

@final
class Chained(Generic[_T]):
    def __init__(self, iterables: Iterable[Iterable[_T]], /) -> None: ...
    def __iter__(self) -> Chained[_T]: ...
    def __next__(self) -> _T: ...
