"""The settings of each group: its own, which clients may change while it runs, or the server's. (GroupConfig)"""
import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.errors import InvalidConfigError, SeglogError, StorageError
from seglog.fs.files import FileSystem
from seglog.logger import Logger
from seglog.state.group_settings import (
    GROUPS_MAX,
    HEARTBEAT_INTERVAL,
    NAME_LENGTH_MAX,
    NAMES,
    SESSION_TIMEOUT,
    read_group_settings,
    write_group_settings,
)

_LOG = Logger(__name__)

# Integer.parseInt of what ConfigDef.parseType has stripped.
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,10}\s*", re.ASCII)


class GroupSettings:
    """Of all groups of a server. Use it in the loop's thread.

    changing    hold it from the look at what a group has until the `change` that follows from it has ended
    """

    def __init__(
        self, config: CoordinatorConfig, fs: FileSystem | None = None, log_dir: Path | None = None
    ) -> None:
        """Without a log dir, no group has settings of its own, nor gets any. If the settings cannot be read, which is
        logged, groups have those of the server, and nothing can be changed."""
        self._fs = fs
        self._log_dir = log_dir
        self._server = {
            SESSION_TIMEOUT: config.consumer_session_timeout_ms,
            HEARTBEAT_INTERVAL: config.consumer_heartbeat_interval_ms}
        self._bounds = {
            SESSION_TIMEOUT: (config.consumer_min_session_timeout_ms, config.consumer_max_session_timeout_ms),
            HEARTBEAT_INTERVAL: (
                config.consumer_min_heartbeat_interval_ms, config.consumer_max_heartbeat_interval_ms)}
        self.changing = asyncio.Lock()
        self._own: Mapping[str, Mapping[str, int]] = {}
        self._fault: SeglogError | None = None
        if log_dir is not None:
            try:
                self._own = read_group_settings(log_dir)
            except SeglogError as error:
                self._fault = error
                _LOG.error("groups have the settings of the server: %s", error)

    def session_timeout_ms(self, group_id: str) -> int:
        return self._value(group_id, SESSION_TIMEOUT)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._value(group_id, HEARTBEAT_INTERVAL)

    def _value(self, group_id: str, name: str) -> int:
        own = self._own.get(group_id)
        value = None if own is None else own.get(name)
        if value is None:
            return self._server[name]
        low, high = self._bounds[name]      # which the operator may have changed since
        return min(max(value, low), high)

    def own(self, group_id: str) -> Mapping[str, int]:
        """The settings that the group itself has, as they count now."""
        return {name: self._value(group_id, name) for name in self._own.get(group_id, ())}

    def names(self) -> list[str]:
        """The groups with settings of their own."""
        return sorted(self._own)

    def checked(self, group_id: str, texts: Mapping[str, str]) -> dict[str, int]:
        """The settings of a group, from the texts of a client. Raises InvalidConfigError. (GroupConfig.validate)"""
        if len(group_id) > NAME_LENGTH_MAX:
            raise InvalidConfigError(f"the name of a group with settings has at most {NAME_LENGTH_MAX} characters")
        values = {}
        for name, text in texts.items():
            if name not in NAMES:
                raise InvalidConfigError(
                    f"Unknown group config name: {name:.200}", hint=f"groups have {', '.join(NAMES)}")
            low, high = self._bounds[name]
            value = int(text) if _NUMBER.fullmatch(text) else 0
            if not low <= value <= high:
                raise InvalidConfigError(
                    f"{name} must be a number of milliseconds from {low} to {high}: {text!r:.100}",
                    hint=f"the bounds are the server's {_bound(name, 'min')} and {_bound(name, 'max')}")
            values[name] = value
        session, interval = ((values.get(name) or self._server[name]) for name in NAMES)
        if values and session <= interval:
            raise InvalidConfigError(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
        return values

    def has_room_for(self, groups: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether these groups may have settings, too."""
        return len(self._own) + sum(bool(own) and name not in self._own for name, own in groups.items()) <= GROUPS_MAX

    async def change(self, groups: Mapping[str, Mapping[str, int]]) -> None:
        """Give these groups these settings instead of those that they have, durably; with `changing`. Raises what
        `write_group_settings` does, and StorageError if the settings cannot be read; then nothing has changed."""
        if self._fault is not None:
            raise StorageError(f"the settings of groups cannot be read: {self._fault.what}", file=self._fault.file)
        changed = {name: own for name, own in {**self._own, **groups}.items() if own}
        if changed == self._own:
            return
        assert self._fs is not None
        assert self._log_dir is not None
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(
            None, write_group_settings, self._fs, self._log_dir, changed))
        self._own = changed


def _bound(name: str, which: str) -> str:
    """The server's setting that bounds a group's."""
    kind, _, rest = name.partition(".")
    return f"group.{kind}.{which}.{rest}"
