"""What a directory is, by the names of the files in it: what writes one kind refuses a directory of another.

The kinds share names, such as `.seglog.lock`, and in a log dir a ledger's directory `ledger-0` is a partition's.
"""
import os
import re
from enum import Enum

from seglog.errors import NotALogError
from seglog.format import names

MANIFEST = "manifest"               # of a managed ledger
LEDGER_METADATA = "ledger.json"     # of a ledger, whose .log is no partition's
# What is in a managed ledger's directory, besides hidden files: one that lost its manifest is known by these.
_OF_A_MANAGED_LEDGER = re.compile(r"ledger-.*|(manifest|queue\.journal)(\.tmp)?|cursors|delayed|priority|queue\.sock")

# For what takes a ledger's .log for a partition's.
SEE_LEDGERS = "see seglog queue for a queue, seglog ledger for others"
LEDGERS_HINT = f"its records are entries of Pulsar: {SEE_LEDGERS}"


class DirectoryKind(Enum):
    """The value is the kind's name in errors."""

    PARTITION = "a partition directory"
    LOG_DIR = "a log dir"
    MANAGED_LEDGER = "a managed ledger or a queue"
    LEDGER = "a ledger"


_OF_A_LOG_DIR = (*names.OFFSET_CHECKPOINTS, names.CLEAN_SHUTDOWN, names.META_PROPERTIES)
# Looked for one by one before a directory is listed: a long log has hundreds of thousands of files.
_SIGNS_FOR_LOGS = {
    DirectoryKind.PARTITION: (MANIFEST, LEDGER_METADATA, names.RECOVERY_POINT_CHECKPOINT),
    DirectoryKind.LOG_DIR: (MANIFEST, LEDGER_METADATA),
}


def refuse_other_kind(directory: str | os.PathLike[str], wanted: DirectoryKind, hint: str) -> None:
    """Raise NotALogError if a directory is of another kind than `wanted`; OSError if it cannot be listed.

    One that is of `wanted`, too, because both were once written there, is accepted: its contents must stay reachable.
    """
    signs = _SIGNS_FOR_LOGS.get(wanted)
    if signs is not None and not any(os.path.lexists(os.path.join(directory, name)) for name in signs):
        return
    found = _kinds_of(directory)
    if found and wanted not in found:
        raise NotALogError(f"expected {wanted.value}, found {found[0].value}", file=directory, hint=hint)


def refuse_other_place(directory: str | os.PathLike[str], error: NotALogError) -> None:
    """Raise NotALogError if a directory is of another kind than a managed ledger, and `error` if it has files, and none
    of a managed ledger: that, or what is made of one, is created in a directory of its own. Raise NotALogError for a
    file in its place, and OSError if it cannot be listed."""
    try:
        listed = [name for name in os.listdir(directory) if name[:1] != "."]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        file = os.fspath(directory)
        while not os.path.lexists(file):        # it is one above
            file = os.path.dirname(file)
        raise NotALogError(
            "expected a directory, found a file", file=file, hint="choose another path, or move it away"
        ) from None
    refuse_other_kind(
        directory, DirectoryKind.MANAGED_LEDGER,
        "pass a managed ledger or a queue; a new one needs a directory of its own",
    )
    if listed and not any(map(_OF_A_MANAGED_LEDGER.fullmatch, listed)):
        raise error


def has_ledgers(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory is a managed ledger's, a queue's or a ledger's, even if it is of another kind, too."""
    return any(os.path.lexists(os.path.join(directory, name)) for name in (MANIFEST, LEDGER_METADATA))


def refuse_mixed(directory: str | os.PathLike[str]) -> None:
    """Raise NotALogError if a directory is a queue or ledger and also of another kind: a copy of it would lack one.
    Raises OSError if it cannot be listed."""
    if has_ledgers(directory):
        found = _kinds_of(directory)
        if len(found) > 1:
            raise NotALogError(
                f"the directory is {found[0].value} and {found[1].value}", file=directory,
                hint="move the files of one of them elsewhere",
            )


def is_of_ledgers(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory is a managed ledger's, a queue's or a ledger's, or seems to be and cannot be listed."""
    if not has_ledgers(directory):
        return False
    try:
        return DirectoryKind.PARTITION not in _kinds_of(directory)
    except OSError:
        return True


def _kinds_of(directory: str | os.PathLike[str]) -> list[DirectoryKind]:
    """What a directory is, more than one if they were mixed; nothing if it is new, or anything else."""
    try:
        listed = set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    if LEDGER_METADATA in listed:
        found.append(DirectoryKind.LEDGER)
    elif any(names.is_log_file(name) or names.is_swapped_log(name) for name in listed):
        found.append(DirectoryKind.PARTITION)
    if MANIFEST in listed:
        found.append(DirectoryKind.MANAGED_LEDGER)
    if not listed.isdisjoint(_OF_A_LOG_DIR):
        found.append(DirectoryKind.LOG_DIR)
    return found
