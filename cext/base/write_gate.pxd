"""Decides which thread may write. See write_gate.pyx."""
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t


cdef class CallLock:
    cdef PyThread_type_lock door

    cdef int take(self) except -1
    cdef void give(self) noexcept


cdef class Turn:
    cdef PyThread_type_lock door    # opened to wake the thread
    cdef bint is_open
    cdef bint leads
    cdef bint is_let_go
    cdef bint gathers
    cdef int64_t number             # -1: waits only for exclusive use of the files
    cdef Turn after                 # the next turn in the queue

    # True: the thread was woken. False: the time is over. Raises what a signal handler raises.
    cdef int wait(self, double seconds) except -1
    cdef void go(self) noexcept
    cdef void lead(self) noexcept


cdef class GroupCommit:
    cdef readonly int64_t committed
    cdef readonly object failure
    cdef public bint is_told        # a caller has received the failure
    cdef public bint is_torn
    cdef readonly int64_t syncs
    cdef readonly double sync_seconds
    cdef public double patience_s_max
    cdef public double gather_from_s
    cdef bint is_busy               # a thread syncs, gathers, or uses the files exclusively
    cdef Turn first                 # the queue of threads that wait meanwhile
    cdef Turn last
    cdef readonly int64_t waiting   # the length of the queue
    cdef Turn gatherer              # leads if the missing threads do not come back; is_busy meanwhile
    cdef int64_t missing            # how many threads released by the last sync are not back yet
    cdef double patience_s
    cdef int64_t rest               # syncs until a thread gathers again
    cdef int64_t last_rest          # its value when a thread last waited in vain; 0 once none does

    # `wait` for other kernels.
    cdef int wait_for(self, int64_t number) except -1
    cdef void fail_by(self, object error) noexcept
    cdef int refuse_after_failure(self) except -1
    cdef int take_files(self, int64_t number) except -1
    cdef int take_free_files(self, int64_t number) except -1
    cdef int comes_last(self, Turn turn) except -1
    cdef int await_turn(self, Turn turn) except -1
    cdef void leave(self, Turn turn) noexcept
    cdef void pass_on(self, int64_t committed, bint synced) noexcept
    cdef int64_t expected(self, int64_t let_go) noexcept
    cdef void enqueue(self, Turn turn) noexcept
    cdef void dequeue(self, Turn turn) noexcept
    cdef int lead_sync(self) except -1
    cdef bint broke(self, object error)
    cdef int settle_after(self, object error, bint is_broken) except -1


cdef class ChangeGate(GroupCommit):
    cdef CallLock lock
    cdef public object refusal
    cdef readonly bint is_changing
    cdef public int64_t number

    cdef object call_and_give(self, object section, tuple args)
    cdef int give_after(self, object error) except -1
    cdef bint is_open(self) noexcept
    cdef int refuse(self) except -1
