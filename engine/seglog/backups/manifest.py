"""What a backup store says about its objects: docs/formats/backup.md. Nothing here opens a file.

    seglog-backup.json          the store
    snapshots/<id>.json         a snapshot: one run of `backup create`
    an object                   the files of one partition, queue or ledger, as a snapshot has them
"""
import base64
import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from seglog.backups.pieces import COMPRESSIONS, PIECE_BYTES, Piece, is_digest, parse_pieces, pieces_to_json
from seglog.errors import CorruptBackupError
from seglog.format import names
from seglog.format.checked_json import format_json, parse_json
from seglog.format.directory_kinds import LEDGER_METADATA, MANIFEST
from seglog.format.foreign_names import Shape, judged, judged_size
from seglog.named_tuple import NamedTuple
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.reader_cursor import is_cursor_file

STORE_FILE = "seglog-backup.json"
STORE_FORMAT, SNAPSHOT_FORMAT, PARTITION_FORMAT = "seglog-backup", "seglog-backup-snapshot", "seglog-backup-partition"
LEDGER_FORMAT = "seglog-backup-ledger"
VERSION = 1
# A snapshot with queues or ledgers: a program that does not know them would prune their objects.
SNAPSHOT_VERSION = 2
# Up to this size a file stands in the manifest: an object costs a sync, or a request.
INLINE_BYTES = 512
_MODE = 0o666
_ID = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8}")
# Behind the digest of a piece comes its size; behind a file's content in base64, nothing.
_NAMED_PIECE = re.compile(rb'"([0-9a-f]{64})", ?(\d{1,8})\b')
_METADATA_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint")
_QUORUM_STATE = "quorum-state"
QUEUE_JOURNAL = "queue.journal"
_PRODUCER_IDS = ".seglog.producer_ids"      # of `seglog serve`
# The files of a log dir, besides the checkpoints, whose lines are with each partition.
LOG_DIR_FILES = (names.META_PROPERTIES, "bootstrap.checkpoint", _PRODUCER_IDS)


def is_snapshot_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def is_backed_up(name: str) -> bool:
    """Whether a backup holds a file of this name in a partition directory. (Other indexes are functions of the log.)"""
    parsed = names.parse_file_name(name)
    if parsed is not None:
        # The cleaner drops markers of aborted transactions: then only the .txnindex tells of them.
        suffixes = (*names.LOG_SUFFIXES, names.SNAPSHOT_SUFFIX, names.TRANSACTION_INDEX_SUFFIX)
        return parsed.suffix in suffixes and not parsed.state
    return (
        name in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, SETTINGS_FILE, _QUORUM_STATE)
        or is_cursor_file(name) or _METADATA_SNAPSHOT.fullmatch(name) is not None
    )


_QUOTED = "[A-Za-z0-9_~%-]+"            # as in a URL, dots too
_A_LEDGER = rf"(?:{re.escape(LEDGER_METADATA)}|0{{20}}\.log)"
_FILE_OF_LEDGERS = re.compile(
    rf"{_A_LEDGER}|(?:priority/\d{{1,9}}/)?(?:"
    rf"{MANIFEST}|queue\.journal|cursors/{_QUOTED}\.cursor|ledger-\d{{1,19}}/{_A_LEDGER}|"
    rf"compacted/ledger-\d{{1,19}}(?:\.new)?/{_A_LEDGER}|"
    rf"(?:delayed|relocated)/{_QUOTED}/(?:properties\.json|ledger-\d{{1,19}}/{_A_LEDGER}))",
    re.ASCII,
)


def is_file_of_ledgers(path: str) -> bool:
    """Whether a backup holds a file with this path in the directory of a managed ledger, a queue or a ledger. (Indexes
    are functions of the .log.)"""
    return _FILE_OF_LEDGERS.fullmatch(path) is not None


class Identity(NamedTuple):
    """As long as these are the same, so are the bytes of a file."""

    inode: int
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class BackedFile:
    """A file of the source. `size_bytes` of it are in the backup: in `pieces`, or `inline`. `name`: in the directory of
    a queue or ledger, its path there."""

    name: str
    size_bytes: int
    mtime_ns: int
    inode: int
    mode: int
    pieces: tuple[Piece, ...] = ()
    inline: bytes | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.inode, self.size_bytes, self.mtime_ns)

    def to_json(self) -> list[object]:
        content = pieces_to_json(self.pieces) if self.inline is None else base64.b64encode(self.inline).decode()
        return [self.name, self.size_bytes, self.mtime_ns, self.inode, self.mode, content]

    @classmethod
    def parse(cls, told: Any, file: str, *, is_path: bool = False) -> Self:
        """`is_path`: the caller judges the name."""
        name, size_bytes, mtime_ns, inode, mode, content = told
        if not is_path:
            judged(name, Shape.FILE, file, CorruptBackupError)
        judged_size(size_bytes, file, CorruptBackupError)
        if not all(type(number) is int and -(1 << 63) <= number < 1 << 64 for number in (mtime_ns, inode, mode)):
            raise ValueError(f"{name}: a time, inode or mode is not a number")
        pieces: tuple[Piece, ...] = ()
        inline = base64.b64decode(content, validate=True) if isinstance(content, str) else None
        if inline is None:
            pieces = parse_pieces(content, file)
        if size_bytes != (sum(piece.size_bytes for piece in pieces) if inline is None else len(inline)):
            raise ValueError(f"{name} has another size than its pieces")
        return cls(name, size_bytes, mtime_ns, inode, mode & _MODE | 0o600, pieces, inline)


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last batch in a .log that grew: where it begins, and the CRC-32C of its bytes, header included."""

    position: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class PartitionBackup:
    """A partition as of one moment. The offsets are those of the log and of its lines in the log dir; None is no line.

    `has_minute_indexes`: its segments have them, so a restored one gets them, too.
    """

    name: str
    log_start_offset: int
    next_offset: int
    high_watermark: int | None
    cleaner_offset: int | None
    files: tuple[BackedFile, ...]
    tail: LastBatch | None = None
    has_minute_indexes: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_bytes(self) -> bytes:
        return format_json(
            PARTITION_FORMAT, VERSION, name=self.name, log_start_offset=self.log_start_offset,
            next_offset=self.next_offset, high_watermark=self.high_watermark, cleaner_offset=self.cleaner_offset,
            files=[file.to_json() for file in self.files],
            tail=None if self.tail is None else [self.tail.position, self.tail.crc32c],
            has_minute_indexes=self.has_minute_indexes,
        )

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "PartitionBackup":
        """Raises CorruptBackupError, UnsupportedVersionError."""
        def make(body: dict[str, Any]) -> "PartitionBackup":
            files = tuple(BackedFile.parse(told, file) for told in body["files"])
            if len({one.name for one in files}) < len(files):
                raise ValueError("two files have one name")
            for one in files:
                if not is_backed_up(one.name):
                    raise ValueError(f"{one.name} is not a file that a backup of a partition holds")
            tail, has_minute_indexes = body["tail"], body["has_minute_indexes"]
            if type(has_minute_indexes) is not bool:
                raise ValueError("whether it has minute indexes is neither true nor false")
            return cls(
                judged(body["name"], Shape.PARTITION, file, CorruptBackupError),
                _offset(body["log_start_offset"]), _offset(body["next_offset"]),
                _offset_or_none(body["high_watermark"]), _offset_or_none(body["cleaner_offset"]), files,
                None if tail is None else LastBatch(_offset(tail[0]), _offset(tail[1])), has_minute_indexes,
            )

        return parse_json(raw, PARTITION_FORMAT, VERSION, file, make, CorruptBackupError)


class LedgerKind(enum.Enum):
    """What a directory of Pulsar's entries is."""

    QUEUE = "queue"
    MANAGED_LEDGER = "managed ledger"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class LedgerBackup:
    """A managed ledger, a queue with all its priorities, or a ledger, as of one moment.

    `tails`: {path of a .log that was growing: its last batch}.
    """

    name: str
    files: tuple[BackedFile, ...]
    tails: Mapping[str, LastBatch] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def kind(self) -> LedgerKind:
        names_of = {file.name for file in self.files}
        if QUEUE_JOURNAL in names_of:
            return LedgerKind.QUEUE
        return LedgerKind.MANAGED_LEDGER if MANIFEST in names_of else LedgerKind.LEDGER

    def to_bytes(self) -> bytes:
        return format_json(
            LEDGER_FORMAT, VERSION, name=self.name, files=[file.to_json() for file in self.files],
            tails={name: [tail.position, tail.crc32c] for name, tail in self.tails.items()},
        )

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "LedgerBackup":
        """Raises CorruptBackupError, UnsupportedVersionError."""
        def make(body: dict[str, Any]) -> "LedgerBackup":
            for told in body["files"]:
                if not isinstance(told[0], str) or not is_file_of_ledgers(told[0]):
                    raise ValueError(f"{ascii(told[0])[:80]} is not a file that a backup of a queue or ledger holds")
            files = tuple(BackedFile.parse(told, file, is_path=True) for told in body["files"])
            known = {one.name for one in files}
            if len(known) < len(files):
                raise ValueError("two files have one name")
            tails = {name: LastBatch(_offset(tail[0]), _offset(tail[1])) for name, tail in body["tails"].items()}
            if not tails.keys() <= known:
                raise ValueError("a tail of a file that it does not have")
            return cls(judged(body["name"], Shape.COMPONENT, file, CorruptBackupError), files, tails)

        return parse_json(raw, LEDGER_FORMAT, VERSION, file, make, CorruptBackupError)


@dataclass(frozen=True, slots=True)
class SnapshotLedger:
    """A managed ledger, a queue or a ledger in a snapshot; `pieces`: the object with its LedgerBackup. The others as in
    SnapshotPartition."""

    name: str
    kind: LedgerKind
    pieces: tuple[Piece, ...]
    fingerprint: str
    size_bytes: int
    taken_at_ms: int

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name, "kind": self.kind.value, "pieces": pieces_to_json(self.pieces),
            "fingerprint": self.fingerprint, "size_bytes": self.size_bytes, "taken_at_ms": self.taken_at_ms,
        }

    @classmethod
    def parse(cls, told: Mapping[str, Any], file: str) -> Self:
        return cls(
            judged(told["name"], Shape.COMPONENT, file, CorruptBackupError), LedgerKind(told["kind"]),
            parse_pieces(told["pieces"], file), _fingerprint(told["fingerprint"]),
            judged_size(told["size_bytes"], file, CorruptBackupError), _offset(told["taken_at_ms"]),
        )


@dataclass(frozen=True, slots=True)
class SnapshotPartition:
    """A partition in a snapshot.

    pieces          the object with its PartitionBackup
    fingerprint     the SHA-256 of names, inodes, sizes and times of its files: as long as it is the same, nothing of
                    the partition has changed. Empty: it says nothing, because the log was growing
    size_bytes      of its files; offsets as in PartitionBackup; `taken_at_ms`: the moment
    """

    name: str
    pieces: tuple[Piece, ...]
    fingerprint: str
    size_bytes: int
    log_start_offset: int
    next_offset: int
    taken_at_ms: int

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name, "pieces": pieces_to_json(self.pieces), "fingerprint": self.fingerprint,
            "size_bytes": self.size_bytes, "log_start_offset": self.log_start_offset, "next_offset": self.next_offset,
            "taken_at_ms": self.taken_at_ms,
        }

    @classmethod
    def parse(cls, told: Mapping[str, Any], file: str) -> Self:
        return cls(
            judged(told["name"], Shape.PARTITION, file, CorruptBackupError), parse_pieces(told["pieces"], file),
            _fingerprint(told["fingerprint"]), judged_size(told["size_bytes"], file, CorruptBackupError),
            _offset(told["log_start_offset"]), _offset(told["next_offset"]), _offset(told["taken_at_ms"]),
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One finished run of `backup create`.

    id              its time (UTC) and eight random digits: `20261124T120727.123Z-5f3c1e6b`
    source, host    the absolute path of what was backed up, and the machine
    is_log_dir      the source is a log dir; else a partition directory, a managed ledger, a queue or a ledger
    began_at_ms, ended_at_ms    of the run
    partitions      in the order in which they were copied
    files           of the log dir itself: meta.properties and others
    left_out        {partition, queue or ledger: why it is not in the snapshot}
    stored_bytes    what this run added to the store
    ledgers         managed ledgers, queues and ledgers, in the order in which they were copied: after the partitions
    """

    id: str
    source: str
    host: str
    is_log_dir: bool
    began_at_ms: int
    ended_at_ms: int
    partitions: tuple[SnapshotPartition, ...]
    files: tuple[BackedFile, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    stored_bytes: int = 0
    ledgers: tuple[SnapshotLedger, ...] = ()

    @property
    def parts(self) -> "tuple[SnapshotPartition | SnapshotLedger, ...]":
        """The partitions, and the managed ledgers, queues and ledgers."""
        return *self.partitions, *self.ledgers

    @property
    def size_bytes(self) -> int:
        """The bytes of all its files."""
        return sum(part.size_bytes for part in self.parts) + sum(file.size_bytes for file in self.files)

    def to_bytes(self) -> bytes:
        members: dict[str, Any] = {"ledgers": [ledger.to_json() for ledger in self.ledgers]} if self.ledgers else {}
        return format_json(
            SNAPSHOT_FORMAT, SNAPSHOT_VERSION if members else VERSION, **members, id=self.id, source=self.source,
            host=self.host, is_log_dir=self.is_log_dir, began_at_ms=self.began_at_ms, ended_at_ms=self.ended_at_ms,
            partitions=[part.to_json() for part in self.partitions], files=[file.to_json() for file in self.files],
            left_out=dict(self.left_out), stored_bytes=self.stored_bytes,
        )

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "Snapshot":
        """Raises CorruptBackupError, UnsupportedVersionError."""
        def make(body: dict[str, Any]) -> "Snapshot":
            partitions = tuple(SnapshotPartition.parse(told, file) for told in body["partitions"])
            files = tuple(BackedFile.parse(told, file) for told in body["files"])
            ledgers = body["ledgers"] if body["version"] == SNAPSHOT_VERSION else ()
            ledgers = tuple(SnapshotLedger.parse(told, file) for told in ledgers)
            if len({part.name for part in (*partitions, *ledgers)}) < len(partitions) + len(ledgers):
                raise ValueError("two partitions, queues or ledgers have one name")
            if any(one.name not in LOG_DIR_FILES for one in files):
                raise ValueError("not a file that a backup of a log dir holds")
            texts = (body["source"], body["host"], *body["left_out"].keys(), *body["left_out"].values())
            if not all(isinstance(text, str) for text in texts) or type(body["is_log_dir"]) is not bool:
                raise ValueError("source, host or a reason is not text")
            if not is_snapshot_id(body["id"]) or not file.endswith(f"{body['id']}.json"):
                raise ValueError(f"it is the snapshot {ascii(body['id'])[:80]}")
            return cls(
                body["id"], body["source"], body["host"], body["is_log_dir"], _offset(body["began_at_ms"]),
                _offset(body["ended_at_ms"]), partitions, files, body["left_out"], _offset(body["stored_bytes"]),
                ledgers,
            )

        return parse_json(raw, SNAPSHOT_FORMAT, SNAPSHOT_VERSION, file, make, CorruptBackupError, oldest=VERSION)


def store_to_bytes(compression: str) -> bytes:
    return format_json(STORE_FORMAT, VERSION, compression=compression)


def parse_store(raw: bytes, file: str) -> str:
    """How the store compresses its objects. Raises CorruptBackupError, UnsupportedVersionError."""
    def make(body: dict[str, Any]) -> str:
        if body["compression"] not in COMPRESSIONS:
            raise ValueError(f"unknown compression {ascii(body['compression'])[:80]}")
        return str(body["compression"])

    return parse_json(raw, STORE_FORMAT, VERSION, file, make, CorruptBackupError)


def named_pieces(raw: bytes) -> Iterator[Piece]:
    """The pieces that a list of files names, which is not parsed otherwise: that takes a hundred times as long."""
    for digest, size_bytes in _NAMED_PIECE.findall(raw):
        yield Piece(digest.decode(), int(size_bytes))


def in_pieces(raw: bytes) -> list[bytes]:
    """The bytes cut where pieces end."""
    return [raw[at : at + PIECE_BYTES] for at in range(0, len(raw), PIECE_BYTES)]


def _fingerprint(text: Any) -> str:
    if text != "" and not is_digest(text):
        raise ValueError("a fingerprint is not a SHA-256")
    return str(text)


def _offset(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= names.MAX_OFFSET:
        raise ValueError(f"{ascii(number)[:80]} is not a number from 0 to {names.MAX_OFFSET}")
    return number


def _offset_or_none(number: Any) -> int | None:
    return None if number is None else _offset(number)
