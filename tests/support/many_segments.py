"""A log of as many segments as a test wants, made in moments."""
import seglog
from seglog.format import names


def log_of(path, size):
    """So many segments of one record, and an empty one; closed cleanly. Copies of one under other offsets."""
    with seglog.open(path, fsync="never") as log:
        log.append(b"x", timestamp=1_700_000_000_000)
    files = {name.name[20:]: name.read_bytes() for name in path.glob("0" * 20 + ".*")}
    snapshot = next(path.glob("*.snapshot")).read_bytes()
    for offset in range(1, size):
        for suffix, raw in files.items():
            moved = offset.to_bytes(8, "big") + raw[8:] if suffix == names.LOG_SUFFIX else raw
            (path / names.file_name(offset, suffix)).write_bytes(moved)
        (path / names.file_name(offset + 1, names.SNAPSHOT_SUFFIX)).write_bytes(snapshot)
    return path
