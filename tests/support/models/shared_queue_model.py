"""The model of a queue (queue_model.py) beside one that this process attaches to. Its owner is another process, which
takes jobs, too, and is killed now and then.

    python -m support.models.shared_queue_model DIRECTORY PROGRAMS
"""
import random
import shutil
import sys
from pathlib import Path

import seglog
from seglog.queue import journaled_ledger
from support.models.queue_model import LEASE_S, MAX_ATTEMPTS, RETRY_S, QueueBeside, copy_soon
from support.owner_process import OwnerProcess
from support.waiting import wait_for

# How long the next owner keeps jobs for their holders, and more.
HELD_S = 2
STEPS = 200     # of a program


class SharedQueueBeside(QueueBeside):
    """`owned`: the values of the jobs that the owner took and keeps."""

    STEPS = (*QueueBeside.STEPS, "owner_takes", "owner_takes", "kill", "kill_in_put")

    def __init__(self, path, **options):
        self.owner, self.owned = None, set()
        super().__init__(path, **options)

    def opened(self):
        """Attached: another process was there first, or is given the time to be it."""
        if self.owner is None:
            self.owner = OwnerProcess(self.one_opened, self.clock)
        while (queue := self.one_opened()).is_owner:
            queue.close()
        return queue

    def one_opened(self):
        return seglog.Queue(
            self.path, lease=LEASE_S, max_attempts=MAX_ATTEMPTS, retry_delay=RETRY_S, max_retry_delay=8,
            retry_jitter=0, clock=self.clock, config=self.config, attach=True,
        )

    def close(self):
        self.queue.close()
        self.owner.end()

    # --- steps -------------------------------------------------------------------------------

    def advance(self, seconds):
        super().advance(seconds)
        self.owner.set_clock(self.clock.now_ms())

    def owner_takes(self, count):
        _, all_of_them = self.deliverable()
        taken = self.owner.take(count)
        assert len(taken) == min(count, len(all_of_them)), (taken, all_of_them)
        for text, attempt in taken:
            value = text.encode()
            model = self.jobs[value]
            model.attempts += 1
            assert value in all_of_them
            assert attempt == model.attempts, (value, attempt, model)
            model.lease_ms = self.clock.now_ms() + LEASE_S * 1000
            self.owned.add((value, attempt))

    def kill(self, is_in_put=False):
        """This process takes over with its jobs, while those of the owner come back; then another process takes over
        from it, and those of this process come back."""
        if is_in_put:
            self.owner.let_die()
            self.put()
        self.owner.kill()
        self.come_back(self.owned)
        self.owned = set()
        self.queue.stats()
        assert self.queue.is_owner
        # What another process may have, as a handle of this one that is closed by now, is kept for a while.
        QueueBeside.advance(self, HELD_S)
        self.check()
        self.owner = OwnerProcess(self.one_opened, self.clock)
        self.reopen(is_handover=True)

    def reopen(self, *, is_handover=False):
        """What this process has comes back; what the owner has stays with it."""
        self.queue.close()
        self.come_back({(job.value, job.attempt) for job in self.out})
        self.out.clear()
        self.queue = self.opened()
        if is_handover:
            self.advance(HELD_S)
        now = self.clock.now_ms()
        dead = {job.value for job in self.queue.dead}
        out = sum(job.is_out(now) for value, job in self.jobs.items() if value not in dead)
        # The owner sees the end of the connection a moment later.
        wait_for(lambda: self.queue.stats().in_flight == out)

    def come_back(self, taken):
        for value, attempt in taken:
            model = self.jobs.get(value)
            if model is not None and model.attempts == attempt:
                model.lease_ms = None

    def step(self, name, number):
        match name:
            case "owner_takes":
                self.owner_takes(1 + number % 2)
            case "kill":
                self.kill()
            case "kill_in_put":
                self.kill(is_in_put=True)
            case _:
                super().step(name, number)


class _Modules:
    setattr = staticmethod(setattr)


def main():
    directory, programs = Path(sys.argv[1]), int(sys.argv[2])
    journaled_ledger.CHECKPOINT_BYTES = 2_000
    copy_soon(_Modules)
    for seed in range(programs):
        chance, path, done = random.Random(seed), directory / f"queue-{seed}", []
        beside = SharedQueueBeside(path)
        try:
            for _ in range(STEPS):
                done.append((chance.choice(SharedQueueBeside.STEPS), chance.randrange(100)))
                beside.step(*done[-1])
            beside.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, last steps {done[-12:]} of {len(done)}")
            raise
        finally:
            beside.close()
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
