"""The journal of a restore, `.seglog.restore` in the log dir: what a run restores, so that another one finishes what a
killed one has begun. docs/formats/backup.md

A partition of a new name is whole if it is there. One that a broker has created is there before, and may have got
records of others since: it is whole if it is the directory that was filled.
"""
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from seglog.archive.living_clusters import has_records
from seglog.archive.restored_files import RestoreEnd
from seglog.errors import InvalidArgumentError
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file

# A broker looks at directories only.
JOURNAL_FILE = ".seglog.restore"
# A program that knows version 1 only would finish a restore with an end, of other names or of created partitions
# without them.
_FORMAT, _PLAIN_VERSION, _VERSION = "seglog-restore", 1, 2


@dataclass(frozen=True, slots=True)
class BegunRestore:
    """What a restore was begun with.

    snapshot    its id
    parts       the partitions, queues and ledgers, by the names that they get
    renamed     {such a name: the one in the backup}, where they differ
    adopt       fill partitions that a broker has created
    filled      {such a partition: inode of the directory that gets, or has got, its name}
    """

    snapshot: str
    parts: frozenset[str]
    end: RestoreEnd | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    adopt: bool = False
    filled: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        members: dict[str, Any] = {}
        if self.end is not None or self.renamed or self.adopt:
            end = None if self.end is None else [self.end.time_ms, self.end.offset]
            members = {"end": end, "renamed": self.renamed, "adopt": self.adopt, "filled": self.filled}
        version = _VERSION if members else _PLAIN_VERSION
        return format_json(_FORMAT, version, snapshot=self.snapshot, partitions=sorted(self.parts), **members)

    @classmethod
    def parse(cls, raw: bytes, file: Path) -> Self:
        """Raises CorruptCheckpointError, UnsupportedVersionError."""
        return parse_json(raw, _FORMAT, _VERSION, file, cls._made, oldest=_PLAIN_VERSION)

    @classmethod
    def _made(cls, body: dict[str, Any]) -> Self:
        # Of version 1, only those of the weeks before 0.1.0 have more members, so these may be missing one by one.
        snapshot, parts, end = body["snapshot"], body["partitions"], body.get("end")
        renamed, filled = body.get("renamed", {}), body.get("filled", {})
        adopt = body.get("adopt", bool(filled))
        if not isinstance(snapshot, str) or not isinstance(parts, list) or type(adopt) is not bool:
            raise ValueError("it names no snapshot or no partitions")
        if end is not None and not (len(end) == 2 and all(one is None or type(one) is int for one in end)):
            raise ValueError("its end is no time and no offset")
        return cls(
            snapshot, frozenset(map(str, parts)), None if end is None else RestoreEnd(*end),
            {str(name): str(before) for name, before in renamed.items()}, adopt,
            {str(name): int(inode) for name, inode in filled.items()},
        )

    @property
    def options(self) -> str:
        """Those with which a command goes on with it."""
        found = f"--snapshot {self.snapshot}"
        if self.end is not None:
            # In milliseconds: who passed a time before now cannot know which it was.
            time_ms, offset = self.end.time_ms, self.end.offset
            found += f" --until-offset {offset}" if time_ms is None else f" --until {time_ms}"
        return found + (" --adopt" if self.adopt else "") + (" and the same --rename" if self.renamed else "")

    def difference(self, other: "BegunRestore", there: Collection[str]) -> str:
        """What this restore is of that `other`, a later one, is not; empty if it goes on with it. `there`: what
        is restored by now."""
        if self.snapshot != other.snapshot:
            return f"the snapshot {self.snapshot}"
        if self.end != other.end:
            return "this snapshot up to another end"
        if self.adopt != other.adopt:
            return f"this snapshot {'with' if self.adopt else 'without'} --adopt"
        for name in other.parts.intersection(there):
            before = self.renamed.get(name, name)
            if before != other.renamed.get(name, name):
                return f"this snapshot, with {before} as {name},"
        return ""


class RestoreJournal:
    """Of a run into `target`. Nothing is written before `put`. `done`: what a killed run has restored.

    Raises InvalidArgumentError if another restore was begun there, and left something; CorruptCheckpointError,
    UnsupportedVersionError.
    """

    def __init__(self, fs: FileSystem, target: Path, begun: BegunRestore) -> None:
        self._fs = fs
        self._path = target / JOURNAL_FILE
        self._begun = begun
        self.done: frozenset[str] = frozenset()
        try:
            before = BegunRestore.parse(read_file(self._path), self._path)
        except FileNotFoundError:
            return
        is_there = has_records if begun.adopt and before.adopt else os.path.lexists
        there = frozenset(name for name in before.parts if is_there(target / name))
        difference = before.difference(begun, there)
        if difference and there:
            raise InvalidArgumentError(
                f"a restore of {difference} was begun here", file=target,
                hint=f"finish it with {before.options}, or choose another target",
            )
        if not difference:
            self._begun = replace(
                begun, parts=before.parts | begun.parts, renamed={**before.renamed, **begun.renamed},
                filled=before.filled,
            )
            self.done = frozenset(
                name for name in there
                if not begun.adopt or before.filled.get(name) == os.stat(target / name).st_ino
            )

    def put(self) -> None:
        write_atomically(self._fs, self._path, self._begun.to_bytes())

    def will_publish(self, name: str, directory: Path) -> None:
        """Note the directory that gets the partition's name next."""
        self._begun = replace(self._begun, filled={**self._begun.filled, name: os.stat(directory).st_ino})
        self.put()
