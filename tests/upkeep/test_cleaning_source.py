"""What a round of compaction asks of a log."""
from pathlib import Path

from seglog.upkeep.cleaning_source import CleaningSource


class Looked:
    """A segment without records that counts how often its base offset was looked at."""

    looks = 0

    def __init__(self, base_offset):
        self._base_offset = base_offset

    @property
    def base_offset(self):
        Looked.looks += 1
        return self._base_offset

    def get(self, offset):
        return None if offset < 500 else type("Record", (), {"key": b"%d" % self._base_offset})


def test_a_key_is_found_among_many_segments_without_looking_at_each():
    """A round asks for each record that it would drop; it looked at the base offset of every segment each time."""
    source = CleaningSource(Path("orders-0"), tuple(Looked(100 * n) for n in range(1, 1025)), 0, 0, 0, None, ())
    Looked.looks = 0
    assert [source.key_at(n) for n in (99, 100, 799, 800, 10**9)] == [None, None, b"700", b"800", b"102400"]
    assert Looked.looks <= 5 * 11
