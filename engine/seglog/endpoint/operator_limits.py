"""Settings of logs that protect the server. They are the operator's: a client may lower them for its topics, and raise
them no further than the server's own value. A directory that has more, such as one from elsewhere, is opened with the
server's value.

All other settings say how much of the disk a topic takes and for how long, which is the clients' affair as in Kafka;
but none can move its records to a tier of storage that the server does not have.
"""
from collections.abc import Callable, Mapping

from seglog.config import LogConfig
from seglog.errors import InvalidConfigError

_ZLIB_DEFAULT, _ZSTD_DEFAULT, _LZ4_FAST = 6, 3, 9


def _itself(value: int) -> int:
    return value


# What a value costs the server, so that two can be compared.
COSTS: Mapping[str, Callable[[int], int]] = {
    "max.decompressed.message.bytes": _itself,      # memory and time for a batch
    "segment.index.bytes": _itself,                 # preallocated for each index
    "compression.gzip.level": lambda level: _ZLIB_DEFAULT if level == -1 else level,
    "compression.lz4.level": lambda level: 0 if level == _LZ4_FAST else level,      # all others are slower
    "compression.zstd.level": lambda level: level or _ZSTD_DEFAULT,     # 22 is a hundred times as slow
}
_TIERED = "remote.storage.enable"      # (LogConfig.validateRemoteStorageOnlyIfSystemEnabled)
# In characters: of a value as in Kafka (KAFKA-18020), and of a name, which no key comes near.
_VALUE_MAX, _NAME_MAX = 32_767, 255
_ATTRIBUTES = {key.name: attribute for attribute, key in LogConfig.keys.items()}


def check_lengths(changes: Mapping[str, object]) -> None:
    """Check that names and values of a client's changes are not too long to be looked at. Raises InvalidConfigError."""
    for name, value in changes.items():
        if len(name) > _NAME_MAX:
            raise InvalidConfigError(f"no such key: {name[:_NAME_MAX]}...")
        if isinstance(value, str) and len(value) > _VALUE_MAX:      # (ConfigurationControlManager)
            raise InvalidConfigError(
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{_VALUE_MAX} bytes.")


class OperatorLimits:
    """The limits of one server. `log_config`: the operator's settings for every log."""

    def __init__(self, log_config: Mapping[str, object]) -> None:
        given = {name: value for name, value in log_config.items() if name in COSTS}
        config = LogConfig.of(given)
        self._limits: dict[str, int] = {name: getattr(config, _ATTRIBUTES[name]) for name in COSTS}

    def instead(self, kept: Mapping[str, str]) -> dict[str, object]:
        """The operator's values of those settings with which a directory from elsewhere goes beyond them. `kept`: as
        the directory has them. Raises InvalidConfigError for values that no log may have."""
        given = {name: value for name, value in kept.items() if name in COSTS and value}    # "": removed again
        if not given:
            return {}
        known = LogConfig.of(given)
        return {
            name: self._limits[name] for name, cost in COSTS.items()
            if name in given and cost(getattr(known, _ATTRIBUTES[name])) > cost(self._limits[name])
        }

    def check(self, changes: Mapping[str, object], current: Mapping[str, object] | None = None) -> None:
        """Check a client's changes, in the keys' units (log.configuring.checked_changes). `current`: values of the
        topic now, which it may keep. Raises InvalidConfigError."""
        if str(changes.get(_TIERED, "")).strip().lower() == "true":
            raise InvalidConfigError(
                f"{_TIERED}: this server has no tiered storage, as a broker without remote.log.storage.system.enable")
        for name, value in changes.items():
            cost = COSTS.get(name)
            if cost is None or not isinstance(value, int):
                continue        # None removes the topic's own value
            limit = self._limits[name]
            now = (current or {}).get(name)
            allowed = max(cost(limit), cost(now) if isinstance(now, int) else cost(limit))
            if cost(value) > allowed:
                raise InvalidConfigError(
                    f"{name} protects the server: a client may lower it, and the server's value is {limit}, not "
                    f"{value}",
                    hint=f"the operator of the server can raise it: seglog serve --config {name}={value}",
                )
