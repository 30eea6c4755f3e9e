"""Base classes of the classes in messages.py: fields and versions, equality and repr."""
from typing import Any, ClassVar, Final, TypeAlias

from seglog.wire.definitions import Field, parse_field

# For list fields: None is a distinct value, and each object needs its own list.
UNSET: Final[Any] = object()

# The value of a `records` field. Decoded: a view of the frame. To encode: bytes, any object whose len() is its size in
# bytes, or a list of these.
Records: TypeAlias = Any


class KafkaStruct:
    """The fields of a message, or of a struct in one."""

    __slots__: tuple[str, ...] = ()
    # Lines in the notation of definitions.py.
    FIELDS: ClassVar[str]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        defaults = {field.attribute: field.default_value() for field in fields(type(self))}
        values = {name: getattr(self, name) for name in defaults}
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items() if value != defaults[name])
        return f"{type(self).__qualname__}({shown})"


class KafkaMessage(KafkaStruct):
    """A request, a response, or a standalone message."""

    __slots__ = ()
    API_KEY: ClassVar[int] = -1
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    # The first version with compact lengths and tagged fields; above MAX_VERSION for none.
    FLEXIBLE_FROM: ClassVar[int]


# The fields parsed so far, by class.
_fields: dict[type[KafkaStruct], tuple[Field, ...]] = {}


def fields(struct: type[KafkaStruct]) -> tuple[Field, ...]:
    """The fields of a class, in the order of the wire."""
    known = _fields.get(struct)
    if known is None:
        known = _fields[struct] = tuple(parse_field(line) for line in struct.FIELDS.split("|") if line)
    return known
