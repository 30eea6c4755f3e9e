"""The log that tests back up: some small segments, with known times; and how a queue beside it is compared."""
from seglog.backups.manifest import is_file_of_ledgers

NOW = 1_700_000_000_000
CONFIG = {"segment.bytes": 600, "index.interval.bytes": 100}


def fill(log, count=20):
    for n in range(log.log_end_offset, log.log_end_offset + count):
        log.append(b"value %d" % n, key=b"key", timestamp=NOW + n)


def files(path):
    """The bytes of the files of a queue or ledger that a backup holds, by path; of a journal without the zeros that are
    written ahead."""
    return {
        name: raw.rstrip(b"\0") if name.endswith("queue.journal") else raw
        for one in path.rglob("*") if one.is_file()
        for name, raw in [(one.relative_to(path).as_posix(), one.read_bytes())] if is_file_of_ledgers(name)
    }
