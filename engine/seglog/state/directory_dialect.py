"""Which dialect a partition directory is in: its files say it by their names, and a setting of its own says it again.

    files       setting                 the directory is
    .log        none, or kafka          Kafka's
    .tlog       tagged                  tagged. An empty .log beside, which brokers put there, is reported
    none        tagged                  tagged, and has no segment yet

All else is refused: bytes of one dialect are nonsense in the other, and nothing in them would tell.
"""
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from seglog.errors import CorruptSettingsError, NotALogError, SeglogError, UnsupportedVersionError
from seglog.format import names
from seglog.format.dialect import DIALECTS, KAFKA, TAGGED, Dialect
from seglog.fs.refusals import refusals
from seglog.state.kept_settings import FILE_NAME, read_settings

DIALECT_SETTING = "message.dialect"


class DirectoryDialect(NamedTuple):
    """`foreign`: empty logs of the other dialect, which are no part of the log; rising."""

    dialect: Dialect
    foreign: tuple[str, ...] = ()


def directory_dialect(
    directory: Path, logs: Sequence[Path] | None = None, settings: Mapping[str, str] | None = None
) -> DirectoryDialect:
    """The dialect of a partition directory. `logs`: its log files, if they were just listed (names.log_files).
    `settings`: what it keeps, if that was just read.

    Raises NotALogError where files and setting disagree, or dialects are mixed; what `read_settings` raises.
    """
    unread: SeglogError | None = None
    try:
        said = _said_by(read_settings(directory) if settings is None else settings)
    except (CorruptSettingsError, UnsupportedVersionError) as error:
        said, unread = None, error      # reading a log of Kafka's does not need them
    # (Those that were listed are of one dialect: names.of_one_dialect.)
    if said is not TAGGED and logs is not None and not (logs and logs[0].name.endswith(TAGGED.log)):
        return DirectoryDialect(KAFKA)
    with refusals("list", directory):
        listed = os.listdir(directory)
    # (Nearly all directories are Kafka's: there, names are looked at once, and none is parsed.)
    if said is not TAGGED and not any(map(names.is_log_file, [name for name in listed if name.endswith(TAGGED.log)])):
        return DirectoryDialect(KAFKA)
    plain = sorted(name for name in listed if name.endswith(KAFKA.log) and names.is_log_file(name))
    filled = next((name for name in plain if _size_of(directory / name)), None)
    if filled is not None:
        raise NotALogError(
            f"a segment of Kafka's in a directory of tagged messages ({FILE_NAME} or its .tlog files say so)",
            file=directory / filled, hint="move it away if it does not belong there; a directory cannot mix dialects",
        )
    if said is not TAGGED:
        if unread is not None:
            raise unread
        raise NotALogError(
            f".tlog files, and {FILE_NAME} says {'nothing' if said is None else said.name} of the dialect",
            file=directory,
            hint=f"bring back its {FILE_NAME}: a directory of tagged messages has {DIALECT_SETTING}=tagged",
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
