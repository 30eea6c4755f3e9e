from typing import final

@final
class CheckedBatches:
    def __new__(cls, size_bytes: int) -> CheckedBatches: ...
