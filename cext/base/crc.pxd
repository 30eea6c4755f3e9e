from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

# The CRC of what `value` is the CRC of and these bytes after it; start with 0. The Python names
# crc32 and crc32c are taken by the functions for any buffer, hence `update`.
cdef uint32_t update_crc32(uint32_t value, const uint8_t* bytes, size_t size) noexcept nogil
cdef uint32_t update_crc32c(uint32_t value, const uint8_t* bytes, size_t size) noexcept nogil
