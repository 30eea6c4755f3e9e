"""Encoded batches through the real LogValidator and through ours: taken or refused, and stored as the same bytes."""
import pytest

from seglog.config import LogConfig
from seglog.errors import SeglogError
from seglog.format.compression import decompressor
from seglog.format.validate import AppendRules, assign
from support import plain_format as plain
from support.append_cases import NOW, make_case
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

CASES = 3000
# What only we refuse, by our words, and what only Kafka does; cext/build/append_rules.pyx says why.
STRICTER = (
    "relative offset", "LogAppendTime, which only the log", "a timestamp must be 0 or more", "producer ",
    "that the record cannot hold",
)
LAXER_OF_COORDINATORS = "Invalid negative sequence number used"
LAXER_OF_BASE_OFFSETS = "key is skipped"


def question(case):
    config = LogConfig.of(case.settings)
    return (
        config.compression_type, config.message_timestamp_type, str(config.is_compacted).lower(),
        config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms, config.max_message_bytes,
        "COORDINATOR" if case.is_coordinator else "CLIENT", NOW, case.first_offset, case.leader_epoch, case.raw,
    )


def ours(case):
    try:
        return assign(
            case.raw, case.first_offset, AppendRules.of(LogConfig.of(case.settings)), now_ms=NOW,
            leader_epoch=case.leader_epoch, allow_control=case.is_coordinator,
        )
    except SeglogError as e:
        return e


def opened(raw):
    decompress = decompressor()
    return [r for b in plain.split_batches(raw) for r in plain.decode_batch(b, lambda *a: bytes(decompress(*a)))]


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_become_what_the_real_validator_makes_of_them(kafka_oracle, version, tmp_path):
    cases = [make_case(number) for number in range(CASES)]
    answers = kafka_oracle(version).validate(map(question, cases), tmp_path)
    assert len(answers) == len(cases)
    refused = same = 0
    for number, (case, theirs) in enumerate(zip(cases, answers, strict=True)):
        mine, told = ours(case), f"case {number}: {case}, Kafka: {theirs}"
        if isinstance(mine, SeglogError):
            assert "error" in theirs or any(words in str(mine) for words in STRICTER), f"{mine!r} {told}"
            refused += 1
            continue
        why = theirs.get("message", "")
        if LAXER_OF_COORDINATORS in why and case.is_coordinator:
            continue
        if LAXER_OF_BASE_OFFSETS in why and any(case.raw[:8]):
            continue
        assert "error" not in theirs, f"{mine} {told}"
        expected, stored = bytes.fromhex(theirs["raw"]), bytes(mine.raw)
        assert mine.last_offset + 1 == theirs["next_offset"], told
        assert mine.rebuilt == theirs["rebuilt"], told
        if mine.table[0].magic > 0:     # v0 has no time, though Kafka answers that of the append
            assert mine.max_timestamp == theirs["max_timestamp"], told
        if stored == expected:
            same += 1
            continue
        assert mine.rebuilt, told
        assert opened(stored) == opened(expected), told     # made by another codec library
    assert refused > CASES // 10
    assert same > CASES // 2
