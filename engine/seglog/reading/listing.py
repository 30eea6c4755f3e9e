"""The .log or .tlog files of a directory that another process may be changing."""
import os
import time
from pathlib import Path

from seglog.format import names

# How often a directory is listed while segments are being exchanged, and how long after a change it counts as settled.
_LOOKS_MAX, _LOOK_S = 500, 0.002
_SETTLED_NS = 1_000_000_000
_SWAPPED_LOG = names.LOG_SUFFIX[1:] + names.SWAP_SUFFIX


def settled_log_files(directory: Path) -> dict[Path, int]:
    """The .log files of a directory in which segments may be exchanged meanwhile, and their inodes.

    Between two renames of an exchange neither the old segments nor the new ones have their names, and a listing may
    miss a file that is renamed while it runs. So a directory that changed just now is listed until two listings agree
    and neither has a .swap. (If a writer died, its .swap stays until the next writer opens the log and finishes the
    exchange.)
    """
    before: dict[Path, int] | None = None
    for look in range(_LOOKS_MAX):
        now_ns, changed_ns = time.time_ns(), directory.stat().st_mtime_ns
        is_swapping = _has_swaps(directory)
        found = log_files(directory)
        if is_swapping or _has_swaps(directory):
            before = None
        elif found == before or abs(now_ns - changed_ns) > _SETTLED_NS:
            return found
        else:
            before = found
        if look:
            time.sleep(_LOOK_S)
    return log_files(directory)


def log_files(directory: Path) -> dict[Path, int]:
    """As names.log_files, with the inode of each file."""
    with os.scandir(directory) as entries:
        listed = [(entry.name, entry.inode()) for entry in entries if entry.name.endswith(names.LOG_SUFFIXES)]
    inodes = {name: inode for name, inode in sorted(listed) if names.is_log_file(name)}
    return {directory / name: inodes[name] for name in names.of_one_dialect(list(inodes))}


def _has_swaps(directory: Path) -> bool:
    # (A .tlog.swap has this ending, too.)
    return any(name.endswith(_SWAPPED_LOG) for name in os.listdir(directory))
