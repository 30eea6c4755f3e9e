"""The .log or .tlog files of a directory that another process may be changing, or was changing when it died."""
import errno
import functools
import os
import time
from pathlib import Path

from seglog.errors import CorruptIndexError, CorruptRecordError, StorageError, UnfinishedChangeError
from seglog.format import names
from seglog.format.dialect import KAFKA, TAGGED
from seglog.segment.segment import Segment
from seglog.state.leftovers import survey

# How often a directory is listed while segments are being exchanged, and how long after a change it counts as settled.
_LOOKS_MAX, _LOOK_S = 500, 0.002
_SETTLED_NS = 1_000_000_000
_SWAPPED_LOG = names.LOG_SUFFIX[1:] + names.SWAP_SUFFIX
# How many files that are yet to be swapped in are known to be whole: followers list a directory at every look.
_KNOWN_SWAPS = 256


def settled_log_files(directory: Path) -> dict[Path, int]:
    """The .log files of a directory in which segments may be exchanged meanwhile, and their inodes.

    Between two renames of an exchange neither the old segments nor the new ones have their names, and a listing may
    miss a file that is renamed while it runs. So a directory that changed just now is listed until two listings agree
    and neither has a .swap.

    If a .swap stays, its writer has died. The next writer will complete the exchange, so the log is what that will
    leave: the files are listed as `survey` has them, new segments with their present names, which end in .log.swap, and
    without the segments that they replace. Raises UnfinishedChangeError if one of them is damaged: it was complete
    before it got that name, so something else is wrong, and nobody should read on as if it were a log.
    """
    before: dict[Path, int] | None = None
    for look in range(_LOOKS_MAX):
        now_ns, changed_ns = time.time_ns(), directory.stat().st_mtime_ns
        is_swapping = _has_swaps(directory)
        found = log_files(directory)
        is_quiet = abs(now_ns - changed_ns) > _SETTLED_NS
        if is_swapping or _has_swaps(directory):
            before = None
            if is_quiet and (swapped := _log_files_once_swapped(directory)) is not None:
                return swapped
        elif found == before or is_quiet:
            return found
        else:
            before = found
        if look:
            time.sleep(_LOOK_S)
    swapped = _log_files_once_swapped(directory)
    return log_files(directory) if swapped is None else swapped


def log_files(directory: Path) -> dict[Path, int]:
    """As names.log_files, with the inode of each file."""
    with os.scandir(directory) as entries:
        listed = [(entry.name, entry.inode()) for entry in entries if entry.name.endswith(names.LOG_SUFFIXES)]
    inodes = {name: inode for name, inode in sorted(listed) if names.is_log_file(name)}
    return {directory / name: inodes[name] for name in names.of_one_dialect(list(inodes))}


def _has_swaps(directory: Path) -> bool:
    # (A .tlog.swap has this ending, too.)
    return any(name.endswith(_SWAPPED_LOG) for name in os.listdir(directory))


# --- an exchange that nobody completed ----------------------------------------------------------


def _log_files_once_swapped(directory: Path) -> dict[Path, int] | None:
    """The .log files of the log that completing the exchange leaves; None if a writer went on with it meanwhile."""
    try:
        with os.scandir(directory) as entries:
            listed = [entry.name for entry in entries if entry.is_file()]
        tagged = any(name.endswith((TAGGED.log, TAGGED.log + names.SWAP_SUFFIX)) for name in listed)
        segments = survey(directory, TAGGED if tagged else KAFKA, listed).segments
        logs = [segment.log.path for segment in segments]
        for log in logs:
            if log.name.endswith(names.SWAP_SUFFIX):
                status = os.stat(log)
                check_swap(log, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return {log: os.stat(log).st_ino for log in logs}
    except FileNotFoundError:
        return None
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


@functools.lru_cache(maxsize=_KNOWN_SWAPS)
def check_swap(log: Path, *_identity: int) -> None:
    """Check every batch of a .log.swap, and its transaction index. `_identity`: of the file, if it may change.

    Raises UnfinishedChangeError, StorageError.
    """
    segment = Segment(log, is_last=False)
    try:
        for _ in segment.tables():
            pass
        _ = segment.transaction_index
    except (CorruptRecordError, CorruptIndexError) as error:
        raise UnfinishedChangeError(
            f"a compaction was about to put this segment in place, and it is damaged: {error.what}",
            file=error.file or log, position=error.position, offset=error.offset,
        ) from error
    finally:
        segment.close()
