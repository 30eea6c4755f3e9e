"""Segments that are removed while somebody reads: OffsetOutOfRangeError with the valid range, at every door."""
import pytest

import seglog
from seglog._kernels.point_read import LastOpened
from seglog.config import LogConfig
from seglog.errors import OffsetOutOfRangeError, StorageError
from seglog.format import names
from seglog.format.dialect import segment_files
from seglog.segment import segment as segment_module
from seglog.segment.open_settings import SegmentOpenSettings
from seglog.segment.segment import Segment
from support.lookups import offset_at

T0 = 1_700_000_000_000
SEGMENTS, RECORDS = 4, 10


def write(directory):
    with seglog.open(directory, fsync="never") as log:
        for n in range(SEGMENTS * RECORDS):
            if n and n % RECORDS == 0:
                log.roll()
            log.append(b"%d" % n, timestamp=T0 + n)
    return directory


def remove(directory, count):
    for log in names.log_files(directory)[:count]:
        for path in segment_files(log):
            path.unlink()


DOORS = {
    "read": lambda p: list(p.read()),
    "read from an offset": lambda p: list(p.read(3)),
    "records": lambda p: list(p._records_in_files(0)),
    "skipping damage": lambda p: list(p.read(on_corrupt="skip")),
    "committed": lambda p: list(p.read(isolation="read_committed")),
    "tail": lambda p: list(p.tail(37)),
    "batches": lambda p: list(p.batches(0)),
    "columns": lambda p: list(p.columns(0)),
    "tables": lambda p: list(p.tables(0)),
    "by time": lambda p: list(p.read(since=T0 + 5)),
    "[]": lambda p: p[3],
    "find_offset": lambda p: p.find_offset(3),
    "offset_at": lambda p: offset_at(p, T0 + 3),
    "offset_for_time": lambda p: p.offset_for_time(T0 + 3),
    "largest timestamp": lambda p: p.offset_for_time(-3),
}


@pytest.mark.parametrize("door", DOORS)
def test_an_open_partition_says_that_its_segments_were_removed(tmp_path, door):
    directory = write(tmp_path / "gone-0")
    with seglog.open_partition(directory) as partition:
        remove(directory, 2)
        with pytest.raises(OffsetOutOfRangeError, match=r"removed since the partition was opened.*\[20, 40\)") as error:
            DOORS[door](partition)
        assert error.value.hint == "open the partition again"
        assert error.value.offset in (0, 3)
        assert partition[25].value == b"25"
        assert [r.offset for r in partition.read(30)] == list(range(30, 40))


def test_the_end_is_the_one_as_of_now(tmp_path):
    """The last segment is gone, too: a broker has removed the topic's data but for what it wrote since."""
    directory = write(tmp_path / "gone-0")
    with seglog.open_partition(directory) as partition:
        with seglog.open(directory, fsync="never") as log:
            log.roll()
            log.append(b"later")
        remove(directory, SEGMENTS)
        for read in (lambda: partition.log_end_offset, lambda: list(partition.read(35)), lambda: partition[39]):
            with pytest.raises(OffsetOutOfRangeError, match=r"\[40, 41\)"):
                read()


def test_a_directory_that_is_gone_is_no_matter_of_offsets(tmp_path):
    directory = write(tmp_path / "gone-0")
    with seglog.open_partition(directory) as partition:
        remove(directory, SEGMENTS)
        with pytest.raises(StorageError):
            partition[3]
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        with pytest.raises(StorageError):
            list(partition)


def test_a_link_that_leads_nowhere_is_no_removed_segment(tmp_path):
    directory = write(tmp_path / "gone-0")
    first = names.log_files(directory)[0]
    first.unlink()
    first.symlink_to(tmp_path / "nowhere")
    with seglog.open_partition(directory) as partition, pytest.raises(StorageError):
        list(partition)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_committed_records_beside_delete_records(tmp_path, monkeypatch, isolation):
    with seglog.open(write(tmp_path / "live-0"), fsync="never") as log:
        of_file = Segment.transaction_index.fget

        def after_a_deletion(segment):
            log.delete_records(25)
            return of_file(segment)

        monkeypatch.setattr(Segment, "transaction_index", property(after_a_deletion))

        def read():
            records = log.read(3, isolation=isolation)
            log.delete_records(25)
            return list(records)

        with pytest.raises(OffsetOutOfRangeError, match=r"offset \d+ is not within \[25, 40\)"):
            read()


@pytest.mark.parametrize(("read", "door"), [("file_size", "size_bytes"), ("largest_in_headers", "_largest_passed")])
def test_an_interrupt_while_a_segment_is_closed_reaches_whoever_reads(tmp_path, monkeypatch, read, door):
    """An error in its place would hide it: ^C would end nothing."""
    with seglog.open(tmp_path / "orders-0") as log:
        log.append(b"v")
    sealed = Segment.sealed(tmp_path / "orders-0", 0, SegmentOpenSettings.of(LogConfig(), LastOpened()))

    def interrupted(*args):
        sealed.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(segment_module, read, interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(sealed, door)
