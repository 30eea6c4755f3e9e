from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

# Extends a CRC, `value`, by these bytes; begin with 0. Named `update` because crc32 and crc32c are the Python
# functions, which take any buffer.
cdef uint32_t update_crc32(uint32_t value, const uint8_t* bytes, size_t size) noexcept nogil
cdef uint32_t update_crc32c(uint32_t value, const uint8_t* bytes, size_t size) noexcept nogil
