"""`snapshots/register.json`: the ids of the snapshots, in a store that has listings instead of directories.

A listing may lag behind what was put or removed. A file that is read by its name does not, so a snapshot that no
listing shows yet is found by its id here, and `prune` spares what it needs. docs/formats/backup.md
"""
from collections.abc import Collection
from typing import Any

from seglog.backups.manifest import is_snapshot_id
from seglog.errors import CorruptBackupError
from seglog.format.checked_json import format_json, parse_json
from seglog.stores.store import Store

FORMAT, VERSION = "seglog-backup-register", 1
FILE_NAME = "register.json"


class SnapshotRegister:
    """The register of the store at `path`. Written only by a run that is alone; an id is added before its snapshot is
    put, and dropped after it was removed. So an id may be here whose snapshot is not."""

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._file = f"{path}/snapshots/{FILE_NAME}"

    def ids(self) -> set[str]:
        """None of a store without snapshots, or of an older one. Raises CorruptBackupError, UnsupportedVersionError."""
        raw = self._store.read(self._file)
        return set() if raw is None else parse_json(raw, FORMAT, VERSION, self._file, _ids, CorruptBackupError)

    def write(self, ids: Collection[str]) -> None:
        self._store.write(self._file, format_json(FORMAT, VERSION, snapshots=sorted(ids)))


def _ids(body: dict[str, Any]) -> set[str]:
    ids = body["snapshots"]
    if not isinstance(ids, list) or not all(isinstance(one, str) and is_snapshot_id(one) for one in ids):
        raise ValueError("snapshots is no list of ids")
    return set(ids)
