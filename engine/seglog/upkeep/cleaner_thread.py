"""The one thread that maintains logs: time-based syncs and rolls, retention, compaction.

There is one for all logs of an open log dir, or for a log that was opened alone. It takes one step at a time, the most
urgent one: first work that is due by the clock, then a log that called, then the one that has been due the longest. So
no two steps work on one log; and no two processes clean a log, since the process that has it open holds its lock.

Long steps call the throttle after each piece of work: it runs the other logs' maintenance, waits as
log.cleaner.io.max.bytes.per.second requires, and ends the step early if the log is being closed. A log whose step fails
is listed as uncleanable, with the reason, until a later step succeeds; it is retried every log.cleaner.backoff.ms.
"""
import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import deque
from itertools import islice, pairwise

from seglog._kernels.shield import work_in_background
from seglog._kernels.write_gate import Bell, CallLock
from seglog.config import LogConfig
from seglog.counters import Sample
from seglog.errors import LogClosedError, OffsetOutOfRangeError, SeglogError
from seglog.late_import import late
from seglog.log.log import Log
from seglog.log.maintainer import MaintainedLog
from seglog.log.retaining import AgedSegment, LogRetainer, Retained
from seglog.logger import Logger
from seglog.process_end import PROCESS_END
from seglog.upkeep.cleaner_config import CleanerConfig
from seglog.upkeep.metrics import METRICS

_LOG = Logger(__name__)

NEVER = float("inf")
# A log with a short retention.ms is checked this many times within it, but at most at this interval.
_LOOKS = 10
_LOOK_S_MIN = 0.05
# A log that was just opened is checked after this time, together with others.
_FIRST_LOOK_S = 0.05
# A log that cannot be compacted waits twice as long each time, up to this many times.
_DOUBLINGS_MAX = 6
# Idle time gives credit for later only up to this much.
_CREDIT_S = 1.0
# A thread that stays ends when it has had no log for this long.
_STAY_S = 1.0


class _Left(Exception):
    """Stops a step in the middle, because its log is being closed."""


class _Task:
    """One log. Times are from time.monotonic."""

    __slots__ = (
        "busy", "clean_at", "failures", "is_called", "is_new", "leaves", "log", "look_at", "look_s", "maintain_at",
        "maintain_s", "reason", "retainer",
    )

    def __init__(self, log: "weakref.ref[MaintainedLog]", retainer: LogRetainer) -> None:
        self.log = log
        self.retainer = retainer
        self.busy = CallLock()              # held by the thread while it works on the log
        self.maintain_s: float | None = None        # how often to maintain the log
        self.maintain_at = NEVER
        self.look_s = NEVER                 # how often to check what retention deletes
        self.look_at = NEVER
        self.is_called = False              # set without a lock
        self.is_new = False                 # its first retention is still to come; it is not compacted before
        self.clean_at = NEVER               # when it may be compacted
        self.failures = 0                   # in a row
        self.leaves = False
        self.reason: str | None = None


class Counts:
    """What a cleaner has done since its creation."""

    def __init__(self) -> None:
        self.deleted_segments = 0
        self.deleted_bytes = 0
        self.rewritten_bytes = 0
        self.compactions = 0
        self.compacted_bytes = 0            # read
        self.freed_bytes = 0                # by compaction
        self.failures = 0
        self.throttled_seconds = 0.0


class LogCleaner:
    """Maintains the logs passed to `add`: its thread runs as long as it has one. Thread-safe; a forked child has none.

    stays       the thread outlives its last log for a moment, or until `end`: so logs that are opened and closed one
                after the other share it
    """

    metrics = METRICS

    def __init__(self, config: CleanerConfig | None = None, *, stays: bool = False) -> None:
        self.config = config or CleanerConfig()
        self._stays = stays
        self.counts = Counts()
        self._tasks: dict[int, _Task] = {}      # by the log's id
        self._lock = CallLock()                 # guards _tasks, _maintain_at and _thread, for a moment
        self._calls: deque[_Task] = deque()     # of logs that called
        self._bell = Bell()
        self._paused = False
        self._ends = False          # with the process: a long step checks this
        self._current: _Task | None = None      # the thread's
        self._paid_until = 0.0
        self._thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None
        self._maintain_at = NEVER               # when to maintain the first log
        # The result of the thread's last look at all logs, which serves many steps: the logs that are due, the most
        # urgent one last; when the next log is due; when the first one must be compacted.
        self._ready: list[_Task] = []
        self._look_at = self._clean_at = NEVER
        self._wakes_at = NEVER          # the thread sleeps until then, unless the bell rings; NEVER while it is awake

    # --- what logs call (log.maintainer) --------------------------------------------------------

    def add(self, log: MaintainedLog, retainer: LogRetainer, period_ms: int | None) -> None:
        task = _Task(weakref.ref(log, self._bell.ring), retainer)
        now = time.monotonic()
        if period_ms is not None:
            task.maintain_s = period_ms / 1000
            task.maintain_at = now + task.maintain_s
        task.look_s = _look_s(log, self.config)
        if task.look_s < NEVER:
            task.look_at, task.is_new = now + _FIRST_LOOK_S, True
        if log.config.is_compacted and self.config.log_cleaner_enable:
            # Not before its first retention, if any: segments to be deleted would be rewritten, and count as new.
            task.clean_at = now if task.look_at == NEVER else task.look_at
        self._lock.run(self._add, id(log), task)

    def _add(self, key: int, task: _Task) -> None:
        self._tasks[key] = task
        self._maintain_at = min(self._maintain_at, task.maintain_at)
        if self._thread is None:
            self._ends = False
            self._thread = threading.Thread(target=self._run, name="seglog cleaner", daemon=True)
            self._thread.start()
            PROCESS_END.add(self)
        elif min(task.maintain_at, task.look_at, task.clean_at) < self._wakes_at:
            self._bell.ring()

    def remove(self, log: MaintainedLog) -> None:
        task = self._tasks.get(id(log))
        if task is None:
            return
        task.leaves = True      # a long step checks this
        if task is self._current or self._paused:
            self._bell.ring()   # it may be waiting, or have the task in its queue
        task.busy.run(int)
        thread = self._lock.run(self._drop, id(log))
        if thread is not threading.current_thread():
            _join(thread)

    def _drop(self, key: int) -> threading.Thread | None:
        """Remove a log; return the thread if it ends then: it was the last log, and the thread does not stay."""
        self._tasks.pop(key, None)
        if self._tasks or self._stays:
            return None
        return self._dismissed()

    def _dismissed(self) -> threading.Thread | None:
        """Dismiss the thread and return it."""
        thread, self._thread = self._thread, None
        self._bell.ring()       # last: otherwise a thread that checked just before it was dismissed would sleep forever
        return thread

    def _leave_if_idle(self) -> None:
        if not self._tasks:
            self._thread = None

    def _drop_dead(self) -> None:
        for key in [key for key, task in self._tasks.items() if task.log() is None]:
            del self._tasks[key]
        if not self._tasks:
            self._thread = None

    def wake(self, log: MaintainedLog) -> None:
        task = self._tasks.get(id(log))
        if task is not None and task.look_s < NEVER and not task.is_called:
            task.is_called = True
            self._calls.append(task)
            self._bell.ring()

    def reason(self, log: MaintainedLog) -> str | None:
        task = self._tasks.get(id(log))
        return None if task is None else task.reason

    # --- called by the owner --------------------------------------------------------------------

    def end(self) -> None:
        """End the thread, after all logs were removed. The next log that is added starts a new one."""
        thread = self._lock.run(lambda: None if self._tasks else self._dismissed())
        _join(thread)

    # --- when the process ends (process_end) -----------------------------------------------------

    def write_out(self) -> None:
        pass

    def end_soon(self) -> None:
        self._ends = True
        self._ending = self._lock.run(self._dismissed)

    def await_end(self, timeout_s: float) -> None:
        if self._ending is not None:
            self._ending.join(timeout_s)

    def pause(self) -> None:
        """Clean nothing until `resume()`; time-based syncs and rolls go on. Returns when the current step is over."""
        self._paused = True
        self._bell.ring()       # a step may be waiting for its rate limit
        current = self._current
        if current is not None:
            current.busy.run(int)

    def resume(self) -> None:
        """Continue cleaning."""
        self._paused = False
        self._bell.ring()

    @property
    def is_running(self) -> bool:
        """Whether the thread exists: as long as there is a log."""
        return self._thread is not None

    @property
    def busy_with(self) -> str | None:
        """The directory of the log that is being cleaned, None if there is none."""
        current = self._current
        log = None if current is None else current.log()
        return None if log is None else str(log.path)

    @property
    def uncleanable(self) -> dict[str, str]:
        """The logs that could not be cleaned: the reason for each directory."""
        found = ((task.log(), task.reason) for task in list(self._tasks.values()))
        return {str(log.path): reason for log, reason in found if log is not None and reason is not None}

    def samples(self) -> "list[Sample]":
        """Return the samples for seglog.metrics.Exposition."""
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
        work_in_background()        # errors here are raised when the log is closed
        me = threading.current_thread()
        while self._thread is me:
            self._wakes_at = NEVER      # first: a log that is added from now on rings if the step misses it
            wait_s = self._step()
            if wait_s <= 0 or self._thread is not me:       # (no bell rings if the step itself dismissed it)
                continue
            is_idle = self._stays and not self._tasks
            wait_s = _STAY_S if is_idle else wait_s
            self._wakes_at = time.monotonic() + wait_s
            has_rung = self._bell.wait(-1 if wait_s == NEVER else wait_s)
            if is_idle and not has_rung:
                self._lock.run(self._leave_if_idle)
        if self._thread is None:
            PROCESS_END.remove(self)

    def _step(self) -> float:
        """Do the most urgent step; return how long nothing is due afterwards."""
        now = time.monotonic()
        self._maintain(now)
        if self._paused:
            self._forget_closed()
            return max(self._maintain_at - time.monotonic(), 0.0)
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
        # Logs that become due shortly after each other are checked together.
        next_at = max(min(self._look_at, self._clean_at), now + _LOOK_S_MIN)
        return max(min(self._maintain_at, next_at) - time.monotonic(), 0.0)

    def _maintain(self, now: float) -> None:
        if now < self._maintain_at:
            return
        for task in list(self._tasks.values()):
            if task.maintain_at <= now and task.maintain_s is not None:
                task.maintain_at = now + task.maintain_s
                if task is self._current:
                    self._maintain_log(task)       # in the middle of its step
                else:
                    task.busy.run(self._maintain_log, task)
        self._lock.run(self._plan_maintenance)

    def _plan_maintenance(self) -> None:
        self._maintain_at = min((task.maintain_at for task in self._tasks.values()), default=NEVER)

    def _maintain_log(self, task: _Task) -> None:
        log = task.log()
        try:
            if log is not None and not task.leaves:
                log._maintain()
        except SeglogError:
            task.maintain_at = NEVER       # closed or read-only: the log reports this to its callers

    def _neediest(self, now: float) -> _Task | None:
        """Return the log that called, or that has been due the longest; None if none is due."""
        while self._calls:
            task = self._calls.popleft()
            if task.is_called and not task.leaves:
                return task
        while True:
            while self._ready:
                task = self._ready.pop()
                if task.look_at <= now and not task.leaves:
                    return task
            self._look_through(now)     # (Also if the last one is no longer due: the others may have other times.)
            if not self._ready:
                return None

    def _look_through(self, now: float) -> None:
        """Find the work that is due, for all logs."""
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
        """Forget closed logs while cleaning is paused."""
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
        task.is_called = False      # first: a call from now on causes another check
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
            task.look_at = time.monotonic()     # again, if a pause interrupted it
        except LogClosedError:
            task.look_at = NEVER
        except OffsetOutOfRangeError:
            task.look_at = time.monotonic() + _LOOK_S_MIN       # it was truncated meanwhile
        except Exception as error:
            self._failed(task, log, error)
            task.look_at = time.monotonic() + self.config.log_cleaner_backoff_ms / 1000

    def _filthiest(self, now: float) -> _Task | None:
        """Return the compacted log to clean next; None if none is due: then all are checked again after a while.

        All are judged at the same time, as in Kafka's manager: the one with the largest dirty ratio is first.
        """
        # A copy, not list(items()): making the pairs may run the collector, which may let another thread, or the end of
        # a log that was dropped, change the dictionary in between.
        waiting = {
            key: task for key, task in self._tasks.copy().items()
            if task.clean_at < NEVER and not task.is_new and not task.leaves
        }
        if not any(task.clean_at <= now for task in waiting.values()):
            return None
        late("seglog.upkeep.cleaner")
        from seglog.upkeep.cleaner import plan_for
        late("seglog.upkeep.cleaning_plan")
        from seglog.upkeep.cleaning_plan import CleaningPlan, filthiest

        plans: dict[int, CleaningPlan] = {}
        for key, task in waiting.items():
            log = task.log()
            if isinstance(log, Log) and (not task.failures or task.clean_at <= now):
                try:
                    plans[key] = found = plan_for(log)
                    if found.checkpoint_is_void:
                        # Otherwise it would become a valid offset as soon as the log has grown past it.
                        log._put_cleaner_offset(found.first_dirty_offset)
                except LogClosedError:
                    task.clean_at = NEVER
                except OffsetOutOfRangeError:
                    task.clean_at = now + _LOOK_S_MIN       # it was truncated meanwhile
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
        late("seglog.upkeep.cleaner")
        from seglog.upkeep.cleaner import clean
        late("seglog.upkeep.cleaning_round")
        from seglog.upkeep.cleaning_round import CleaningLimits

        limits = CleaningLimits(
            dedupe_buffer_bytes=self.config.log_cleaner_dedupe_buffer_size,
            load_factor=self.config.log_cleaner_io_buffer_load_factor,
        )
        try:
            # Only up to the present end: later appends are judged again, and other logs get their turn.
            done = task.retainer.cleaning.run(functools.partial(
                clean, log, throttle=self._pace, limits=limits, high_watermark=log.log_end_offset,
                should_stop=lambda: task.leaves or self._paused or self._ends,
            ))
        except LogClosedError:
            task.clean_at = NEVER
        except OffsetOutOfRangeError:
            task.clean_at = time.monotonic() + _LOOK_S_MIN      # it was truncated meanwhile
        except Exception as error:
            self._failed_to_compact(task, log, error)
        else:
            self.counts.compactions += done.rounds
            self.counts.compacted_bytes += done.bytes_before
            self.counts.freed_bytes += max(done.bytes_before - done.bytes_after, 0)
            task.reason, task.failures, task.clean_at = None, 0, time.monotonic()
            if done.outcome == "nothing":
                task.clean_at += self.config.log_cleaner_backoff_ms / 1000

    def _failed_to_compact(self, task: _Task, log: MaintainedLog, error: Exception) -> None:
        """Retry it less and less often: each attempt reads up to what stopped it."""
        self._failed(task, log, error)
        task.failures += 1
        wait_s = self.config.log_cleaner_backoff_ms / 1000 * 2 ** min(task.failures - 1, _DOUBLINGS_MAX)
        task.clean_at = time.monotonic() + wait_s

    def _count(self, done: Retained) -> None:
        self.counts.deleted_segments += len(done.expired)
        self.counts.deleted_bytes += done.deleted_bytes
        self.counts.rewritten_bytes += done.rewritten_bytes

    def _keep_total(self, now_ms: int) -> None:
        """seglog.retention.total.bytes."""
        late("seglog.log.expiry")
        from seglog.log.expiry import Expired, Verdict
        late("seglog.upkeep.retention")
        from seglog.upkeep.retention import over_total

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
                    except SeglogError:         # the log's own check reports this
                        limits[key] = 0
        gone = over_total(logs, self.config.retention_total_bytes, now_ms, limits)
        for key, count in gone.items():
            ages = logs[key][0]
            expired = tuple(
                Expired(age.base_offset, after.base_offset, age.size_bytes, "total")
                for age, after in islice(pairwise(ages), count)
            )
            self._count(tasks[key].retainer.delete(Verdict(expired, expired[-1].next_offset), ages))

    def _failed(self, task: _Task, log: MaintainedLog, error: Exception) -> None:
        reason = str(error) if isinstance(error, SeglogError) else f"{type(error).__name__}: {error}"
        if reason != task.reason:
            _LOG.error("%s cannot be cleaned: %s", log.path, reason, exc_info=not isinstance(error, SeglogError))
        task.reason = reason
        self.counts.failures += 1

    def _pace(self, size_bytes: float) -> None:
        """Throttle a step that checks itself whether to stop."""
        with contextlib.suppress(_Left):
            self._throttle(size_bytes)

    def _throttle(self, size_bytes: float) -> None:
        """Throttle a long step, which calls this with its bytes."""
        task = self._current
        rate = self.config.log_cleaner_io_max_bytes_per_second
        now = started = time.monotonic()
        self._paid_until = max(self._paid_until, now - _CREDIT_S) + size_bytes / rate
        while True:
            if task is None or task.leaves or self._paused or self._ends:
                raise _Left
            self._maintain(now)
            left_s = self._paid_until - now
            if left_s <= 0:
                break
            self._bell.wait(min(left_s, max(self._maintain_at - now, 0.0)))
            now = time.monotonic()
        self.counts.throttled_seconds += now - started


def _join(thread: threading.Thread | None) -> None:
    """Return when the thread has ended, unless the process ends: then it never does."""
    if thread is not None and not sys.is_finalizing():
        thread.join()


def _look_s(log: MaintainedLog, config: CleanerConfig) -> float:
    """Return how often to check a log."""
    settings = log.config
    if not settings.has_retention and config.retention_total_bytes < 0:
        return NEVER
    interval_s = config.log_retention_check_interval_ms / 1000
    if settings.deletes and settings.retention_ms >= 0:
        interval_s = min(interval_s, max(settings.retention_ms / 1000 / _LOOKS, _LOOK_S_MIN))
    return interval_s
