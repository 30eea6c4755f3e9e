"""How logs are opened: the doors `seglog.open`, `seglog.open_dir` and `seglog.open_topic`.

They stand above `log/` and `upkeep/`, so that what a log does by itself over its life can be handed in here: a log does
not import what examines or rewrites it.
"""
import os
from collections.abc import Mapping

from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.fs.files import FileSystem
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.managed_ledger import ManagedLedger
from seglog.log.arguments import check_mapping
from seglog.log.log import Log
from seglog.log.open_dir import LogDir
from seglog.upkeep.cleaner_config import CleanerConfig
from seglog.upkeep.cleaner_thread import LogCleaner
from seglog.upkeep.retention import expired
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService


def open(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    fsync: Fsync = "batch",
    leader_epoch: int = 0,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    create: bool = True,
) -> Log:
    """Open a partition directory such as `data/orders-0` to append to it, and make it if it is not there.

    `config`: Kafka's keys (docs/config.md). `fsync`: when an append is on the disk: "batch" when it returns, concurrent
    ones sharing one sync; "interval" after flush.ms or flush.messages; "never" when the system writes it, a segment
    is full, or flush() or close() is called. `leader_epoch`: what appended batches carry; a log that has a later one
    goes on in that. `clock`, `fs`: for tests. `create=False` refuses if there is no such directory.

    Raises what `Log` raises.
    """
    return Log(
        path, config=config, fsync=fsync, leader_epoch=leader_epoch, clock=clock, fs=fs, create=create,
        retention=expired, keeper_of=_cleaner_of_its_own,
    )


def _cleaner_of_its_own(config: LogConfig) -> LogCleaner | None:
    return LogCleaner() if config.has_retention or config.is_compacted else None


def open_dir(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    fsync: Fsync = "batch",
    leader_epoch: int = 0,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    cleaner: Mapping[str, object] | CleanerConfig | None = None,
) -> LogDir:
    """Open a log dir such as `data`, which holds `orders-0` and others, and make it if it is not there.

    `log_dir.log(topic, partition)` opens one of its logs, or makes it. The arguments are those of `seglog.open`, for
    every log. `cleaner`: keys for all of them together, such as retention.total.bytes (docs/config.md); one thread,
    `log_dir.cleaner`, looks after the logs that are open. Raises what `LogDir` raises.
    """
    if not isinstance(cleaner, CleanerConfig):
        check_mapping(cleaner)
        cleaner = CleanerConfig.of(cleaner or {})
    return LogDir(
        path, config=config, fsync=fsync, leader_epoch=leader_epoch, clock=clock, fs=fs,
        retention=expired, keeper=LogCleaner(cleaner),
    )


def open_topic(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, object] | ManagedLedgerConfig | None = None,
    fsync: Fsync = "batch",
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    create: bool = True,
) -> ManagedLedger:
    """Open a topic's directory such as `topics/orders` to add to it, and make it if it is not there.

    A `ManagedLedger` that compacts by itself, where `config` has a compaction.threshold: in keep_house() and in its
    thread. The arguments are those of `ManagedLedger`. Raises what that raises, and CorruptManifestError where the
    pointer to what is compacted was lost.
    """
    topic = ManagedLedger(path, config=config, fsync=fsync, clock=clock, fs=fs, create=create)
    if topic.config.compaction_threshold_bytes:
        try:
            PulsarTopicCompactionService(topic)
        except BaseException:
            topic.close()
            raise
    return topic
