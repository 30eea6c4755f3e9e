"""The dialect of a partition directory: the names of its files show it, and a setting in it confirms it.

    files       setting                 the directory is
    .log        none, or kafka          Kafka's
    .tlog       tagged                  tagged. An empty .log beside it, which brokers create, is reported
    none        tagged                  tagged, and has no segment yet

All else is refused: bytes of one dialect are nonsense in the other, and nothing in them shows the mistake.
"""
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from seglog.errors import CorruptSettingsError, NotALogError, SeglogError, UnsupportedVersionError
from seglog.format import names
from seglog.format.dialect import DIALECTS, KAFKA, TAGGED, Dialect
from seglog.fs.refusals import refusals
from seglog.named_tuple import NamedTuple
from seglog.state.kept_settings import FILE_NAME, read_settings

DIALECT_SETTING = "seglog.message.dialect"


class DirectoryDialect(NamedTuple):
    """`foreign`: empty logs of the other dialect, which are not part of the log; in rising order."""

    dialect: Dialect
    foreign: tuple[str, ...] = ()


def directory_dialect(
    directory: Path, logs: Sequence[Path] | None = None, settings: Mapping[str, str] | None = None,
    listed: Sequence[str] | None = None,
) -> DirectoryDialect:
    """The dialect of a partition directory. `logs`: its log files, if they were just listed (names.log_files).
    `settings`: its kept settings, if they were just read. `listed`: the names in it, if they were just listed.

    Raises NotALogError if files and setting disagree, or dialects are mixed; what `read_settings` raises.
    """
    unread: SeglogError | None = None
    try:
        said = _said_by(read_settings(directory) if settings is None else settings)
    except (CorruptSettingsError, UnsupportedVersionError) as error:
        said, unread = None, error      # reading a log in Kafka's dialect does not need them
    # (Those that were listed are of one dialect: names.of_one_dialect.)
    if said is not TAGGED and logs is not None and not (logs and logs[0].name.endswith(TAGGED.log)):
        return DirectoryDialect(KAFKA)
    if listed is None:
        with refusals("list", directory):
            listed = os.listdir(directory)
    # (Nearly all directories are Kafka's: there no name is looked at by itself.)
    if said is not TAGGED and not (
        TAGGED.log in "".join(listed) and any(name.endswith(TAGGED.log) and names.is_log_file(name) for name in listed)
    ):
        return DirectoryDialect(KAFKA)
    plain = sorted(name for name in listed if name.endswith(KAFKA.log) and names.is_log_file(name))
    filled = next((name for name in plain if _size_of(directory / name)), None)
    if filled is not None:
        raise NotALogError(
            f"a Kafka segment in a directory of tagged messages (as {FILE_NAME} or its .tlog files show)",
            file=directory / filled, hint="move it away if it does not belong there; a directory cannot mix dialects",
        )
    if said is not TAGGED:
        if unread is not None:
            raise unread
        raise NotALogError(
            f"the directory has .tlog files, but {FILE_NAME} has {'no' if said is None else said.name} dialect",
            file=directory,
            hint=f"restore its {FILE_NAME}: a directory of tagged messages has {DIALECT_SETTING}=tagged",
        )
    return DirectoryDialect(TAGGED, tuple(plain))


def _said_by(settings: Mapping[str, str]) -> Dialect | None:
    """The dialect that the settings name; None if they name none."""
    said = settings.get(DIALECT_SETTING)
    return None if said is None else DIALECTS.get(said, KAFKA)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0        # removed meanwhile
