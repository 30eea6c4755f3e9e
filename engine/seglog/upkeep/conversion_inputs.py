"""What a conversion was made from: so that one that is done is not done again, and one whose source changed is."""
import hashlib
import os
from pathlib import Path

from seglog.config import LogConfig
from seglog.errors import CorruptCheckpointError, UnsupportedVersionError
from seglog.format import names
from seglog.fs.refusals import refusals
from seglog.upkeep.conversion_profile import Profile
from seglog.upkeep.proof import PROOF_FILE, Proof

_CARRIED = (names.LOG_SUFFIX, names.TRANSACTION_INDEX_SUFFIX, names.SNAPSHOT_SUFFIX)


def made_from(source: Path, profile: Profile, config: LogConfig) -> str:
    """SHA-256, as hex, of all that decides a result: names, sizes and times of the source's files, and the options.

    Not of the bytes: a file that is changed without another size or time is not noticed. Raises StorageError.
    """
    sha256 = hashlib.sha256(repr((profile, config)).encode())
    with refusals("list", source), os.scandir(source) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            parsed = names.parse_file_name(entry.name)
            is_segment_file = parsed is not None and not parsed.state and parsed.suffix in _CARRIED
            if is_segment_file or entry.name in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA):
                status = entry.stat()
                sha256.update(f"\n{entry.name} {status.st_size} {status.st_mtime_ns}".encode())
    return sha256.hexdigest()


def finished(source: Path, target: Path, profile: Profile, config: LogConfig) -> Proof | None:
    """The proof in `target`, where it was made from just this source with just these options; else None."""
    try:
        proof = Proof.read(target / PROOF_FILE)
    except (FileNotFoundError, NotADirectoryError, CorruptCheckpointError, UnsupportedVersionError):
        return None
    return proof if proof.made_from == made_from(source, profile, config) else None
