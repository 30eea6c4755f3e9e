"""Finds out what a PATH on the command line is: a partition directory, one of its `.log` files, or a log dir."""
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from seglog.errors import InvalidArgumentError, NotALogError, UnfinishedChangeError
from seglog.format import names
from seglog.reading.listing import settled_log_files
from seglog.reading.partition import Partition


def name_of(path: Path) -> str:
    """The name of a directory, as given; of the one that it leads to if it has none (`.`)."""
    return path.name or os.path.basename(os.path.realpath(path))


@dataclass(frozen=True, slots=True)
class Place:
    """A partition directory; or, with `only`, one segment of it."""

    directory: Path
    only: Path | None = None
    in_log_dir: bool = False        # found in a log dir that was given
    # Its .log files, if they were just listed. In a log dir they are listed when the partition's turn comes.
    logs: Sequence[Path] | None = field(default=None, compare=False, repr=False)
    has_namesake: bool = field(default=False, compare=False)    # another of the command's places has the same name

    @property
    def name(self) -> str:
        """`orders-0`, or `orders-0/00000000000000000000.log`; as given if the directory has no name (`.`)."""
        directory = name_of(self.directory)
        return directory if self.only is None else f"{directory}/{self.only.name}"

    @property
    def label(self) -> str:
        """What text calls it: its name, or its path if another one has that name, too."""
        return str(self.path) if self.has_namesake else self.name

    @property
    def path(self) -> Path | str:
        """The path that was asked for; text in a backup."""
        return self.directory if self.only is None else self.only

    def topic_partition(self) -> tuple[str, int] | None:
        """What its name says; None if it is no partition's."""
        parsed = names.parse_partition_dir(os.path.basename(os.path.realpath(self.directory)))
        return None if parsed is None else (parsed.topic, parsed.partition)

    def labels(self) -> dict[str, str]:
        """The labels of its metrics."""
        where = Path(os.path.realpath(self.directory))
        parsed = names.parse_partition_dir(where.name)
        topic, partition = (where.name, "") if parsed is None else (parsed.topic, str(parsed.partition))
        return {"log_dir": str(where.parent), "topic": topic, "partition": partition}

    def at_hand(self) -> AbstractContextManager[None]:
        """What `directory` needs around its use."""
        return nullcontext()

    def is_gone(self) -> bool:
        """Whether it was removed since its log dir was listed."""
        return self.in_log_dir and not os.path.lexists(self.directory)

    def named(self, file: str) -> str:
        """A file of the partition as messages name it."""
        return file

    def log_bytes(self) -> int:
        """The bytes of its .log files, for a progress bar: 0 if it cannot be listed now."""
        try:
            logs = [self.only] if self.only is not None else self.logs or list(settled_log_files(self.directory))
            return sum(log.stat().st_size for log in logs)
        except (OSError, UnfinishedChangeError):
            return 0

    def open(self, settings: Mapping[str, object] | None = None) -> Partition:
        """Open the partition for reading, narrowed to one segment if one was asked for."""
        only = None if self.only is None else self.only.name
        return Partition(self.directory, config=settings, only=only, logs=self.logs)


def resolve(paths: Iterable[Path], *, marked: bool = False, unreadable: bool = False) -> Sequence[Place]:
    """Find the partitions of all paths, in the order given, those of a log dir by topic and number.

    In a log dir, includes partitions that a broker has marked (`-delete`, `-future`, `-stray`) only if `marked`, and
    directories with a partition's name that cannot be listed only if `unreadable`: opening those raises the error.
    Raises NotALogError for a path that is none of the three.
    """
    return [place for path in paths for place in _resolve_one(path, marked, unreadable)]


def _resolve_one(path: Path, marked: bool, unreadable: bool) -> Sequence[Place]:
    if not path.is_dir():
        logs = names.log_files(path.parent)
        if path.name in {log.name for log in logs}:
            return [Place(path.parent, only=path, logs=logs)]
        if names.is_swapped_log(path.name) and path.is_file():
            return [Place(path.parent, only=path)]
        raise NotALogError(
            "not a segment: its name must be its base offset in 20 digits and .log", file=path,
            hint="pass a .log file, its directory (orders-0), or the log dir above; `seglog dump` also shows indexes, "
            "snapshots, checkpoints and quarantine/*.damaged",
        )
    logs, is_swapping = names.log_files_and_swaps(path)
    if is_swapping:
        return [Place(path)]
    if logs:
        return [Place(path, logs=logs)]
    places = _partitions_in(path, marked, unreadable) or [
        place for log_dir in _log_dirs_in(path) for place in _partitions_in(log_dir, marked, unreadable)
    ]
    if not places:
        raise NotALogError(
            "no segment (<20 digits>.log) in the directory, in those directly below it, or in log dirs there", file=path
        )
    return places


def log_dirs(path: Path) -> Sequence[Path]:
    """The log dirs that a path is, or is above; none if it is a partition directory or a file."""
    if not path.is_dir() or names.has_segments(path):
        return []
    return [path] if _partitions_in(path, marked=False, unreadable=True) else _log_dirs_in(path)


def _log_dirs_in(path: Path) -> Sequence[Path]:
    """The log dirs of a broker with several, in the directory above them."""
    return sorted(child for child in path.iterdir() if (child / names.META_PROPERTIES).is_file())


def _partitions_in(log_dir: Path, marked: bool, unreadable: bool) -> Sequence[Place]:
    found = []
    for child in log_dir.iterdir():
        parsed = names.parse_partition_dir(child.name)
        if parsed is not None and (marked or not parsed.mark) and _is_partition(child, unreadable):
            found.append(((parsed.topic, parsed.partition, parsed.mark), Place(child, in_log_dir=True)))
    return [place for _, place in sorted(found, key=lambda item: item[0])]


def _is_partition(path: Path, unreadable: bool) -> bool:
    """Whether it has segments. `unreadable`: also accept a directory or a link that cannot be listed."""
    return names.may_have_segments(path) if unreadable else path.is_dir() and names.has_segments(path)


def check_output_file(file: Path, src: Path) -> None:
    """Check the output file before the work begins. Raises InvalidArgumentError."""
    directory = Path(os.path.realpath(file.parent))
    if not directory.is_dir():
        raise InvalidArgumentError("the file's directory does not exist", file=directory, hint="create it first")
    if file.is_dir():
        raise InvalidArgumentError("expected a file, found a directory", file=file, hint="name a file")
    source = Path(os.path.realpath(src))
    if source in (directory, *directory.parents):
        raise InvalidArgumentError(
            "the file would be in the source, which is never changed", file=file, hint="choose another place"
        )
