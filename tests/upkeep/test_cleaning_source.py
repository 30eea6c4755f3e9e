"""What a round of compaction asks of a log."""
from pathlib import Path

import seglog
from seglog.segment.transaction_index import HeldTransactionIndex
from seglog.upkeep.cleaner import clean
from seglog.upkeep.cleaning_source import CleaningSource


class MeasuredLog:
    """A segment without records that counts how often its base offset was looked at."""

    looks = 0

    def __init__(self, base_offset):
        self._base_offset = base_offset

    @property
    def base_offset(self):
        MeasuredLog.looks += 1
        return self._base_offset

    def get(self, offset):
        return None if offset < 500 else type("Record", (), {"key": b"%d" % self._base_offset})


def test_a_key_is_found_among_many_segments_without_looking_at_each():
    """A round asks for each record that it would drop; it looked at the base offset of every segment each time."""
    source = CleaningSource(Path("orders-0"), tuple(MeasuredLog(100 * n) for n in range(1, 1025)), 0, 0, 0, None, ())
    MeasuredLog.looks = 0
    assert [source.key_at(n) for n in (99, 100, 799, 800, 10**9)] == [None, None, b"700", b"800", b"102400"]
    assert MeasuredLog.looks <= 5 * 11


def test_a_round_looks_at_the_transaction_index_of_each_segment_once(tmp_path, monkeypatch):
    """It looked at those of all later segments for each segment that it cleaned."""
    looks = []
    now = HeldTransactionIndex.now
    monkeypatch.setattr(HeldTransactionIndex, "now", lambda index: looks.append(index) or now(index))
    with seglog.open(tmp_path / "orders-0", config={"segment.bytes": 150}, fsync="never") as log:
        for n in range(60):
            log.append(b"v" * 60, key=b"k%d" % (n % 5))
        looks.clear()
        done = clean(log)
    assert (done.outcome, done.rounds, len(done.groups)) == ("cleaned", 1, 59)
    # And once more for each whose place another one takes.
    assert len(looks) <= 60 + 59 + 5
