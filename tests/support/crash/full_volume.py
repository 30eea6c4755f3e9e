"""What a log and a queue do on a small volume that is filled to the last byte: run in a mount namespace of its own.

    unshare -rm python -m support.full_volume DIRECTORY SIZE_MIB

Mounts a tmpfs at DIRECTORY, which nobody else sees and which goes with the process. Ends with 0, and with "whole" on
stdout, if retention frees the volume by itself and nothing is lost that was acknowledged and not too old.
"""
import contextlib
import errno
import functools
import gc
import glob
import os
import re
import subprocess
import sys
import time

import seglog
from seglog.errors import LogFailedError, OffsetOutOfRangeError, StorageError
from support.waiting import wait_for

RECORD = b"%d " + b"v" * 30_000


def free_bytes(volume):
    status = os.statvfs(volume)
    return status.f_bavail * status.f_frsize


def refusal_of(call):
    """The StorageError of a call; None if it went through."""
    try:
        call()
    except StorageError as error:
        return error
    return None


def append_until_full(log):
    """How many records were acknowledged: their offsets are their numbers."""
    end = log.log_end_offset
    while (refusal := refusal_of(lambda: log.append(RECORD % log.log_end_offset))) is None:
        end += 1
    assert refusal.errno == errno.ENOSPC, refusal
    return end


def fill_up(volume):
    """Somebody else takes whatever is left."""
    fd = os.open(os.path.join(volume, "junk"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, b"x" * 4096)
    os.close(fd)
    assert free_bytes(volume) == 0


def check(log, end):
    """Nothing acknowledged is missing behind the log start offset."""
    assert log.log_end_offset >= end
    while True:
        try:
            found = [(record.offset, int(record.value.split(b" ")[0])) for record in log.read()]
            break
        except OffsetOutOfRangeError:
            continue        # retention was quicker
    first = found[0][0] if found else end
    assert found == [(n, n) for n in range(first, first + len(found))]
    assert not found or found[-1][0] == log.log_end_offset - 1


def opening_finds_room(volume, size_bytes):
    """A log without retention filled its volume; opened with it, it goes on, and on, and never fails again."""
    path = os.path.join(volume, "orders-0")
    config = {"segment.bytes": size_bytes // 16}
    log = seglog.open(path, config=config)
    end = append_until_full(log)
    fill_up(volume)
    log.close()
    # A hot backup shows the last segment, too: it cannot be cut in place.
    log_file = sorted(glob.glob(os.path.join(path, "*.log")))[-1]
    os.link(log_file, os.path.join(volume, "backup"))
    assert re.match(r"free at least \d{5,} bytes", refusal_of(lambda: seglog.open(path, config=config).close()).hint)
    os.unlink(os.path.join(volume, "backup"))
    with seglog.open(path, config=config | {"retention.bytes": size_bytes // 2}) as log:
        check(log, end)
        assert 0 < log.log_start_offset < end
        # Three times the volume, and the files of what was deleted would stay for a minute.
        while log.log_end_offset < 3 * size_bytes // len(RECORD):
            log.append(RECORD % log.log_end_offset)
            time.sleep(0.001)       # no disk is as quick as a tmpfs: the thread has a chance
        assert log.stats().failure is None
        check(log, log.log_end_offset)


def opening_needs_no_room(volume, size_bytes):
    """A log that filled its volume alone, in one segment, is opened although not a byte is free, and keeps all."""
    path = os.path.join(volume, "letters-0")
    config = {"segment.bytes": size_bytes}
    with open(os.path.join(volume, "junk"), "wb") as junk:
        junk.write(bytes(1 << 20))
    log = seglog.open(path, config=config)
    end = append_until_full(log)
    fill_up(volume)
    log.close()
    with seglog.open(path, config=config) as log:
        assert log.recovery.lost
        check(log, end)
        assert log.log_start_offset == 0
        os.unlink(os.path.join(volume, "junk"))
        log.append(RECORD % log.log_end_offset)
        check(log, end + 1)


def a_read_only_log_frees_its_volume(volume, size_bytes):
    """A log met the full disk: it is read-only, and deletes what has become too old by itself."""
    path = os.path.join(volume, "bills-0")
    config = {"segment.bytes": size_bytes // 16, "retention.ms": 3_000, "file.delete.delay.ms": 3_600_000}
    log = seglog.open(path, config=config)
    end = append_until_full(log)
    fill_up(volume)
    assert log.stats().failure is not None
    wait_for(lambda: free_bytes(volume) >= size_bytes // 2, seconds=60)
    assert log.log_start_offset > 0
    check(log, 0)
    # What is on the disk is unknown until the log is opened again.
    assert isinstance(refusal_of(lambda: log.append(b"not yet")), LogFailedError)
    log.close()
    with seglog.open(path, config=config) as log:
        assert log.log_end_offset >= end
        log.append(b"again")


def a_queue_is_finished_and_purged_on_its_full_volume(volume, size_bytes):
    """A queue filled its volume; without a free byte jobs are finished, it is opened again, and purging frees it."""
    path = os.path.join(volume, "jobs")
    config = {"managedLedgerMaxSizePerLedgerMbytes": 2}
    jobs = seglog.Queue(path, config=config)
    count = 0
    while (refusal := refusal_of(functools.partial(jobs.put, RECORD % count))) is None:
        count += 1
    assert isinstance(refusal, LogFailedError)
    fill_up(volume)
    finished = 0
    for _ in range(20):
        finished += finish_one(jobs, finished)
    assert isinstance(refusal_of(lambda: jobs.put(b"not yet")), LogFailedError)
    jobs.close()
    fill_up(volume)
    with seglog.Queue(path, config=config) as jobs:
        for _ in range(count // 2):
            fill_up(volume)
            finished += finish_one(jobs, finished)
        assert jobs.purge() == count - finished
        assert free_bytes(volume) > 0
        jobs.put(b"again")
    with seglog.Queue(path, config=config) as jobs:
        jobs.get(timeout=0).ack()
        assert jobs.get(timeout=0) is None
        # Purging also frees it where a put was refused, without opening the queue again.
        while refusal_of(lambda: jobs.put(RECORD % 0)) is None:
            pass
        fill_up(volume)
        assert jobs.purge() > count // 4
        assert free_bytes(volume) > 0
        jobs.put(b"again")
        assert jobs.get(timeout=0).value == b"again"


def finish_one(jobs, number):
    """The next job, in order: 1."""
    job = jobs.get(timeout=0)
    assert job.value == RECORD % number
    job.ack()
    return 1


def main():
    gc.disable()    # space comes back when the last reader lets go, not when cycles are collected
    volume, size_mib = sys.argv[1], int(sys.argv[2])
    for scenario in (
        opening_finds_room, opening_needs_no_room, a_read_only_log_frees_its_volume,
        a_queue_is_finished_and_purged_on_its_full_volume,
    ):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", volume], check=True)
        scenario(volume, size_mib << 20)
        subprocess.run(["umount", volume], check=True)
    print("whole")


if __name__ == "__main__":
    main()
