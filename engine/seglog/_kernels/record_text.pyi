from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar, final

from typing_extensions import disjoint_base

from seglog._kernels.record_batch import Record

_Piece = TypeVar("_Piece", str, bytes)

@disjoint_base
class Rows(Generic[_Piece]):
    def write(
        self, write: Callable[[_Piece], object], records: Iterable[tuple[int, Record]], *, is_control: bool = False
    ) -> None: ...

@final
class TextRows(Rows[str]):
    def __new__(
        cls,
        shown: Callable[[Record, bool], tuple[str, str]],
        headers_shown: Callable[[tuple[tuple[str, bytes | None], ...]], str],
        *,
        offset_width: int,
        value_bytes_max: int,
        is_decoded: bool,
    ) -> TextRows: ...

@final
class TemplateText(Rows[bytes]):
    def __new__(cls, parts: Sequence[bytes | str | Callable[[Record], bytes]]) -> TemplateText: ...
