"""Configuration: Kafka's own keys, units, defaults and limits, one frozen dataclass a subject.

A partition directory does not tell the configuration that it was written under, so whoever checks or
rebuilds indexes says it. docs/config.md is made from the fields below.
"""
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Self

from seglog.errors import InvalidConfigError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
MAX_INT = 2**31 - 1

_SUFFIXES = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}
_SIZE = re.compile(r"(?P<number>[0-9][0-9_]*(\.[0-9]+)?)\s*((?P<unit>[kmgt])(i?b)?|b)?", re.IGNORECASE)


def parse_bytes(value: object) -> int:
    """A number of bytes of an int or of text: 4096, "4096", "64MiB", "1.5 GiB", "16k"; k, KB and KiB are 1024.

    Raises ValueError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("not a number of bytes such as 4096, 16k or 64MiB")
    scale = _SUFFIXES[(found["unit"] or "").lower()]
    if "." not in found["number"]:
        return int(found["number"]) * scale
    return int(float(found["number"]) * scale)


def parse_int(value: object) -> int:
    """An int of an int or of text. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()):
        return int(value)
    raise ValueError("not a whole number")


@dataclass(frozen=True, slots=True)
class Key:
    """What a configuration key may be: the metadata of a field.

    One of `choices`, or a number from `low` to `high` or one of `besides`.
    """

    name: str
    unit: str
    meaning: str
    source: str
    low: int = 0
    high: int = MAX_INT
    besides: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def limits(self) -> str:
        """In words, for messages and for docs/config.md."""
        if self.choices:
            return " or ".join(self.choices)
        return "".join(f"{n} or " for n in self.besides) + f"{self.low} to {self.high}"

    def parse(self, value: object) -> Any:
        """The value, in the key's unit. Raises InvalidConfigError."""
        try:
            if self.choices:
                if value in self.choices:
                    return value
                raise ValueError("not one of them")
            number = parse_bytes(value) if self.unit == "bytes" else parse_int(value)
            if not self.low <= number <= self.high and number not in self.besides:
                raise ValueError("outside its limits")
        except ValueError as e:
            raise InvalidConfigError(f"{self.name} is {self.limits} ({self.unit}), not {value!r}: {e}") from None
        return number


def _key(default: Any, name: str, unit: str, meaning: str, source: str, **limits: Any) -> Any:
    return field(default=default, metadata={"key": Key(name, unit, meaning, source, **limits)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a log is laid out in segments and indexes, and what a reader may spend on a batch.

    Make one by `LogConfig.of({"segment.bytes": "64MiB"})`, which checks names, units and limits.
    """

    segment_bytes: int = _key(
        GIB, "segment.bytes", "bytes",
        "largest size of a .log file; a batch that would pass it begins a new segment",
        "LogConfig.DEFAULT_SEGMENT_BYTES. Kafka 4 asks for at least 1 MiB (KIP-1030), older ones for 14 bytes",
        low=14,
    )  # fmt: skip
    segment_index_bytes: int = _key(
        10 * MIB, "segment.index.bytes", "bytes",
        "size to which the active segment's indexes are preallocated; a full index begins a new segment",
        "ServerLogConfigs.LOG_INDEX_SIZE_MAX_BYTES_DEFAULT",
        low=4,
    )  # fmt: skip
    index_interval_bytes: int = _key(
        4 * KIB, "index.interval.bytes", "bytes",
        "bytes of log between two index entries: an entry is written when more than this were added since the last",
        "ServerLogConfigs.LOG_INDEX_INTERVAL_BYTES_DEFAULT",
    )  # fmt: skip
    max_message_bytes: int = _key(
        MIB + 12, "max.message.bytes", "bytes",
        "largest batch, compressed where it is",
        "ServerLogConfigs.MAX_MESSAGE_BYTES_DEFAULT: 1 MiB and Records.LOG_OVERHEAD",
    )  # fmt: skip
    max_decompressed_message_bytes: int = _key(
        64 * MIB, "max.decompressed.message.bytes", "bytes",
        "largest payload of a batch once decompressed; no stream may take more memory than this and a little",
        "Kafka's name since apache/kafka#23429; the default is ours",
        low=1,
    )  # fmt: skip
    message_timestamp_type: str = _key(
        "CreateTime", "message.timestamp.type", "name",
        "whether a batch carries the producer's timestamps or the broker's",
        "ServerLogConfigs.LOG_MESSAGE_TIMESTAMP_TYPE_DEFAULT (KIP-32)",
        choices=("CreateTime", "LogAppendTime"),
    )  # fmt: skip
    compression_gzip_level: int = _key(
        -1, "compression.gzip.level", "level",
        "level of batches that are compressed with gzip; -1 is zlib's own default, 6",
        "CompressionType.GZIP (KIP-390)",
        low=1, high=9, besides=(-1,),
    )  # fmt: skip
    compression_lz4_level: int = _key(
        9, "compression.lz4.level", "level",
        "level of batches that are compressed with lz4; 9 is the fast compressor, all others the slow one",
        "CompressionType.LZ4 (KIP-390)",
        low=1, high=17,
    )  # fmt: skip
    compression_zstd_level: int = _key(
        3, "compression.zstd.level", "level",
        "level of batches that are compressed with zstd",
        "CompressionType.ZSTD (KIP-390)",
        low=-131072, high=22,
    )  # fmt: skip

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """The configuration of `settings`: dotted keys (`segment.bytes`) or with underscores, values as ints or text
        with units. Raises InvalidConfigError for an unknown key, one given twice, or a value outside its limits.
        """
        attributes = {key.name: attribute for attribute, key in keys(cls)}
        known = dict(keys(cls))
        values: dict[str, Any] = {}
        for given, value in settings.items():
            name = given.strip().replace("_", ".")
            if name not in attributes:
                raise InvalidConfigError(f"no such key: {given}{_suggestion(name, attributes)}")
            attribute = attributes[name]
            if attribute in values:
                raise InvalidConfigError(f"{name} is given twice")
            values[attribute] = known[attribute].parse(value)
        return cls(**values)

    def items(self) -> Iterator[tuple[str, int | str]]:
        """Key and value of every setting, dotted, in the key's unit."""
        for attribute, key in keys(type(self)):
            yield key.name, getattr(self, attribute)


def keys(config: type[LogConfig]) -> list[tuple[str, Key]]:
    """Attribute and key of every field of a configuration class."""
    return [(f.name, _metadata(f)) for f in fields(config)]


def _metadata(f: "Field[Any]") -> Key:
    key: Key = f.metadata["key"]
    return key


def _suggestion(name: str, known: Mapping[str, str]) -> str:
    close = get_close_matches(name, known, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(close)}?" if close else ""
