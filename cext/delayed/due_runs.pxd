from libc.stdint cimport int64_t

from .due_rows cimport DueRow, DueRows
from .one_at_a_time cimport Use
from .pending_set cimport PendingSet
from .row_tail cimport Tail
from .run_heap cimport Run


cdef class DueRuns:
    cdef Tail* tails            # the standing tails, then unsorted ones that were handed over
    cdef int64_t n_tails
    cdef Run* heap
    cdef int64_t n_runs
    cdef int64_t room           # for runs
    cdef int64_t held
    cdef int64_t capacity_rows  # of runs, for memory_bytes
    cdef Use use

    cdef void forget_all(self) noexcept
    cdef bint put_new(
        self, int64_t deliver_at, int64_t ledger_id, int64_t entry_id, PendingSet pending, bint late
    ) except -1
    cdef int push_columns(
        self, const int64_t[::1] deliver_at, const int64_t[::1] ledger_id, const int64_t[::1] entry_id,
        int64_t start, int64_t stop
    ) except -1
    cdef int take_rows(self, int64_t owner, DueRows rows) except -1
    cdef int drop_stale(self, dict pending, dict moved) except -1
    cdef int make_room(self) except -1
    cdef void put_run(self, const Run* run) noexcept
    cdef void remove_run(self, int64_t slot) noexcept
    cdef int sort_due_tails(self, int64_t cutoff) except -1
    cdef int sort_tail(self, int64_t slot) except -1
    cdef int merge_like_runs(self, int64_t owner) except -1
    cdef int64_t slot_of(self, const DueRow* rows) noexcept
    cdef bint head_is_pending(self, dict pending, dict moved) except -1
    cdef void drop_head(self) noexcept
