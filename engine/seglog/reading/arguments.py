"""Checks of the arguments that a log's public methods get, made before anything changes."""
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, SupportsIndex, get_args

from seglog.config import OTHER_TOPIC_SETTINGS, Fsync, LogConfig, with_minute_indexes
from seglog.errors import InvalidArgumentError, InvalidConfigError
from seglog.format import names
from seglog.format.dialect import KAFKA
from seglog.fs.refusals import as_path, begins_as_url, url_error

OnOutOfRange = Literal["earliest", "latest"]
Isolation = Literal["read_uncommitted", "read_committed"]

_OTHER = names.SegmentFile(0, "")       # for a name that no file of a segment has


def check_mapping(config: object) -> None:
    """Raises InvalidArgumentError if it is neither a mapping nor None."""
    if config is not None and not isinstance(config, Mapping):
        raise InvalidArgumentError(f"a configuration must be a mapping of keys to values, not {type(config).__name__}")


def checked_config(config: Mapping[str, object] | LogConfig | None, fsync: str, leader_epoch: int) -> LogConfig:
    """The configuration of a log to be written to, after checks that only writing needs. Kafka's topic settings that
    seglog does not use are left out: LogSettings lists them."""
    if not isinstance(config, LogConfig):
        check_mapping(config)
        config = LogConfig.of({
            name: value for name, value in (config or {}).items() if key_name(name) not in OTHER_TOPIC_SETTINGS
        })
    if fsync not in get_args(Fsync):
        raise InvalidArgumentError(f'fsync must be "batch", "interval" or "never", not {fsync!r}')
    check_leader_epoch(leader_epoch)
    if config.linger_ms and fsync == "batch":
        raise InvalidConfigError(
            'linger.ms keeps records in memory after append has returned, but fsync="batch" promises that they are '
            'on the disk by then: choose fsync="interval" or "never"'
        )
    return config


def key_name(spelling: object) -> str:
    """Kafka's name of a key, which may be spelled with underscores. Raises InvalidConfigError."""
    if not isinstance(spelling, str):
        raise InvalidConfigError(f"a key must be text such as segment.bytes, not {spelling!r}")
    return spelling.strip().replace("_", ".")


def decided(config: LogConfig, directory: Path, listed: Sequence[str]) -> LogConfig:
    """The configuration with `seglog.time.index.minute.enabled` decided, if it is unset, by the names in the directory.

    A new log gets minute indexes; a log that has them keeps them. Raises InvalidConfigError.
    """
    if config.message_dialect != KAFKA.name:
        if config.time_index_minute_enabled or config.time_index_ranges_enabled:
            raise InvalidConfigError(
                f"a log in the {config.message_dialect} dialect has one index: leave out "
                "seglog.time.index.minute.enabled and seglog.time.index.ranges.enabled", file=directory,
            )
        return with_minute_indexes(config, False)
    if config.time_index_minute_enabled is not None:
        return config
    is_new = True
    for name in listed:
        if names.MINUTE_INDEX_SUFFIX in name or (is_new and names.LOG_SUFFIX in name):
            suffix = (names.parse_file_name(name) or _OTHER).suffix
            if suffix == names.MINUTE_INDEX_SUFFIX:
                return with_minute_indexes(config, True)
            is_new = is_new and suffix != names.LOG_SUFFIX
    return with_minute_indexes(config, is_new)


def misplaced_error(count: int) -> InvalidArgumentError:
    """The error for an append that was given `count` arguments by position."""
    return InvalidArgumentError(
        f"append() takes one positional argument, the value, but got {count}",
        hint="name the others: append(value, key=key, headers=headers, timestamp=timestamp)",
    )


def hint_of_record(key: object, value: object, headers: object) -> str:
    """The hint for a record that a kernel refused because of a field's type."""
    return _mending(key, value, headers) or (
        "a key must be bytes-like, a str or None; a value bytes-like or None; "
        "headers pairs of a str and bytes-like or None"
    )


def hint_of_records(records: Sequence[object]) -> str:
    """The same for several records, one of which was refused."""
    for record in records:
        if not isinstance(record, tuple | list) or not 2 <= len(record) <= 4:
            break
        if hint := _mending(*(*record, ())[:3]):
            return hint
    return "a record is (key, value[, headers[, timestamp]])"


def _mending(key: object, value: object, headers: object) -> str | None:
    for field, given in (("key", key), ("value", value)):
        if isinstance(given, str) and field == "value":
            return "encode the text as bytes: value.encode()"
        if isinstance(given, int | float):
            return f"encode the number as text, str({field}).encode(), or pack it with struct.pack"
        if isinstance(given, Mapping | list | tuple):
            return f"a log stores bytes: json.dumps({field}).encode()"
    if isinstance(headers, Mapping):
        return "headers must be a list of pairs, because a key may repeat: list(headers.items())"
    for pair in headers if isinstance(headers, list | tuple) else ():
        if isinstance(pair, list | tuple) and len(pair) == 2:
            if isinstance(pair[0], bytes):
                return "a header's key must be text: key.decode()"
            if isinstance(pair[1], str):
                return "a header's value must be bytes: value.encode()"
    return None


def checked_path(path: str | os.PathLike[str]) -> Path:
    found = as_path(path)
    # (Refused here because what the system says of it repeats the credentials in it.)
    if begins_as_url(str(found)) and not os.path.lexists(found):
        raise url_error(found, "name a directory; seglog.scan reads topics in a store")
    return found


def check_leader_epoch(epoch: int) -> None:
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < 2**31:
        raise InvalidArgumentError(f"a leader epoch must be an int from 0 to {2**31 - 1}, not {epoch!r}")


def checked_epoch(epoch: SupportsIndex) -> int:
    """A leader epoch to look up: -1 and others that no batch can have are valid, too."""
    if isinstance(epoch, bool) or not isinstance(epoch, SupportsIndex):
        raise InvalidArgumentError(f"a leader epoch must be an int, not {type(epoch).__name__}")
    return operator.index(epoch)


def checked_offset(offset: SupportsIndex) -> int:
    """An offset, as any library's int."""
    if type(offset) is int:     # first: checking a protocol takes a third of a fetch's time
        return offset
    if isinstance(offset, bool) or not isinstance(offset, SupportsIndex):
        raise InvalidArgumentError(f"an offset must be an int, not {type(offset).__name__}")
    return operator.index(offset)


def is_read_committed(isolation: str) -> bool:
    """Whether a reader sees committed transactions only."""
    if isolation not in ("read_uncommitted", "read_committed"):
        raise InvalidArgumentError(f'isolation must be "read_uncommitted" or "read_committed", not {isolation!r}')
    return isolation == "read_committed"


def check_on_out_of_range(on_out_of_range: str | None) -> None:
    if on_out_of_range not in (None, "earliest", "latest"):
        raise InvalidArgumentError(f'on_out_of_range must be "earliest" or "latest", not {on_out_of_range!r}')
