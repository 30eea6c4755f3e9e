"""What a conversion was made from: so that one that is done is not done again, and one whose source changed is."""
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
    """SHA-256, as hex, of all that decides a result: names, sizes and times of the source's files, and the options.

    Not of the bytes: a file that is changed without another size or time is not noticed. Raises StorageError.
    """
    with refusals("list", source), os.scandir(source) as entries:
        there = list(entries)
    with refusals("list", source):
        found = [(entry.name, entry.stat()) for entry in there if _decides(entry.name)]
    # As the plan decides it.
    config = with_minute_indexes(config, any(entry.name.endswith(names.MINUTE_INDEX_SUFFIX) for entry in there))
    return inputs_digest(((name, stat.st_size, str(stat.st_mtime_ns)) for name, stat in found), profile, config)


def inputs_digest(files: Iterable[tuple[str, int, str]], profile: Profile, config: LogConfig) -> str:
    """The same of files that lie anywhere: (name, bytes, what changes when the file does)."""
    sha256 = hashlib.sha256(_options_bytes(profile, config))
    for name, size_bytes, stamp in sorted(files):
        if _decides(name):
            sha256.update(f"\n{name} {size_bytes} {stamp}".encode())
    return sha256.hexdigest()


@functools.lru_cache(maxsize=16)
def _options_bytes(profile: Profile, config: LogConfig) -> bytes:
    """Of a log dir all partitions have the same."""
    return repr((profile, config)).encode()


def _decides(name: str) -> bool:
    parsed = names.parse_file_name(name)
    is_segment_file = parsed is not None and not parsed.state and parsed.suffix in _CARRIED
    return is_segment_file or name in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, SETTINGS_FILE)


def finished(source: Path, target: Path, profile: Profile, config: LogConfig) -> Proof | None:
    """The proof in `target`, where it was made from just this source with just these options; else None."""
    try:
        proof = Proof.read(target / PROOF_FILE)
    except (FileNotFoundError, NotADirectoryError, CorruptCheckpointError, UnsupportedVersionError):
        return None
    return proof if proof.made_from == made_from(source, profile, config) else None
