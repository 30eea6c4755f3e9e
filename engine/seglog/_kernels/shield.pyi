from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

def shielded(function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R: ...
