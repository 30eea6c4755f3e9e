"""The quarantine of a partition: what goes in comes out, once, and only as it was written."""
import json

import pytest

from seglog._kernels.crc import crc32c
from seglog.errors import CorruptCheckpointError, UnsupportedVersionError
from seglog.fs.files import OsFileSystem
from seglog.segment.positions import LostRange
from seglog.state.quarantine import format_index, parse_index, put_into_quarantine, read_quarantine


def lost(raw, position=61, segment="00000000000000000007.log"):
    return LostRange(f"/data/orders-0/{segment}", position, len(raw), 9, 11, "the checksum does not match")


@pytest.fixture
def partition(tmp_path):
    return tmp_path


def put(partition, *ranges):
    put_into_quarantine(OsFileSystem(), partition, ranges)


def test_a_partition_without_a_quarantine_has_nothing_in_it(partition):
    assert read_quarantine(partition) == ()
    put(partition)
    assert list(partition.iterdir()) == []


def test_the_bytes_are_kept_and_the_index_tells_where_they_stood(partition):
    put(partition, (lost(b"bad"), b"bad"))
    (one,) = read_quarantine(partition)
    assert (one.segment, one.position, one.size_bytes) == ("00000000000000000007.log", 61, 3)
    assert (one.first_offset, one.last_offset, one.reason) == (9, 11, "the checksum does not match")
    assert (partition / "quarantine" / one.file).read_bytes() == b"bad"
    # By the format page, without our reader.
    index = json.loads((partition / "quarantine/index.json").read_text())
    checksum = index.pop("crc32c")
    assert checksum == crc32c(json.dumps(index, sort_keys=True, separators=(",", ":")).encode())
    assert (index["format"], index["version"]) == ("seglog-quarantine", 1)


def test_the_same_bytes_at_the_same_place_are_kept_once(partition):
    put(partition, (lost(b"bad"), b"bad"))
    put(partition, (lost(b"bad"), b"bad"), (lost(b"BAD"), b"BAD"), (lost(b"bad", 99), b"bad"))
    assert len(read_quarantine(partition)) == 3
    assert len({one.file for one in read_quarantine(partition)}) == 3


def test_a_newer_version_is_refused():
    content = json.loads(format_index(()))
    content["version"] = 2
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        parse_index(json.dumps(content).encode())


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\xff", b'{"format": "other", "version": 1}', b"[" * 100_000])
def test_what_does_not_parse_is_corrupt(raw):
    with pytest.raises(CorruptCheckpointError, match="does not parse"):
        parse_index(raw)


def test_a_changed_index_is_corrupt(partition):
    put(partition, (lost(b"bad"), b"bad"))
    raw = (partition / "quarantine/index.json").read_bytes()
    with pytest.raises(CorruptCheckpointError, match="CRC"):
        parse_index(raw.replace(b'"position": 61', b'"position": 62'))
