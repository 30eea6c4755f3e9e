"""What a conversion was made from: so that a finished one is not repeated unless its source has changed."""
import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from seglog.config import LogConfig, with_minute_indexes
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.errors import CorruptCheckpointError, UnsupportedVersionError
from seglog.format import names
from seglog.format.conversion_profile import Profile
from seglog.fs.refusals import refusals
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE

_CARRIED = (*names.LOG_SUFFIXES, names.TRANSACTION_INDEX_SUFFIX, names.SNAPSHOT_SUFFIX)


def made_from(source: Path, profile: Profile, config: LogConfig) -> str:
    """Return SHA-256, in hex, over everything that determines a result: the files' names, sizes and times, and options.

    Not over the bytes: a change that keeps a file's size and time is not noticed. Raises StorageError.
    """
    with refusals("list", source), os.scandir(source) as entries:
        there = list(entries)
    with refusals("list", source):
        found = [(entry.name, entry.stat()) for entry in there if _decides(entry.name)]
    # As in the plan.
    config = with_minute_indexes(config, any(entry.name.endswith(names.MINUTE_INDEX_SUFFIX) for entry in there))
    return inputs_digest(((name, stat.st_size, str(stat.st_mtime_ns)) for name, stat in found), profile, config)


def inputs_digest(files: Iterable[tuple[str, int, str]], profile: Profile, config: LogConfig) -> str:
    """Do the same for files stored anywhere: (name, bytes, a token that changes with the file)."""
    sha256 = hashlib.sha256(_options_bytes(profile, config))
    for name, size_bytes, stamp in sorted(files):
        if _decides(name):
            sha256.update(f"\n{name} {size_bytes} {stamp}".encode())
    return sha256.hexdigest()


@functools.lru_cache(maxsize=16)
def _options_bytes(profile: Profile, config: LogConfig) -> bytes:
    """Return the bytes to hash for the options; all partitions of a log dir share them."""
    return repr((profile, config)).encode()


def _decides(name: str) -> bool:
    parsed = names.parse_file_name(name)
    is_segment_file = parsed is not None and parsed.state in ("", names.SWAP_SUFFIX) and parsed.suffix in _CARRIED
    return is_segment_file or name in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, SETTINGS_FILE)


def finished(source: Path, target: Path, profile: Profile, config: LogConfig) -> Proof | None:
    """Return the proof in `target` if it was made from exactly this source and these options, otherwise None."""
    try:
        proof = Proof.read(target / PROOF_FILE)
    except (FileNotFoundError, NotADirectoryError, CorruptCheckpointError, UnsupportedVersionError):
        return None
    return proof if proof.made_from == made_from(source, profile, config) else None
