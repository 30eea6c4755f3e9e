"""A batch that is checked first, perhaps in another thread, and appended later."""
import pytest

import seglog
from seglog.errors import CorruptRecordError, RecordTooLargeError
from seglog.format.batch import BatchEncoder
from seglog.format.compression import Codec

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


@pytest.mark.parametrize("append", ["append", "append_many", "append_columns"])
def test_records_are_encoded_again_if_the_configuration_changed_meanwhile(log, monkeypatch, append):
    """Encoding takes no lock, and another thread may call `configure` in the middle of it."""
    log.configure({"message.timestamp.type": "LogAppendTime"})
    log.append(b"first")        # what follows needs only a write
    method = {"append": "one", "append_many": "many", "append_columns": "columns"}[append]
    encode = getattr(BatchEncoder, method)

    def encode_and_configure(self, *args):
        made = encode(self, *args)
        monkeypatch.undo()
        log.configure({"compression.type": "gzip"})
        return made

    monkeypatch.setattr(BatchEncoder, method, encode_and_configure)
    record = {"append": b"v", "append_many": [(b"k", b"v")], "append_columns": {"value": [b"v"]}}[append]
    assert getattr(log, append)(record) == 1
    assert [Codec(batch.codec).label for batch in log.batches()] == ["none", "gzip"]
    assert values(log) == [(0, b"first"), (1, b"v")]
