"""Configuration of a managed ledger: Pulsar's own keys, units and defaults.

docs/config.md is generated from the fields below.
"""
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from seglog.config import GIB, MAX_LONG, MIB, Key, Settings, setting, setting_of
from seglog.errors import InvalidConfigError

TIMESTAMP, INDEX = "timestamp", "index"
# Pulsar names the classes.
_INTERCEPTORS = {
    TIMESTAMP: TIMESTAMP,
    INDEX: INDEX,
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor": TIMESTAMP,
    "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor": INDEX,
}


class InterceptorsKey(Key):
    """A key whose value is a set of interceptors, as a list or as text with commas."""

    __slots__ = ()

    @property
    def limits(self) -> str:
        return "timestamp, index, both with a comma, or nothing; or Pulsar's class names"

    def parse(self, value: object, *, units: bool = True) -> frozenset[str]:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, Iterable):
            raise InvalidConfigError(f"{self.name} must be {self.limits}, not {value!r}")
        found = {str(name).strip() for name in names} - {""}
        if not found <= _INTERCEPTORS.keys():
            raise InvalidConfigError(f"{self.name} must be {self.limits}, not {value!r}")
        return frozenset(_INTERCEPTORS[name] for name in found)


class ManagedLedgerConfig(Settings):
    """How a topic is cut into ledgers, what is retained, and what broker metadata its entries get.

    Make one with `ManagedLedgerConfig.of({"managedLedgerMaxEntriesPerLedger": 1000})`, which checks names and limits.
    """

    other_spellings: ClassVar[Mapping[str, str]] = {
        "messageTTLInSeconds": "ttlDurationDefaultInSeconds",
        "flush_ms": "flush.ms",
    }

    interceptors: frozenset[str] = setting_of(
        InterceptorsKey(
            "brokerEntryMetadataInterceptors", "names",
            "what broker metadata each added entry gets: the time, the index of its last message",
            "ServiceConfiguration, Pulsar 4.2.4 (PIP-70, PIP-90)",
        ),
        default=frozenset(),
    )
    use_broker_timestamps: bool = setting(
        True, "useBrokerTimestampsForMessageSeek", "boolean",
        "seek and expire by the broker timestamp if an entry has one; false: only by the publish time",
        "PIP-70; Pulsar 4.2.4 always does",
    )
    max_entries_per_ledger: int = setting(
        50_000, "managedLedgerMaxEntriesPerLedger", "entries",
        "a ledger with this many entries is sealed, and another one started",
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1,
    )
    max_size_per_ledger_mb: int = setting(
        2048, "managedLedgerMaxSizePerLedgerMbytes", "MiB",
        "a ledger whose file reaches this size is sealed, and another one started; the limit is always 2 GiB - 1 byte",
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1,
    )
    min_rollover_minutes: int = setting(
        0, "managedLedgerMinLedgerRolloverTimeMinutes", "min",
        "a younger ledger is not sealed because of its entries or size",
        "ManagedLedgerConfig, Pulsar 4.2.4; broker.conf says 10",
    )
    max_rollover_minutes: int = setting(
        240, "managedLedgerMaxLedgerRolloverTimeMinutes", "min",
        "a ledger that is older is sealed by the next entry, or by its thread",
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1,
    )
    retention_minutes: int = setting(
        0, "defaultRetentionTimeInMinutes", "min",
        "how long a ledger that every cursor has passed is kept after it was sealed; -1: forever",
        "ServiceConfiguration, Pulsar 4.2.4",
        besides=(-1,),
    )
    retention_mb: int = setting(
        0, "defaultRetentionSizeInMB", "MiB",
        "how much data that every cursor has passed is kept until its retention time is over; -1: any amount",
        "ServiceConfiguration, Pulsar 4.2.4",
        besides=(-1,),
    )
    message_ttl_s: int = setting(
        0, "ttlDurationDefaultInSeconds", "s",
        "an entry that is older is acknowledged by expire(); 0: none is ever too old",
        "ServiceConfiguration, Pulsar 4.2.4",
    )
    max_message_bytes: int = setting(
        5 * MIB, "maxMessageSize", "bytes",
        "largest entry that is added, before broker metadata",
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1, high=GIB,
    )
    mark_delete_per_s: int = setting(
        1, "managedLedgerDefaultMarkDeleteRateLimit", "1/s",
        "how often a cursor's acknowledgements are written to the disk, at most; 0: each one",
        "ServiceConfiguration, Pulsar 4.2.4",
    )
    flush_ms: int = setting(
        1000, "flush.ms", "ms",
        'with fsync="interval": how long what was added may be without a sync',
        "flush.ms of Kafka; the default is seglog's",
        low=1,
    )

    compaction_threshold_bytes: int = setting(
        0, "brokerServiceCompactionThresholdInBytes", "bytes",
        "its thread compacts the topic when this much of it is not compacted yet; 0: never automatically",
        "ServiceConfiguration, Pulsar 4.2.4",
        high=MAX_LONG,
    )
    compaction_monitor_s: int = setting(
        60, "brokerServiceCompactionMonitorIntervalInSeconds", "s",
        "how often a thread looks whether that threshold is passed; with fsync=interval each flush.ms",
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1,
    )
    compaction_payload: Literal["placeholders", "retained-only"] = setting(
        "placeholders", "seglog.compaction.payload", "name",
        "what is left in a batch of messages that compaction removes: empty messages, as Pulsar writes; or nothing, "
        "which clients read by a MessagePayloadProcessor only",
        "seglog's own; PIP-429",
        choices=("placeholders", "retained-only"),
    )
    compaction_batch_indexes: bool = setting(
        True, "seglog.compaction.batch.indexes", "boolean",
        "write compacted_batch_indexes (field 31) into each batch that compaction rewrites; false: as Pulsar 4.0 did",
        "seglog's own; PIP-429",
    )
    retains_null_keys: bool = setting(
        False, "topicCompactionRetainNullKey", "boolean",
        "keep messages without a key when a topic is compacted",
        "ServiceConfiguration, Pulsar 4.2.4 (PIP-318)",
    )
    compaction_by_entry_key: bool = setting(
        False, "seglog.compaction.encrypted.by.entry.key", "boolean",
        "compact an encrypted batch by the key of its metadata, as Pulsar does, though it may hold messages of other "
        "keys; false: keep it whole",
        "seglog's own; Pulsar 4.2.4 always does",
    )
    compaction_key_ttl_ms: int = setting(
        0, "seglog.compaction.key.ttl.ms", "ms",
        "compaction removes a key whose last message is older; 0: none is ever too old",
        "seglog's own; asked for in Pulsar's issue 24791",
        high=MAX_LONG,
    )
    compaction_key_map_bytes: int = setting(
        128 * MIB, "seglog.compaction.key.map.bytes", "bytes",
        "memory for the keys of one round of compaction; more keys take several rounds",
        "seglog's own, after Kafka's log.cleaner.dedupe.buffer.size",
        low=4096, high=MAX_LONG,
    )
    exposes_broker_metadata: bool = setting(
        False, "exposingBrokerEntryMetadataToClientEnabled", "boolean",
        "give readers that ask for it (supports_broker_metadata) entries with broker metadata",
        "ServiceConfiguration, Pulsar 4.2.4 (PIP-90)",
    )

    @property
    def max_size_per_ledger_bytes(self) -> int:
        return self.max_size_per_ledger_mb * MIB

    @property
    def min_rollover_ms(self) -> int:
        return self.min_rollover_minutes * 60_000

    @property
    def max_rollover_ms(self) -> int:
        return self.max_rollover_minutes * 60_000
