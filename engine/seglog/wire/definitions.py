"""The fields of Kafka's messages and stored records, parsed from the notation of the tables in proto/kafka/.

One line is one field: name, type, the versions that have it, then its options:

    Topics []FetchTopic 0+ null 3+ tag 2 rigid = null

    null, null 3+    the field may be null, in all its versions or in those
    tag 2            a tagged field with this number
    rigid            written in the old way in flexible versions too (Kafka: flexibleVersions "none")
    = VALUE          the default, if it is not 0, false, "", an empty list or a struct of defaults

Versions are `3`, `0-12` or `4+`. A type is a primitive, the name of a struct, or a list (`[]`) of either.
"""
import re

from seglog.named_tuple import NamedTuple

PRIMITIVES = frozenset(
    ("bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "string", "bytes", "records", "uuid")
)
INTEGERS = frozenset(("int8", "int16", "uint16", "int32", "uint32", "int64"))
ZERO_UUID = bytes(16)

# Kafka's versions are int16.
LAST_VERSION = 0x7FFF


class Versions(NamedTuple):
    """A range of versions, both ends included. `4+` ends with LAST_VERSION."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS = Versions(1, 0)


def parse_versions(text: str) -> Versions:
    if text.endswith("+"):
        return Versions(int(text[:-1]), LAST_VERSION)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


class Field(NamedTuple):
    """A field of a message or struct."""

    name: str               # as Kafka spells it
    type: str               # of an element, for a list
    is_list: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    is_rigid: bool
    default: str | None     # as the line gives it; None if it gives none

    @property
    def attribute(self) -> str:
        """Its name in our classes: `TimeoutMs` is `timeout_ms`."""
        return snake_case(self.name)

    @property
    def is_struct(self) -> bool:
        return self.type not in PRIMITIVES

    @property
    def is_null_or_struct(self) -> bool:
        """Whether it is a tagged struct for which null and Kafka's struct of defaults, which is left out, differ."""
        return self.is_struct and not self.is_list and self.tag is not None and self.nullable != NO_VERSIONS and (
            self.default != "null"
        )

    @property
    def element(self) -> "Field":
        """The element of a list, as a separate field: no element is null or has a tag."""
        return self._replace(is_list=False, nullable=NO_VERSIONS, tag=None)

    def default_value(self) -> object:
        """The value of a field that is not set. A list stands for a new one. None for a struct means Kafka's struct of
        defaults, which is not created for every object."""
        if self.default == "null" or (self.is_struct and not self.is_list):
            return None
        if self.is_list:
            return []
        if self.type in INTEGERS:
            return int(self.default or 0)
        if self.type == "bool":
            return self.default == "true"
        if self.type == "float64":
            return float(self.default or 0)
        if self.type == "uuid":
            return ZERO_UUID
        return (self.default or "") if self.type == "string" else b""


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def parse_field(line: str) -> Field:
    words = iter(line.split())
    name, type_name, versions = next(words), next(words), parse_versions(next(words))
    nullable, tag, is_rigid, default = NO_VERSIONS, None, False, None
    word = next(words, None)
    while word is not None:
        following = next(words, None)
        if word == "null":
            nullable = versions
            if following is not None and following[0].isdigit():
                nullable = parse_versions(following)
                following = next(words, None)
        elif word == "rigid":
            is_rigid = True
        elif word in ("tag", "=") and following is not None:
            if word == "tag":
                tag = int(following)
            else:
                default = following
            following = next(words, None)
        else:
            raise ValueError(f"unknown word {word!r} in the field {line.strip()!r}")
        word = following
    return Field(
        name, type_name.removeprefix("[]"), type_name.startswith("[]"), versions, nullable, tag, is_rigid, default
    )
