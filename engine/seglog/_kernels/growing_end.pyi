from typing import Any

from typing_extensions import disjoint_base

@disjoint_base
class GrowingEnd:
    at: Any
    def __init__(self, at: tuple[int, int, int, int, int]) -> None: ...
