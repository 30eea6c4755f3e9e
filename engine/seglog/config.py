"""Configuration: Kafka's own keys, units, defaults and limits, one frozen class per subject. Keys that neither
Kafka nor Pulsar has begin with `seglog.`.

A partition directory does not record the configuration that it was written with, so code that checks or
rebuilds indexes must be given it. docs/config.md is generated from the fields below.
"""
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from seglog.errors import InvalidConfigError
from seglog.named_tuple import NamedTuple

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1     # Kafka's "never"

# When appended records are on the disk: when the append returns; after an interval; when the system writes them.
Fsync = Literal["batch", "interval", "never"]

_SUFFIXES = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}
# (Compiled for the first value of its kind.)
_SIZE = r"(?i)(?P<number>[0-9][0-9_]*(\.[0-9]+)?)\s*((?P<unit>[kmgt])(i?b)?|b)?"


def parse_bytes(value: object) -> int:
    """Parse a number of bytes, an int or text: 4096, "4096", "64MiB", "1.5 GiB", "16k"; k, KB and KiB are 1024.

    Raises ValueError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = re.fullmatch(_SIZE, value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("not a number of bytes such as 4096, 16k or 64MiB")
    scale = _SUFFIXES[(found["unit"] or "").lower()]
    if "." not in found["number"]:
        return int(found["number"]) * scale
    return int(float(found["number"]) * scale)


UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def duration_ms(text: str) -> int | None:
    """The milliseconds of a duration such as "10m" or "2d1h" (units ms, s, m, h, d, w); None if it is none."""
    if not re.fullmatch(r"(?:[0-9]{1,19}(?:ms|s|m|h|d|w)){1,6}", text):
        return None
    return sum(int(number) * UNITS_MS[unit] for number, unit in re.findall(r"([0-9]{1,19})(ms|s|m|h|d|w)", text))


def parse_ms(value: object) -> int:
    """Parse a time span in milliseconds: an int, text (604800000, "7d", "2d12h", "500ms"), or a timedelta, of which
    part of a millisecond counts as a whole one.

    Raises ValueError.
    """
    if isinstance(value, str) and (found := duration_ms(value.strip())) is not None:
        return found
    # As a datetime.timedelta has them: that module is loaded only where a program has one.
    days, seconds, micros = (getattr(value, name, None) for name in ("days", "seconds", "microseconds"))
    if type(days) is int and type(seconds) is int and type(micros) is int:
        return (days * 86_400 + seconds) * 1000 - -micros // 1000
    try:
        return parse_int(value)
    except ValueError:
        raise ValueError('neither whole milliseconds nor a time such as "7d", "12h" or a timedelta') from None


def parse_int(value: object) -> int:
    """Parse a whole number, an int or text. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()):
        return int(value)
    raise ValueError("not a whole number")


def parse_ratio(value: object) -> float:
    """Parse a fraction, an int, a float or text: 1, 0.5, "0.5". Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9]*\.?[0-9]+", value.strip()):
        return float(value)
    raise ValueError("not a number such as 0.5")


def parse_bool(value: object) -> bool:
    """Parse a truth value, a bool or the text "true" or "false". Raises ValueError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("neither true nor false")


_KAFKA_VERSION = r"(?a)(?P<release>0\.\d{1,2}(\.\d)?|[1-9]\.\d)(\.\d{1,2}){0,2}(-IV\d{1,2})?"
# The last minor version of each line (ApiVersion, MetadataVersion); line 4 accepts any, because more will follow.
_LAST_MINORS = {"0.8": 2, "0.9": 0, "0.10": 2, "0.11": 0, "1": 1, "2": 8, "3": 9, "4": 9}


def parse_format_version(value: object) -> int:
    """Parse a record format, 0 to 2: its number, or a Kafka version such as "0.9.0", "0.10.0" or "2.8-IV1", which means
    the newest format of that version (ApiVersion.recordVersion). Raises ValueError.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2:
        return value
    if value in ("0", "1", "2"):
        return int(value)
    found = re.fullmatch(_KAFKA_VERSION, value.strip()) if isinstance(value, str) else None
    release = "" if found is None else found["release"]
    line, _, minor = (release, "", "0") if release in _LAST_MINORS else release.rpartition(".")
    if int(minor or 0) > _LAST_MINORS.get(line, -1):
        raise ValueError("neither a record format nor a Kafka version of 0.8.0 or later")
    return {"0.8": 0, "0.9": 0, "0.10": 1}.get(line, 2)


_PLAIN: dict[str, Callable[[object], float]] = {"ratio": parse_ratio}
_WITH_UNITS = {"bytes": parse_bytes, "ms": parse_ms, **_PLAIN}


class Key(NamedTuple):
    """The values that a configuration key accepts.

    One of `choices`, a truth value if the unit is "boolean", any text if it is "text", or a number from `low` to `high`
    or one of `besides`: a fraction if the unit is "ratio", otherwise a whole number.
    """

    name: str
    unit: str
    meaning: str
    source: str
    low: int = 0
    high: int = MAX_INT
    besides: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    may_be_unset: bool = False      # if None, the code that uses the configuration decides

    @property
    def limits(self) -> str:
        """The accepted values in words, for messages and for docs/config.md."""
        if self.choices:
            return " or ".join(self.choices)
        if self.unit == "boolean":
            return "true or false"
        if self.unit == "text":
            return "any text"
        if self.unit == "record format":
            return "0, 1, 2, or a Kafka version such as 0.9.0, 0.10.0 or 2.8"
        return "".join(f"{n} or " for n in self.besides) + f"{self.low} to {self.high}"

    def parse(self, value: object, *, units: bool = True) -> Any:
        """The value, in the key's unit. `units`: it may name a unit of its own. Raises InvalidConfigError."""
        if value is None and self.may_be_unset:
            return None
        if self.choices:
            if value in self.choices:
                return value
            raise InvalidConfigError(f"{self.name} must be {self.limits}, not {value!r}")
        if self.unit == "text":
            if isinstance(value, str):
                return value
            raise InvalidConfigError(f"{self.name} must be text, not {value!r}")
        try:
            if self.unit == "boolean":
                return parse_bool(value)
            if self.unit == "record format":
                return parse_format_version(value)
            parse = (_WITH_UNITS if units else _PLAIN).get(self.unit, parse_int)
            number = parse_int(value) if str(value).strip() in map(str, self.besides) else parse(value)
            if not self.low <= number <= self.high and number not in self.besides:
                raise ValueError("outside its limits")
        except ValueError as e:
            raise InvalidConfigError(f"{self.name} must be {self.limits} ({self.unit}), not {value!r}: {e}") from None
        return number


class _Setting(NamedTuple):
    default: Any
    key: Key


def setting(default: Any, name: str, unit: str, meaning: str, source: str, **limits: Any) -> Any:
    """A field of a configuration: its default and its Key."""
    return _Setting(default, Key(name, unit, meaning, source, **limits))


def setting_of(key: Key, *, default: Any) -> Any:
    """A field of a configuration with a Key of its own kind."""
    return _Setting(default, key)


class Settings:
    """A configuration: a frozen class whose fields are settings, all with defaults; equal if all values are.

    Not a dataclass: to import `dataclasses`, and to make one of fifty fields, is a tenth of the time in which a process
    opens its first log.
    """

    other_spellings: ClassVar[Mapping[str, str]] = {}
    keys: ClassVar[Mapping[str, Key]]           # by attribute
    defaults: ClassVar[Mapping[str, Any]]       # by attribute

    def __init_subclass__(cls) -> None:
        found = {name: value for name, value in vars(cls).items() if isinstance(value, _Setting)}
        cls.keys = {name: value.key for name, value in found.items()}
        cls.defaults = {name: value.default for name, value in found.items()}
        for name in found:
            delattr(cls, name)

    def __init__(self, **values: Any) -> None:
        if not values.keys() <= self.defaults.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(values.keys() - self.defaults.keys()))}")
        vars(self).update(self.defaults, **values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a configuration is frozen: {name} cannot be set; `replace` makes another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a configuration is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        unlike = [f"{name}={value!r}" for name, value in vars(self).items() if value != self.defaults[name]]
        return f"{type(self).__name__}({', '.join(unlike)})"

    def replace(self, **changes: Any) -> Self:
        """Return another configuration, with these attributes changed; their values are not checked."""
        return type(self)(**{**vars(self), **changes})

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """Build a configuration from `settings`: keys by their own names or another spelling, values as they are or as
        text with units. Raises InvalidConfigError for an unknown key, one given twice, or a value outside its limits.
        """
        if not isinstance(settings, Mapping):
            raise InvalidConfigError(f"a configuration must be a mapping of keys to values, not {repr(settings)[:80]}")
        if not settings:
            return cls()        # the usual case
        attributes = {key.name: (attribute, key) for attribute, key in cls.keys.items()}
        values: dict[str, Any] = {}
        for given, value in settings.items():
            if not isinstance(given, str):
                raise InvalidConfigError(f"a key must be text such as {next(iter(attributes))}, not {given!r}")
            name = cls._name_of(given.strip())
            if name not in attributes:
                raise InvalidConfigError(f"no such key: {given}{suggestion(name, attributes)}")
            attribute, key = attributes[name]
            if attribute in values:
                raise InvalidConfigError(f"{name} is given twice")
            values[attribute] = key.parse(value)
        return cls(**values)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Name and value of every setting, in the key's unit."""
        for attribute, key in self.keys.items():
            yield key.name, getattr(self, attribute)

    @classmethod
    def _name_of(cls, spelling: str) -> str:
        return cls.other_spellings.get(spelling, spelling)


class LogConfig(Settings):
    """How a log is laid out in segments and indexes, and what a reader may spend on a batch.

    Make one by `LogConfig.of({"segment.bytes": "64MiB"})`, which checks names, units and limits.
    """

    segment_bytes: int = setting(
        GIB, "segment.bytes", "bytes",
        "largest size of a .log file; a batch that would exceed it starts a new segment",
        "LogConfig.DEFAULT_SEGMENT_BYTES. Kafka 4 asks for at least 1 MiB (KIP-1030), older ones for 14 bytes",
        low=14,
    )
    segment_index_bytes: int = setting(
        10 * MIB, "segment.index.bytes", "bytes",
        "size to which the active segment's indexes are preallocated; a full index starts a new segment",
        "ServerLogConfigs.LOG_INDEX_SIZE_MAX_BYTES_DEFAULT",
        low=4,
    )
    index_interval_bytes: int = setting(
        4 * KIB, "index.interval.bytes", "bytes",
        "bytes of log between two index entries: an entry is written when more than this were added since the last",
        "ServerLogConfigs.LOG_INDEX_INTERVAL_BYTES_DEFAULT",
    )
    max_message_bytes: int = setting(
        MIB + 12, "max.message.bytes", "bytes",
        "largest batch, after compression",
        "ServerLogConfigs.MAX_MESSAGE_BYTES_DEFAULT: 1 MiB and Records.LOG_OVERHEAD",
    )
    max_decompressed_message_bytes: int = setting(
        64 * MIB, "max.decompressed.message.bytes", "bytes",
        "largest payload of a batch once decompressed; decompressing takes only little more memory than this",
        "Kafka's name since apache/kafka#23429; the default is seglog's",
        low=1,
    )
    message_timestamp_type: str = setting(
        "CreateTime", "message.timestamp.type", "name",
        "whether a batch carries the producer's timestamps or the broker's",
        "ServerLogConfigs.LOG_MESSAGE_TIMESTAMP_TYPE_DEFAULT (KIP-32)",
        choices=("CreateTime", "LogAppendTime"),
    )
    compression_gzip_level: int = setting(
        -1, "compression.gzip.level", "level",
        "level of batches that are compressed with gzip; -1 is zlib's own default, 6",
        "CompressionType.GZIP (KIP-390)",
        low=1, high=9, besides=(-1,),
    )
    compression_lz4_level: int = setting(
        9, "compression.lz4.level", "level",
        "level of batches that are compressed with lz4; 9 is the fast compressor, all others the slow one",
        "CompressionType.LZ4 (KIP-390)",
        low=1, high=17,
    )
    compression_zstd_level: int = setting(
        3, "compression.zstd.level", "level",
        "level of batches that are compressed with zstd",
        "CompressionType.ZSTD (KIP-390)",
        low=-131072, high=22,
    )

    compression_type: str = setting(
        "producer", "compression.type", "name",
        "codec of appended batches; producer keeps the codec of an encoded batch, and does not compress records",
        "LogConfig.DEFAULT_COMPRESSION_TYPE; topics call it uncompressed (BrokerCompressionType), producers none",
        choices=("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"),
    )
    cleanup_policy: str = setting(
        "delete", "cleanup.policy", "name",
        "whether old segments are deleted, or compaction removes records whose key has a later record; a compacted log "
        "refuses records without a key",
        "LogConfig.DEFAULT_CLEANUP_POLICY",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    )
    retention_ms: int = setting(
        -1, "retention.ms", "ms",
        "a segment whose largest timestamp is older than this is deleted; -1: none is. Records without timestamps (v0) "
        "are as old as their file",
        "Kafka's name; its default is 7 days (LogConfig.DEFAULT_RETENTION_MS). Here nothing is deleted unasked",
        high=MAX_LONG, besides=(-1,),
    )
    retention_bytes: int = setting(
        -1, "retention.bytes", "bytes",
        "old segments are deleted as long as the remaining .log files have at least this size; -1: none is",
        "ServerLogConfigs.LOG_RETENTION_BYTES_DEFAULT",
        high=MAX_LONG, besides=(-1,),
    )
    retention_granularity: str = setting(
        "segment", "seglog.retention.granularity", "name",
        "what retention.ms removes: whole segments, as in Kafka, or batches: the log start offset moves to the first "
        "batch that is young enough, and its segment is rewritten without the batches before it",
        "seglog's own, as retention by time was first proposed with KIP-33",
        choices=("segment", "batch"),
    )
    retention_head_rewrite_ratio: float = setting(
        0.5, "seglog.retention.head.rewrite.ratio", "ratio",
        "with seglog.retention.granularity=batch: the part of the first segment that must lie before the log start "
        "offset for the file to be rewritten without it; 1: the segment stays until all of it can be deleted",
        "seglog's own",
        low=0, high=1,
    )
    retention_ignore_future_timestamps: bool = setting(
        False, "seglog.retention.ignore.future.timestamps", "boolean",
        "whether a segment whose largest timestamp is in the future is judged by the time of its file instead, which "
        "is when it was sealed; otherwise one wrong timestamp keeps it, and all later segments, until that time has "
        "passed",
        "seglog's own; Redpanda has storage_ignore_timestamps_in_future_sec",
    )
    retention_respect_cursors: bool = setting(
        False, "seglog.retention.respect.cursors", "boolean",
        "whether retention keeps what a cursor has not read yet, once the reader has committed an offset; one "
        "that never returns keeps the log from shrinking until `seglog cursors reset` moves it",
        "seglog's own; Kafka keeps nothing for a consumer",
    )
    file_delete_delay_ms: int = setting(
        60_000, "file.delete.delay.ms", "ms",
        "how long the files of a deleted segment stay, as .deleted, before they are removed; they are also removed "
        "when the log is closed or the disk is full",
        "ServerLogConfigs.LOG_DELETE_DELAY_MS_DEFAULT",
        high=MAX_LONG,
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "min.cleanable.dirty.ratio", "ratio",
        "a compacted log is cleaned when more than this part of its bytes, not counting the active segment, has not "
        "been cleaned yet",
        "LogConfig.DEFAULT_MIN_CLEANABLE_DIRTY_RATIO",
        low=0, high=1,
    )
    min_compaction_lag_ms: int = setting(
        0, "min.compaction.lag.ms", "ms",
        "a segment with a record younger than this is not compacted yet, and neither is any later segment",
        "LogConfig.DEFAULT_MIN_COMPACTION_LAG_MS",
        high=MAX_LONG,
    )
    max_compaction_lag_ms: int = setting(
        MAX_LONG, "max.compaction.lag.ms", "ms",
        "a log with an uncompacted record older than this is cleaned whatever its dirty ratio",
        "LogConfig.DEFAULT_MAX_COMPACTION_LAG_MS",
        low=1, high=MAX_LONG,
    )
    delete_retention_ms: int = setting(
        86_400_000, "delete.retention.ms", "ms",
        "how long a tombstone, or the marker of a transaction without data, is kept after the first compaction that "
        "saw it",
        "LogConfig.DEFAULT_DELETE_RETENTION_MS",
        high=MAX_LONG,
    )
    compaction_upgrade_format: bool = setting(
        False, "seglog.compaction.upgrade.format", "boolean",
        "whether compaction writes the v0 and v1 records that it keeps as v2, and keeps the last batch of a round even "
        "if empty (KAFKA-17076), as Kafka 4 does; otherwise records keep their version, as up to 3.9",
        "seglog's own: Kafka 4 always does (KAFKA-13093), 3.9 never",
    )
    compaction_merge_bytes: int = setting(
        0, "seglog.compaction.merge.bytes", "bytes",
        "compaction merges adjacent small batches that remain into one batch of at most this many bytes, and at most "
        "max.message.bytes, before compression (v2 batches, and wrappers of v0 and v1); 0: batches are not merged, as "
        "with Kafka. With merging, batches start at other offsets than on other replicas",
        "seglog's own",
        high=MAX_INT,
    )
    cleaner_dedupe_exact: str = setting(
        "uncompressed", "seglog.cleaner.dedupe.exact", "name",
        "when compaction compares a record's key with the later record's before it drops the record. uncompressed: if "
        "neither is compressed; true: always, which is slow with compressed batches; false: never, 128 bits of SipHash "
        "with a secret key decide",
        "seglog's own: Kafka trusts the MD5 of a key",
        choices=("uncompressed", "true", "false"),
    )
    segment_ms: int = setting(
        7 * 86_400_000, "segment.ms", "ms",
        "a batch whose timestamp is this much later than that of the active segment's first batch starts a new segment",
        "LogConfig.DEFAULT_SEGMENT_MS; LogSegment.shouldRoll",
        low=1, high=MAX_LONG,
    )
    segment_jitter_ms: int = setting(
        0, "segment.jitter.ms", "ms",
        "each segment's segment.ms is shortened by a random time up to this, so that logs do not roll all at once",
        "LogConfig.DEFAULT_SEGMENT_JITTER_MS",
        high=MAX_LONG,
    )
    segment_idle_roll: bool = setting(
        False, "seglog.segment.idle.roll", "boolean",
        "whether an active segment older than segment.ms is rolled even if nothing is appended",
        "seglog's own: Kafka rolls at the next append only",
    )
    message_timestamp_before_max_ms: int = setting(
        MAX_LONG, "message.timestamp.before.max.ms", "ms",
        "how far a record's timestamp may be behind the clock; not checked with LogAppendTime",
        "ServerLogConfigs.LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS_DEFAULT (KIP-937)",
        high=MAX_LONG,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, "message.timestamp.after.max.ms", "ms",
        "how far a record's timestamp may be ahead of the clock; not checked with LogAppendTime",
        "ServerLogConfigs.LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS_DEFAULT (KIP-937, KIP-1030)",
        high=MAX_LONG,
    )
    timestamp_check: bool = setting(
        True, "seglog.timestamp.check", "boolean",
        "whether a new record is refused if its timestamp cannot be milliseconds: below 10^11 (1973) or above 10^14 "
        "(5138), as times in seconds, microseconds or nanoseconds are. Encoded batches and conversions are not "
        "checked; and nothing is checked while the clock itself is outside this range",
        "seglog's own: to Kafka, seconds are milliseconds of January 1970",
    )
    flush_messages: int = setting(
        MAX_LONG, "flush.messages", "records",
        'with fsync="interval": an append syncs if at least this many records have been written since the last sync',
        "LogConfig.DEFAULT_FLUSH_MESSAGES",
        low=1, high=MAX_LONG,
    )
    flush_ms: int = setting(
        1000, "flush.ms", "ms",
        'with fsync="interval": no appended record stays unsynced for longer',
        "Kafka's name; its default is never (LogConfig.DEFAULT_FLUSH_MS), because it has replicas",
        high=MAX_LONG,
    )
    linger_ms: int = setting(
        0, "linger.ms", "ms",
        "how long a record may wait in memory for others to share its batch and write; waiting records are lost if the "
        'process dies; refused with fsync="batch"',
        "ProducerConfig.LINGER_MS",
        high=3_600_000,
    )
    linger_bytes: int = setting(
        16 * KIB, "seglog.linger.bytes", "bytes",
        "with linger.ms: waiting records are written at once when they reach this many bytes",
        "seglog's own; the producer's batch.size",
        low=1,
    )
    time_index_minute_enabled: bool | None = setting(
        None, "seglog.time.index.minute.enabled", "boolean",
        "whether segments also get a .time.index with at most one entry per minute; unset: a new log gets them, and a "
        "log that has them keeps them, also when it is converted",
        "seglog's own: KIP-33 as first proposed; a broker leaves the file alone",
        may_be_unset=True,
    )
    time_index_ranges_enabled: bool = setting(
        False, "seglog.time.index.ranges.enabled", "boolean",
        "whether a segment gets a .ranges.index after the roll that seals it, with the smallest and largest timestamp "
        "of each 64 KiB, for lookups by time if times are out of order; a thread reads the segment once to build it",
        "seglog's own; a broker leaves the file alone",
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "producer.id.expiration.ms", "ms",
        "a producer that has appended nothing for this long, and has no transaction open, is forgotten",
        "TransactionLogConfig.PRODUCER_ID_EXPIRATION_MS_DEFAULT",
        low=1, high=MAX_LONG,
    )
    message_dialect: str = setting(
        "kafka", "seglog.message.dialect", "name",
        "whether a new log has Kafka's formats, or tagged messages (docs/formats/tagged_message.md), which no Kafka "
        "reads; the log keeps its dialect, and only a conversion changes it",
        "seglog's own: the first of the two proposals before KIP-31 and KIP-32",
        choices=("kafka", "tagged"),
    )
    message_tagged_timestamp_ms: bool = setting(
        True, "seglog.message.tagged.timestamp.ms", "boolean",
        "whether each message of a tagged log gets tag 0, its time in milliseconds; otherwise its time is in whole "
        "seconds, and it is 9 bytes smaller",
        "seglog's own",
    )
    message_format_version: int | None = setting(
        None, "message.format.version", "record format",
        "the record format to write: records are stored in it, and encoded batches in another format are converted; "
        "the log keeps this setting, and `Log.configure` raises or lowers it; unset: records are stored in format 2, "
        "an encoded batch in the format that it came in",
        "TopicConfig.MESSAGE_FORMAT_VERSION_CONFIG of Kafka 3 (KIP-31, KIP-32; Kafka 4 knows format 2 only)",
        may_be_unset=True,
    )
    message_downconversion_enable: bool = setting(
        True, "message.downconversion.enable", "boolean",
        "whether a fetch converts newer batches for clients that know only older formats; false: the fetch is refused",
        "LogConfig.DEFAULT_MESSAGE_DOWNCONVERSION_ENABLE of Kafka 3 (KIP-283)",
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "transaction.max.timeout.ms", "ms",
        "a transaction that is open for this long is aborted by the process that has the log open, and its producer is "
        "fenced; not in a log whose offsets come from elsewhere (a mirror)",
        "TransactionStateManagerConfig.TRANSACTIONS_MAX_TIMEOUT_MS_DEFAULT",
        low=1,
    )
    recovery_mode: str = setting(
        "fail", "seglog.recovery.mode", "name",
        "what opening does with a bad batch in the middle of a log that was not closed cleanly: fail and change "
        "nothing, truncate the log there as Kafka does, or quarantine the bad bytes and keep what follows",
        "seglog's own; Kafka truncates (LogLoader.recoverLog)",
        choices=("fail", "truncate", "quarantine"),
    )
    num_recovery_threads: int = setting(
        2, "num.recovery.threads.per.data.dir", "threads",
        "how many segments are checked at once when a log is recovered",
        "ServerLogConfigs.NUM_RECOVERY_THREADS_PER_DATA_DIR_DEFAULT (KIP-1030)",
        low=1, high=1024,
    )

    @property
    def codec(self) -> str | None:
        """The codec that compression.type asks for; None if a batch keeps its producer's codec."""
        named = {"producer": None, "uncompressed": "none"}
        return named.get(self.compression_type, self.compression_type)

    @property
    def is_compacted(self) -> bool:
        """Whether cleanup.policy holds "compact": then each record needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether cleanup.policy holds "delete": then retention.ms and retention.bytes count."""
        return "delete" in self.cleanup_policy

    @property
    def has_retention(self) -> bool:
        """Whether anything may ever be deleted by age or size."""
        return self.deletes and (self.retention_ms >= 0 or self.retention_bytes >= 0)

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that the log accepts: it must also fit into a segment."""
        return min(self.max_message_bytes, self.segment_bytes)

    @classmethod
    def _name_of(cls, spelling: str) -> str:
        return spelling.replace("_", ".")


# Kafka's other topic settings (TopicConfig of 3.9.1, 4.1.1, 4.4.0 and older versions): a log stores them, seglog
# ignores them.
OTHER_TOPIC_SETTINGS = frozenset({
    "errors.deadletterqueue.group.enable", "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms",
    "message.timestamp.difference.max.ms", "min.insync.replicas", "preallocate", "remote.copy.disable",
    "remote.copy.lag.bytes", "remote.copy.lag.ms", "remote.log.copy.disable", "remote.log.delete.on.disable",
    "remote.storage.enable", "unclean.leader.election.enable",
})


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known names closest to it. Empty if none is close."""
    from difflib import get_close_matches  # only a wrong name needs it

    close = get_close_matches(name, known, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(close)}?" if close else ""


def with_minute_indexes(config: LogConfig, are_wanted: bool) -> LogConfig:
    """The configuration with `seglog.time.index.minute.enabled` decided, if it is unset."""
    return config if config.time_index_minute_enabled is not None else _with_minute_indexes(config, are_wanted)


@functools.lru_cache(64)        # the logs of a log dir share one
def _with_minute_indexes(config: LogConfig, are_wanted: bool) -> LogConfig:
    return config.replace(time_index_minute_enabled=are_wanted)
