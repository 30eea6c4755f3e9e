"""What happens to most jobs of a queue: it is put, it is the next one, it is delivered for so long, and acknowledged.

A put is quiet if the job has nothing but a value, and its entry needs only a write and a sync (quiet_ledger.pyx). A
delivery or an acknowledgement is quiet if it changes nothing else: no lease is over, no job waits long enough, none
is delayed and due, nothing must be read, the journal needs only a write (journal_end.pyx), and the cursor's
mark-delete position moves by one entry. All others take the slow path, seglog.queue.lane, which decides the same from
the same fields; both write the same records and leave the same state. Each durable job passes here once: between two
syncs, with cold caches, the frames of Python around this cost several times as much as it does.
"""
from heapq import heappush

from cpython.bytes cimport PyBytes_CheckExact
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport getpid

from .intake cimport Intake
from .journal_end cimport JournalEnd
from .pair cimport new_pair
from .quick_lock cimport QuickLock
from .quiet_cursor cimport QuietCursor
from .quiet_dispatcher cimport QuietDispatcher
from .quiet_ledger cimport QuietAdds

from seglog._kernels.message_entry import encode_message
from seglog.errors import SeglogError

cdef enum:
    # JournalKind's.
    DELIVERED = 2
    ACKED = 3

cdef enum:
    # More times of leases that are not valid any more are dropped by the slow path: see Leases.tidy.
    STALE_TIMES_MAX = 1000
    NS_A_MS = 1_000_000
    ATTEMPTS_MAX = 0x7FFFFFFF
    DIGITS_MAX = 20                     # of an int64


cdef extern from *:
    """
    /* An object of a class below JobFields, whose __init__ is not called. */
    static PyObject* seg_new_job(PyObject* kind, PyObject* base)
    {
        PyObject *none, *made;
        if (!PyType_Check(kind) || !PyType_IsSubtype((PyTypeObject*)kind, (PyTypeObject*)base)) {
            PyErr_Format(PyExc_TypeError, "a class of jobs, not %R", kind);
            return NULL;
        }
        none = PyTuple_New(0);
        if (none == NULL)
            return NULL;
        made = ((PyTypeObject*)kind)->tp_new((PyTypeObject*)kind, none, NULL);
        Py_DECREF(none);
        return made;
    }
    """
    object seg_new_job(object kind, object base)


cdef class JobFields:
    """What a seglog.queue.job.Job keeps. `_entry`: an Entry, its bytes, or None if it cannot be read."""
    cdef object __weakref__
    cdef public object _lane
    cdef public object _at              # ledger id, entry id, and number in the batch or -1
    cdef public object _entry
    cdef public object _fields
    cdef public object _batched
    cdef public object _value
    cdef public object _retry_ms        # when it was looked at while it waited for its next attempt: when that is
    cdef public object attempt
    cdef public bint is_settled

    def __enter__(self):
        # Not in Python code, which ^C might interrupt: then there would be no __exit__.
        return self


cdef class LeaseTables:
    """What seglog.topic.leases.Leases keeps, which tells what it means. `_lease_kind`: the class of leases, a pair of
    (attempt, end)."""
    cdef public dict attempts
    cdef public dict out
    cdef public dict waiting
    cdef public dict dead
    cdef public dict holders
    cdef public dict failures
    cdef public list _ends
    cdef public list _dues
    cdef public object _lease_kind

    def __cinit__(self, *args, **named):
        self.attempts, self.out, self.waiting, self.dead, self.holders, self.failures = {}, {}, {}, {}, {}, {}
        self._ends, self._dues = [], []


cdef bint is_before(list times, int64_t now) except -1:
    """Whether all of a heap of (time, message) is after `now`. (Its first time may be one that is not valid any more:
    then the slow path removes it.)"""
    cdef object first
    if not times:
        return True
    first = times[0]
    if not PyTuple_CheckExact(first) or PyTuple_GET_SIZE(first) != 2:
        raise TypeError(f"a time and a message, not {first!r}")
    return <int64_t>(<tuple>first)[0] > now


cdef tuple message_of(object job):
    """The message of a job: three numbers. (Indexes of tuples are not checked.)"""
    cdef object at = (<JobFields>job)._at if isinstance(job, JobFields) else job._at
    if not PyTuple_CheckExact(at) or PyTuple_GET_SIZE(at) != 3:
        raise TypeError(f"a message is three numbers, not {at!r}")
    return <tuple>at


cdef char* store_digits(char* end, uint64_t number) noexcept:
    """Write a number that ends before `end`; return where it begins."""
    while True:
        end -= 1
        end[0] = <char>(48 + number % 10)
        number //= 10
        if number == 0:
            return end


cdef str id_of(str prefix, int64_t ledger_id, int64_t entry_id):
    """The id of a job that is an entry. (Formatting it in Python takes ten times as long.)"""
    cdef char text[2 * DIGITS_MAX + 1]
    cdef char* end = &text[0] + 2 * DIGITS_MAX + 1
    cdef char* first = store_digits(end, <uint64_t>entry_id) - 1
    cdef str made
    first[0] = 58       # a colon
    first = store_digits(first, <uint64_t>ledger_id)
    made = PyUnicode_DecodeASCII(first, end - first, NULL)
    return prefix + made if prefix else made


cdef class QuietLane:
    """The fields of a seglog.queue.lane.Lane that decide this. A subclass fills them all before the first call."""
    cdef public QuickLock _lock
    cdef public JournalEnd _journal
    cdef public uint16_t _number        # of its subscription, in the journal
    cdef public LeaseTables leases
    cdef public object _ready           # deques of jobs
    cdef public object _due
    cdef public dict _again
    cdef public bint _is_torn
    cdef public int64_t _read_ns        # when delayed jobs were read last
    cdef public int64_t _look_again_ns  # how long after that they are read in any case
    cdef public int64_t _checkpoint_at
    cdef public list _covered
    cdef public QuietCursor _cursor
    cdef public QuietDispatcher _dispatcher
    cdef public object _clock
    cdef public bint _has_system_clock
    cdef public Intake _intake          # of delayed jobs
    cdef public object _shown           # `extent`: None once it is closed
    cdef public object _held            # the lock of its directory
    cdef public object _most_attempts   # an int, or None
    cdef public object _unique
    cdef public object _backlog
    cdef public object _counts
    cdef public QuietAdds _adds
    cdef public object _producer_name
    cdef public object _sequence_ids    # an iterator
    cdef public object _job_kind        # the class of its jobs, which is below JobFields
    cdef public str _prefix             # of the ids of its jobs
    cdef public int64_t _most_ready     # put jobs that are kept in memory

    def put_quietly(self, value):
        """Put a job that has nothing but a value, durably, and return its id; None if that is not quiet, and nothing
        was done."""
        cdef object found, now_ms
        cdef int64_t ledger_id, entry_id
        cdef bytes entry
        # (Kept: a call in C borrows what it is called on, and this one waits without the lock. `purge` may replace it.)
        cdef QuietAdds adds = self._adds
        self.check_filled()
        if (
            not PyBytes_CheckExact(value) or adds is None or self._prefix is None or self._shown.extent is None
            or self._held._pid != getpid()
        ):
            return None
        now_ms = self.now_ms()
        entry = encode_message(
            self._producer_name, next(self._sequence_ids), now_ms, None, None, False, None, value)
        found = adds.add_one(entry, now_ms)
        if found is None:
            return None
        ledger_id, entry_id = found
        self._lock.take()
        try:
            self._counts.puts.value += 1
            # So that it can be taken without reading it back, if it is the next one that would be read.
            if (
                len(self._ready) < self._most_ready and not self._is_torn and self._shown.extent is not None
                and self._dispatcher.hand_over(ledger_id, entry_id)
            ):
                self._ready.append(self.new_job((ledger_id, entry_id, -1), entry))
        except BaseException as error:
            if not isinstance(error, SeglogError):
                self._is_torn = True
                self._backlog.forget()
            raise
        finally:
            self._lock.give()
        return id_of(self._prefix, ledger_id, entry_id)

    def take_quietly(self, int64_t lease_ns, list taken not None):
        """Append the next job to `taken`, delivered to this process for `lease_ns`; False if that is not quiet, and
        nothing was done. (An exception from outside then finds it in the list of whoever called.)"""
        self.check_filled()
        self._lock.take()
        try:
            return self.take_one(lease_ns, taken)
        finally:
            self._lock.give()

    def finish_quietly(self, job not None, bint waits):
        """Acknowledge a job that is out; False if that is not quiet, and nothing was done. `waits`: return when it is
        durable."""
        cdef JournalEnd journal
        cdef int64_t number
        self.check_filled()
        self._lock.take()
        try:
            if not self.finish_one(job):
                return False
            journal = self._journal
            number = journal.number
        finally:
            self._lock.give()
        if waits and journal._waits:
            journal.wait_for(number)
        return True

    cdef int check_filled(self) except -1:
        if (
            self._lock is None or self._journal is None or self.leases is None or self._cursor is None
            or self._dispatcher is None or self._intake is None
        ):
            raise TypeError("a lane without its fields")
        return 0

    cdef object new_job(self, tuple at, bytes entry):
        """A job that was not delivered yet."""
        cdef JobFields job = seg_new_job(self._job_kind, JobFields)
        job._lane, job._at, job._entry, job.attempt = self, at, entry, 0
        return job

    cdef bint is_usable(self) except -1:
        """Whether nothing stands against a quiet step: the lane is open, in its own process, and all is in order."""
        return (
            not self._is_torn and self._shown.extent is not None
            and self._held._pid == getpid() and self._held._entry is not None
            and not self.leases.holders and self._journal.is_quiet()
            and self._journal._file._position < self._checkpoint_at
        )

    cdef bint take_one(self, int64_t lease_ns, list taken) except -1:
        cdef LeaseTables leases = self.leases
        cdef int64_t now_ns, now_ms, attempts, ends_ns
        cdef object job, due_ms
        cdef tuple at
        if not self.is_usable() or self._again or self._due or not self._ready:
            return False
        now_ns, now_ms = self.monotonic_ns(), self.now_ms()
        if (
            now_ns - self._read_ns >= self._look_again_ns
            or not is_before(leases._ends, now_ns) or not is_before(leases._dues, now_ms)
            or len(leases._ends) > 2 * len(leases.out) + STALE_TIMES_MAX
        ):
            return False
        if self._intake.delayed:
            due_ms = self._dispatcher.next_due_ms()
            if due_ms is not None and due_ms <= now_ms:
                return False
        job = next(iter(self._ready))
        at = message_of(job)
        attempts = leases.attempts.get(at, 0)
        if attempts >= ATTEMPTS_MAX or (self._most_attempts is not None and attempts >= self._most_attempts):
            return False
        ends_ns = now_ns + lease_ns
        try:
            self.append(DELIVERED, at, <uint32_t>attempts + 1, now_ms + lease_ns // NS_A_MS)
            self._ready.popleft()
            job.attempt = attempts + 1
            leases.attempts[at] = attempts + 1
            leases.out[at] = new_pair(leases._lease_kind, attempts + 1, ends_ns)
            heappush(leases._ends, (ends_ns, at))
            self._counts.deliveries.value += 1
            if attempts:
                self._counts.redeliveries.value += 1
            taken.append(job)
        except BaseException:
            # The journal failed, or memory: nobody gets this job.
            self._is_torn = True
            leases.give_back(at, attempts)
            raise
        return True

    cdef bint finish_one(self, object job) except -1:
        cdef LeaseTables leases = self.leases
        cdef tuple at = message_of(job)
        cdef QuietCursor cursor = self._cursor
        if (
            not self.is_usable() or at not in leases.out or at[2] >= 0
            or self._unique.under_way or self._backlog.limit is not None
        ):
            return False
        try:
            self.append(ACKED, at, 1, 0)
            if self._intake.delayed or not cursor.acknowledge_next(at[0], at[1]):
                cursor.acknowledge((at[0], at[1]))
            # Last: an exception from outside before this leaves a job with its lease and its attempts.
            leases.attempts.pop(at, None)
            if leases.failures:
                leases.failures.pop(at, None)
            leases.out.pop(at, None)
            self._covered[0] = (self._journal.journal_id, self._journal._file._position)
            self._counts.acknowledged.value += 1
        except BaseException as error:
            if not isinstance(error, SeglogError):
                self._is_torn = True
            raise
        return True

    cdef int append(self, int kind, tuple at, uint32_t number, int64_t at_ms) except -1:
        cdef JournalEnd journal = self._journal
        return journal.append_one(kind, at[0], at[1], at[2], number, at_ms, self._number)

    cdef int64_t monotonic_ns(self) except? -1:
        cdef timespec now
        if not self._has_system_clock:
            return self._clock.monotonic_ns()
        clock_gettime(CLOCK_MONOTONIC, &now)
        return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec

    cdef int64_t now_ms(self) except? -1:
        cdef timespec now
        if not self._has_system_clock:
            return self._clock.now_ms()
        clock_gettime(CLOCK_REALTIME, &now)
        return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000
