"""A queue of jobs with delays and retries, in one directory and without a server.

    python worker_queue.py [DIRECTORY]

A job that fails comes back after a delay that doubles, and is dead after TRIES attempts. Killed at any point, it goes
on at the next start, and each attempt counts: a job is acknowledged when it is done, so each is done at least once.
"""
import sys

import seglog

TRIES, FIRST_RETRY_S = 4, 0.05


def work(job: seglog.Job) -> None:
    if job.value == b"broken" or (job.value == b"flaky" and job.attempt < 3):
        raise RuntimeError("not yet")
    print(f"{job.value.decode()}: done at attempt {job.attempt}")


def run(directory: str) -> None:
    with seglog.Queue(directory, max_attempts=TRIES, retry_delay=FIRST_RETRY_S, retry_jitter=0) as jobs:
        if not jobs.stats().backlog and not jobs.dead:
            jobs.put(b"later", delay=1)
            jobs.put_many([b"flaky", b"broken"])
            jobs.put(b"now", priority=1)
        while (job := jobs.get(timeout=1.5)) is not None:
            with job:
                work(job)
        print(f"{jobs.stats().backlog} jobs left")
        for dead in jobs.dead:
            print(f"{dead.value.decode()}: given up after {dead.attempt} attempts: {dead.reason}")


if __name__ == "__main__":
    run(sys.argv[1] if len(sys.argv) > 1 else "data/jobs")
