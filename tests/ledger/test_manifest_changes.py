"""The manifest grows by a line a change, and is written whole when those lines are as long as it was."""
import json
from itertools import pairwise

import pytest

from seglog.clock import ManualClock
from seglog.errors import CorruptManifestError, StorageError
from seglog.fs.files import OsFile, OsFileSystem
from seglog.ledger.ledger_metadata import LedgerEnd
from seglog.ledger.managed import manifest
from seglog.ledger.managed.closed import ClosedManagedLedger
from seglog.ledger.managed.manifest import LedgerInfo, Manifest, ManifestFile
from seglog.pulsar import ManagedLedger
from support.faultfs import RecordingFs
from support.topics import message

CONFIG = {"managedLedgerMaxEntriesPerLedger": 1, "managedLedgerMinLedgerRolloverTimeMinutes": 0}


def of(*ids, sealed=True, properties=()):
    ledgers = tuple(LedgerInfo(n, 5, LedgerEnd(1, 80, 7, 9) if sealed or n != ids[-1] else None) for n in ids)
    return Manifest(ledgers, max(ids, default=-1) + 1, 3, 4, dict(properties))


def written(directory, *manifests):
    """The bytes of a manifest that went through these."""
    file = ManifestFile(OsFileSystem(), directory)
    file.write(manifests[0])
    for before, after in pairwise(manifests):
        file.put(before, after)
    return (directory / "manifest").read_bytes()


STORY = (
    of(0, sealed=False), of(0), of(0, 1, sealed=False), of(0, 1), of(1), of(1, properties={"owner": "us"}.items()),
    of(1, 2, 3), of(), of(7, 8),
)


def test_whatever_changed_is_found_behind_the_whole_manifest(tmp_path):
    for n in range(1, len(STORY) + 1):
        raw = written(tmp_path, *STORY[:n])
        assert Manifest.read(tmp_path) == STORY[n - 1]
        assert raw.count(b"\n") == n


def test_a_torn_last_change_is_none_and_a_wrong_byte_of_a_whole_one_is_damage(tmp_path):
    raw = written(tmp_path, *STORY[:5])
    begin = raw[:-1].rindex(b"\n") + 1
    for end in range(begin, len(raw) - 1):
        assert Manifest.parse(raw[:end]) == STORY[3]
        assert Manifest.parse(raw[:end] + bytes(len(raw) - end)) == STORY[3]
        assert Manifest.parse(raw[:begin] + bytes(end + 1 - begin) + raw[end + 1 :]) == STORY[3]
    assert Manifest.parse(raw[:-1]) == STORY[4]
    assert Manifest.parse(raw[:-1] + b"\0") in STORY[3:5]
    for at in range(begin, len(raw)):
        for bit in (1, 4, 64):
            wrong = bytearray(raw)
            wrong[at] ^= bit
            if wrong[at : at + 1].isspace() and raw[at : at + 1].isspace():
                continue
            with pytest.raises(CorruptManifestError):
                Manifest.parse(bytes(wrong))
    middle = bytearray(raw)
    middle[begin - 5] ^= 1
    with pytest.raises(CorruptManifestError):
        Manifest.parse(bytes(middle))


def test_a_manifest_of_version_1_is_read_and_written_whole_with_its_next_change(tmp_path, monkeypatch):
    """A program that knows only version 1 would take a change behind it for damage."""
    path = tmp_path / "orders/manifest"
    with ManagedLedger(path.parent, config=CONFIG) as topic:
        topic.add_entries(map(message, range(3)))
    found = Manifest.read(path.parent)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "VERSION", 1)
        found.write(OsFileSystem(), path.parent)
    with ManagedLedger(path.parent, config=CONFIG) as topic:
        assert json.loads(path.read_bytes())["version"] == 1
        assert len(list(topic)) == 3
        topic.update_properties({"owner": "billing"})
        assert json.loads(path.read_bytes())["version"] == 2


def test_changes_are_written_into_the_manifest_by_the_next_opening(tmp_path):
    with ManagedLedger(tmp_path / "orders", config=CONFIG) as topic:
        topic.add_entries(map(message, range(3)))
    raw = (tmp_path / "orders/manifest").read_bytes()
    assert b"managed-ledger-change" in raw
    with ManagedLedger(tmp_path / "orders", config=CONFIG) as topic:
        assert (tmp_path / "orders/manifest").read_bytes().count(b"\n") == 1, "what may be in the page cache is written"
        assert len(list(topic)) == 3


def test_a_roll_writes_the_same_however_many_ledgers_there_are(tmp_path, monkeypatch):
    appended, whole = [], []
    append = OsFile.append
    monkeypatch.setattr(
        OsFile, "append",
        lambda file, *buffers: (whole if file.path.endswith("manifest.tmp") else appended).append(
            (file.path, sum(map(len, buffers)))) or append(file, *buffers),
    )
    clock = ManualClock(1_700_000_000_000)
    with ManagedLedger(tmp_path / "orders", config=CONFIG, clock=clock, fsync="never") as topic:
        for n in range(80):
            topic.add_entry(message(n))
    changes = [size for path, size in appended if path.endswith("manifest")]
    assert len(changes) > 140       # a ledger is sealed, and the next one begun
    assert max(changes) < 350
    assert sum(size for _, size in whole) <= 2 * sum(changes), "what is written is no more than some times the changes"


def test_who_only_looks_sees_the_ledgers_of_the_moment(tmp_path):
    with ManagedLedger(tmp_path / "orders", config=CONFIG) as topic:
        topic.add_entries(map(message, range(5)))
        with ClosedManagedLedger(tmp_path / "orders") as seen:
            assert [info.ledger_id for info in seen.ledgers] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("call", ["append", "sync"])
def test_after_a_change_that_failed_the_next_opening_writes_the_manifest_whole(tmp_path, monkeypatch, call):
    topic = ManagedLedger(tmp_path / "orders", config=CONFIG)
    topic.add_entries(map(message, range(3)))
    with monkeypatch.context() as patch:
        real = getattr(OsFile, call)

        def failing(file, *args):
            if file.path.endswith("manifest"):
                raise StorageError("no", file=file.path)
            return real(file, *args)

        patch.setattr(OsFile, call, failing)
        with pytest.raises(StorageError):
            topic.roll()
    with pytest.raises(Exception, match=r"read-only|no"):
        topic.add_entry(message(3))
    topic.close()
    with ManagedLedger(tmp_path / "orders", config=CONFIG) as again:
        assert len(list(again)) == 3
        again.add_entry(message(3))


def test_crash_states_of_changes(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    record = RecordingFs(disk)
    file = ManifestFile(record, disk)
    file.write(STORY[0])
    record.mark(0)
    for n, (before, after) in enumerate(pairwise(STORY), 1):
        file.put(before, after)
        record.mark(n)
    for state in record.crash_states(limit=400, seed=3):
        if state.marks:
            with state.materialise() as root:
                found = Manifest.read(root)
                last = max(state.marks)
                assert found in STORY[last : last + 2], state.story()
                assert ManifestFile(OsFileSystem(), root).read() == found
                assert (root / "manifest").read_bytes().count(b"\n") == 1
