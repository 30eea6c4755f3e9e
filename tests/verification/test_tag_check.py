"""Wrappers of a .tlog say how many messages they hold (tag 32) and the latest time of one (tag 1): are they right?"""
import pytest

import seglog
from seglog.errors import CorruptRecordError
from seglog.verification import log_check
from support.lookups import offset_at
from support.models.plain_tagged import message, wrapper

NOW = 1_700_000_000_000
SECONDS = NOW // 1000


def wrapped(offset, *tags, deltas=(0, 1, 2, 3), codec=1):
    """A wrapper of messages at NOW and each second after it, with the tags that it needs and these."""
    messages = [
        message(delta, b"k", b"v%d" % n, seconds=SECONDS, tags=[(0, NOW + 1000 * n)]) for n, delta in enumerate(deltas)
    ]
    tags = {0: NOW, 1: NOW + 3000, 32: 4, 33: deltas[-1], 64: 1, 65: 0, 66: 0, **dict(tags)}
    return wrapper(offset, codec, messages, tags=[tag for tag in tags.items() if tag[1] is not None], seconds=SECONDS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders-0"


@pytest.fixture
def found(path):
    """What is found at this level in a log of these messages."""
    def verify(*raw, level="deep"):
        with seglog.open(path, config={"seglog.message.dialect": "tagged"}) as log:
            log.append_batch(b"".join(raw), assign_offsets=False)
        return seglog.verify(path, level=level).findings
    return verify


@pytest.mark.parametrize("codec", [1, 4])
def test_another_number_of_messages_than_tag_32_says_is_found(found, codec):
    first = wrapped(0)
    (finding,) = found(first, wrapped(4, (32, 2), codec=codec), wrapped(8))
    assert (finding.code, finding.severity) == ("tags_wrong", "warning")
    assert (finding.position, finding.offset) == (len(first), 7)
    assert (finding.found, finding.expected) == ("tag 32 is 2", "4, as its messages say")


def test_a_message_later_than_tag_1_says_is_found_and_a_search_by_time_passes_over_it(found, path):
    (finding,) = found(wrapped(0, (1, NOW)))
    assert finding.code == "tags_wrong"
    assert (finding.found, finding.expected) == (f"tag 1 is {NOW}", f"at least {NOW + 3000}")
    with seglog.open_partition(path) as partition:
        assert offset_at(partition, NOW + 2000) is None
        assert [record.offset for record in partition.read()] == [0, 1, 2, 3]


@pytest.mark.parametrize("tags", [
    [(1, NOW + 9000)],              # the latest message was compacted
    [(1, NOW), (66, 1)],            # LogAppendTime: all messages have the wrapper's time
    [(33, 9)],                      # the last ones were compacted
    [(64, 0), (33, None)],
])
def test_what_compaction_and_append_time_leave_is_clean(found, tags):
    assert found(wrapped(0, *tags)) == []


@pytest.mark.parametrize("tag", [1, 32, 33])
def test_a_tag_that_is_missing_contradicts_nothing(found, tag):
    assert "tags_wrong" not in [finding.code for finding in found(wrapped(0, (tag, None), deltas=(0, 2, 3, 7)))]


def test_bare_messages_and_control_messages_are_passed_over(found):
    marker = message(1, b"\0\0\0\1", b"\0\0\0\0\0\0", attributes=10, seconds=SECONDS, tags=[(0, NOW), (32, 9)])
    (finding,) = found(
        message(0, None, b"v", seconds=SECONDS, tags=[(0, NOW), (1, 5), (32, 9)]), marker, wrapped(2, (32, 5), (33, 7)))
    assert (finding.code, finding.offset) == ("tags_wrong", 9)


def test_only_the_deep_level_finds_it(found):
    assert found(wrapped(0, (32, 2)), level="crc") == []


def test_a_segment_has_one_finding_that_counts_the_wrappers(found, monkeypatch):
    chunks = log_check.chunks
    monkeypatch.setattr(log_check, "chunks", lambda table, pool, **how: chunks(table, pool, 1, **how))
    (finding,) = found(wrapped(0), *[wrapped(4 * n, (32, 3 + n % 2), (1, NOW + n)) for n in range(1, 5)])
    assert (finding.offset, finding.found) == (7, f"tag 1 is {NOW + 1}, and 3 more wrappers")


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_damaged_wrappers_before_and_behind_do_not_hide_it(found, monkeypatch, chunk_bytes):
    chunks = log_check.chunks
    monkeypatch.setattr(log_check, "chunks", lambda table, pool, **how: chunks(table, pool, chunk_bytes, **how))
    bad = wrapped(4, (32, 2), (33, 1))      # a message beyond tag 33
    findings = found(wrapped(0, (32, 1)), bad, wrapped(8, (1, NOW)), wrapped(12))
    assert [finding.code for finding in findings] == ["bad_records", "tags_wrong"]
    assert findings[1].found == "tag 32 is 1, and 1 more wrappers"


@pytest.mark.parametrize(("count", "last"), [(5, 3), (4, 2), (2**31 - 1, 0)])
def test_more_messages_than_offsets_are_refused_by_append_batch(path, count, last):
    with seglog.open(path, config={"seglog.message.dialect": "tagged"}) as log:
        log.append_batch(wrapped(0), assign_offsets=False)
        what = rf"message 1 .* {count} messages .* relative offset {last} "
        with pytest.raises(CorruptRecordError, match=what) as error:
            log.append_batch(wrapped(4) + wrapped(8, (32, count), (33, last)), assign_offsets=False)
        assert error.value.position == len(wrapped(4))
        assert log.log_end_offset == 4


def test_a_conversion_corrects_both_tags(found, path, tmp_path):
    found(wrapped(0, (32, 2), (1, NOW)))
    seglog.convert(path, tmp_path / "new-0", 2)
    with seglog.open_partition(tmp_path / "new-0") as partition:
        assert [(batch.count, batch.max_timestamp) for batch in partition.batches()] == [(4, NOW + 3000)]
        assert offset_at(partition, NOW + 2000) == 2
