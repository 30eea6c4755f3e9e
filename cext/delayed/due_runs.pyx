"""Finds the delayed messages that are due: rows are pushed in any order and popped in time order.

A heap of all messages costs a cache miss or two for each level at each pop. So rows are only appended to a tail, until
something in the tail is due; then the tail is sorted into a run, at a tenth of a heap's cost, and read in sequence.
Only the heads of the runs are in a heap. Runs that came from the tail are merged when the last one is as large as the
one before it, so their number stays logarithmic. Runs sorted elsewhere (segments of snapshots) are not merged.

Every row has an owner, a number that the caller chooses: the rows of one owner can be copied, handed to another owner
or dropped. An owner's PendingSet holds the positions that are still to be delivered; a row that is not in it is stale,
and is dropped when it is reached. This class decides nothing else. One thread at a time.
"""
cimport cython
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from .due_rows cimport MAX_ENTRY_ID, DueRow, DueRows, check_row, first_after, sort_rows
from .one_at_a_time cimport begin_alone, check_free, end_alone
from .pending_set cimport PendingSet
from .row_tail cimport Tail, chunk_rows, copy_tail, forget_tail, push_row, rows_of_chunks
from .run_heap cimport Run, merge_rows, sift_down, sift_up
from .status cimport OK

cdef enum:
    # The first tails, to which rows are pushed: that of `owner`, and that of `late_owner`.
    STANDING_TAILS = 2


@cython.final
cdef class DueRuns:
    """Rows (deliver_at, ledger_id, entry_id), each with an owner: `owner` for rows pushed one by one, `late_owner` for
    those pushed as late.

    len(): the number of rows, including stale ones.
    """

    def __cinit__(self, int64_t owner=0, int64_t late_owner=1):
        self.tails = <Tail*>malloc(STANDING_TAILS * sizeof(Tail))
        if self.tails == NULL:
            raise MemoryError
        memset(self.tails, 0, STANDING_TAILS * sizeof(Tail))
        self.tails[0].min_at = self.tails[1].min_at = INT64_MAX
        self.tails[0].owner = owner
        self.tails[1].owner = late_owner
        self.n_tails = STANDING_TAILS

    def __dealloc__(self):
        self.forget_all()
        free(self.tails)
        free(self.heap)

    cdef void forget_all(self) noexcept:
        cdef int64_t i
        for i in range(self.n_tails):
            forget_tail(&self.tails[i])
        for i in range(self.n_runs):
            free(self.heap[i].rows)
        if self.tails != NULL:
            self.n_tails = STANDING_TAILS
        self.n_runs = self.held = self.capacity_rows = 0

    def __len__(self):
        return self.held

    @property
    def memory_bytes(self):
        """The bytes that the rows take, including consumed heads of runs."""
        cdef int64_t rows = self.capacity_rows
        cdef int64_t i
        for i in range(self.n_tails):
            rows += rows_of_chunks(self.tails[i].n_chunks)
        return rows * <int64_t>sizeof(DueRow)

    @property
    def runs(self):
        """The number of sorted runs."""
        return self.n_runs

    def clear(self):
        """Drop every row."""
        check_free(&self.use, self)
        self.forget_all()

    # --- in -----------------------------------------------------------------------------

    def push(self, int64_t deliver_at, int64_t ledger_id, int64_t entry_id):
        """Add a row. Raises InvalidArgumentError if a number is out of range."""
        check_row(deliver_at, ledger_id, entry_id)
        check_free(&self.use, self)
        if push_row(&self.tails[0], deliver_at, ledger_id, entry_id) != OK:
            raise MemoryError
        self.held += 1

    def push_new(
        self, int64_t deliver_at, int64_t ledger_id, int64_t entry_id, PendingSet pending not None, bint late=False
    ):
        """Add a row, and its position to `pending`, unless it is there already. Returns whether it was new."""
        return self.put_new(deliver_at, ledger_id, entry_id, pending, late)

    cdef bint put_new(
        self, int64_t deliver_at, int64_t ledger_id, int64_t entry_id, PendingSet pending, bint late
    ) except -1:
        check_row(deliver_at, ledger_id, entry_id)
        begin_alone(&self.use, self)
        try:
            if not pending.put(ledger_id, entry_id):
                return False
            if push_row(&self.tails[1 if late else 0], deliver_at, ledger_id, entry_id) != OK:
                pending.take(ledger_id, entry_id)
                raise MemoryError
            self.held += 1
            return True
        finally:
            end_alone(&self.use)

    def push_range(
        self,
        const int64_t[::1] deliver_at not None,
        const int64_t[::1] ledger_id not None,
        const int64_t[::1] entry_id not None,
        int64_t start,
        int64_t stop,
    ):
        """Add rows [start, stop) of three columns. The caller has checked that no number is negative and that entry ids
        fit 32 bits."""
        if not 0 <= start <= stop <= min(deliver_at.shape[0], ledger_id.shape[0], entry_id.shape[0]):
            raise IndexError(f"rows {start} to {stop} of columns of {deliver_at.shape[0]}")
        begin_alone(&self.use, self)
        try:
            self.push_columns(deliver_at, ledger_id, entry_id, start, stop)
        finally:
            end_alone(&self.use)

    cdef int push_columns(
        self, const int64_t[::1] deliver_at, const int64_t[::1] ledger_id, const int64_t[::1] entry_id,
        int64_t start, int64_t stop
    ) except -1:
        cdef Tail* tail = &self.tails[0]
        cdef int64_t i
        cdef int rc = OK
        with nogil:
            for i in range(start, stop):
                rc = push_row(tail, deliver_at[i], ledger_id[i], entry_id[i])
                if rc != OK:
                    stop = i
                    break
        self.held += stop - start
        if rc != OK:
            raise MemoryError
        return 0

    def push_neighbours(
        self,
        const int64_t[::1] deliver_at not None,
        const int64_t[::1] ledger_id not None,
        const int64_t[::1] entry_id not None,
        int64_t first,
        int64_t cutoff,
        int64_t limit,
        PendingSet pending not None,
    ):
        """Add adjacent rows of three columns from `first` on: of one ledger, with rising entry ids, each due after
        `cutoff`, at most `limit` rows. Returns (one past the last row, how many were not in `pending` yet).
        """
        cdef int64_t end = first
        cdef int64_t n = min(deliver_at.shape[0], ledger_id.shape[0], entry_id.shape[0])
        cdef int64_t ledger, i, added
        begin_alone(&self.use, self)
        try:
            if first < 0 or first >= n:
                raise IndexError(f"row {first} of columns of {n}")
            ledger = ledger_id[first]
            limit = min(limit, n - first)
            if ledger < 0:
                return first, 0
            with nogil:
                while end - first < limit and ledger_id[end] == ledger and deliver_at[end] > cutoff:
                    if deliver_at[end] < 0 or entry_id[end] < 0 or entry_id[end] > MAX_ENTRY_ID:
                        break
                    if end > first and entry_id[end] <= entry_id[end - 1]:
                        break
                    end += 1
            if end == first:
                return first, 0
            if pending.put_many(ledger, &entry_id[first], end - first):
                try:
                    self.push_columns(deliver_at, ledger_id, entry_id, first, end)
                except MemoryError:
                    for i in range(first, end):
                        pending.take(ledger, entry_id[i])
                    raise
                return end, end - first
            # Some are known already, so check them one by one.
            added = 0
            for i in range(first, end):
                if pending.put(ledger, entry_id[i]):
                    if push_row(&self.tails[0], deliver_at[i], ledger, entry_id[i]) != OK:
                        pending.take(ledger, entry_id[i])
                        raise MemoryError
                    self.held += 1
                    added += 1
            return end, added
        finally:
            end_alone(&self.use)

    def add_run(self, int64_t owner, DueRows rows not None):
        """Add sorted rows as a run; `rows` is empty afterwards."""
        check_free(&self.use, self)
        check_free(&rows.use, rows)
        self.take_rows(owner, rows)

    cdef int take_rows(self, int64_t owner, DueRows rows) except -1:
        cdef Run run
        run.pos = 0
        run.n = rows.count
        run.owner = owner
        run.pushed = False
        if run.n:
            self.make_room()
            run.rows = rows.give_away()
            self.put_run(&run)
            self.held += run.n
        return 0

    cdef int make_room(self) except -1:
        cdef Run* heap
        if self.n_runs < self.room:
            return 0
        heap = <Run*>realloc(self.heap, (2 * self.room + 8) * sizeof(Run))
        if heap == NULL:
            raise MemoryError
        self.heap = heap
        self.room = 2 * self.room + 8
        return 0

    cdef void put_run(self, const Run* run) noexcept:
        self.heap[self.n_runs] = run[0]
        self.n_runs += 1
        self.capacity_rows += run.n
        sift_up(self.heap, self.n_runs - 1)

    cdef void remove_run(self, int64_t slot) noexcept:
        """Take a run out of the heap. The caller frees its rows."""
        self.capacity_rows -= self.heap[slot].n
        self.n_runs -= 1
        if slot < self.n_runs:
            self.heap[slot] = self.heap[self.n_runs]
            sift_down(self.heap, slot, self.n_runs)
            sift_up(self.heap, slot)

    # --- tails become runs -------------------------------------------------------------------

    cdef int sort_due_tails(self, int64_t cutoff) except -1:
        """Sort the tails that hold a due row into runs."""
        cdef int64_t i = self.n_tails
        while i > 0:
            i -= 1
            if self.tails[i].n and self.tails[i].min_at <= cutoff:
                self.sort_tail(i)
        return 0

    cdef int sort_tail(self, int64_t slot) except -1:
        cdef Tail* tail = &self.tails[slot]
        cdef Run run
        cdef int rc
        self.make_room()
        run.rows = <DueRow*>malloc(tail.n * sizeof(DueRow))
        if run.rows == NULL:
            raise MemoryError
        run.pos = 0
        run.n = tail.n
        run.owner = tail.owner
        run.pushed = True
        with nogil:
            copy_tail(tail, run.rows)
            rc = sort_rows(run.rows, run.n)
        if rc != OK:
            free(run.rows)
            raise MemoryError
        forget_tail(tail)
        if slot >= STANDING_TAILS:
            self.n_tails -= 1
            self.tails[slot] = self.tails[self.n_tails]
        self.put_run(&run)
        self.merge_like_runs(run.owner)
        return 0

    cdef int merge_like_runs(self, int64_t owner) except -1:
        """Merge runs from tails of `owner`, the two smallest first, while two of them have about the same size.

        So a row is copied each time its run doubles, and 2^n rows are in about n runs.
        """
        cdef int64_t i, j, a, b, one, other, least
        cdef Run merged
        cdef Run old[2]
        cdef int rc
        while True:
            a = b = -1
            least = INT64_MAX
            for i in range(self.n_runs):
                if not self.heap[i].pushed or self.heap[i].owner != owner:
                    continue
                one = self.heap[i].n - self.heap[i].pos
                for j in range(i + 1, self.n_runs):
                    if not self.heap[j].pushed or self.heap[j].owner != owner:
                        continue
                    other = self.heap[j].n - self.heap[j].pos
                    if max(one, other) <= 2 * min(one, other) and one + other < least:
                        a = i
                        b = j
                        least = one + other
            if a < 0:
                return 0
            old[0] = self.heap[a]
            old[1] = self.heap[b]
            with nogil:
                rc = merge_rows(&old[0], &old[1], &merged)
            if rc != OK:
                raise MemoryError
            self.remove_run(b)
            self.remove_run(self.slot_of(old[0].rows))     # merging has moved runs in the heap
            free(old[0].rows)
            free(old[1].rows)
            self.put_run(&merged)

    cdef int64_t slot_of(self, const DueRow* rows) noexcept:
        cdef int64_t i = 0
        while self.heap[i].rows != rows:
            i += 1
        return i

    # --- out ----------------------------------------------------------------------------

    def next_at(self):
        """The earliest deliver_at of any row; -1 if empty. A stale row counts until it is dropped."""
        cdef int64_t first = INT64_MAX
        cdef int64_t i
        check_free(&self.use, self)
        for i in range(self.n_tails):
            first = min(first, self.tails[i].min_at)
        if self.n_runs and self.heap[0].rows[self.heap[0].pos].deliver_at < first:
            first = self.heap[0].rows[self.heap[0].pos].deliver_at
        return -1 if self.held == 0 else first

    def drop_stale_heads(self, dict pending not None, dict moved not None):
        """Drop stale rows from the front, so that `next_at` is the time of a pending message.

        Rows in a tail are not checked: a message cancelled there may wake a reader early, once.
        """
        begin_alone(&self.use, self)
        try:
            self.drop_stale(pending, moved)
        finally:
            end_alone(&self.use)

    cdef int drop_stale(self, dict pending, dict moved) except -1:
        while self.n_runs and not self.head_is_pending(pending, moved):
            self.drop_head()
        return 0

    def has_due(self, int64_t cutoff, dict pending not None, dict moved not None):
        """Whether any pending message is due at `cutoff`."""
        begin_alone(&self.use, self)
        try:
            self.sort_due_tails(cutoff)
            self.drop_stale(pending, moved)
            return self.n_runs > 0 and self.heap[0].rows[self.heap[0].pos].deliver_at <= cutoff
        finally:
            end_alone(&self.use)

    cdef bint head_is_pending(self, dict pending, dict moved) except -1:
        cdef Run* run = &self.heap[0]
        cdef DueRow row = run.rows[run.pos]
        cdef PendingSet promised = <PendingSet?>pending[run.owner]
        return promised.has(row.ledger_id, row.entry_id) and (
            not moved or moved.get((row.ledger_id, row.entry_id), row.deliver_at) == row.deliver_at
        )

    cdef void drop_head(self) noexcept:
        cdef Run* run = &self.heap[0]
        cdef DueRow* rows = run.rows
        run.pos += 1
        self.held -= 1
        if run.pos < run.n:
            sift_down(self.heap, 0, self.n_runs)
        else:
            self.remove_run(0)
            free(rows)

    def pop(self, int64_t cutoff, int64_t limit, dict pending not None, dict moved not None):
        """[(ledger_id, entry_id), …]: at most `limit` pending messages with deliver_at <= cutoff, in the order of
        (deliver_at, ledger_id, entry_id). Removes them here and from their owner's PendingSet, `pending[owner]`.

        A row is stale if its bit is gone, or if `moved` holds another time for its position.
        """
        cdef DueRow row
        cdef int64_t owner = -1
        cdef PendingSet promised = None
        cdef bint some_moved = len(moved) > 0
        cdef list popped = []
        begin_alone(&self.use, self)
        try:
            self.sort_due_tails(cutoff)
            while limit > 0 and self.n_runs:
                row = self.heap[0].rows[self.heap[0].pos]
                if row.deliver_at > cutoff:
                    break
                if promised is None or self.heap[0].owner != owner:
                    owner = self.heap[0].owner
                    promised = <PendingSet?>pending[owner]
                if some_moved:
                    position = (row.ledger_id, row.entry_id)
                    if moved.get(position, row.deliver_at) == row.deliver_at and promised.take(
                            row.ledger_id, row.entry_id):
                        popped.append(position)
                        limit -= 1
                elif promised.take(row.ledger_id, row.entry_id):
                    popped.append((row.ledger_id, row.entry_id))
                    limit -= 1
                self.drop_head()
            return popped
        finally:
            end_alone(&self.use)

    def take(self, int64_t cutoff):
        """Remove the rows with deliver_at <= cutoff, including stale ones, and return them sorted."""
        cdef DueRows found = DueRows()
        begin_alone(&self.use, self)
        try:
            self.sort_due_tails(cutoff)
            while self.n_runs and self.heap[0].rows[self.heap[0].pos].deliver_at <= cutoff:
                found.reserve(1)
                found.rows[found.count] = self.heap[0].rows[self.heap[0].pos]
                found.count += 1
                self.drop_head()
            return found
        finally:
            end_alone(&self.use)

    # --- by owner --------------------------------------------------------------------------

    def rows_of(self, int64_t owner):
        """A copy of an owner's rows, unsorted."""
        cdef DueRows found = DueRows()
        cdef int64_t i
        begin_alone(&self.use, self)
        try:
            for i in range(self.n_tails):
                if self.tails[i].owner == owner and self.tails[i].n:
                    found.reserve(self.tails[i].n)
                    copy_tail(&self.tails[i], found.rows + found.count)
                    found.count += self.tails[i].n
            for i in range(self.n_runs):
                if self.heap[i].owner == owner:
                    copy_run(&self.heap[i], self.heap[i].n, found)
            return found
        finally:
            end_alone(&self.use)

    def rows_between(self, int64_t first_at, end_at, dict pending not None, dict moved not None):
        """A copy of the rows with first_at <= deliver_at < end_at (up to 2**63), without stale ones, unsorted."""
        cdef int64_t last_at = min(end_at - 1, INT64_MAX)
        cdef DueRows found = DueRows()
        cdef DueRow row
        cdef int64_t i, chunk, j, n, kept = 0
        begin_alone(&self.use, self)
        try:
            for i in range(self.n_tails):
                for chunk in range(self.tails[i].n_chunks):
                    n = chunk_rows(chunk) - (self.tails[i].room if chunk == self.tails[i].n_chunks - 1 else 0)
                    found.reserve(n)
                    for j in range(n):
                        row = self.tails[i].chunks[chunk][j]
                        if first_at <= row.deliver_at <= last_at and is_pending(
                                &row, self.tails[i].owner, pending, moved):
                            found.rows[found.count] = row
                            found.count += 1
            for i in range(self.n_runs):
                j = self.heap[i].pos + first_after(
                    self.heap[i].rows + self.heap[i].pos, self.heap[i].n - self.heap[i].pos, first_at - 1
                )
                n = j + first_after(self.heap[i].rows + j, self.heap[i].n - j, last_at)
                found.reserve(n - j)
                kept = found.count
                for j in range(j, n):
                    if is_pending(&self.heap[i].rows[j], self.heap[i].owner, pending, moved):
                        found.rows[kept] = self.heap[i].rows[j]
                        kept += 1
                found.count = kept
            return found
        finally:
            end_alone(&self.use)

    def hand_over(self, int64_t owner, int64_t to):
        """Give all rows of an owner to another owner, in a time that does not depend on their number.

        Rows that are not sorted yet stay unsorted, in a tail of their own.
        """
        cdef Tail* tails
        cdef int64_t i
        check_free(&self.use, self)
        for i in range(STANDING_TAILS, self.n_tails):
            if self.tails[i].owner == owner:
                self.tails[i].owner = to
        if self.tails[0].owner == owner and self.tails[0].n:
            tails = <Tail*>realloc(self.tails, (self.n_tails + 1) * sizeof(Tail))
            if tails == NULL:
                raise MemoryError
            self.tails = tails
            tails[self.n_tails] = tails[0]
            tails[self.n_tails].owner = to
            self.n_tails += 1
            memset(tails, 0, sizeof(Tail))
            tails[0].min_at = INT64_MAX
            tails[0].owner = owner
        for i in range(self.n_runs):
            if self.heap[i].owner == owner:
                self.heap[i].owner = to

    def hand_over_due(self, int64_t owner, int64_t to, int64_t cutoff, dict pending not None):
        """Give the rows of an owner that are due at `cutoff`, and their pending bits, to another owner. Returns how
        many there were."""
        cdef PendingSet here = <PendingSet?>pending[owner]
        cdef PendingSet there = <PendingSet?>pending[to]
        cdef DueRows due = DueRows()
        cdef DueRow* rows
        cdef int64_t i = 0
        cdef int64_t end
        begin_alone(&self.use, self)
        try:
            self.sort_due_tails(cutoff)
            while i < self.n_runs:
                if self.heap[i].owner == owner and self.heap[i].rows[self.heap[i].pos].deliver_at <= cutoff:
                    end = self.heap[i].pos + first_after(
                        self.heap[i].rows + self.heap[i].pos, self.heap[i].n - self.heap[i].pos, cutoff
                    )
                    copy_run(&self.heap[i], end, due)
                    self.held -= end - self.heap[i].pos
                    self.heap[i].pos = end
                    if end == self.heap[i].n:
                        rows = self.heap[i].rows
                        self.remove_run(i)
                        free(rows)
                    else:
                        sift_down(self.heap, i, self.n_runs)
                    i = 0           # removal has moved runs in the heap
                else:
                    i += 1
            end = due.count
            if end:
                due.sort()
                if here is not there:
                    for i in range(end):
                        if here.take(due.rows[i].ledger_id, due.rows[i].entry_id):
                            there.put(due.rows[i].ledger_id, due.rows[i].entry_id)
                self.take_rows(to, due)
            return end
        finally:
            end_alone(&self.use)

    def drop_owner(self, int64_t owner):
        """Drop all rows of an owner."""
        cdef DueRow* rows
        cdef int64_t i = self.n_tails
        check_free(&self.use, self)
        while i > 0:
            i -= 1
            if self.tails[i].owner == owner:
                self.held -= self.tails[i].n
                forget_tail(&self.tails[i])
                if i >= STANDING_TAILS:
                    self.n_tails -= 1
                    self.tails[i] = self.tails[self.n_tails]
        i = 0
        while i < self.n_runs:
            if self.heap[i].owner == owner:
                rows = self.heap[i].rows
                self.held -= self.heap[i].n - self.heap[i].pos
                self.remove_run(i)
                free(rows)
                i = 0
            else:
                i += 1


cdef int copy_run(const Run* run, int64_t end, DueRows into) except -1:
    into.reserve(end - run.pos)
    memcpy(into.rows + into.count, run.rows + run.pos, (end - run.pos) * sizeof(DueRow))
    into.count += end - run.pos
    return 0


cdef bint is_pending(const DueRow* row, int64_t owner, dict pending, dict moved) except -1:
    cdef PendingSet promised = <PendingSet?>pending[owner]
    return promised.has(row.ledger_id, row.entry_id) and (
        not moved or moved.get((row.ledger_id, row.entry_id), row.deliver_at) == row.deliver_at
    )
