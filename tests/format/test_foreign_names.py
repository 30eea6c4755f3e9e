"""Names that somebody else wrote: every reader of them is fed the same bad ones, and lets none of them pass.

The readers of stores' listings are fed them by servers that lie, in tests/spark/test_hostile_stores.py.
"""
import json

import pytest

from seglog.backups.manifest import BackedFile, PartitionBackup, SnapshotPartition
from seglog.conversion.converted_segment import ConvertedSegment
from seglog.errors import CorruptBackupError, CorruptCheckpointError, SeglogError, StorageError
from seglog.format.checked_json import format_json
from seglog.format.foreign_names import Shape, has_shape, judged
from seglog.spark.journal import Journal
from seglog.spark.manifest import TopicsManifest, read_files
from seglog.spark.options import ConversionOptions
from seglog.spark.plan import Shard, Task
from seglog.spark.sink_journal import SinkJournal
from seglog.spark.workplace import Marker, Outcome
from support.hostile_names import NO_COMPONENT, NO_FILE, NO_PARTITION, NO_TEXT

PROOF_SIDE = {"files": ["00000000000000000000.log"], "records": 0, "sha256": ""}


def segment(**part):
    """The JSON of a converted segment with one part."""
    fields = {"file": "00000000000000000000.log", "base_offset": 0, "size_bytes": 0, "epochs": [], "producers": []}
    return format_json(
        "seglog-converted-segment", 1, source="00000000000000000000.log", base_offset=0, next_offset=1, size_bytes=0,
        parts=[fields | part], aborted=None, larger_batches=0, notes=[],
        proof={"source": PROOF_SIDE, "target": PROOF_SIDE},
    ).decode()


class OneFile:
    """A store that has these bytes under every name."""

    def __init__(self, raw):
        self.raw = raw

    def read(self, path):
        return self.raw

    def check_workplace(self, path):
        """It is none."""


def manifest(name="orders-0", prefix="v1-00000000"):
    raw = format_json("seglog-topics-manifest", 1, serial=1, partitions={name: prefix})
    return TopicsManifest.parse(raw, "manifest")


def list_of_files(name, size_bytes=1):
    return read_files(OneFile(format_json("seglog-partition-files", 1, files={name: size_bytes})), "orders-0")


def journal(name="orders-0", prefix="", **more):
    fields = {
        "state": "committed", "source": "/old", "target": "/new", "options": ConversionOptions().to_dict(),
        "seglog": "1", "published": [name], "prefix": prefix, "run": "",
    }
    return Journal.read(OneFile(format_json("seglog-spark-journal", 1, **fields | more)), "/new")


def marker(name="00000000000000000000.log", part="00000000000000000000.log"):
    return Marker.parse(format_json(
        "seglog-spark-marker", 1, identity=[], recipe="", run="", attempt=0, seconds=0, files={name: 1},
        segment=segment(file=part),
    ), "marker")


def outcome(name="00000000000000000000.log"):
    return Outcome.parse(
        format_json("seglog-spark-outcome", 1, plan="", options="", logs={name: 1}, end_offset=0, row={}), "outcome"
    )


def shard(name="orders-0"):
    return Shard.parse(format_json("seglog-spark-plan", 1, partition=name, segments=0, lines_crc32c=0), "plan")


def task(name="orders-0"):
    return Task.parse(format_json("seglog-spark-task", 1, bytes=0, segments=0, ranges=[[name, 0, 1]]), "tasks")


def sink_journal(name="orders-0", staged="batch-1/0123/orders-0"):
    step = {"name": name, "staged": staged, "end_offset": 1, "from_offset": None, "replaces": False}
    raw = format_json("seglog-spark-sink", 1, epochs={}, steps=[step], stream=None, epoch=None)
    return SinkJournal.parse(raw, "journal.json")


def backed_file(name):
    return BackedFile.parse([name, 0, 0, 0, 0, ""], "list")


def backed_partition(name):
    return PartitionBackup.parse(format_json(
        "seglog-backup-partition", 1, name=name, log_start_offset=0, next_offset=0, high_watermark=None,
        cleaner_offset=None, files=[], tail=None, has_minute_indexes=False,
    ), "list")


def snapshot_partition(name):
    return SnapshotPartition.parse({
        "name": name, "pieces": [], "fingerprint": "", "size_bytes": 0, "log_start_offset": 0, "next_offset": 0,
        "taken_at_ms": 0,
    }, "snapshot")


READERS = {
    "backup, file": (backed_file, (*NO_FILE, *NO_TEXT)),
    "backup, list of files": (backed_partition, (*NO_PARTITION, *NO_TEXT)),
    "backup, partition": (snapshot_partition, (*NO_PARTITION, *NO_TEXT)),
    "manifest": (manifest, NO_PARTITION),
    "manifest, prefix": (lambda name: manifest(prefix=name), (*NO_FILE, "v1", "v1-0", "v1-0000000g", "v-00000000")),
    "list of files": (list_of_files, NO_FILE),
    "journal": (journal, (*NO_PARTITION, *NO_TEXT)),
    "journal, final": (lambda name: journal(final=[name]), (*NO_PARTITION, *NO_TEXT)),
    "journal, prefix": (lambda name: journal(prefix=name), tuple(name for name in NO_FILE if name)),
    "marker": (marker, NO_FILE),
    "marker, part": (lambda name: marker(part=name), (*NO_FILE, *NO_TEXT)),
    "outcome": (outcome, NO_FILE),
    "shard": (shard, (*NO_PARTITION, *NO_TEXT)),
    "task": (task, (*NO_PARTITION, *NO_TEXT)),
    "sink journal": (sink_journal, (*NO_PARTITION, *NO_TEXT)),
    "sink journal, staged": (
        lambda name: sink_journal(staged=f"batch-1/{name}/orders-0"), tuple(name for name in NO_FILE if name != "a/b")
    ),
    "segment": (lambda name: ConvertedSegment.of_json(segment(file=name)), (*NO_FILE, *NO_TEXT)),
}
BAD = [(reader, name) for reader, (_, names) in READERS.items() for name in names]


@pytest.mark.parametrize(("reader", "name"), BAD, ids=[f"{reader}: {ascii(name)[:40]}" for reader, name in BAD])
def test_no_reader_lets_a_bad_name_pass(reader, name):
    with pytest.raises((CorruptCheckpointError, CorruptBackupError)) as caught:
        READERS[reader][0](name)
    # In one line, and nothing in it that commands a terminal.
    assert caught.value.what.isprintable()


def test_every_reader_lets_good_names_pass():
    assert manifest().partitions == {"orders-0": "v1-00000000"}
    assert list_of_files("00000000000000000000.log") == {"00000000000000000000.log": 1}
    assert journal(prefix="v1-00000000").published == ("orders-0",)
    assert marker().segment.parts[0].file == "00000000000000000000.log"
    assert outcome().logs == {"00000000000000000000.log": 1}
    assert shard("a.b_c-d-2147483647").partition == "a.b_c-d-2147483647"
    assert task().ranges == [("orders-0", 0, 1)]


@pytest.mark.parametrize("size_bytes", [-1, 2**63, 1.0, True, "7", None, []])
def test_what_is_no_size_is_not_taken_for_one(size_bytes):
    with pytest.raises(CorruptCheckpointError, match="not a file size"):
        list_of_files("a", size_bytes)


@pytest.mark.parametrize("raw", [
    b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b"{" * 100_000, b"1e999", b"9" * 5000, b"",
    json.dumps({"format": "seglog-topics-manifest", "version": 1, "crc32c": 0}).encode(),
], ids=ascii)
def test_what_is_no_manifest_is_a_named_error(raw):
    with pytest.raises(CorruptCheckpointError):
        TopicsManifest.parse(raw, "manifest")


@pytest.mark.parametrize("more", [{"target": "/another"}, {"options": {}}, {"options": []}, {"state": "none"}])
def test_a_journal_of_another_conversion_is_not_believed(more):
    with pytest.raises(CorruptCheckpointError):
        journal(**more)


@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize("name", [*NO_COMPONENT, *NO_TEXT], ids=lambda name: ascii(name)[:40])
def test_what_is_no_component_has_no_shape(shape, name):
    assert not has_shape(name, shape)
    for error in (StorageError, CorruptCheckpointError):
        with pytest.raises(error) as caught:
            judged(name, shape, "where it stood", error)
        assert isinstance(caught.value, SeglogError)
        assert caught.value.file == "where it stood"
        assert caught.value.what.isprintable()
