"""A process that appends to a log of ours as quickly as it can, rolls, and deletes from its start.

    python busy_writer.py LOG_DIR/orders-0

Prints "ready" when the log has dropped a segment, and the number of appends when stdin is closed. The file `pulse`,
beside LOG_DIR, tells whether it got on meanwhile.
"""
import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import seglog
from support.pulse import Pulse

CONFIG = {"segment.bytes": 20_000, "index.interval.bytes": 256, "segment.index.bytes": 4096}


def main(path):
    pulse = Pulse(Path(path).parent.parent / "pulse")
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        ready = False
        appends = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            pulse.beat()
            log.append(b"x" * 100, key=b"key")
            appends += 1
            if appends % 97 == 0:
                log.delete_records(max(log.log_start_offset, log.log_end_offset - 700))
            if not ready and log.log_start_offset > 0:
                ready = True
                print("ready", flush=True)
        print(appends, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
