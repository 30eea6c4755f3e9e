"""The answers of a segment: where a batch is, which record has a time, which bytes were skipped."""
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """The position of a batch in its segment's .log: Kafka's LogOffsetPosition."""

    last_offset: int
    position: int
    size_bytes: int


class TimestampOffset(NamedTuple):
    """The answer to a search by time: Kafka's TimestampAndOffset. timestamp in ms, -1 if unknown."""

    timestamp: int
    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class LostRange:
    """Bytes that a reader skipped, and the offsets that may have been in them (inclusive; last -1: unknown)."""

    file: str
    position: int
    size_bytes: int
    first_offset: int
    last_offset: int
    reason: str
