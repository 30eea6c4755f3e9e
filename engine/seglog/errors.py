"""Every error that seglog raises on purpose.

One base, one class a meaning, Kafka's own stems. Each class carries a stable `code` (the
anchor in docs/errors.md) and the exit status that a command ends with; each instance may say
which file, at which byte (`position`), after or at which record (`offset`), and what to do.
"""
import os
from typing import Any, Self


class SeglogError(Exception):
    """Catch this one to catch them all.

    Shown in three lines: what, where (file, byte, offset), what to do.
    """

    code = "error"
    exit_status = 1
    hint = "report this: it should have a name of its own"

    def __init__(
        self,
        what: str,
        *,
        file: str | os.PathLike[str] | None = None,
        position: int | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.file = None if file is None else os.fspath(file)
        self.position = position
        self.offset = offset
        if hint is not None:
            self.hint = hint

    @property
    def where(self) -> str:
        """`file, byte N, offset M`, as far as known; empty where nothing is."""
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

    def __reduce__(self) -> tuple[object, ...]:
        # Crosses process borders (multiprocessing, Spark) with everything it knows.
        return (type(self), (self.what,), dict(vars(self)))


# --- the bytes are wrong: exit 1 ---------------------------------------------------------


class CorruptRecordError(SeglogError):
    """A batch or record contradicts itself or its checksum. Its neighbours may be whole:
    read on with `on_corrupt="skip"`, and let `seglog verify` list what is lost."""

    code = "corrupt_record"
    hint = "run `seglog verify` on the directory; `seglog dump --on-corrupt skip` reads past it"


class CorruptIndexError(SeglogError):
    """An index file contradicts itself or its log. The log is whole: rebuild the index from it."""

    code = "corrupt_index"
    hint = "run `seglog index rebuild`: an index is a function of its log"


class CorruptSnapshotError(SeglogError):
    """A producer snapshot is torn or fails its checksum. Kafka drops it and replays the log."""

    code = "corrupt_snapshot"
    hint = "remove the file: a broker rebuilds producer state from the log"


class CorruptDelayedIndexError(SeglogError):
    """A snapshot of a bucket of delayed messages contradicts itself. The messages are in the log: clear the
    snapshots, and they are indexed again."""

    code = "corrupt_delayed_index"
    hint = "clear the delayed bucket snapshots: the messages are in the log and are indexed again"


class SnapshotMissingError(SeglogError):
    """No snapshot of delayed messages of this id: a crash came between its deletion and that of its pointer."""

    code = "snapshot_missing"
    hint = "none needed: the messages are in the log and are indexed again"


class CorruptCheckpointError(SeglogError):
    """A checkpoint or metadata text file of a log dir does not parse."""

    code = "corrupt_checkpoint"
    hint = "remove the file: a broker falls back to recovering the whole log"


class CorruptManifestError(SeglogError):
    """A file of ours that says what a managed ledger, a ledger or a cursor consists of does not parse, fails its
    checksum, or contradicts the directory. The entries are in the ledgers, whatever it says."""

    code = "corrupt_manifest"
    hint = "`seglog ledger recover` makes the manifest anew from the ledgers; a cursor's file can be deleted"


class CorruptSettingsError(SeglogError):
    """The file with the settings that a log keeps (.seglog.config) does not parse or fails its checksum. The records
    are not concerned."""

    code = "corrupt_settings"
    hint = "remove the file, open the log and give it its settings again by `configure`"


class UnfinishedChangeError(SeglogError):
    """The directory stands in the middle of a change (a `.swap` file of a compaction): what lies under the
    usual names is not the whole log. A broker that starts over the directory completes the change."""

    code = "unfinished_change"
    hint = "let a broker start over it (or over a copy) and stop cleanly, then run again"


class ProtocolError(SeglogError):
    """A client sent bytes that are no request of Kafka's protocol, or a record of a broker's own topics is none. The
    connection is closed, as a broker closes it; `position` is the byte in the request."""

    code = "protocol"
    hint = "look at what connects: a client of Kafka's protocol does not send this"


class UnsupportedApiVersionError(ProtocolError):
    """A request of an API or a version that `seglog serve` does not have. `header` says which, and who asks."""

    code = "unsupported_api_version"
    hint = "a client that asks for ApiVersions first takes a version that there is"

    header: Any = None


class ProofMismatchError(SeglogError):
    """What was written does not hold the records that were read. Nothing was put in place; the source is as it was."""

    code = "proof_mismatch"
    hint = "test memory and disk, then run again; if it stays, report it with the two digests"


# --- the request is wrong: exit 2 --------------------------------------------------------


class InvalidArgumentError(SeglogError, ValueError):
    """An argument that cannot be meant: a bad time, a negative size, SRC and DST the same."""

    code = "invalid_argument"
    exit_status = 2
    hint = "the message says what is expected; see the function's help(), or the command's --help"


class InvalidConfigError(InvalidArgumentError):
    """An unknown configuration key, or a value outside its limits."""

    code = "invalid_config"
    hint = "`seglog config` lists every key; `seglog config KEY` tells its unit, default and limits"


class InvalidTimestampError(SeglogError, ValueError):
    """A record's timestamp lies further from the clock than message.timestamp.before.max.ms or after.max.ms allow."""

    code = "invalid_timestamp"
    exit_status = 2
    hint = "mend the producer's clock, or raise message.timestamp.before.max.ms or message.timestamp.after.max.ms"


class InvalidRecordError(SeglogError, ValueError):
    """A batch to append that cannot be taken: relative offsets that do not run from 0 on, a count that is not that of
    its records, no key where the log is compacted. Nothing of it was written."""

    code = "invalid_record"
    exit_status = 2
    hint = "mend what built the batch: seglog.build_batch makes good ones"


class OutOfOrderSequenceError(SeglogError):
    """A batch of an idempotent producer does not follow the last one: one between is missing. Nothing was written."""

    code = "out_of_order_sequence"
    exit_status = 2
    hint = "append the batches that are missing first, or begin with a new producer epoch and sequence 0"


class InvalidProducerEpochError(SeglogError):
    """A batch of a producer epoch that a later one has fenced off. Nothing was written."""

    code = "invalid_producer_epoch"
    exit_status = 2
    hint = "another instance of this producer has taken over: stop this one"


class ProducerFencedError(InvalidProducerEpochError):
    """A `Producer` that may write no more: another one of its id was opened, or its transaction was aborted because it
    was open for longer than transaction.max.timeout.ms. Nothing was written, and its transaction is aborted."""

    code = "producer_fenced"
    hint = "if this one is to go on, open it again, log.producer(producer_id), and repeat the transaction"


class InvalidTxnStateError(SeglogError):
    """A batch that does not fit the producer's transaction: a plain batch while one is open, a marker of a fenced
    coordinator, a transaction that is not open. Nothing was written."""

    code = "invalid_txn_state"
    exit_status = 2
    hint = "end the open transaction first; a producer id is either transactional or not"


class OffsetOutOfRangeError(SeglogError, IndexError):
    """The offset asked for lies outside [log start offset, log end offset)."""

    code = "offset_out_of_range"
    exit_status = 2
    hint = "ask within the valid range that the message names"


class NoRecordError(SeglogError, LookupError):
    """No record has this offset, though it lies within the log: compaction removed it, or it is a marker's."""

    code = "no_record"
    exit_status = 2
    hint = "read(start=offset) gives the next record that there is"


# --- the machine refuses: exit 3 ---------------------------------------------------------


class StorageError(SeglogError):
    """The operating system refused: no space, no permission, a failed fsync, a directory in a file's place.

    `errno` is the number it gave, or None where the refusal is our own.
    """

    code = "storage"
    exit_status = 3
    hint = "free space or mend the permission, then run again"

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


class LogFailedError(StorageError):
    """The log is read-only since a write or sync of it failed: what is on disk behind the last sync is unknown, and a
    second sync may claim what the first one lost. Opening again recovers."""

    code = "log_failed"
    hint = "mend what the first error names, close the log and open it again: opening recovers"

    @classmethod
    def since(cls, first: BaseException, what: str = "log") -> Self:
        """What is raised wherever a log (or `what`) that met the error `first` shall change."""
        if not isinstance(first, SeglogError):
            words = f"{type(first).__name__}: {first}".removesuffix(": ")
            return cls(f"the {what} is read-only since an error: {words}")
        return cls(
            f"the {what} is read-only since an error: {first.what}",
            file=first.file, errno=getattr(first, "errno", None),
        )


class LogClosedError(StorageError):
    """The log was closed, or its directory's handle was."""

    code = "log_closed"
    hint = "open it again"


# --- not ours to read: exit 4 ------------------------------------------------------------


class NotALogError(SeglogError):
    """The path is neither a partition directory, nor a .log file, nor a log dir of partitions."""

    code = "not_a_log"
    exit_status = 4
    hint = "give a directory such as orders-0, one of its .log files, or the log dir above it"


class UnsupportedVersionError(SeglogError):
    """A file of a newer version than this release reads."""

    code = "unsupported_version"
    exit_status = 4
    hint = "use a newer seglog"


class UnsupportedForMessageFormatError(SeglogError):
    """The request needs what this record format does not have (headers below v2, time below v1)."""

    code = "unsupported_for_message_format"
    exit_status = 2
    hint = "convert to v2 first, or leave out what the old format cannot hold"


class EncryptedPayloadError(SeglogError):
    """A Pulsar payload that its producer encrypted. Entries carry it; only who has the producer's key opens it."""

    code = "encrypted_payload"
    exit_status = 4
    hint = "take the payload as it is stored, and decrypt it with a Pulsar client that has the key"


# --- somebody else holds it: exit 5 ------------------------------------------------------


class LogLockedError(SeglogError):
    """Another process holds the lock: a live broker holds its log dir's .lock, a writer its partition's."""

    code = "locked"
    exit_status = 5
    hint = (
        "one process writes a log: hand it your records (by a socket, a queue), or stop it; to read beside it, take "
        "seglog.follow_partition or open_partition, which need no lock (docs/following.md)"
    )


class ForkedHandleError(SeglogError):
    """A handle was used in a child process after fork: locks and descriptors belong to the parent."""

    code = "forked_handle"
    exit_status = 5
    hint = "open the log again in the child process"


# --- nothing came: exit 7 ----------------------------------------------------------------


class IdleTimeoutError(SeglogError, TimeoutError):
    """`follow(timeout=...)` was given no record for so long. The log is well: follow it again from the next offset."""

    code = "idle_timeout"
    exit_status = 7
    hint = "follow again from the offset behind the last record, with a longer timeout, or with none"


# --- a codec is missing or unknown: exit 6 -----------------------------------------------


class UnsupportedCompressionTypeError(SeglogError):
    """A codec that this format version may not use (zstd below v2), or codec bits that name none."""

    code = "unsupported_compression_type"
    exit_status = 6
    hint = "choose another codec with --codec"


class MissingCodecError(SeglogError):
    """The codec is known but its library is not installed."""

    code = "missing_codec"
    exit_status = 6
    hint = "pip install the library that the message names"


class MissingLibraryError(SeglogError, ImportError):
    """A library that the call hands rows to is not installed: pyarrow, pandas, polars or numpy."""

    code = "missing_library"
    exit_status = 6
    hint = "pip install 'seglog[arrow]', or what the message names"


# --- sizes -------------------------------------------------------------------------------


class RecordTooLargeError(SeglogError):
    """A record, a batch, or a decompressed payload is larger than its limit allows."""

    code = "record_too_large"
    hint = "raise the limit that the message names if the data is trusted"


class TooManyDelayedError(SeglogError):
    """As many messages are delayed as may be. The message is in the log: stop reading on, and go on from it when
    some of the delayed ones were delivered."""

    code = "too_many_delayed"
    hint = "read on when delayed messages were delivered, or raise delayedDeliveryMaxDelayedMessages"
