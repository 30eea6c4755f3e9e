"""The log that tests back up: some small segments, with known times."""

NOW = 1_700_000_000_000
CONFIG = {"segment.bytes": 600, "index.interval.bytes": 100}


def fill(log, count=20):
    for n in range(log.log_end_offset, log.log_end_offset + count):
        log.append(b"value %d" % n, key=b"key", timestamp=NOW + n)
