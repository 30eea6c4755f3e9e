from collections.abc import Iterable
from enum import IntEnum
from typing import final

from typing_extensions import Buffer

class NodeKind(IntEnum):
    NULL_NODE = 0
    BOOL_NODE = 1
    FIXED_NODE = 2
    VAR_NODE = 3
    LIST_NODE = 4
    STRUCT_NODE = 5

class Instruction(IntEnum):
    FAIL = 0
    NOTHING = 1
    BOOLEAN = 2
    INT = 3
    LONG = 4
    LONG_TO_FLOAT = 5
    LONG_TO_DOUBLE = 6
    FLOAT = 7
    FLOAT_TO_DOUBLE = 8
    DOUBLE = 9
    BYTES = 10
    STRING = 11
    FIXED = 12
    DECIMAL = 13
    UUID = 14
    ENUM = 15
    RECORD = 16
    LIST = 17
    MAP = 18
    UNION = 19
    MEMBER = 20
    DEFAULT = 21
    SKIP_LONG = 22
    SKIP_BYTES = 23
    SKIP_FIXED = 24
    SKIP_LIST = 25
    SKIP_MAP = 26
    SKIP_STRING = 27
    SKIP_ENUM = 28

class Problem(IntEnum):
    NOT_IN_FRAME = -101
    NO_PROGRAM = -102
    MISMATCH = -103
    BAD_INDEX = -104
    NO_SYMBOL = -105
    NOT_UTF8 = -106
    NOT_UUID = -107
    TOO_MANY_DIGITS = -108
    NOT_BOOLEAN = -109
    NOT_INT = -110
    TOO_LARGE = -111

@final
class AvroLayout:
    def __new__(cls, nodes: Iterable[tuple[int, int, int]]) -> AvroLayout: ...
    @property
    def size(self) -> int: ...

@final
class AvroProgram:
    def __new__(cls, layout: AvroLayout, code: Iterable[int], constants: bytes) -> AvroProgram: ...
    @property
    def layout(self) -> AvroLayout: ...

@final
class AvroColumn:
    def __new__(cls, layout: AvroLayout, like: AvroColumn | None = None) -> AvroColumn: ...
    def __len__(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    def begin_again(self) -> bool: ...
    @property
    def layout(self) -> AvroLayout: ...
    @property
    def wanted(self) -> int: ...
    def add(self, schema_id: int, program: AvroProgram | None) -> None: ...
    def decode(
        self,
        offsets: Buffer,
        data: Buffer | None,
        validity: Buffer | None,
        first: int,
        start: int,
        stop: int,
        *,
        schema_id: int = -1,
        ids: Buffer | None = None,
        positions: Buffer | None = None,
        stops: bool = False,
    ) -> tuple[int, list[tuple[int, int, int, int, int]]]: ...
    def buffers(self) -> list[tuple[int, Buffer | None, Buffer | None, Buffer | None]]: ...
