"""Configuration of the cleaner of a log dir: Kafka's broker-wide keys, for `seglog.open_dir`."""

from seglog.config import MAX_LONG, Settings, setting


class CleanerConfig(Settings):
    """How the logs of a log dir are cleaned. Make one with `CleanerConfig.of({"log.cleaner.backoff.ms": 1000})`."""

    log_retention_check_interval_ms: int = setting(
        300_000, "log.retention.check.interval.ms", "ms",
        "how often a log is checked for segments that retention deletes, besides at each roll; a log with a short "
        "retention.ms is checked ten times within it",
        "ServerLogConfigs.LOG_CLEANUP_INTERVAL_MS_DEFAULT",
        low=1, high=MAX_LONG,
    )
    retention_total_bytes: int = setting(
        -1, "seglog.retention.total.bytes", "bytes",
        "how large the .log files of all logs open in the log dir may become together: the oldest segments are "
        "deleted, by their largest timestamps, never an active one; -1: any size. Partitions that are not open do not "
        "count",
        "seglog's own",
        high=MAX_LONG, besides=(-1,),
    )
    log_cleaner_enable: bool = setting(
        True, "log.cleaner.enable", "boolean",
        "whether logs with cleanup.policy=compact are compacted",
        "CleanerConfig.LOG_CLEANER_ENABLE",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 << 20, "log.cleaner.dedupe.buffer.size", "bytes",
        "memory for the map of keys; if a log has more of them, it is compacted in several rounds",
        "CleanerConfig.LOG_CLEANER_DEDUPE_BUFFER_SIZE",
        low=1024, high=MAX_LONG,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9, "log.cleaner.io.buffer.load.factor", "ratio",
        "how full that map may become",
        "CleanerConfig.LOG_CLEANER_DEDUPE_BUFFER_LOAD_FACTOR",
        low=0, high=1,
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "log.cleaner.backoff.ms", "ms",
        "how long to wait if there is no log to clean, and before retrying one that could not be cleaned",
        "CleanerConfig.LOG_CLEANER_BACKOFF_MS",
        high=MAX_LONG,
    )
    log_cleaner_io_max_bytes_per_second: int = setting(
        MAX_LONG, "log.cleaner.io.max.bytes.per.second", "bytes",
        "how much cleaning may read and write per second, in sum",
        "CleanerConfig.LOG_CLEANER_IO_MAX_BYTES_PER_SECOND; a double in Kafka",
        low=1, high=MAX_LONG,
    )

    @classmethod
    def _name_of(cls, spelling: str) -> str:
        return spelling.replace("_", ".")
