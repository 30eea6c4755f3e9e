"""What the kernel says of batches to append, the most obvious Python says too, whatever the bytes."""
import os
import random
import struct
from array import array

import pytest

from seglog._kernels.append_result import Assigned, Unfit
from seglog._kernels.append_rules import AppendCheck
from seglog.config import LogConfig
from seglog.errors import SeglogError
from seglog.format.compression import compress, decompressor
from seglog.format.validate import AppendRules, assign, check_follower
from support import plain_format as plain
from support.append_cases import CODECS, NOW, make_case
from support.mutations import mend_checksums, mutate

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
CASES = 40_000 if os.environ.get("SEGLOG_TORTURE") else 2_000
MAX_INT64 = 2**63 - 1


def decompress(*arguments):
    return bytes(decompressor()(*arguments))


class Refused(Exception):
    pass


def need(holds):
    if not holds:
        raise Refused


def whole_batches(raw):
    batches = list(plain.split_batches(raw))
    need(batches and b"".join(batches) == raw and all(map(plain.crc_fits, batches)))
    return batches


def wrapped_messages(batch, magic, codec):
    """The messages inside a wrapper as they stand, each checksum checked."""
    wrapper = plain.decode_message(batch, 0, len(batch))[0]
    inner = list(plain.split_batches(decompress(codec, magic, wrapper.value or b"")))
    need(all(map(plain.crc_fits, inner)) and all(message[16] == magic for message in inner))
    return [plain.decode_message(message, 0, len(message))[0] for message in inner]


def plain_assign(case):
    """(the records as they are to be read from the log, whether the bytes inside stay, codec)."""
    config = LogConfig.of(case.settings)
    batches = whole_batches(case.raw)
    need(all(len(batch) <= config.max_message_bytes for batch in batches))
    magic = case.raw[16]
    need(all(batch[16] == magic for batch in batches))
    attributes = struct.unpack_from(">h", case.raw, 21)[0] if magic == 2 else case.raw[17]
    codec = attributes & 7
    need(all((b[22] if magic == 2 else b[17]) & 7 <= (plain.ZSTD if magic == 2 else plain.LZ4) for b in batches))
    need(magic == 0 or not any((b[22] if magic == 2 else b[17]) & plain.LOG_APPEND_TIME for b in batches))
    need(len(batches) == 1 or (magic < 2 and not any(b[17] & 7 for b in batches)))
    if magic == 2:
        delta, = struct.unpack_from(">i", case.raw, 23)
        producer, epoch, sequence, count = struct.unpack_from(">qhii", case.raw, 43)
        need(count > 0 and delta == count - 1)
        need(case.is_coordinator or not attributes & plain.CONTROL)
        need(producer >= -1 and (producer == -1 or epoch >= 0))
        need(producer >= 0 or not attributes & plain.TRANSACTIONAL)
        need(case.is_coordinator or producer == -1 or sequence >= 0)
    records = [record for batch in batches for record in plain.decode_batch(batch, decompress, in_order=False)]
    is_sequential = True
    if magic == 2:
        base, = struct.unpack_from(">q", case.raw)
        need(all(plain.signed64(r.offset - base) == i for i, r in enumerate(records)))
    elif codec:
        inner = wrapped_messages(case.raw, magic, codec)
        is_sequential = [message.offset for message in inner] == list(range(len(inner)))
    need(not config.is_compacted or all(r.key is not None for r in records))
    is_append_time = config.message_timestamp_type == "LogAppendTime"
    for timestamp in (r.timestamp for r in records):
        need(timestamp >= -1)
        if timestamp != -1 and not is_append_time:
            need(-config.message_timestamp_after_max_ms <= NOW - timestamp <= config.message_timestamp_before_max_ms)
    target = codec if config.compression_type == "producer" else CODECS.index(config.compression_type)
    if magic == 2 and attributes & plain.CONTROL:
        target = codec
    need(magic == 2 or target != plain.ZSTD)
    stays = target == codec and is_sequential and not (magic == 0 and codec)
    if is_append_time and magic > 0:
        records = [r._replace(timestamp=NOW) for r in records]
    return [r._replace(offset=case.first_offset + i) for i, r in enumerate(records)], stays, target


def check_one(case):
    try:
        expected = plain_assign(case)
    except (Refused, plain.Malformed, SeglogError):
        expected = None
    # An array has not a byte more than its own: a sanitizer sees the first one read behind it.
    given = array("B", case.raw)
    refusal = None
    try:
        assigned = assign(
            given, case.first_offset, AppendRules.of(LogConfig.of(case.settings)), now_ms=NOW,
            leader_epoch=case.leader_epoch, allow_control=case.is_coordinator,
        )
    except SeglogError as e:
        refusal = e
    if refusal is not None:
        # (What was built again may be too large.)
        assert expected is None or (refusal.code == "record_too_large" and not expected[1]), refusal
        return "refused"
    assert given.tobytes() == case.raw
    assert expected is not None, assigned
    records, stays, target = expected
    stored = bytes(assigned.raw)
    batches = list(plain.split_batches(stored))
    assert b"".join(batches) == stored
    assert all(map(plain.crc_fits, batches))
    assert [r for batch in batches for r in plain.decode_batch(batch, decompress)] == records
    assert assigned.rebuilt == (not stays)
    assert all((b[22] if b[16] == 2 else b[17]) & 7 == target for b in batches)
    assert (assigned.first_offset, assigned.last_offset) == (records[0].offset, records[-1].offset)
    assert assigned.count == len(records)
    assert assigned.max_timestamp == max(r.timestamp for r in records)
    assert all(struct.unpack_from(">i", b, 12)[0] == case.leader_epoch for b in batches if b[16] == 2)
    # The table says what the bytes say.
    assert [bytes(row.raw()) for row in assigned.table] == batches
    assert all(row.crc_is_valid() for row in assigned.table)
    if assigned.max_timestamp >= 0:
        first = next(row for row in assigned.table if row.max_timestamp == assigned.max_timestamp)
        assert assigned.offset_of_max_timestamp == first.last_offset
    else:
        assert assigned.offset_of_max_timestamp == -1
    return "rebuilt" if assigned.rebuilt else "in place"


def test_batches_are_taken_and_stored_as_plain_python_has_it():
    outcomes = []
    for number in range(CASES):
        try:
            outcomes.append(check_one(make_case(number)))
        except BaseException:
            print(f"case {number}: {make_case(number)}")
            raise
    assert min(outcomes.count(what) for what in ("refused", "rebuilt", "in place")) > CASES // 20


def test_every_bit_flip_of_a_batch_with_a_right_checksum_comes_to_an_answer():
    for number in (3, 4, 8, 10):
        case = make_case(number)
        for bit in range(8 * min(len(case.raw), 400)):
            raw = bytearray(case.raw)
            raw[bit // 8] ^= 1 << bit % 8
            case_of_bit = make_case(number)
            case_of_bit.raw = mend_checksums(bytes(raw))
            check_one(case_of_bit)


def plain_follow(raw, next_offset):
    for batch in whole_batches(raw):
        base, = struct.unpack_from(">q", batch)
        last, codec = base, batch[17] & 7
        if batch[16] == 2:
            delta, = struct.unpack_from(">i", batch, 23)
            count, = struct.unpack_from(">i", batch, 57)
            last, codec = base + delta, batch[22] & 7
            need(delta >= 0 and count <= delta + 1)
        need(codec <= (plain.ZSTD if batch[16] == 2 else plain.LZ4))
        need(base >= max(next_offset, 0))
        next_offset = last + 1
    return next_offset


def test_a_follower_takes_what_plain_python_takes(golden_kafka):
    logs = [
        (int(log.stem), log.read_bytes())
        for log in sorted((golden_kafka / "cases").glob("*/*-0/*.log"))
        if 0 < log.stat().st_size <= 20_000
    ]
    rules = AppendRules.of(LogConfig())
    rng = random.Random(20_261_121)
    taken = 0
    for n in range(CASES):
        base, raw = rng.choice(logs)
        if n % 3:
            raw = mend_checksums(mutate(rng, raw))
        next_offset = base + rng.choice([-5, 0, 0, 0, 3])
        try:
            expected = plain_follow(raw, next_offset)
        except Refused:
            expected = None
        try:
            assigned = check_follower(array("B", raw), next_offset, rules)
        except SeglogError:
            assert expected is None, raw.hex()
            continue
        assert assigned.last_offset + 1 == expected, raw.hex()
        assert bytes(assigned.raw) == raw
        taken += 1
    assert CASES // 5 < taken < CASES


def test_what_a_check_answers_is_made_by_a_check_only():
    for answer in (Assigned, Unfit):
        with pytest.raises(TypeError, match="AppendCheck"):
            answer()
    with pytest.raises(TypeError):
        AppendCheck()


def test_compressed_records_are_opened_once():
    opened = []

    def counting(codec, magic, payload):
        opened.append(bytes(payload))
        return decompress(codec, magic, payload)

    check = AppendCheck(
        max_message_bytes=1 << 20, segment_bytes=1 << 20, is_compacted=False, is_log_append_time=False,
        before_max_ms=MAX_INT64, after_max_ms=MAX_INT64, codec=plain.NONE, decompress=counting,
    )
    inner = plain.message(0, b"k", b"v", timestamp=NOW) + plain.message(1, b"k", b"v", timestamp=NOW)
    for raw, count in (
        (plain.message(1, None, compress(plain.GZIP, 1, inner), timestamp=NOW, attributes=plain.GZIP), 2),
        (plain.batch_v2(compress(plain.ZSTD, 2, plain.record_v2(0, 0, b"k", b"v")), attributes=plain.ZSTD), 1),
    ):
        opened.clear()
        unfit = check.assign(raw, 5, NOW, 0)
        assert isinstance(unfit, Unfit)
        assert [record.key for record in unfit.records()] == [b"k"] * count
        if unfit.magic == 2:
            unfit.batch(unfit.payload(), 5, 0)
        assert len(opened) == 1


def test_what_may_decompress_to_too_much_is_named_slot_by_slot_and_what_cannot_is_not():
    """By codec: 100 bytes of gzip may be more than any number of uncompressed ones."""
    check = AppendCheck(
        max_message_bytes=1 << 20, segment_bytes=1 << 20, is_compacted=False, is_log_append_time=False,
        before_max_ms=MAX_INT64, after_max_ms=MAX_INT64, codec=None, decompress=decompress,
        harmless_bytes=(MAX_INT64, 200, 300, 400, 0),
    )
    sizes = [(plain.NONE, 5000), (plain.GZIP, 200), (plain.GZIP, 201), (plain.LZ4, 400), (plain.LZ4, 401),
             (plain.SNAPPY, 300), (plain.SNAPPY, 301), (plain.ZSTD, 68)]
    raw = b"".join(
        plain.batch_v2(bytes(size - 61), base_offset=n, attributes=codec, leader_epoch=n % 3)
        for n, (codec, size) in enumerate(sizes))
    followed = check.follow(raw, 0)
    assert [len(followed.table[n].raw()) for n in range(len(sizes))] == [size for _, size in sizes]
    found = [followed.suspect]
    while found[-1] >= 0:
        found.append(check.next_suspect(followed.table, found[-1]))
    assert found == [2, 4, 6, 7, -1]
    assert (followed.max_epoch, followed.has_producer) == (2, False)
    assert check.follow(plain.batch_v2(bytes(7), producer_id=7, producer_epoch=0, base_sequence=0), 0).has_producer
    assert check.follow(raw[:5200], 0).suspect == -1


def test_what_was_checked_stays_when_the_callers_buffer_changes():
    raw = plain.batch_v2(plain.record_v2(0, 0, b"k", b"v"))
    for take in (lambda given: assign(given, 0, AppendRules.of(LogConfig()), now_ms=NOW),
                 lambda given: check_follower(given, 0, AppendRules.of(LogConfig()))):
        given = bytearray(raw)
        taken = take(given)
        given[:] = bytes(len(given))
        assert bytes(taken.raw)[16:] == raw[16:]
        del given[:]        # nobody holds it
