"""A queue of jobs with delays and retries, in one directory and without a server.

    python worker_queue.py [DIRECTORY]

Jobs are messages of a managed ledger; those with a delay are in an index of delayed messages, which a crash does not
lose. A job that fails comes back after a delay that doubles. Killed at any point, it goes on at the next start: a job
is acknowledged when it is done, so each is done at least once.

A retry is a new message, added before the failed one is acknowledged. A crash in between leaves both, and each goes on
to fail by itself: a job that always fails may be tried more often than TRIES after crashes. If that matters, count the
attempts of a job where its work is done.
"""
import sys

from seglog.pulsar import DelayedDelivery, ManagedLedger

TRIES, FIRST_RETRY_S = 4, 0.05


def work(job: str, attempt: int) -> None:
    if job == "flaky" and attempt < 3:
        raise RuntimeError("not yet")
    print(f"{job}: done at attempt {attempt}")


def run(directory: str) -> None:
    with ManagedLedger(directory) as topic, DelayedDelivery(topic) as queue:
        jobs = queue.dispatcher(topic.open_cursor("workers", "earliest"))
        if not topic.entry_count:
            queue.publish(b"later", delay=1)
            queue.publish(b"flaky")
            queue.publish(b"now")
        while entries := jobs.read(max_entries=10, timeout=1):
            for entry in entries:
                job, attempt = bytes(entry.entry.payload()).decode(), 1
                for pair in entry.entry.metadata.properties:
                    if pair.key == "attempt":
                        attempt = int(pair.value)
                try:
                    work(job, attempt)
                except RuntimeError as error:
                    if attempt == TRIES:
                        print(f"{job}: given up: {error}")
                    else:
                        delay_s = FIRST_RETRY_S * 2 ** (attempt - 1)
                        print(f"{job}: {error}, again in {delay_s} s")
                        queue.publish(job.encode(), delay=delay_s, properties={"attempt": str(attempt + 1)})
                jobs.cursor.acknowledge(entry.position)
        print(f"{jobs.cursor.backlog()} jobs left")


if __name__ == "__main__":
    run(sys.argv[1] if len(sys.argv) > 1 else "data/jobs")
