from libc.stdint cimport int64_t


cdef struct Walked:
    int64_t position            # where the next header stands
    int64_t largest             # timestamp of what was passed, -1 at first
    int64_t last_offset         # of the batch before `position`
    int64_t offset_entries      # so many entries of each index were found to lead where they say
    int64_t time_entries
    bint offsets_end            # the next entry does not: nothing behind it is believed
    bint times_end
    bint damaged                # no header stands at `position`
    bint has_wrappers           # whose time bounds nothing before they are opened


cdef class HeaderWalk:
    cdef Walked walked
    cdef readonly bint misled
    cdef readonly int64_t base_offset
    cdef readonly bint by_minute
