"""Encodes records of a tagged log: as v2 batches first, or from encoded batches of any version, then as tagged
messages.

What the format cannot store is refused, as Kafka refuses it in conversions to v0 and v1: headers (except those that are
tags), producers, transactions. Batches from a leader are messages already, and are stored unchanged.
"""
from typing import TYPE_CHECKING

from seglog._kernels.append_result import trusted
from seglog._kernels.batch_survey import first_disorder, first_larger, first_with_producer
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.tag_list import first_impossible, tags_of
from seglog._kernels.tagged_packer import TaggedPacker
from seglog.config import MAX_INT, LogConfig
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    RecordTooLargeError,
    UnsupportedForMessageFormatError,
)
from seglog.format.compression import Codec, decompressor
from seglog.format.conversion_profile import compressor
from seglog.format.dialect import TAGGED
from seglog.format.old_format import MessageEncoder
from seglog.format.tagged import scan_tagged
from seglog.format.validate import AppendRules, Assigned, assign

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import TimeOf

_COUNT, _LAST_DELTA = 32, 33


class TaggedEncoder(MessageEncoder):
    """The encoder of a log whose seglog.message.dialect is tagged."""

    def __init__(self, config: LogConfig, leader_epoch: int = 0, time_of: "TimeOf | None" = None) -> None:
        if config.message_format_version is not None:
            raise InvalidArgumentError(
                "message.format.version belongs to Kafka's dialect, but seglog.message.dialect is tagged",
                hint="leave one of them out",
            )
        # (Limits apply to what is stored, and it is compressed once, at the end.)
        as_it_comes = config.replace(compression_type="producer")
        super().__init__(as_it_comes, leader_epoch, time_of)
        self._config = config
        self._ready = AppendRules.of(as_it_comes.replace(max_message_bytes=MAX_INT, segment_bytes=MAX_INT))

    def stored(self, made: "Buffer", first_offset: int, now_ms: int, leader_epoch: int) -> Assigned:
        found = assign(made, first_offset, self._conversion, now_ms=now_ms, leader_epoch=leader_epoch)
        return self._as_messages(found)

    def assigned(
        self, raw: "Buffer", next_offset: int, *, now_ms: int, leader_epoch: int = 0, allow_control: bool = False
    ) -> Assigned:
        found = assign(
            raw, next_offset, self._ready, now_ms=now_ms, leader_epoch=leader_epoch, allow_control=allow_control
        )
        if first_with_producer(found.table) >= 0 or found.table[0].is_control:
            raise UnsupportedForMessageFormatError(
                "a producer's batch or a transaction marker: messages with tags cannot store a producer"
            )
        return self._as_messages(found)

    def followed(self, raw: "Buffer | BatchTable", next_offset: int) -> Assigned:
        # (Opens a set that does not state its end: the next message must come after it.)
        table = raw if isinstance(raw, BatchTable) else scan_tagged(raw if isinstance(raw, bytes) else bytes(raw))
        slot = first_disorder(table, next_offset) if len(table) else 0
        if slot >= 0:
            raise CorruptRecordError(
                f"message {slot} does not follow offset {next_offset - 1} and the message before it",
                position=table[slot].position if len(table) else 0,
            )
        slot = first_impossible(table)
        if slot >= 0:
            tags = tags_of(table[slot])
            raise CorruptRecordError(
                f"message {slot} is a wrapper with tags that contradict each other: {tags[_COUNT]!r} messages (tag "
                f"{_COUNT}), the last with the relative offset {tags[_LAST_DELTA]!r} (tag {_LAST_DELTA})",
                position=table[slot].position,
            )
        self._check_total(table.end - table[0].position)
        return trusted(table)

    def _as_messages(self, found: Assigned) -> Assigned:
        packer = TaggedPacker(
            codec=-1 if self._config.codec is None else Codec.of(self._config.codec),
            with_ms=self._config.message_tagged_timestamp_ms,
            decompress=decompressor(self._config.max_decompressed_message_bytes), compress=compressor(self._config, 2),
        )
        packer.add(found.table, 0, len(found.table))
        packer.finish()
        if packer.headers_left_out:
            raise UnsupportedForMessageFormatError(
                f"{packer.headers_left_out} record headers: messages with tags can store only seglog.tag.<id>"
            )
        assigned = trusted(TAGGED.window(bytes(packer.take())))
        slot = first_larger(assigned.table, self._config.max_message_bytes)
        if slot >= 0:
            raise RecordTooLargeError(
                f"a message has {assigned.table[slot].size_bytes} bytes with its tags, more than "
                f"max.message.bytes = {self._config.max_message_bytes}"
            )
        self._check_total(len(assigned.raw))
        return assigned

    def _check_total(self, size_bytes: int) -> None:
        if size_bytes > self._config.segment_bytes:
            raise RecordTooLargeError(
                f"the messages of one append have {size_bytes} bytes, more than "
                f"segment.bytes = {self._config.segment_bytes}"
            )
