"""A log takes up another configuration while it is open: `Log.configure`."""
from typing import TYPE_CHECKING

from seglog.config import LogConfig

if TYPE_CHECKING:
    from seglog.log.tail import LogTail

# Settings that segments and indexes are written and read with: if one changes, the active segment is opened again.
_OF_SEGMENTS = (
    "segment_bytes", "segment_index_bytes", "segment_ms", "segment_jitter_ms", "segment_idle_roll",
    "index_interval_bytes", "time_index_minute_enabled", "max_decompressed_message_bytes",
)


def use_config(tail: "LogTail", config: LogConfig) -> None:
    """With the lock: use this configuration from now on."""
    tail.write_lingering()
    if any(getattr(config, name) != getattr(tail.config, name) for name in _OF_SEGMENTS):
        tail.recovery_point.before_change()
        with tail.changing():
            tail.alone_within(_reopen_active, tail, config)
    else:
        tail.use_config(config)


def _reopen_active(tail: "LogTail", config: LogConfig) -> None:
    """Close the active segment and open it again. Needs the files alone; readers in a segment are not disturbed."""
    tail.sync_all()
    extent = tail.current()
    tail.active.sync_indexes()
    tail.active.close()
    tail.use_config(config)
    tail.take_up(
        [tail.sealed(segment.base_offset) for segment in extent.segments[:-1]],
        extent.segments[-1].base_offset, tail.active.end.position,
        extent.log_start_offset,
    )
