"""`seglog.pulsar.ManagedLedger`: above `ledger/` and `upkeep/`, so that a managed ledger can compact by itself."""
import os
from collections.abc import Mapping

from seglog.clock import Clock
from seglog.config import Fsync
from seglog.fs.files import FileSystem
from seglog.late_import import late
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.managed.managed_ledger import OpenManagedLedger


class ManagedLedger(OpenManagedLedger):
    """Open a topic's directory such as `topics/orders` to add to it, and create it if it does not exist.

    `config`: Pulsar's keys (docs/config.md); with a compaction threshold it compacts by itself, in a thread of its own.
    `fsync`: when an entry is on the disk. "batch": when it was added; concurrent adds share one sync. "interval": after
    flush.ms. "never": when the system writes it or a ledger is sealed. With `create=False` it must exist. `clock`,
    `fs`: for tests. `path`: its directory. `lost`: what recovery removed from the last ledger at opening, or None. Use
    it as a context manager, or close it.

    Raises LogLockedError while it is being written, NotALogError, UnsupportedVersionError, StorageError;
    CorruptManifestError, also if the pointer to the compacted ledger was lost; CorruptRecordError if each add to the
    last ledger was synced and it is damaged in the middle.
    """

    __slots__ = ()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, object] | ManagedLedgerConfig | None = None,
        fsync: Fsync = "batch",
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        create: bool = True,
    ) -> None:
        super().__init__(path, config=config, fsync=fsync, fs=fs, clock=clock, create=create)
        if self.config.compaction_threshold_bytes:
            # Imported here: most topics are not compacted.
            late("seglog.upkeep.topic_compaction")
            from seglog.upkeep.topic_compaction import PulsarTopicCompactionService

            try:
                PulsarTopicCompactionService(self)
            except BaseException:
                self.close()
                raise
