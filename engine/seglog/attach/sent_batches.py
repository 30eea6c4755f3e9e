"""The batches that a process sends to the owner of a log, with a producer's id and numbers of its own.

A Kafka producer is idempotent by three fields of each batch: its id, its epoch, and the sequence number of the batch's
first record. The log remembers them, also over a restart, and so does a broker. An attached process uses these fields:
a call that is made again, because the owner died before its answer came, is found by them, and not appended twice. They
cost no byte, and readers see nothing of them.

One call at a time uses an `OwnProducer`: its batches are numbered without gaps. If it is not known what became of a
batch, its producer is not used again.
"""
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seglog._kernels.crc import crc32c
from seglog.format.batch_layout import (
    ATTRIBUTES_POS,
    BASE_SEQUENCE_POS,
    COUNT_POS,
    CRC_POS,
    LAST_OFFSET_DELTA_POS,
    PRODUCER_EPOCH_POS,
    PRODUCER_ID_POS,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Kafka's brokers, and programs, number their producers from 0 on: these ids begin where they never come.
_FIRST_ID = 1 << 62
_SEQUENCES = 1 << 31
_EPOCH = b"\0\0"


class OwnProducer:
    """A producer id of this process, for one call at a time."""

    __slots__ = ("producer_id", "sequence")

    def __init__(self) -> None:
        self.producer_id = _FIRST_ID | int.from_bytes(os.urandom(8), "big") >> 2
        # Of the next record.
        self.sequence = 0

    def has_room_for(self, count: int) -> bool:
        """Whether so many records have numbers here: then it begins again with another id."""
        return self.sequence + count < _SEQUENCES

    def stamped(self, batches: "Sequence[Buffer]") -> list[bytes]:
        """The batches with their numbers. Changes nothing here: they may be refused."""
        sequence, found = self.sequence, []
        for batch in batches:
            raw = bytearray(batch)
            raw[PRODUCER_ID_POS:COUNT_POS] = (
                self.producer_id.to_bytes(8, "big") + _EPOCH + sequence.to_bytes(4, "big")
            )
            raw[CRC_POS:ATTRIBUTES_POS] = crc32c(memoryview(raw)[ATTRIBUTES_POS:]).to_bytes(4, "big")
            sequence += span_of(raw)
            found.append(bytes(raw))
        return found

    def went(self, count: int) -> None:
        """So many records were appended."""
        self.sequence += count


def span_of(batch: "bytes | bytearray | memoryview") -> int:
    """How many offsets, and sequence numbers, a v2 batch takes."""
    return int.from_bytes(batch[LAST_OFFSET_DELTA_POS : LAST_OFFSET_DELTA_POS + 4], "big", signed=True) + 1


def producer_of(batch: "bytes | memoryview") -> tuple[int, int, int]:
    """The producer id, its epoch and the base sequence of a v2 batch."""
    return (
        int.from_bytes(batch[PRODUCER_ID_POS:PRODUCER_EPOCH_POS], "big", signed=True),
        int.from_bytes(batch[PRODUCER_EPOCH_POS:BASE_SEQUENCE_POS], "big", signed=True),
        int.from_bytes(batch[BASE_SEQUENCE_POS:COUNT_POS], "big", signed=True),
    )
