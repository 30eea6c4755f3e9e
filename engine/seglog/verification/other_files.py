"""Checks a partition directory's files besides its segments: metadata, snapshots, leftovers, stray indexes."""
from collections.abc import Sequence
from pathlib import Path

from seglog.config import LogConfig
from seglog.errors import (
    CorruptCheckpointError,
    CorruptSettingsError,
    CorruptSnapshotError,
    InvalidConfigError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.format.dialect import dialect_of
from seglog.fs.refusals import refusals
from seglog.reading.settings import LogSettings
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.partition_metadata import PartitionMetadata
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.verification.findings import Finding


def find_in_other_files(directory: Path, *, expects_epochs: bool, foreign: Sequence[str] = ()) -> list[Finding]:
    """Check them once. `expects_epochs`: batches have leader epochs. `foreign`: logs of another dialect."""
    with refusals("list", directory):
        paths = sorted(directory.iterdir())
    findings = []
    if expects_epochs and not any(path.name == names.LEADER_EPOCH_CHECKPOINT for path in paths):
        findings.append(Finding("epochs_missing", str(directory / names.LEADER_EPOCH_CHECKPOINT)))
    findings += [Finding("foreign_log", str(directory / name)) for name in foreign]
    for path in paths:
        try:
            findings += _find_in(path)
        except FileNotFoundError:       # removed since it was listed
            continue
        except StorageError as e:
            findings.append(Finding("unreadable", str(path), found=e.what))
    return findings


def _find_in(path: Path) -> list[Finding]:
    if path.name == names.PARTITION_METADATA:
        try:
            PartitionMetadata.read(path)
        except (CorruptCheckpointError, UnsupportedVersionError) as e:
            return [Finding("metadata_corrupt", str(path), found=e.what)]
    if path.name == SETTINGS_FILE:
        try:
            LogSettings(path.parent, None, LogConfig())
        except (CorruptSettingsError, UnsupportedVersionError, InvalidConfigError) as e:
            return [Finding("settings_corrupt", str(path), found=e.what)]
    file = names.parse_file_name(path.name)
    if file is None or file.state in (names.BACKUP_SUFFIX, names.TMP_SUFFIX):
        return []
    if file.state:
        return [Finding("leftover", str(path))]
    if file.suffix == names.SNAPSHOT_SUFFIX:
        try:
            ProducerSnapshot.read(path)
        except (CorruptSnapshotError, UnsupportedVersionError) as e:
            return [Finding("snapshot_corrupt", str(path), e.position, found=e.what)]
    elif file.suffix not in names.LOG_SUFFIXES and not _log_of(path).exists():
        return [Finding("orphan_index", str(path))]
    return []


def _log_of(index: Path) -> Path:
    return index.with_name(index.name[:20] + dialect_of(index).log)


# --- 0.10.0 ----------------------------------------------------------------------------------

# From 0.10.1, 0.11 (twice), 2.8 and seglog: a broker that creates one of these also creates time indexes.
_SIGNS_OF_A_NEWER_VERSION = (
    names.TIME_INDEX_SUFFIX, names.SNAPSHOT_SUFFIX, names.TRANSACTION_INDEX_SUFFIX, names.MINUTE_INDEX_SUFFIX,
    *names.OF_WHOLE_LOGS,
)
_FILES_OF_A_NEWER_VERSION = (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA)


def wrote_no_time_indexes(directory: Path) -> bool:
    """Whether the directory looks as Kafka 0.10.0 leaves it: offset indexes, no time index, no file of a later version.

    0.10.0 writes messages with timestamps (v1, KIP-32); time indexes came with 0.10.1 (KIP-33), which builds them when
    it loads the log. This distinguishes a lost time index from one that never existed, unless all of them are lost.
    """
    parsed = [(path.name, names.parse_file_name(path.name)) for path in directory.iterdir()]
    has_offset_index = any(file is not None and file.suffix == names.OFFSET_INDEX_SUFFIX for _, file in parsed)
    return has_offset_index and not any(
        name in _FILES_OF_A_NEWER_VERSION or (file is not None and file.suffix in _SIGNS_OF_A_NEWER_VERSION)
        for name, file in parsed
    )
