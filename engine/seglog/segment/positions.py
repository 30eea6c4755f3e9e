"""The answers of a segment: where a batch is, which record has a time, which bytes were skipped."""

from seglog.named_tuple import NamedTuple


class BatchPosition(NamedTuple):
    """The position of a batch in its segment's .log: Kafka's LogOffsetPosition."""

    last_offset: int
    position: int
    size_bytes: int


class TimestampOffset(NamedTuple):
    """The answer to a search by time: Kafka's TimestampAndOffset.

    timestamp               of the record, in ms; -1: unknown
    offset, leader_epoch    of the record
    """

    timestamp: int
    offset: int
    leader_epoch: int | None = None


class LostRange(NamedTuple):
    """Bytes that a reader skipped, and the offsets that may have been in them.

    file, position, size_bytes      where they are; size_bytes 0: the segment that should hold the offsets is missing
    first_offset, last_offset       both included; last_offset -1: unknown
    reason                          what is wrong with them
    """

    file: str
    position: int
    size_bytes: int
    first_offset: int
    last_offset: int
    reason: str
