"""The metrics of a LogCleaner (docs/retention.md)."""
from seglog.counters import Metric

METRICS = (
    Metric("seglog_cleaner_logs", "gauge", (), "logs that the cleaner maintains"),
    Metric("seglog_cleaner_uncleanable_logs", "gauge", (), "logs whose last cleaning failed; each is retried"),
    Metric("seglog_cleaner_deleted_segments_total", "counter", (), "segments that retention deleted"),
    Metric("seglog_cleaner_deleted_bytes_total", "counter", (), "bytes of their .log files"),
    Metric("seglog_cleaner_rewritten_bytes_total", "counter", (), "bytes removed from first segments by a rewrite"),
    Metric("seglog_cleaner_compactions_total", "counter", (), "rounds of compaction"),
    Metric("seglog_cleaner_compacted_bytes_total", "counter", (), "bytes of the segments that compaction read"),
    Metric("seglog_cleaner_freed_bytes_total", "counter", (), "bytes by which these segments became smaller"),
    Metric("seglog_cleaner_failures_total", "counter", (), "cleanings that failed"),
    Metric("seglog_cleaner_throttled_seconds_total", "counter", (), "time that cleaning waited for its rate limit"),
)
