"""Names of partition directories and of the files in them, as Kafka spells them.

Nothing here opens a file; `log_files` reads a directory's list of names.
Sources: LogFileUtils, LocalLog.parseTopicPartitionName, org.apache.kafka.common.internals.Topic.
"""
import os
import re
from pathlib import Path

from seglog.errors import InvalidArgumentError, NotALogError
from seglog.named_tuple import NamedTuple

# --- files of a segment: twenty digits and one of these ----------------------------------------

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"           # its number is the first offset that is NOT in it
# seglog's: one entry a minute. A broker takes it for an index of the same segment: it leaves the file alone as long
# as the .log exists, and removes it otherwise.
MINUTE_INDEX_SUFFIX = ".time.index"
TIME_RANGES_SUFFIX = ".ranges.index"    # seglog's: the times of each run of bytes. A broker treats it like the above
COLUMN_STATS_SUFFIX = ".stats.index"    # seglog's: times and keys of each run of bytes. Likewise
# Built from a segment that no longer grows; removed when its log changes.
OF_WHOLE_LOGS = (TIME_RANGES_SUFFIX, COLUMN_STATS_SUFFIX)

# The tagged dialect (format.dialect): Kafka does not know these suffixes, and leaves the files alone.
TAGGED_LOG_SUFFIX = ".tlog"
TAGGED_INDEX_SUFFIX = ".tindex"

LOG_SUFFIXES = (LOG_SUFFIX, TAGGED_LOG_SUFFIX)
INDEX_SUFFIXES = (
    OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, MINUTE_INDEX_SUFFIX, *OF_WHOLE_LOGS,
    TAGGED_INDEX_SUFFIX,
)
SUFFIXES = (*LOG_SUFFIXES, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX)

# A second suffix says that the file is not, or no longer, part of the log.
DELETED_SUFFIX = ".deleted"             # to be removed after file.delete.delay.ms
CLEANED_SUFFIX = ".cleaned"             # being written by the cleaner, or by a split
SWAP_SUFFIX = ".swap"                   # complete, and about to replace others
TMP_SUFFIX = ".tmp"                     # of checkpoints
BACKUP_SUFFIX = ".bak"                  # seglog's: what `index rebuild` replaced. A broker ignores it

STATES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TMP_SUFFIX, BACKUP_SUFFIX)

# --- other files -----------------------------------------------------------------------------

# in a partition directory
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
# in a log dir
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"        # high watermarks
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, CLEANER_CHECKPOINT
)
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
# seglog's: before the name of a cursor (state.reader_cursor).
CURSOR_PREFIX = ".seglog.cursor-"
# Beside it, that of seglog's server, which only one server of a log dir may hold. A broker ignores this file.
SERVER_LOCK = ".seglog.server.lock"
# Topics of the broker itself, which it compacts (TopicConfig of GroupCoordinator and TransactionCoordinator).
BROKER_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
METADATA_TOPIC = "__cluster_metadata"       # of KRaft (Topic.CLUSTER_METADATA_TOPIC_NAME): not a log of LogManager

# Of the metadata log: what it says up to an offset and epoch, `00000000000000000047-0000000001.checkpoint`.
METADATA_SNAPSHOT_SUFFIX = ".checkpoint"
BOOTSTRAP_SNAPSHOT = "bootstrap.checkpoint"     # in a log dir: the records of a new cluster

MAX_OFFSET = 2**63 - 1

_LOGS_AND_SWAPS = (*LOG_SUFFIXES, *(suffix + SWAP_SUFFIX for suffix in LOG_SUFFIXES))

# What may follow the twenty digits, and its parts. No regular expression: a directory may have thousands of names.
_ENDINGS = {suffix + state: (suffix, state) for suffix in SUFFIXES for state in ("", *STATES)}
# (Compiled for the first such name.)
_METADATA_SNAPSHOT = rf"([0-9]{{20}})-([0-9]{{10}})\{METADATA_SNAPSHOT_SUFFIX}"


class SegmentFile(NamedTuple):
    """The parts of a name such as `00000000000000003252.log.deleted`: offset 3252, suffix ".log", state ".deleted"."""

    offset: int
    suffix: str
    state: str = ""

    def __str__(self) -> str:
        return file_name(self.offset, self.suffix, self.state)


def file_name(offset: int, suffix: str, state: str = "") -> str:
    """Return the name of a segment's file: `file_name(0, LOG_SUFFIX)` is "00000000000000000000.log"."""
    if not 0 <= offset <= MAX_OFFSET:
        raise InvalidArgumentError(f"invalid offset {offset}", hint=f"an offset must be from 0 to {MAX_OFFSET}")
    return f"{offset:020d}{suffix}{state}"


def parse_file_name(name: str) -> SegmentFile | None:
    """Split a segment file's name into its parts; None for any other name."""
    digits = name[:20]
    parts = _ENDINGS.get(name[20:])
    if parts is None or not (digits.isascii() and digits.isdigit()):
        return None
    offset = int(digits)
    return SegmentFile(offset, *parts) if offset <= MAX_OFFSET else None


def parse_base_offset(name: str) -> int:
    """Return the offset in the name of a segment's file. Raises NotALogError."""
    parsed = parse_file_name(name)
    if parsed is None:
        raise NotALogError(f"not the name of a segment's file (twenty digits and {LOG_SUFFIX}): {name!r}", file=name)
    return parsed.offset


class MetadataSnapshot(NamedTuple):
    """The parts of a metadata snapshot's name: the offset after its last record, and that record's epoch."""

    end_offset: int
    epoch: int


def parse_metadata_snapshot(name: str) -> MetadataSnapshot | None:
    """Split the name of a metadata snapshot; None for any other name (Snapshots.parse)."""
    found = re.fullmatch(_METADATA_SNAPSHOT, name)
    if found is None or int(found[1]) > MAX_OFFSET or int(found[2]) >= 1 << 31:
        return None
    return MetadataSnapshot(int(found[1]), int(found[2]))


def log_files(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the .log files of a directory, by base offset, or its .tlog files if it has any; empty if there are none.

    Leaves out files that are deleted, cleaned or to be swapped in: log.listing has the log as it will be then.
    state.directory_dialect says whether the directory may be read as it is.
    """
    return log_files_and_swaps(directory)[0]


def log_files_and_swaps(directory: str | os.PathLike[str]) -> tuple[list[Path], bool]:
    """Return `log_files`, and whether a log has yet to be swapped in, so that they are not the whole log."""
    with os.scandir(directory) as entries:
        listed = [name for entry in entries if (name := entry.name).endswith(_LOGS_AND_SWAPS)]
    found = sorted(filter(is_log_file, listed))
    swaps = set(listed).difference(found)
    if TAGGED_LOG_SUFFIX in "".join(found):     # usually there is none, and nothing is called
        found = of_one_dialect(found)
    return [Path(directory, name) for name in found], any(map(is_swapped_log, swaps))


def of_one_dialect(found: list[str]) -> list[str]:
    """Keep the log files of the directory's dialect: a broker puts an empty .log beside a .tlog."""
    return [name for name in found if name.endswith(TAGGED_LOG_SUFFIX)] or found


def is_log_file(name: str) -> bool:
    """Whether a file of this name is a .log or a .tlog."""
    parsed = parse_file_name(name)
    return parsed is not None and parsed.suffix in LOG_SUFFIXES and not parsed.state


def is_swapped_log(name: str) -> bool:
    """Whether a file of this name is a .log or a .tlog that is about to take the place of others."""
    parsed = parse_file_name(name)
    return parsed is not None and parsed.suffix in LOG_SUFFIXES and parsed.state == SWAP_SUFFIX


def has_segments(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory has a segment, even if all that is left of it has yet to be swapped in."""
    with os.scandir(directory) as entries:
        return any(is_log_file(entry.name) or is_swapped_log(entry.name) for entry in entries)


def may_have_segments(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a directory with a segment, or cannot be listed, such as a link that leads nowhere: then
    reading it says why."""
    try:
        return has_segments(path)
    except NotADirectoryError:
        return False
    except OSError:
        return os.path.lexists(path)    # otherwise it was removed since it was listed


# --- partition directories -------------------------------------------------------------------

DELETE = "delete"       # its topic was deleted; a broker removes it, also at start
FUTURE = "future"       # being copied to another log dir (KIP-113)
STRAY = "stray"         # unknown to the cluster (3.6 and newer)

MAX_PARTITION = 2**31 - 1

_MARKED = r"(?P<partition_dir>\S+-\S+)\.(?P<unique_id>\S+)-(?P<mark>delete|future|stray)"


class PartitionDir(NamedTuple):
    """The parts of a name such as `orders-3` or `orders-3.<32 hex>-delete`. `mark` is "", or one of the three above."""

    topic: str
    partition: int
    mark: str = ""
    unique_id: str = ""

    def __str__(self) -> str:
        return partition_dir(self.topic, self.partition) + (f".{self.unique_id}-{self.mark}" if self.mark else "")


def partition_dir(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> PartitionDir | None:
    """Split a partition directory's name into its parts; None for any other name.

    The partition follows the LAST dash: topics may contain dashes and dots.
    """
    mark = unique_id = ""
    if name.endswith((f"-{DELETE}", f"-{FUTURE}", f"-{STRAY}")):
        found = re.fullmatch(_MARKED, name)
        if found is None:
            return None
        name, unique_id, mark = found["partition_dir"], found["unique_id"], found["mark"]
    topic, dash, partition = name.rpartition("-")
    if not (topic and dash and re.fullmatch("[0-9]{1,10}", partition)) or int(partition) > MAX_PARTITION:
        return None
    return PartitionDir(topic, int(partition), mark, unique_id)


def misnamed_error(directory: Path) -> InvalidArgumentError:
    """The error for a directory whose name is not that of a partition."""
    name = directory.name
    is_topic = topic_fault(name) is None and re.search("[.]|-[0-9]", name) is None
    example = f"{name}-0 for partition 0 of the topic {name}" if is_topic else "such as orders-0"
    return InvalidArgumentError(
        f"{name!r} is not a valid name for a partition directory", file=directory,
        hint=f"name it <topic>-<partition>, {example}",
    )


# --- topics ----------------------------------------------------------------------------------

MAX_TOPIC_LENGTH = 249      # so that "-<partition>.<32 hex>-delete" fits into the 255 bytes of a name, nearly
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic(topic: str) -> str:
    """Return the topic if Kafka accepts it (Topic.validate). Raises InvalidArgumentError, which names the rule."""
    why = topic_fault(topic)
    if why is None:
        return topic
    raise InvalidArgumentError(f"invalid topic name {topic!r}: {why}", hint="choose a name that Kafka accepts")


def validate_partition(partition: int) -> int:
    """Return the partition if it is a non-negative int32. Raises InvalidArgumentError: -1 of the topic `t` would be
    `t--1`, partition 1 of the topic `t-`."""
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= MAX_PARTITION:
        raise InvalidArgumentError(f"a partition must be an int from 0 to {MAX_PARTITION}, not {partition!r}")
    return partition


def topic_fault(topic: str) -> str | None:
    """Return why Kafka would not accept the name; None if it would."""
    if not topic:
        return "it is empty"
    if topic in (".", ".."):
        return f"{topic!r} is a directory's own name"
    if len(topic) > MAX_TOPIC_LENGTH:
        return f"it has {len(topic)} characters, and {MAX_TOPIC_LENGTH} are allowed"
    if not _TOPIC.fullmatch(topic):
        return "it may contain only ASCII letters, digits, '.', '_' and '-'"
    return None
