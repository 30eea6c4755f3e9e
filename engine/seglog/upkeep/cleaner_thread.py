"""The one thread that looks after logs: syncs and rolls by the clock, retention, compaction.

One for all logs of a log dir that is open, or for a log that was opened alone. It takes one step at a time, the most
urgent one: what is due by the clock, then the log with no space left, then the one whose turn was missed the longest.
So no two steps work on one log, and no log is cleaned by two processes, for whoever has it open holds its lock.

Long steps call the throttle, piece by piece: there the thread keeps house for the other logs, waits as
log.cleaner.io.max.bytes.per.second asks for, and leaves the step if the log is to be closed. A log whose step fails is
uncleanable, with a reason, until a later step goes well: one is tried each log.cleaner.backoff.ms.
"""
import contextlib
import functools
import logging
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from itertools import islice, pairwise

from seglog._kernels.shield import work_in_background
from seglog._kernels.write_gate import Bell, CallLock
from seglog.config import LogConfig
from seglog.counters import Sample
from seglog.errors import LogClosedError, OffsetOutOfRangeError, SeglogError
from seglog.log.aging import Expired, Verdict
from seglog.log.keeper import Kept
from seglog.log.log import Log
from seglog.log.retaining import AgedSegment, LogRetainer, Retained
from seglog.upkeep.cleaner import clean, plan_for
from seglog.upkeep.cleaner_config import CleanerConfig
from seglog.upkeep.cleaning_plan import CleaningPlan, filthiest
from seglog.upkeep.cleaning_round import CleaningLimits
from seglog.upkeep.metrics import METRICS
from seglog.upkeep.retention import over_total

_LOG = logging.getLogger(__name__)

NEVER = float("inf")
# A log whose retention.ms is short is looked at so often in it, but not more often than that.
_LOOKS = 10
_LOOK_S_MIN = 0.05
# A log that was just opened is looked at after so long, with others that were.
_FIRST_LOOK_S = 0.05
# A log that cannot be compacted waits twice as long each time, up to so many times.
_DOUBLINGS_MAX = 6
# Time in which nothing was done is no credit for later: at most so much of it.
_CREDIT_S = 1.0
# A thread that stays ends when it has had no log for so long.
_STAY_S = 1.0


class _Left(Exception):
    """A step is left in the middle: its log is to be closed."""


@dataclass(eq=False, slots=True)
class _Task:
    """One log. Times are of time.monotonic."""

    log: "weakref.ref[Kept]"
    retainer: LogRetainer
    busy: CallLock = field(default_factory=CallLock)    # held by the thread while it works on the log
    house_s: float | None = None        # how often to keep house
    house_at: float = NEVER
    look_s: float = NEVER               # how often to look what retention deletes
    look_at: float = NEVER
    is_called: bool = False             # set without a lock
    is_new: bool = False                # its first retention is to come: it is not compacted before
    clean_at: float = NEVER             # from when on it may be compacted
    failures: int = 0                   # in a row
    leaves: bool = False
    reason: str | None = None


@dataclass(slots=True)
class Counts:
    """What a cleaner has done since it was made."""

    deleted_segments: int = 0
    deleted_bytes: int = 0
    rewritten_bytes: int = 0
    compactions: int = 0
    compacted_bytes: int = 0            # read
    freed_bytes: int = 0                # by compaction
    failures: int = 0
    throttled_seconds: float = 0.0


class LogCleaner:
    """Give it logs by `add`: its thread runs as long as it has one. Threads may share it; a forked child has none.

    stays       the thread outlives its last log for a moment, or until `end`: logs that are opened and closed one after
                the other share it
    """

    metrics = METRICS

    def __init__(self, config: CleanerConfig | None = None, *, stays: bool = False) -> None:
        self.config = config or CleanerConfig()
        self._stays = stays
        self.counts = Counts()
        self._tasks: dict[int, _Task] = {}      # by the id of the log
        self._lock = CallLock()                 # guards _tasks, _house_at and _thread, for a moment
        self._calls: deque[_Task] = deque()     # of logs that called
        self._bell = Bell()
        self._paused = False
        self._current: _Task | None = None      # the thread's
        self._paid_until = 0.0
        self._thread: threading.Thread | None = None
        self._house_at = NEVER          # when the first log's house is to be kept
        # What the thread found when it last looked through all logs, which it does once for many steps: the logs that
        # are due, the most urgent one last; when the next log is due; when the first one is to be compacted.
        self._ready: list[_Task] = []
        self._look_at = self._clean_at = NEVER
        self._wakes_at = NEVER          # until then the thread sleeps, unless the bell rings; NEVER while it is awake

    # --- what logs call (log.keeper) ------------------------------------------------------------

    def add(self, log: Kept, retainer: LogRetainer, period_ms: int | None) -> None:
        task = _Task(weakref.ref(log, self._bell.ring), retainer)
        now = time.monotonic()
        if period_ms is not None:
            task.house_s = period_ms / 1000
            task.house_at = now + task.house_s
        task.look_s = _look_s(log, self.config)
        if task.look_s < NEVER:
            task.look_at, task.is_new = now + _FIRST_LOOK_S, True
        if log.config.is_compacted and self.config.log_cleaner_enable:
            # Not before its first retention, if it has any: what is to go would be rewritten, and be young again.
            task.clean_at = now if task.look_at == NEVER else task.look_at
        self._lock.run(self._add, id(log), task)

    def _add(self, key: int, task: _Task) -> None:
        self._tasks[key] = task
        self._house_at = min(self._house_at, task.house_at)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="seglog cleaner", daemon=True)
            self._thread.start()
        elif min(task.house_at, task.look_at, task.clean_at) < self._wakes_at:
            self._bell.ring()

    def remove(self, log: Kept) -> None:
        task = self._tasks.get(id(log))
        if task is None:
            return
        task.leaves = True      # a long step looks at it
        if task is self._current or self._paused:
            self._bell.ring()   # it may be waiting; or it has the task among those to come
        task.busy.run(int)
        thread = self._lock.run(self._drop, id(log))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _drop(self, key: int) -> threading.Thread | None:
        """The thread, if that was its last log and it does not stay: it ends then."""
        self._tasks.pop(key, None)
        if self._tasks or self._stays:
            return None
        return self._dismissed()

    def _dismissed(self) -> threading.Thread | None:
        """The thread, which ends."""
        thread, self._thread = self._thread, None
        self._bell.ring()       # last: a thread that looked before it was told to end would sleep forever
        return thread

    def _leave_if_idle(self) -> None:
        if not self._tasks:
            self._thread = None

    def _drop_dead(self) -> None:
        for key in [key for key, task in self._tasks.items() if task.log() is None]:
            del self._tasks[key]
        if not self._tasks:
            self._thread = None

    def wake(self, log: Kept) -> None:
        task = self._tasks.get(id(log))
        if task is not None and task.look_s < NEVER and not task.is_called:
            task.is_called = True
            self._calls.append(task)
            self._bell.ring()

    def reason(self, log: Kept) -> str | None:
        task = self._tasks.get(id(log))
        return None if task is None else task.reason

    # --- what the owner calls --------------------------------------------------------------------

    def end(self) -> None:
        """The thread ends, when all logs were removed. The next one that is added begins another."""
        thread = self._lock.run(lambda: None if self._tasks else self._dismissed())
        if thread is not None:
            thread.join()

    def pause(self) -> None:
        """Clean nothing until `resume()`; syncs and rolls by the clock go on. Returns when the step of now is over."""
        self._paused = True
        self._bell.ring()       # a step may be waiting for its rate limit
        current = self._current
        if current is not None:
            current.busy.run(int)

    def resume(self) -> None:
        """Go on cleaning."""
        self._paused = False
        self._bell.ring()

    @property
    def is_running(self) -> bool:
        """Whether there is a thread: as long as there is a log."""
        return self._thread is not None

    @property
    def busy_with(self) -> str | None:
        """The directory of the log that is being cleaned; None: none is."""
        current = self._current
        log = None if current is None else current.log()
        return None if log is None else str(log.path)

    @property
    def uncleanable(self) -> dict[str, str]:
        """The logs that could not be cleaned, by their directories, and why."""
        found = ((task.log(), task.reason) for task in list(self._tasks.values()))
        return {str(log.path): reason for log, reason in found if log is not None and reason is not None}

    def samples(self) -> "list[Sample]":
        """For seglog.metrics.Exposition."""
        counts = self.counts
        return [
            Sample("seglog_cleaner_logs", (), len(self._tasks)),
            Sample("seglog_cleaner_uncleanable_logs", (), len(self.uncleanable)),
            Sample("seglog_cleaner_deleted_segments_total", (), counts.deleted_segments),
            Sample("seglog_cleaner_deleted_bytes_total", (), counts.deleted_bytes),
            Sample("seglog_cleaner_rewritten_bytes_total", (), counts.rewritten_bytes),
            Sample("seglog_cleaner_compactions_total", (), counts.compactions),
            Sample("seglog_cleaner_compacted_bytes_total", (), counts.compacted_bytes),
            Sample("seglog_cleaner_freed_bytes_total", (), counts.freed_bytes),
            Sample("seglog_cleaner_failures_total", (), counts.failures),
            Sample("seglog_cleaner_throttled_seconds_total", (), counts.throttled_seconds),
        ]

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        work_in_background()        # what fails here is told by whoever closes the log
        me = threading.current_thread()
        while self._thread is me:
            self._wakes_at = NEVER      # first: a log that is added from now on rings, if the step does not see it
            wait_s = self._step()
            if wait_s <= 0 or self._thread is not me:       # (no bell rings if it was the step that told it to end)
                continue
            is_idle = self._stays and not self._tasks
            wait_s = _STAY_S if is_idle else wait_s
            self._wakes_at = time.monotonic() + wait_s
            has_rung = self._bell.wait(-1 if wait_s == NEVER else wait_s)
            if is_idle and not has_rung:
                self._lock.run(self._leave_if_idle)

    def _step(self) -> float:
        """The most urgent thing; how long there is none then."""
        now = time.monotonic()
        self._keep_house(now)
        if self._paused:
            self._forget_closed()
            return max(self._house_at - time.monotonic(), 0.0)
        task, step = self._neediest(now), self._retain
        if task is None and self._clean_at <= now:
            task, step = self._filthiest(now), self._compact
        if task is not None:
            self._current = task
            try:
                task.busy.run(step, task)
            finally:
                self._current = None
            return 0
        # Logs that are due one after the other are looked at together.
        next_at = max(min(self._look_at, self._clean_at), now + _LOOK_S_MIN)
        return max(min(self._house_at, next_at) - time.monotonic(), 0.0)

    def _keep_house(self, now: float) -> None:
        if now < self._house_at:
            return
        for task in list(self._tasks.values()):
            if task.house_at <= now and task.house_s is not None:
                task.house_at = now + task.house_s
                if task is self._current:
                    self._keep_house_of(task)       # in the middle of its step
                else:
                    task.busy.run(self._keep_house_of, task)
        self._lock.run(self._plan_house)

    def _plan_house(self) -> None:
        self._house_at = min((task.house_at for task in self._tasks.values()), default=NEVER)

    def _keep_house_of(self, task: _Task) -> None:
        log = task.log()
        try:
            if log is not None and not task.leaves:
                log.keep_house()
        except SeglogError:
            task.house_at = NEVER       # closed or read-only: the log says so to whoever asks

    def _neediest(self, now: float) -> _Task | None:
        """The log that called, or whose turn was missed the longest; None: none is due."""
        while self._calls:
            task = self._calls.popleft()
            if task.is_called and not task.leaves:
                return task
        while True:
            while self._ready:
                task = self._ready.pop()
                if task.look_at <= now and not task.leaves:
                    return task
            self._look_through(now)     # (Also if the last of them was due no more: the others have other times now.)
            if not self._ready:
                return None

    def _look_through(self, now: float) -> None:
        """See what is due of all logs."""
        self._look_at = self._clean_at = NEVER
        has_dead = False
        for task in list(self._tasks.values()):
            if task.log() is None:
                has_dead = True
            elif not task.leaves:
                if task.look_at <= now:
                    self._ready.append(task)
                else:
                    self._look_at = min(self._look_at, task.look_at)
                self._clean_at = min(self._clean_at, task.clean_at)
        self._ready.sort(key=lambda task: -task.look_at)
        if has_dead:
            self._lock.run(self._drop_dead)

    def _forget_closed(self) -> None:
        """While nothing is cleaned: what is kept for later is of logs that are open."""
        self._ready.clear()         # `_look_through` finds them again
        for _ in range(len(self._calls)):
            task = self._calls.popleft()
            if not task.leaves and task.log() is not None:
                self._calls.append(task)
        if any(task.log() is None for task in list(self._tasks.values())):
            self._lock.run(self._drop_dead)

    def _retain(self, task: _Task) -> None:
        log = task.log()
        if log is None or task.leaves:
            return
        task.is_called = False      # first: what calls from now on is looked at again
        task.is_new = False
        try:
            done = task.retainer.run(self._throttle)
            self._count(done)
            if task.clean_at == NEVER or not task.failures:
                task.reason = None
            wait_s = task.look_s if done.waits_ms is None else min(task.look_s, done.waits_ms / 1000 + _LOOK_S_MIN)
            task.look_at = time.monotonic() + wait_s
            if self.config.retention_total_bytes >= 0:
                self._keep_total(task.retainer.now_ms())
        except _Left:
            task.look_at = time.monotonic()     # again, if it was for a pause
        except LogClosedError:
            task.look_at = NEVER
        except OffsetOutOfRangeError:
            task.look_at = time.monotonic() + _LOOK_S_MIN       # it was cut meanwhile
        except Exception as error:
            self._failed(task, log, error)
            task.look_at = time.monotonic() + self.config.log_cleaner_backoff_ms / 1000

    def _filthiest(self, now: float) -> _Task | None:
        """The compacted log that is to be cleaned next; None: none is due, and all are looked at again after a while.

        All are judged at once, as Kafka's manager does: the one with the largest dirty part goes first.
        """
        waiting = {
            key: task for key, task in list(self._tasks.items())
            if task.clean_at < NEVER and not task.is_new and not task.leaves
        }
        if not any(task.clean_at <= now for task in waiting.values()):
            return None
        plans: dict[int, CleaningPlan] = {}
        for key, task in waiting.items():
            log = task.log()
            if isinstance(log, Log) and (not task.failures or task.clean_at <= now):
                try:
                    plans[key] = found = plan_for(log)
                    if found.checkpoint_is_void:
                        # Else it would be one of the log's own offsets as soon as that has grown past it.
                        log.put_cleaner_offset(found.first_dirty_offset)
                except LogClosedError:
                    task.clean_at = NEVER
                except OffsetOutOfRangeError:
                    task.clean_at = now + _LOOK_S_MIN       # it was cut meanwhile
                except Exception as error:
                    self._failed_to_compact(task, log, error)
        chosen = filthiest(plans)
        if chosen is not None:
            return waiting[chosen]
        for key in plans:
            waiting[key].clean_at = now + self.config.log_cleaner_backoff_ms / 1000
        return None

    def _compact(self, task: _Task) -> None:
        log = task.log()
        if not isinstance(log, Log) or task.leaves:
            return
        limits = CleaningLimits(
            dedupe_buffer_bytes=self.config.log_cleaner_dedupe_buffer_size,
            load_factor=self.config.log_cleaner_io_buffer_load_factor,
        )
        try:
            # Up to the end of now: what is appended meanwhile is judged again, and other logs have their turn.
            done = task.retainer.cleaning.run(functools.partial(
                clean, log, throttle=self._pace, should_stop=lambda: task.leaves or self._paused, limits=limits,
                high_watermark=log.log_end_offset,
            ))
        except LogClosedError:
            task.clean_at = NEVER
        except OffsetOutOfRangeError:
            task.clean_at = time.monotonic() + _LOOK_S_MIN      # it was cut meanwhile
        except Exception as error:
            self._failed_to_compact(task, log, error)
        else:
            self.counts.compactions += done.rounds
            self.counts.compacted_bytes += done.bytes_before
            self.counts.freed_bytes += max(done.bytes_before - done.bytes_after, 0)
            task.reason, task.failures, task.clean_at = None, 0, time.monotonic()
            if done.outcome == "nothing":
                task.clean_at += self.config.log_cleaner_backoff_ms / 1000

    def _failed_to_compact(self, task: _Task, log: Kept, error: Exception) -> None:
        """It is tried again, less and less often: each attempt reads up to what stopped it."""
        self._failed(task, log, error)
        task.failures += 1
        wait_s = self.config.log_cleaner_backoff_ms / 1000 * 2 ** min(task.failures - 1, _DOUBLINGS_MAX)
        task.clean_at = time.monotonic() + wait_s

    def _count(self, done: Retained) -> None:
        self.counts.deleted_segments += len(done.expired)
        self.counts.deleted_bytes += done.deleted_bytes
        self.counts.rewritten_bytes += done.rewritten_bytes

    def _keep_total(self, now_ms: int) -> None:
        """retention.total.bytes."""
        logs: dict[int, tuple[list[AgedSegment], LogConfig]] = {}
        limits: dict[int, int] = {}
        tasks = dict(self._tasks)
        for key, task in tasks.items():
            other = task.log()
            if other is not None and not task.leaves:
                with contextlib.suppress(LogClosedError):
                    logs[key] = task.retainer.ages(), other.config
                    try:
                        limits[key] = task.retainer.kept_from()
                    except SeglogError:         # judging the log by itself says so
                        limits[key] = 0
        gone = over_total(logs, self.config.retention_total_bytes, now_ms, limits)
        for key, count in gone.items():
            ages = logs[key][0]
            expired = tuple(
                Expired(age.base_offset, after.base_offset, age.size_bytes, "total")
                for age, after in islice(pairwise(ages), count)
            )
            self._count(tasks[key].retainer.delete(Verdict(expired, expired[-1].next_offset), ages))

    def _failed(self, task: _Task, log: Kept, error: Exception) -> None:
        reason = str(error) if isinstance(error, SeglogError) else f"{type(error).__name__}: {error}"
        if reason != task.reason:
            _LOG.error("%s cannot be cleaned: %s", log.path, reason, exc_info=not isinstance(error, SeglogError))
        task.reason = reason
        self.counts.failures += 1

    def _pace(self, size_bytes: float) -> None:
        """The throttle of a step that asks by itself whether it is to stop."""
        with contextlib.suppress(_Left):
            self._throttle(size_bytes)

    def _throttle(self, size_bytes: float) -> None:
        """What a long step calls with its bytes."""
        task = self._current
        rate = self.config.log_cleaner_io_max_bytes_per_second
        now = started = time.monotonic()
        self._paid_until = max(self._paid_until, now - _CREDIT_S) + size_bytes / rate
        while True:
            if task is None or task.leaves or self._paused:
                raise _Left
            self._keep_house(now)
            left_s = self._paid_until - now
            if left_s <= 0:
                break
            self._bell.wait(min(left_s, max(self._house_at - now, 0.0)))
            now = time.monotonic()
        self.counts.throttled_seconds += now - started


def _look_s(log: Kept, config: CleanerConfig) -> float:
    """How often a log is looked through."""
    settings = log.config
    if not settings.has_retention and config.retention_total_bytes < 0:
        return NEVER
    interval_s = config.log_retention_check_interval_ms / 1000
    if settings.deletes and settings.retention_ms >= 0:
        interval_s = min(interval_s, max(settings.retention_ms / 1000 / _LOOKS, _LOOK_S_MIN))
    return interval_s
