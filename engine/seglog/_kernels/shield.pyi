from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

def work_in_background() -> None: ...
def shielded(function: Callable[_P, _R], *args: _P.args, **named: _P.kwargs) -> _R: ...
