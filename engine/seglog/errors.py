"""Every error that seglog raises on purpose.

One base class, one class per meaning, named as in Kafka where Kafka has the error. Each class carries
a stable `code` (the anchor in docs/errors.md) and the exit status that a command ends with; each instance
may say which file, at which byte (`position`), after or at which record (`offset`), and what to do.
"""
import errno
import os
import re
from typing import Any, Self

# `KEY:SECRET@` of a URL, which may have become a path with one slash; a secret key may contain slashes. `host:9870/` is
# no secret.
_CREDENTIALS = r"(:/{1,2})[^/@:\s]*:(?!\d{1,5}(?:/|$))[^@\s]+@"       # compiled when a message has a URL


def without_credentials(text: str) -> str:
    """The text without the user and the password of the URLs in it, so that messages and logs do not repeat them."""
    return re.sub(_CREDENTIALS, r"\1***@", text) if ":/" in text else text


def _hidden(path: "str | bytes") -> str:
    return without_credentials(path) if isinstance(path, str) else path  # type: ignore[return-value]


class SeglogError(Exception):
    """The base class: catch it to catch every error of seglog.

    Shown in three lines: `what`, where (`file`, byte `position`, `offset`), what to do (`hint`). `code`: a name of the
    error for programs; `exit_status`: that of a command that ends with it.
    """

    code = "error"
    exit_status = 1
    hint = "report this: it should have an error class of its own"

    def __init__(
        self,
        what: str,
        *,
        file: str | os.PathLike[str] | None = None,
        position: int | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        what = without_credentials(what)
        self.file = None
        if file is not None:
            path = os.fspath(file)
            self.file = _hidden(path)
            if self.file != path:       # the name of the file may hold a part of them
                what = what.replace(os.path.basename(path), os.path.basename(self.file))
        super().__init__(what)
        self.what = what
        self.position = position
        self.offset = offset
        if hint is not None:
            self.hint = without_credentials(hint)

    @property
    def where(self) -> str:
        """`file, byte N, offset M`, as far as known; empty if nothing is."""
        parts = []
        if self.file is not None:
            parts.append(self.file)
        if self.position is not None:
            parts.append(f"byte {self.position}")
        if self.offset is not None:
            parts.append(f"offset {self.offset}")
        return ", ".join(parts)

    def __str__(self) -> str:
        where = self.where
        return f"{self.what} ({where})" if where else self.what

    @property
    def __notes__(self) -> list[str]:
        """The lines that a traceback shows below the error: the hint, and what `add_note` added."""
        # (Made when it is asked for: a hint may be set after the error was made.)
        notes: list[str] = self.__dict__.setdefault("_notes", [f"try: {self.hint}"])
        return notes

    @__notes__.setter
    def __notes__(self, notes: list[str]) -> None:
        self._notes = notes

    def __reduce__(self) -> tuple[object, ...]:
        # Pickling keeps every field (multiprocessing, Spark).
        return (type(self), (self.what,), dict(vars(self)))


# --- the bytes are wrong: exit 1 ---------------------------------------------------------


class CorruptRecordError(SeglogError):
    """A batch or record is inconsistent or fails its checksum. The batches around it may be intact: continue with
    `on_corrupt="skip"`, and let `seglog verify` list what is lost."""

    code = "corrupt_record"
    hint = 'run `seglog verify` on the directory; on_corrupt="skip" reads past it'


class CorruptIndexError(SeglogError):
    """An index file is inconsistent or does not match its log. The log is intact: rebuild the index from it."""

    code = "corrupt_index"
    hint = "run `seglog index rebuild --apply`, which rebuilds the index from its log"


class CorruptSnapshotError(SeglogError):
    """A producer snapshot is torn or fails its checksum. Kafka drops it and replays the log."""

    code = "corrupt_snapshot"
    hint = "remove the file: a broker rebuilds producer state from the log"


class CorruptDelayedIndexError(SeglogError):
    """A snapshot of a bucket of delayed messages is damaged. The messages are in the log: clear the snapshots, and
    they are indexed again."""

    code = "corrupt_delayed_index"
    hint = "clear the delayed bucket snapshots: the messages are in the log and are indexed again"


class SnapshotMissingError(SeglogError):
    """There is no snapshot of delayed messages with this id: a crash came after it was deleted and before its pointer
    was."""

    code = "snapshot_missing"
    hint = "nothing to do: the messages are in the log and are indexed again"


class CorruptCheckpointError(SeglogError):
    """A checkpoint or metadata text file of a log dir does not parse."""

    code = "corrupt_checkpoint"
    hint = "remove the file: a broker falls back to recovering the whole log"


class CorruptManifestError(SeglogError):
    """A seglog file that describes a managed ledger, a ledger or a cursor does not parse, fails its checksum, or does
    not match the directory. The entries are in the ledgers and are not affected."""

    code = "corrupt_manifest"
    hint = "`seglog ledger recover --apply` rebuilds the manifest from the ledgers; a cursor's file can be deleted"


class CorruptBackupError(SeglogError):
    """A file of a backup store is damaged or gone: an object, a snapshot, or the store's own file. Snapshots that do
    not use it are not affected."""

    code = "corrupt_backup"
    hint = (
        "`seglog backup check --read-data` lists what is damaged; remove these files, and `seglog backup create"
        " --reread` stores again what the source still has"
    )


class CorruptJournalError(SeglogError):
    """The journal of a queue (queue.journal) is damaged in its middle, or is not the one that its cursor's file was
    written beside. The messages are in the ledgers and are not affected; which of them were acknowledged since the last
    checkpoint, and their attempts, the journal knows."""

    code = "corrupt_journal"
    hint = "restore the directory from a copy, or open the queue with recover=True: some jobs are then delivered again"


class CorruptSettingsError(SeglogError):
    """The file with a log's settings (.seglog.config) does not parse or fails its checksum. The records are not
    affected."""

    code = "corrupt_settings"
    hint = "remove the file, open the log and set its settings again with `configure`"


class UnfinishedChangeError(SeglogError):
    """The directory is in the middle of a change: a compaction died before its new segments (`.swap` files) took the
    place of the old ones, so the files with the usual names are not the whole log. Readers see the log as the change
    would leave it, if every `.swap` file is whole; this error says that one is damaged, or cannot be checked where it
    is stored. `seglog recover --mode quarantine --apply` completes the change, and so does a broker that starts on the
    directory."""

    code = "unfinished_change"
    hint = (
        "`seglog recover DIR --mode quarantine --apply` completes the change and repairs what is damaged (without"
        " --apply it shows what would be lost); a broker that starts on the directory completes it, too"
    )


class ProtocolError(SeglogError):
    """A client sent bytes that are not a request of Kafka's protocol, or a record in one of a broker's internal topics
    does not parse. The connection is closed, as a broker closes it; `position` is the byte in the request."""

    code = "protocol"
    hint = "check which program connects: a Kafka client does not send this"


class UnsupportedApiVersionError(ProtocolError):
    """A request for an API or version that `seglog serve` does not support. `header` says which, and which client
    asks."""

    code = "unsupported_api_version"
    hint = "use a client that sends ApiVersions first: it then chooses a supported version"

    header: Any = None


class ProofMismatchError(SeglogError):
    """The written files do not hold the records that were read. They were discarded; the source has not changed."""

    code = "proof_mismatch"
    hint = "test memory and disk, then run again; if it happens again, report it with the two digests"


# --- the request is wrong: exit 2 --------------------------------------------------------


class InvalidArgumentError(SeglogError, ValueError):
    """An invalid argument: a bad time, a negative size, the same path for SRC and DST."""

    code = "invalid_argument"
    exit_status = 2
    hint = "see the function's help(), or the command's --help"


class InvalidConfigError(InvalidArgumentError):
    """An unknown configuration key, or a value outside its limits."""

    code = "invalid_config"
    hint = "`seglog config` lists every key; `seglog config KEY` shows its unit, default and limits"


class UnknownPolicyError(InvalidArgumentError):
    """Nothing says whether old segments of a topic may be deleted: cleanup.policy is neither given, nor kept with the
    log, nor in the metadata of its cluster."""

    code = "unknown_policy"
    hint = "pass --config cleanup.policy=delete, or compact, whichever the topic has"


class CompactedTopicError(InvalidArgumentError):
    """Settings would delete old segments of a topic that is compacted: they hold keys that are nowhere else."""

    code = "compacted_topic"
    hint = "leave out cleanup.policy, or pass --delete-compacted if the keys may go"


class TopicExistsError(InvalidArgumentError):
    """A topic with this name exists already."""

    code = "topic_exists"
    hint = "use the topic that is there, or choose another name"


class InvalidTopicError(InvalidArgumentError):
    """No topic can have this name, or not beside those that exist."""

    code = "invalid_topic"
    hint = "choose another name"


class TooManyPartitionsError(InvalidArgumentError):
    """All topics together may not have so many partitions."""

    code = "too_many_partitions"
    hint = "ask for fewer partitions, or delete topics that nobody needs"


class ProhibitedTopicError(InvalidArgumentError):
    """No client may create a topic with this name: the server keeps its own records there."""

    code = "prohibited_topic"
    hint = "choose another name"


class InvalidTimestampError(SeglogError, ValueError):
    """A record's timestamp is further from the clock than message.timestamp.before.max.ms or after.max.ms allows."""

    code = "invalid_timestamp"
    exit_status = 2
    hint = "correct the producer's clock, or raise message.timestamp.before.max.ms or message.timestamp.after.max.ms"


class InvalidRecordError(SeglogError, ValueError):
    """An invalid batch to append: relative offsets that do not count up from 0, a wrong record count, or a record
    without a key for a compacted log. Nothing was written."""

    code = "invalid_record"
    exit_status = 2
    hint = "fix the code that built the batch; seglog.build_batch makes valid ones"


class OutOfOrderSequenceError(SeglogError):
    """A batch of an idempotent producer does not follow its last one: a batch in between is missing. Nothing was
    written."""

    code = "out_of_order_sequence"
    exit_status = 2
    hint = "append the missing batches first, or start a new producer epoch with sequence 0"


class InvalidProducerEpochError(SeglogError):
    """A batch has a producer epoch that a later one has fenced off. Nothing was written."""

    code = "invalid_producer_epoch"
    exit_status = 2
    hint = "another instance of this producer has taken over: stop this one"


class ProducerFencedError(InvalidProducerEpochError):
    """This `Producer` can no longer write: another one with its id was opened, or its transaction was open for longer
    than transaction.max.timeout.ms. Nothing was written, and its transaction is aborted."""

    code = "producer_fenced"
    hint = "to continue with this one, open it again with log.producer(producer_id), and repeat the transaction"


class InvalidTxnStateError(SeglogError):
    """A batch does not fit the producer's transaction: a plain batch while one is open, a marker of a fenced
    coordinator, a transaction that is not open. Nothing was written."""

    code = "invalid_txn_state"
    exit_status = 2
    hint = "end the open transaction first; a producer id is either transactional or not"


class SharedLogError(SeglogError):
    """The call is not for a log that several processes share (attach=True): made twice, as when the owner dies during
    it, it would do harm, or it needs what only one process can have. Nothing was done."""

    code = "shared_log"
    exit_status = 2
    hint = "close the log in all processes, and open it without attach in one of them for this call"


class OffsetOutOfRangeError(SeglogError, IndexError):
    """The requested offset is outside [log start offset, log end offset)."""

    code = "offset_out_of_range"
    exit_status = 2
    hint = "use an offset within the valid range that the message names"


class NoRecordError(SeglogError, LookupError):
    """No record has this offset, although it is within the log: compaction removed it, or it belongs to a marker."""

    code = "no_record"
    exit_status = 2
    hint = "read(start=offset) returns the next existing record"


# --- the machine refuses: exit 3 ---------------------------------------------------------


class StorageError(SeglogError):
    """The operating system reported an error: no space, no permission, a failed fsync, a directory in place of a file.

    `errno` is the system's error number, or None if seglog itself refused.
    """

    code = "storage"
    exit_status = 3
    hint = "free space or correct the permissions, then run again"

    def __init__(
        self,
        what: str,
        *,
        file: str | os.PathLike[str] | None = None,
        position: int | None = None,
        offset: int | None = None,
        hint: str | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(what, file=file, position=position, offset=offset, hint=hint)
        self.errno = errno


_FIX_IT, _FREE_SPACE = "fix the cause that the message names", "free space on that file system"


class LogFailedError(StorageError):
    """The log is read-only because a write or sync failed: what is on the disk after the last sync is unknown, and a
    second sync may succeed although the first one lost data. Reopening the log recovers it."""

    code = "log_failed"
    hint = (
        f"{_FIX_IT}, and run the same command again; in a program, close the log and open it again: opening recovers it"
    )
    # What the first error said.
    _first: str | None = None

    @classmethod
    def since(cls, first: BaseException, what: str = "log") -> Self:
        """The error to raise for every change of a log (or `what`) that has met the error `first`."""
        if not isinstance(first, SeglogError):
            words = f"{type(first).__name__}: {first}".removesuffix(": ")
            return cls(f"the {what} is read-only after an error: {words}")
        number = getattr(first, "errno", None)
        # (A managed ledger fails because its ledger did: told once.)
        words = (first._first if isinstance(first, LogFailedError) else None) or first.what
        made = cls(
            f"the {what} is read-only after an error: {words}", file=first.file, errno=number,
            hint=cls.hint.replace(_FIX_IT, _FREE_SPACE) if number in (errno.ENOSPC, errno.EDQUOT) else None,
        )
        made._first = words
        return made

    def hint_beside(self, owner: int) -> str:
        """What to do in a process that is attached to the one with this id."""
        fix = _FREE_SPACE if self.errno in (errno.ENOSPC, errno.EDQUOT) else _FIX_IT
        return f"{fix}; then process {owner}, which owns it, must close and open it again, or end: opening recovers it"


class LogClosedError(StorageError):
    """The log was closed, or its directory's handle was."""

    code = "log_closed"
    hint = "open it again"


# --- not ours to read: exit 4 ------------------------------------------------------------


class NotALogError(SeglogError):
    """The path is neither a partition directory, nor a .log file, nor a log dir of partitions; or it already holds
    something else than what is to be written there."""

    code = "not_a_log"
    exit_status = 4
    hint = "pass a directory such as orders-0, one of its .log files, or the log dir above it"


class UnsupportedVersionError(SeglogError):
    """A file has a newer version than this release can read."""

    code = "unsupported_version"
    exit_status = 4
    hint = "use a newer seglog"


class UnsupportedForMessageFormatError(SeglogError):
    """The request needs a feature that this record format does not have (headers below v2, timestamps below v1)."""

    code = "unsupported_for_message_format"
    exit_status = 2
    hint = "convert to v2 first, or leave out what the old format cannot hold"


class EncryptedPayloadError(SeglogError):
    """A Pulsar payload is encrypted by its producer. seglog stores it, but only a client with the key can decrypt
    it."""

    code = "encrypted_payload"
    exit_status = 4
    hint = "read the payload as it is stored, and decrypt it with a Pulsar client that has the key"


# --- another process holds it: exit 5 ----------------------------------------------------


class LogLockedError(SeglogError):
    """Another process holds the lock: a live broker holds its log dir's .lock, a writer its partition's."""

    code = "locked"
    exit_status = 5
    hint = (
        "stop that process, and run the same command again; in a program, pass attach=True to seglog.open in all "
        "processes that write the log, or give each a partition of its own; read with seglog.follow or open_partition, "
        "which need no lock"
    )


class ForkedHandleError(SeglogError):
    """A handle was used in a child process after fork: locks and descriptors belong to the parent."""

    code = "forked_handle"
    exit_status = 5
    hint = "open the log again in the child process"


# --- nothing came: exit 7 ----------------------------------------------------------------


class IdleTimeoutError(SeglogError, TimeoutError):
    """`follow(timeout=...)` got no record within its timeout. The log is not damaged: follow it again from the next
    offset."""

    code = "idle_timeout"
    exit_status = 7
    hint = "follow again from the offset after the last record, with a longer timeout or without one"


# --- a codec is missing or unknown: exit 6 -----------------------------------------------


class UnsupportedCompressionTypeError(SeglogError):
    """A codec that this format version does not allow (zstd below v2), or codec bits that are not assigned."""

    code = "unsupported_compression_type"
    exit_status = 6
    hint = "choose another codec with --codec"


class MissingCodecError(SeglogError):
    """The codec is known but its library is not installed."""

    code = "missing_codec"
    exit_status = 6
    hint = "pip install the library that the message names"


class MissingLibraryError(SeglogError, ImportError):
    """A library that the call needs is not installed: pyarrow, pandas, polars or numpy."""

    code = "missing_library"
    exit_status = 6
    hint = "pip install 'seglog[arrow]', or the library that the message names"


# --- typed keys and values ---------------------------------------------------------------


class SchemaNotFoundError(SeglogError):
    """The registry, the folder, or the topic `_schemas` does not have the schema that a record names by its id, or that
    another schema refers to."""

    code = "schema_not_found"
    hint = "name the registry that the topic's producers used; or pass on_undecodable='null' to read the other records"


class UndecodableRecordError(SeglogError):
    """A key or value is not what its schema says: another encoding, a frame that is missing, or a schema that the one
    to read with cannot resolve. The message names the offset and the schema's id."""

    code = "undecodable_record"
    hint = "on_undecodable='null' or 'raw' reads on; if all records fail, check decode= and its frame"


# --- sizes -------------------------------------------------------------------------------


class RecordTooLargeError(SeglogError):
    """A record, a batch, or a decompressed payload is larger than its limit allows."""

    code = "record_too_large"
    hint = "raise the limit that the message names if the data is trusted"


class TooManyDelayedError(SeglogError):
    """The limit of delayed messages is reached. The message is in the log: stop reading, and continue from it once
    some of the delayed messages have been delivered."""

    code = "too_many_delayed"
    hint = "continue when delayed messages have been delivered, or raise seglog.delayed.max.messages"


class QueueFullError(SeglogError):
    """The queue has as many jobs as its max_backlog allows. Nothing was put."""

    code = "queue_full"
    hint = "put it again when jobs are finished, add workers, or open the queue with a larger max_backlog"


class SubscriptionBusyError(SeglogError):
    """A subscription of a topic has consumers with which another one cannot share it, or because of which it cannot be
    removed; or a producer with this name is open."""

    code = "subscription_busy"
    hint = "close the other one first, or subscribe with the kind that it has: shared and key_shared have several"


class LeaseLostError(SeglogError):
    """The lease of a job ended before this call, or the job is finished: it was delivered again, waits for that, is
    dead, or was acknowledged."""

    code = "lease_lost"
    hint = "give long jobs a longer lease, or call job.extend in time; job.ack() still counts"
