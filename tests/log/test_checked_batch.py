"""A batch that is checked first, perhaps in another thread, and appended later."""
import pytest

import seglog
from seglog.errors import CorruptRecordError, RecordTooLargeError

BATCH = seglog.build_batch([(b"k", b"one"), (b"k", b"two")], codec="gzip")


@pytest.fixture
def log(in_memory):
    with seglog.open(in_memory / "orders-0") as log:
        yield log


def values(log):
    return [(record.offset, bytes(record.value)) for record in log.read()]


def test_a_checked_batch_is_appended_where_the_log_ends_then(log):
    checked = log.check_batch(BATCH)
    assert log.log_end_offset == 0
    log.append(b"before it")
    assert log.append_checked(checked) == (1, 2, False)
    assert log.append_checked(log.check_batch(BATCH), wait=False).result == (3, 4, False)
    log.flush()
    assert values(log) == [(0, b"before it"), (1, b"one"), (2, b"two"), (3, b"one"), (4, b"two")]


def test_a_batch_is_refused_when_it_is_checked(log):
    with pytest.raises(CorruptRecordError):
        log.check_batch(BATCH[:-1])
    assert log.log_end_offset == 0


def test_it_is_checked_again_if_the_configuration_changed_meanwhile(log):
    checked = log.check_batch(BATCH)
    log.configure({"max.message.bytes": len(BATCH) - 1})
    with pytest.raises(RecordTooLargeError):
        log.append_checked(checked)
    log.configure({"max.message.bytes": len(BATCH), "compression.type": "uncompressed"})
    log.append_checked(checked)
    assert values(log) == [(0, b"one"), (1, b"two")]
    assert next(iter(log.batches())).codec == 0


def test_a_producers_batch_is_written_once(log):
    batch = seglog.build_batch([(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0)
    first, second = log.check_batch(batch), log.check_batch(batch)
    assert log.append_checked(first) == (0, 0, False)
    assert log.append_checked(second) == (0, 0, True)
