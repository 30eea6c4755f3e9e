"""Where a log's settings come from, and how they are changed later.

    default  <  the topic's, as a broker's cluster has it  <  kept with the log (.seglog.config)  <  given at opening

message.format.version is kept as soon as it is given, so that the next opening does not write another format into the
log. All other settings are kept only by `Log.configure`.
"""
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from seglog.config import OTHER_TOPIC_SETTINGS, LogConfig
from seglog.errors import InvalidArgumentError, InvalidConfigError
from seglog.format import names
from seglog.format.dialect import DIALECTS, KAFKA, TAGGED
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import checked_config, decided, key_name
from seglog.state.directory_dialect import DIALECT_SETTING, DirectoryDialect, directory_dialect
from seglog.state.kept_settings import FILE_NAME, put_settings, read_settings
from seglog.state.leftovers import Listed, file_names

if TYPE_CHECKING:
    from pathlib import Path

    from seglog.config import Fsync
    from seglog.fs.files import FileSystem

_LOG = Logger(__name__)
_KEPT_WHEN_GIVEN = "message.format.version"
Given = Mapping[str, object] | LogConfig | None
_ATTRIBUTES = {key.name: (attribute, key) for attribute, key in LogConfig.keys.items()}


class Setting(NamedTuple):
    """One setting of a log: its value, where the value comes from, and whether seglog uses it."""

    value: object
    source: Literal["default", "cluster", "kept", "given"]
    is_used: bool = True


class LogSettings(Mapping[str, Setting]):
    """Every setting of an open log: its value, whether that is the default, the cluster's, kept or given at opening,
    and whether seglog uses it. Changed by one thread at a time."""

    def __init__(
        self, path: "Path", given: Given, config: LogConfig,
        listed: Listed = None, told: Mapping[str, str] | None = None,
    ) -> None:
        """`config`: `given` with Kafka's defaults. `listed`: the `file_names` of the directory, if it was just listed.
        `told`: valid settings that come before the defaults only (reading.cluster_settings).

        Raises what `read_settings` raises, and InvalidConfigError if a kept setting is not valid (any more)."""
        self._path = path
        self._given = frozenset(given_settings(given))
        self._others = {
            name: as_text(value) for spelling, value in (given.items() if isinstance(given, Mapping) else ())
            if (name := key_name(spelling)) in OTHER_TOPIC_SETTINGS and value is not None
        }
        self._opened_with = config
        self._told = told or {}
        self.kept = read_settings(path)
        self.config = self._with_kept(self.kept, file_names(path) if listed is None else listed)

    def _with_kept(self, kept: Mapping[str, str], listed: Sequence[str]) -> LogConfig:
        values = {}
        for name, text in {**self._told, **kept}.items():
            if name in _ATTRIBUTES and name not in self._given:
                attribute, key = _ATTRIBUTES[name]
                try:
                    values[attribute] = key.parse(text)
                except InvalidConfigError as error:
                    error.file = str(self._path / FILE_NAME)
                    raise
        return decided(self._opened_with.replace(**values) if values else self._opened_with, self._path, listed)

    def settle_dialect(self, fs: "FileSystem", listed: Sequence[str]) -> DirectoryDialect:
        """The log's dialect; for a new log, the one asked for, which is kept before its first file is created.

        Raises NotALogError if files and settings disagree, InvalidConfigError if the log has another dialect than it is
        opened with, StorageError.
        """
        wanted = DIALECTS[self._opened_with.message_dialect] if DIALECT_SETTING in self._given else None
        found = directory_dialect(self._path, settings=self.kept, listed=listed)
        if wanted is TAGGED and found.dialect is KAFKA and not any(map(names.is_log_file, listed)):
            self._put(fs, _changed(self.kept, {DIALECT_SETTING: TAGGED.name}))
            return DirectoryDialect(TAGGED)
        if wanted not in (None, found.dialect):
            raise InvalidConfigError(
                f"{DIALECT_SETTING} of this log is {found.dialect.name}, not {wanted.name}", file=self._path,
                hint="only a conversion can change it: seglog convert --to",
            )
        if found.foreign:
            _LOG.warning("%s: ignored empty Kafka .log files beside the .tlog files: %s", self._path, found.foreign)
        return found

    def keep_given(self, fs: "FileSystem") -> None:
        """Keep message.format.version if it was given. Raises StorageError."""
        version = self._opened_with.message_format_version
        if _KEPT_WHEN_GIVEN in self._given and self.kept.get(_KEPT_WHEN_GIVEN) != as_text(version):
            self._put(fs, _changed(self.kept, {_KEPT_WHEN_GIVEN: version}))

    def change(self, fs: "FileSystem", changes: Mapping[str, object], fsync: "Fsync") -> LogConfig:
        """Keep these settings durably; None removes one. Returns the configuration of the log with them.

        All are kept or none. Raises InvalidConfigError, StorageError.
        """
        checked = checked_changes(changes)
        if DIALECT_SETTING in checked and self._is_other_dialect(checked.pop(DIALECT_SETTING)):
            raise InvalidConfigError(f"only a conversion can change {DIALECT_SETTING}: seglog convert --to")
        kept = _changed(self.kept, checked)
        given, self._given = self._given, self._given - kept.keys() - checked.keys()
        try:
            config = checked_config(self._with_kept(kept, file_names(self._path)), fsync, 0)
            self._put(fs, kept)
        except BaseException:
            self._given = given
            raise
        self.config = config
        self._others = {name: text for name, text in self._others.items() if name in self._given}
        return config

    def _is_other_dialect(self, name: object) -> bool:
        """Whether this is not the log's dialect. The log's own may be set: reading all settings and writing them back
        changes nothing."""
        return (name or KAFKA.name) != directory_dialect(self._path, settings=self.kept).dialect.name

    def _put(self, fs: "FileSystem", kept: dict[str, str]) -> None:
        if kept != self.kept:
            put_settings(fs, self._path, kept)
            self.kept = kept

    def __getitem__(self, name: str) -> Setting:
        if name not in _ATTRIBUTES:
            if name in self._others:
                return Setting(self._others[name], "given", is_used=False)
            return Setting(self.kept[name], "kept", is_used=False)
        value = getattr(self.config, _ATTRIBUTES[name][0])
        if name in self._given:
            return Setting(value, "given")
        return Setting(value, "kept" if name in self.kept else "cluster" if name in self._told else "default")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_ATTRIBUTES, *self.kept, *self._others]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr({name: setting for name, setting in self.items() if setting.source != "default"})


def settings_of_new_log(
    path: "Path", config: Mapping[str, object], changes: Mapping[str, object], fsync: "Fsync"
) -> LogSettings:
    """The settings of a log that has no file yet, with `changes` as those that are kept with it (`kept`). `config`: as
    for `seglog.open`. Raises InvalidConfigError."""
    checked = checked_changes(changes)
    made = LogSettings(path, config, checked_config(config, fsync, 0), [])
    if (checked.pop(DIALECT_SETTING, None) or made.config.message_dialect) != made.config.message_dialect:
        raise InvalidConfigError(f"only a conversion can change {DIALECT_SETTING}: seglog convert --to")
    made.kept = _changed({}, checked)
    made.config = checked_config(made._with_kept(made.kept, []), fsync, 0)
    return made


def checked_changes(changes: Mapping[str, object], *, units: bool = True) -> dict[str, object]:
    """The settings by their names, in the keys' units. `units`: values may name units of their own, as people give
    them; of Kafka's clients, a broker takes plain numbers. Raises InvalidConfigError, InvalidArgumentError."""
    if not isinstance(changes, Mapping):
        raise InvalidArgumentError(f"settings must be a mapping of keys to values, not {type(changes).__name__}")
    checked: dict[str, object] = {}
    for given, value in changes.items():
        name = key_name(given)
        if name in checked:
            raise InvalidConfigError(f"{name} is given twice")
        if value is None:
            if name not in _ATTRIBUTES and name not in OTHER_TOPIC_SETTINGS:
                LogConfig.of({name: value})     # raises
            checked[name] = None
        elif name in _ATTRIBUTES:
            checked[name] = _ATTRIBUTES[name][1].parse(value, units=units)
        elif name in OTHER_TOPIC_SETTINGS:
            checked[name] = value
        else:
            LogConfig.of({name: value})     # raises, and suggests similar keys
    return checked


def given_settings(given: Given) -> dict[str, object]:
    """The settings that are given, by their names."""
    if isinstance(given, LogConfig):
        unlike = _names_unlike_default(given)
        return {name: value for name, value in given.items() if name in unlike}
    return {key_name(name): value for name, value in (given or {}).items()}


def without_settings(given: Given, left_out: Collection[str]) -> Given:
    """What is given, without settings of these names."""
    if given is None or not left_out:
        return given
    if isinstance(given, LogConfig):
        default = LogConfig()
        return given.replace(**{
            attribute: getattr(default, attribute) for name in left_out for attribute, _ in [_ATTRIBUTES[name]]})
    return {name: value for name, value in given.items() if key_name(name) not in left_out}


@functools.lru_cache(64)        # the logs of a log dir share one
def _names_unlike_default(config: LogConfig) -> frozenset[str]:
    default = dict(LogConfig().items())
    return frozenset(name for name, value in config.items() if value != default[name])


def _changed(kept: Mapping[str, str], changes: Mapping[str, object]) -> dict[str, str]:
    changed = {name: as_text(value) for name, value in {**kept, **changes}.items() if value is not None}
    return dict(sorted(changed.items()))


def as_text(value: object) -> str:
    """The value of a setting as it is kept."""
    return str(value).lower() if isinstance(value, bool) else str(value)
