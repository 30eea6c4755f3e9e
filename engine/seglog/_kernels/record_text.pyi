from collections.abc import Callable, Iterable, Sequence
from typing import final

from seglog._kernels.record_batch import Record

@final
class TextRows:
    def __new__(
        cls,
        shown: Callable[[Record, bool], tuple[str, str]],
        headers_shown: Callable[[tuple[tuple[str, bytes | None], ...]], str],
        *,
        offset_width: int,
        value_bytes_max: int,
        is_decoded: bool,
    ) -> TextRows: ...
    def write(
        self, write: Callable[[str], object], records: Iterable[tuple[int, Record]], *, is_control: bool
    ) -> None: ...

@final
class TemplateText:
    def __new__(cls, parts: Sequence[bytes | str | Callable[[Record], bytes]]) -> TemplateText: ...
    def write(self, write: Callable[[bytes], object], records: Iterable[tuple[int, Record]]) -> None: ...
