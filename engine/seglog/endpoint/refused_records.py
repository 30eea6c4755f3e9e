"""Finds the records for which a batch was refused; Produce reports them from version 8 on (KIP-467).

A client drops those, and may send the others again. (LogValidator.validateRecord, ProduceResponse.RecordError)
"""

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import SeglogError
from seglog.format.compression import decompressor
from seglog.log.log import Log
from seglog.named_tuple import NamedTuple

# In a larger batch no records are named, so that it blocks neither the loop nor the answer.
_RECORDS_MAX = 10_000
_NO_TIME = -1


class RefusedRecord(NamedTuple):
    """`number`: the record's index in its batch, from 0."""

    number: int
    why: str
    is_time: bool


def refused_records(log: Log, where: str, records: memoryview) -> list[RefusedRecord]:
    """The records that the log refuses in the first batch; none if it refuses the batch as a whole."""
    try:
        return _refused(log, where, records)
    except SeglogError:
        return []       # its records cannot be read: an unknown codec, damage


def _refused(log: Log, where: str, records: memoryview) -> list[RefusedRecord]:
    config, now_ms = log.config, log._clock.now_ms()
    first_ms, last_ms = 0, 2**63 - 1
    if config.message_timestamp_type != "LogAppendTime":
        first_ms = max(0, now_ms - config.message_timestamp_before_max_ms)
        last_ms = now_ms + config.message_timestamp_after_max_ms
    table = scan(Window(records), max_batches=1, decompress=decompressor(config.max_decompressed_message_bytes))
    if not len(table) or table[0].count > _RECORDS_MAX:
        return []
    found = []
    for number, record in enumerate(table[0]):
        if number == _RECORDS_MAX:      # a wrapper, whose header does not give the number of records
            return []
        if config.is_compacted and record.key is None:
            found.append(RefusedRecord(number, f"record {number} has no key, and {where} is compacted", is_time=False))
        elif record.timestamp != _NO_TIME and not first_ms <= record.timestamp <= last_ms:
            found.append(RefusedRecord(
                number, f"record {number} has timestamp {record.timestamp}; {where} accepts {first_ms} to {last_ms}",
                is_time=True))
    return found
