from libc.stdint cimport int64_t


cdef struct Walked:
    int64_t position            # of the next header
    int64_t largest             # timestamp so far, -1 at first
    int64_t last_offset         # of the batch before `position`
    int64_t offset_entries      # how many entries of each index lead to the right place
    int64_t time_entries
    bint offsets_end            # the next entry does not, so no later entry is trusted
    bint times_end
    bint damaged                # `position` has no valid header
    bint has_wrappers           # whose timestamps are unknown until they are opened


cdef class HeaderWalk:
    cdef Walked walked
    cdef readonly bint misled
    cdef readonly int64_t base_offset
    cdef readonly bint by_minute
