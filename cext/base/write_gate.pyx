"""Coordinates threads that write to one log: a lock, the files, a shared sync, and recovery after exceptions.

A change is a function that runs with the lock (`change`), or alone with the files (`alone`). Lock and files are
acquired and released here, in C, where the interpreter delivers no exception: so whatever interrupts Python code, ^C or
PyThreadState_SetAsyncExc, no thread waits at the gate forever.

A function makes each change within `with gate.changing():`, so that the gate knows what an exception left behind: one
that leaves such a block leaves a change in the middle. After a SeglogError, the gate is then closed permanently
(`failure`): the state on disk is unknown. After any other exception, the log is torn: the next caller, usually the
interrupted thread itself, first calls `reload`. An exception outside of such a block has changed nothing.

Appenders that wait for the disk share one sync. A thread that finds no sync running leads: its sync covers everything
written before it began. Threads that come meanwhile queue up; after the sync, those that it covered continue, and the
first of the others leads the next one for all of them. So a single appender pays only for its own sync, and eight
threads pay for about two between them, while they prepare their next appends.

Left alone, the threads soon split into two groups, one of which appends while the other syncs. If a sync is no slower
than switching the GIL among eight threads, this is already optimal. If it is slower, the next leader first gathers:
threads that were released together usually return at once with their next append, and the last of them leads for all.
No thread waits for them longer than a sync takes, or a millisecond; and if they did not come, the next few syncs do not
wait. A single appender never waits.

Each thread waits for its own lock, and finds the answer when that opens: a condition would wake all of them to compete
for one lock, which takes as long as a sync.

Appends are counted instead of using offsets: a truncated log assigns an offset twice, but never a number.

The GIL makes each step of the functions below atomic: none of them calls Python code, or allocates, between a check of
the fields and their change.
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK,
    PY_LOCK_ACQUIRED,
    WAIT_LOCK,
    PyLockStatus,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)

from .ending cimport is_last_thread, others_run
from .shield cimport is_in_background

import os
import threading
from time import perf_counter

from seglog.errors import SeglogError

cdef extern from "pythread.h" nogil:
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long microseconds, int is_left_by_signals)

cdef enum:
    # After waiting in vain, 1, 3, 7 ... syncs are led at once before a leader waits again; at most this many.
    REST_SYNCS_MAX = 63
    # A signal does not wake the main thread if it is just falling asleep, or if another thread ran the system's
    # handler: then Python's own handler runs after this time at most.
    SLICE_US = 1_000_000
    NO_LIMIT = -1

# The one in which Python's handlers of signals run.
cdef unsigned long main_thread = threading.main_thread().ident


def _forked():
    global main_thread
    main_thread = <unsigned long>PyThread_get_thread_ident()


os.register_at_fork(after_in_child=_forked)


cdef PyLockStatus wait_at(PyThread_type_lock door, double seconds) noexcept:
    """Wait for a lock for so long, or until a signal comes, or until it is time to look for signals; below 0: without a
    limit."""
    cdef PyLockStatus status
    cdef long long microseconds = NO_LIMIT if seconds < 0 else <long long>(seconds * 1e6)
    if <unsigned long>PyThread_get_thread_ident() == main_thread and not 0 <= microseconds <= SLICE_US:
        microseconds = SLICE_US
    with nogil:
        status = PyThread_acquire_lock_timed(door, microseconds, 1)
    return status


cdef class CallLock:
    """A lock that is held during a call: `lock.run(function, *args)`. Not reentrant.

    A signal whose handler raises ends the waiting.
    """

    def __cinit__(self):
        self.door = PyThread_allocate_lock()
        if self.door == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.door != NULL:
            PyThread_free_lock(self.door)

    cdef int take(self) except -1:
        if PyThread_acquire_lock(self.door, NOWAIT_LOCK):
            return 0
        while True:
            others_run()
            if wait_at(self.door, -1) == PY_LOCK_ACQUIRED:
                return 0
            PyErr_CheckSignals()

    cdef void give(self) noexcept:
        PyThread_release_lock(self.door)

    def run(self, function, *args):
        """Call `function(*args)` with the lock."""
        self.take()
        try:
            return function(*args)
        finally:
            self.give()

    def renew(self):
        """Reset it in a forked child, which lacks the parent's thread that may have held it."""
        cdef PyThread_type_lock door = PyThread_allocate_lock()
        if door == NULL:
            raise MemoryError
        self.door = door        # the old one may be locked: it stays as it is


@cython.final
@cython.no_gc
cdef class Turn:
    """A waiting thread: until `number` is committed, or until it has the files (`leads`).

    Being woken has no meaning by itself: two calls of `go` may come before the thread runs.
    """

    def __cinit__(self, int64_t number):
        self.number = number
        self.door = PyThread_allocate_lock()
        if self.door == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.door, WAIT_LOCK)

    def __dealloc__(self):
        if self.door != NULL:
            if not self.is_open:
                PyThread_release_lock(self.door)
            PyThread_free_lock(self.door)

    cdef int wait(self, double seconds) except -1:
        """Below 0: until it is woken, or no other thread runs any more. Returns whether it was woken."""
        cdef double left = seconds, until = 0
        if seconds >= 0:
            until = perf_counter() + seconds
        while True:
            if seconds < 0:
                left = 0 if is_last_thread() else -1        # if it was not woken yet, nobody will
            if wait_at(self.door, left) == PY_LOCK_ACQUIRED:
                self.is_open = False
                return True
            PyErr_CheckSignals()
            if seconds >= 0:
                left = max(0, until - perf_counter())
            if left == 0:
                return False

    cdef void go(self) noexcept:
        if not self.is_open:
            self.is_open = True
            PyThread_release_lock(self.door)

    cdef void lead(self) noexcept:
        self.leads = True
        self.go()


@cython.final
cdef class Bell:
    """A bell: one thread waits for it, any other rings. Ringing is one step; a ring without a waiter is kept."""
    cdef Turn turn

    def __cinit__(self):
        self.turn = Turn(-1)

    def ring(self, _=None):
        """Ring; may also be a weak reference's callback."""
        self.turn.go()

    def wait(self, double seconds):
        """Wait; return whether it rang. Below 0: wait until it does, or no other thread runs any more."""
        return self.turn.wait(seconds) == 1


cdef class GroupCommit:
    """The files of a log, and the sync that its appenders share. A subclass has `sync`, `reload`, `failed`, `settle`.

    sync()          makes durable what was written before the call; returns the number of the last append in it
    reload()          repairs what a torn change left; resets `is_torn`
    failed(error)   makes the exception for calls after the first failure
    settle(error)   called after `error` failed or tore the log; without lock and files. May raise another error

    committed       the appends up to this number are on the disk
    failure         the first error after which nothing continues
    is_told         a caller has got it. An error that only a background thread got is raised by `tell`, at closing
    waiting         how many wait for another thread's sync
    patience_s_max, gather_from_s       when and how long a leader gathers
    """

    def __cinit__(self, *args, **named):
        self.patience_s_max = 0.001
        # Eight threads beside one, on two cores: with syncs of 0.2 ms 3.4 times as fast by gathering and 3.9 by halves,
        # with 0.3 ms 4.3 and 4.1, with 1 ms 6.7 and 4.4.
        self.gather_from_s = 0.00025

    def wait(self, int64_t number):
        """Return when the appends up to `number` are on the disk. Call it without the lock."""
        self.wait_for(number)

    cdef int wait_for(self, int64_t number) except -1:
        while self.committed < number and self.take_files(number):
            if self.is_torn and self.failure is None:
                self.pass_on(0, False)
                self.reload()
            else:
                self.lead_sync()
                return 0
        return 0

    def alone(self, section, *args):
        """Call `section(*args)` alone with the files: no sync runs meanwhile. Raises `failed` after a failure."""
        try:
            return self.alone_within(section, *args)
        except BaseException as error:
            self.settle_after(error, False)
            raise

    def alone_within(self, section, *args):
        """Do the same within `change`, which settles errors."""
        self.take_files(-1)
        try:
            return section(*args)
        except BaseException as error:
            self.broke(error)       # before another thread gets the files
            raise
        finally:
            self.pass_on(0, False)

    def cover(self, int64_t number):
        """Within `alone`: note that all up to `number` is on the disk, by other means than `sync`."""
        if number > self.committed:
            self.committed = number

    @property
    def is_gathering(self):
        """Whether a leader waits for others before it leads."""
        return self.gatherer is not None

    cdef bint broke(self, object error):
        """Handle `error`, which left a section. Returns True if the log cannot continue."""
        return False

    cdef int lead_sync(self) except -1:
        cdef double started = perf_counter()
        cdef int64_t committed
        cdef double seconds
        try:
            committed = self.sync()
        except BaseException as error:
            is_broken = self.broke(error) or isinstance(error, SeglogError)
            if is_broken:
                self.fail_by(error)
            self.pass_on(0, False)
            self.settle_after(error, is_broken)
            raise
        seconds = perf_counter() - started
        self.syncs += 1
        self.sync_seconds += seconds
        self.patience_s = min(seconds, self.patience_s_max)
        self.pass_on(committed, True)
        return 0

    cdef int settle_after(self, object error, bint is_broken) except -1:
        if is_broken or self.is_torn or error is self.failure:
            self.settle(error)
        return 0

    def fail(self, error):
        """Pass an error to all threads that wait, now or later. The first one counts."""
        self.fail_by(error)

    def tell(self):
        """Raise `failed` if no caller has got the failure: for closing, after everything is released."""
        if not self.is_told:
            self.refuse_after_failure()

    def heard(self):
        """Note that a caller gets the failure, if there is one: after `shield.unheard`."""
        if self.failure is not None:
            self.is_told = True

    cdef void fail_by(self, object error) noexcept:
        if self.failure is None:
            self.failure = error
        if not is_in_background():
            self.is_told = True

    cdef int refuse_after_failure(self) except -1:
        if self.failure is not None:
            if not is_in_background():
                self.is_told = True
            raise self.failed(self.failure) from self.failure
        return 0

    # --- owning the files ------------------------------------------------------------------------

    cdef int take_files(self, int64_t number) except -1:
        """Get the files exclusively, when they are free; False: `number` was committed before that."""
        cdef Turn turn
        if self.take_free_files(number):
            return True
        turn = Turn(number)         # which lets others run
        if 0 <= number <= self.committed:
            return False
        if self.take_free_files(number) or self.comes_last(turn):
            return True
        try:
            self.await_turn(turn)
        except BaseException:       # no thread may wait for one that does not come
            self.leave(turn)
            raise
        if turn.leads:
            return True
        if number < 0 or self.committed < number:
            self.refuse_after_failure()
        return False

    cdef int take_free_files(self, int64_t number) except -1:
        if self.is_busy or (number >= 0 and self.missing > 1):
            return False
        self.refuse_after_failure()
        self.is_busy = True
        return True

    cdef int comes_last(self, Turn turn) except -1:
        """Whether the new thread is the last missing one, and leads. Otherwise it waits, or gathers."""
        cdef Turn gatherer = self.gatherer
        if not self.is_busy:
            self.refuse_after_failure()
            self.is_busy = True
            self.missing -= 1
            self.gatherer = turn
            turn.gathers = True
            return False
        if gatherer is not None:
            self.missing -= 1
            if turn.number < 0:
                self.gatherer = None
                gatherer.lead()
            elif self.missing <= 0:
                # The last one is awake already.
                self.gatherer = None
                self.last_rest = 0
                self.enqueue(gatherer)
                return True
        self.enqueue(turn)
        return False

    cdef int await_turn(self, Turn turn) except -1:
        """Return when `turn` leads, or has nothing left to wait for."""
        while not turn.leads and not turn.is_let_go:
            if not turn.gathers:
                if not turn.wait(-1):
                    others_run()
            elif not turn.wait(self.patience_s) and not turn.leads and not turn.is_let_go:
                turn.gathers = False        # if another thread was faster
                if self.gatherer is turn:
                    self.gatherer = None
                    self.last_rest = min(2 * self.last_rest + 1, REST_SYNCS_MAX)
                    self.rest = self.last_rest
                    turn.leads = True
        return 0

    cdef void pass_on(self, int64_t committed, bint synced) noexcept:
        """Pass the files to the next thread, and release those that no longer wait for anything."""
        cdef Turn turn = self.first
        cdef Turn after
        cdef Turn going = None
        cdef int64_t let_go = 1
        if committed > self.committed:
            self.committed = committed
        self.first = self.last = None
        self.waiting = 0
        while turn is not None:
            after = turn.after
            turn.after = None
            if self.failure is None and (turn.number < 0 or turn.number > self.committed):
                self.enqueue(turn)
            else:
                turn.after = going
                going = turn
                let_go += 1
            turn = after
        # If no thread is there to lead, those that come next gather among themselves.
        self.missing = self.expected(let_go) if synced and (let_go > 1 or self.first is not None) else 0
        self.is_busy = self.first is not None
        if self.is_busy:
            # Before the others, which have other work before they return.
            turn = self.first
            self.dequeue(turn)
            if self.missing:
                self.gatherer = turn
                turn.gathers = True     # woken to wait once more
                turn.go()
            else:
                turn.lead()
        while going is not None:
            turn = going
            going = turn.after
            turn.after = None
            turn.is_let_go = True
            turn.go()

    cdef int64_t expected(self, int64_t let_go) noexcept:
        """Return how many appenders the next sync should wait for, if this one releases so many."""
        cdef Turn turn = self.first
        if self.patience_s < self.gather_from_s or let_go + self.waiting == 1:
            return 0
        while turn is not None:
            if turn.number < 0:
                return 0
            turn = turn.after
        if self.rest:
            self.rest -= 1
            return 0
        return let_go

    cdef void leave(self, Turn turn) noexcept:
        cdef bint is_due = turn.leads
        if self.gatherer is turn:
            self.gatherer = None
            is_due = True
        self.dequeue(turn)
        if is_due:
            self.pass_on(0, False)

    cdef void enqueue(self, Turn turn) noexcept:
        if self.last is None:
            self.first = turn
        else:
            self.last.after = turn
        self.last = turn
        self.waiting += 1

    cdef void dequeue(self, Turn turn) noexcept:
        """Remove a turn from the queue; has no effect if it is not in it."""
        cdef Turn before = None
        cdef Turn found = self.first
        while found is not None and found is not turn:
            before, found = found, found.after
        if found is None:
            return
        if before is None:
            self.first = turn.after
        else:
            before.after = turn.after
        if self.last is turn:
            self.last = before
        turn.after = None
        self.waiting -= 1


@cython.final
@cython.freelist(16)
cdef class Changing:
    """`ChangeGate.changing`: a block that changes the log, and is complete where it ends."""
    cdef ChangeGate gate
    cdef bint was_changing

    def __enter__(self):
        self.was_changing = self.gate.is_changing
        self.gate.is_changing = True
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.gate.is_changing = self.was_changing

    def refused(self):
        """What the block raises now is a refusal: nothing has changed yet."""
        self.gate.is_changing = False


cdef class ChangeGate(GroupCommit):
    """Also has the lock of a log, and what prevents changes.

    number          of appends that a thread may wait for; counted with the lock
    refusal         makes the error for attempted changes, or None if changes are possible. Read without the lock
                    first
    is_changing     a section is within `changing`, or an exception left that
    is_torn         a change was left in the middle: `reload` is due
    """

    def __cinit__(self, *args, **named):
        self.lock = CallLock()

    def changing(self):
        """For a section: the context of what it changes. Blocks may be nested."""
        cdef Changing block = Changing.__new__(Changing)
        block.gate = self
        return block

    def change(self, section, *args):
        """Call `section(*args)` with the lock, if a change is possible. Raises what `refusal` makes."""
        while True:
            self.refuse()       # first without the lock: in a forked child it may be taken forever
            self.lock.take()
            if self.is_open():
                return self.call_and_give(section, args)
            self.lock.give()
            self.refuse()
            self.reload()

    def with_lock(self, section, *args):
        """Call `section(*args)` with the lock, whatever the state of the log; also within `alone`."""
        self.lock.take()
        try:
            result = section(*args)
        except BaseException as error:
            self.broke(error)
            self.lock.give()
            raise
        self.is_changing = False
        self.lock.give()
        return result

    def alone_at_once(self, section, *args):
        """Call `section(*args)` with the lock and alone with the files, if both are free now. Return whether it did.

        It never waits, so a thread that holds another log's lock may call it.
        """
        if not self.is_open() or self.is_busy or not PyThread_acquire_lock(self.lock.door, NOWAIT_LOCK):
            return False
        self.is_busy = True
        try:
            section(*args)
        except BaseException as error:
            self.broke(error)
            raise
        finally:
            self.is_changing = False
            self.pass_on(0, False)
            self.lock.give()
        return True

    cdef object call_and_give(self, object section, tuple args):
        try:
            result = section(*args)
        except BaseException as error:
            self.give_after(error)
            raise
        self.is_changing = False
        self.lock.give()
        return result

    cdef int give_after(self, object error) except -1:
        cdef bint is_broken = self.broke(error)
        self.lock.give()
        return self.settle_after(error, is_broken)

    cdef bint broke(self, object error):
        if not self.is_changing:
            return False
        self.is_changing = False
        if not isinstance(error, SeglogError):
            self.is_torn = True
            return False
        self.fail_by(error)
        return True

    cdef bint is_open(self) noexcept:
        return self.refusal is None and self.failure is None and not self.is_torn

    cdef int refuse(self) except -1:
        if self.refusal is not None:
            raise self.refusal()
        return self.refuse_after_failure()

    def check(self):
        """Raise what `change` would raise: for use before long work that ends in a change."""
        self.refuse()

    def renew(self):
        """Reset in a forked child: the lock is free."""
        self.lock.renew()
