"""Reports when the system's clock is set: by hand, by NTP, or after a suspend.

Linux then cancels a timer with TFD_TIMER_CANCEL_ON_SET; until then it costs nothing. Slewing a clock, which NTP does
for small differences, is not a step.
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR
from libc.string cimport strerror
from posix.unistd cimport close

cdef extern from *:
    """
    #include <errno.h>
    #ifdef __linux__
    #include <limits.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/timerfd.h>
    #include <time.h>
    #include <unistd.h>
    static int seg_watch_clock(void) {
        struct itimerspec never;
        int fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC);
        if (fd < 0)
            return -1;
        memset(&never, 0, sizeof never);
        /* The kernel clamps it to the end of its own time. */
        never.it_value.tv_sec = (time_t)(sizeof(time_t) == 8 ? (INT64_MAX / 2000000000) : INT32_MAX);
        if (timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &never, NULL) != 0) {
            int error = errno;
            close(fd);
            errno = error;
            return -1;
        }
        return fd;
    }
    /* 0 when the clock was set, else errno. */
    static int seg_wait_for_step(int fd) {
        uint64_t expired;
        if (read(fd, &expired, sizeof expired) >= 0 || errno == ECANCELED)
            return 0;
        return errno;
    }
    #else
    static int seg_watch_clock(void) { errno = ENOSYS; return -1; }
    static int seg_wait_for_step(int fd) { return ENOSYS; }
    #endif
    """
    int seg_watch_clock() nogil
    int seg_wait_for_step(int fd) nogil


@cython.final
cdef class ClockSteps:
    """Watches the system's clock from its creation on. Raises OSError if the system does not support this."""
    cdef int fd

    def __cinit__(self):
        self.fd = seg_watch_clock()
        if self.fd < 0:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def wait(self):
        """Return when the clock has been set since the last return, or since the creation. One thread at a time."""
        cdef int error
        while True:
            with nogil:
                error = seg_wait_for_step(self.fd)
            if error == 0:
                return
            PyErr_CheckSignals()
            if error != EINTR:
                raise OSError(error, strerror(error).decode())
