"""What tests of a directory conversion have in common: sources, and a look at directories that owes nothing to it."""
import base64
import hashlib
import json
import shutil
from pathlib import Path

import seglog
from seglog.conversion.directory import convert
from seglog.conversion.proof import PROOF_FILE
from seglog.fs.files import OsFile, OsFileSystem
from seglog.reading.partition import Partition
from seglog.verification.verify import verify
from support.command import seglog as command

KEPT_SETTINGS = {"segment.bytes": 1 << 20, "min.insync.replicas": "2"}
KEYS = ("index.interval.bytes", "segment.index.bytes", "max.message.bytes")


def config_of(case, *more):
    """The topic configuration that a golden case was written with; without segment.bytes, unless named in `more`."""
    settings = json.loads((case / "case.json").read_text())["config"]
    return {key: settings[key] for key in (*KEYS, *more) if key in settings}


def source_of(case):
    return case / f"{case.name}-0"


class UnsyncedFs(OsFileSystem):
    """The file system of this machine without waiting for its disk: for many conversions that nobody has to keep."""

    def create(self, path, within=None, mode=0o666):
        file = super().create(path, within, mode)
        file.__class__ = UnsyncedFile
        return file

    def open_write(self, path, position=None):
        file = super().open_write(path, position)
        file.__class__ = UnsyncedFile
        return file

    def sync_file(self, path):
        pass

    def sync_directory(self, path):
        pass


class UnsyncedFile(OsFile):
    def _sync(self, *, data_only):
        pass


def converted(source, target, **options):
    """Convert `source` to `target`, whose log dir is made first. Returns the Result."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return convert(source, target, fs=UnsyncedFs(), **options)


def copied(directory, target):
    """A copy with its file times."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(directory, target))


def tree(directory):
    """{path below the directory: its bytes and time}; empty where there is no directory."""
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*")) if path.is_file()
    }


def log_files(directory):
    """{name: bytes} of what Kafka knows in a partition directory: all but the proof."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.name != PROOF_FILE}


def _encoded(name, data):
    """As golden expected.jsonl has it: above 4096 bytes, size and digest."""
    if data is not None and len(data) > 4096:
        return {f"{name}_size": len(data), f"{name}_sha256": hashlib.sha256(data).hexdigest()}
    return {name: None if data is None else base64.b64encode(data).decode()}


def row_of(record, *, control=False):
    """A record with the fields of golden expected.jsonl that a conversion keeps."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[record.timestamp_type],
        **_encoded("key", record.key),
        **_encoded("value", record.value),
        "headers": [
            [key, None if value is None else base64.b64encode(value).decode()] for key, value in record.headers
        ],
        "control": control,
    }


def rows(directory):
    """The records in the files of a partition directory: control records too, and those below the log start offset."""
    with Partition(directory) as partition:
        batches = (table[slot] for _, table in partition.tables(0) for slot in range(len(table)))
        return [row_of(record, control=batch.is_control) for batch in batches for record in batch]


def kept(row):
    """The same fields of a row of expected.jsonl, after a conversion: v0 has become CreateTime."""
    names = ("offset", "timestamp", "timestamp_type", "key", "key_size", "key_sha256", "value", "value_size",
             "value_sha256", "headers", "control")
    row = {name: row[name] for name in names if name in row}
    if row["timestamp_type"] == "NoTimestampType":
        row["timestamp_type"] = "CreateTime"
    return row


def log_with_kept_settings(path):
    """A log of v1 that keeps settings of its own in .seglog.config."""
    with seglog.open(path, config={"message.format.version": 1}, fsync="never") as log:
        log.append_many([(b"k", b"%d" % n) for n in range(20)])
        log.configure(KEPT_SETTINGS)
    return path


def check_kept_settings(target):
    """What it was converted to keeps them, too, but for the format that it was converted from."""
    with seglog.open(target, fsync="never") as log:
        expected = {key: str(value) for key, value in KEPT_SETTINGS.items()} | {"message.format.version": "2"}
        assert log.settings.kept == expected
        assert log.config.segment_bytes == 1 << 20
        assert log.settings["min.insync.replicas"] == ("2", "kept", False)
        log.append(b"behind")
        assert {batch.magic for batch in log.batches()} == {2}
    assert not verify(target).findings
    for name in ("verify", "ls", "stats"):
        assert ".seglog.config" not in command(name, target).output


def but_of_compaction(findings):
    """Without the note that segments do not follow each other: a conversion keeps what compaction left."""
    return [finding for finding in findings if finding.code != "segment_gap_compacted"]
