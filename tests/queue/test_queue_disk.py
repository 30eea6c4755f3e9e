"""What a queue has on the disk, whatever its jobs wait for: at most 1.6 times the payload that is not acknowledged, two
ledgers, and a little. Jobs keep their ids and attempts while they are copied out of ledgers.
"""

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.ledger.managed import relocated_entries
from seglog.topic import delayed_index

NOW, HOUR_S = 1_700_000_000_000, 3600
LEDGER_BYTES, PAYLOAD_BYTES = 1 << 20, 4096
# The journal, which reserves a MiB ahead, and small files.
REST_BYTES = 2 << 20


@pytest.fixture(autouse=True)
def a_little_at_a_time(monkeypatch):
    monkeypatch.setattr(delayed_index, "WORTH_BYTES", 1 << 18)
    monkeypatch.setattr(relocated_entries, "WORTH_BYTES", 1 << 18)


def opened(path, clock, **options):
    return seglog.Queue(
        path, clock=clock, fsync="never", lease=10, max_attempts=2,
        config={"managedLedgerMaxSizePerLedgerMbytes": 1}, **options
    )


def disk_bytes(path):
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def allowed_bytes(left):
    return 1.6 * PAYLOAD_BYTES * left + 2 * LEDGER_BYTES + REST_BYTES


def value_of(number):
    return b"%d " % number + bytes(PAYLOAD_BYTES - 8)


def number_of(job):
    return int(job.value.split()[0])


def keep(jobs, number):
    """Put a job, and let it wait for long, in one of four ways; return its id."""
    way = ("dead", "delayed", "leased", "waiting")[number % 4]
    if way == "delayed":
        return jobs.put(value_of(number), delay=HOUR_S)
    jobs.put(value_of(number))
    job = jobs.get(timeout=0, lease=HOUR_S)
    if way == "dead":
        job.nack(0)
        job = jobs.get(timeout=0)
    if way != "leased":
        job.nack(HOUR_S)
    return job.id


def pass_seconds(jobs, clock, seconds=40):
    for _ in range(seconds):
        clock.advance(1000)
        assert jobs.get(timeout=0) is None


KEPT = {
    "one in eleven": lambda n: n % 11 == 0,
    "half": lambda n: n % 20 < 10,
    "all of the first third": lambda n: n < 700,
    "seven of ten": lambda n: n % 10 < 7,
}


@pytest.mark.parametrize("kept", KEPT)
def test_the_disk_has_little_more_than_what_is_not_acknowledged(in_memory, kept):
    clock, path = ManualClock(NOW), in_memory / "jobs"
    jobs = opened(path, clock)
    ids = {}
    for number in range(2100):
        if KEPT[kept](number):
            ids[number] = keep(jobs, number)
        else:
            jobs.put(value_of(number))
            jobs.get(timeout=0).ack()
    pass_seconds(jobs, clock)
    assert disk_bytes(path) <= allowed_bytes(len(ids))
    # Of what is left, most is finished then: copies are copied once more.
    jobs.close()
    jobs = opened(path, clock)
    found = {number_of(job): job for job in jobs.dead.peek(9999) + jobs.peek(9999)}
    assert {number: job.id for number, job in found.items()} == ids
    rest = dict(list(ids.items())[::7])
    jobs.ack([found[number] for number in ids if number not in rest])
    leased = jobs.get_many(9999, timeout=0, lease=HOUR_S)
    assert all(job.attempt == 2 for job in leased)
    pass_seconds(jobs, clock)
    assert disk_bytes(path) <= allowed_bytes(len(rest))
    jobs.close()
    jobs = opened(path, clock)
    clock.advance(2 * HOUR_S * 1000)
    again = jobs.get_many(9999, timeout=0)
    jobs.dead.requeue()
    again += jobs.get_many(9999, timeout=0)
    assert {number_of(job): job.id for job in again} == rest
    assert len(again) == len(rest)
    jobs.ack(again)
    pass_seconds(jobs, clock, 3)
    assert not list(path.glob("relocated/*/*"))
    jobs.close()
