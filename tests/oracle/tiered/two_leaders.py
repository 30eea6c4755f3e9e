"""One log of 300 records as two leaders rolled it: DIR/first/moved-0 and DIR/second/moved-0 of two_leaders.py DIR."""
import sys
from pathlib import Path

import seglog

NOW = 1_700_000_000_000

for leader, segment_bytes in (("first", 5_000), ("second", 8_000)):
    config = {"segment.bytes": segment_bytes, "segment.ms": 2**62, "index.interval.bytes": 500}
    with seglog.open(Path(sys.argv[1], leader, "moved-0"), fsync="never", config=config) as log:
        for begin in range(0, 300, 10):
            rows = [(b"%d" % n, b"value %d" % n * 5, (), NOW + n) for n in range(begin, begin + 10)]
            log.append_batch(seglog.build_batch(rows))
