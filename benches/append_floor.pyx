# cython: language_level=3, boundscheck=False, cdivision=True
"""What an append of one record cannot do without: a call from Python, a lock, a write of its bytes, a sparse index.

Nothing else: the batch is encoded already, and nobody could read or recover what it writes.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pythread cimport (
    WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock,
    PyThread_type_lock,
)
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc

cdef extern from "<fcntl.h>":
    int open(const char* path, int flags, int mode)
    int O_RDWR, O_CREAT, O_EXCL, O_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pwrite(int fd, const void* buffer, size_t size, long position)
    int close_fd "close"(int fd)

cdef enum:
    INDEX_INTERVAL_BYTES = 4096


cdef class AppendFloor:
    """AppendFloor(path): appends encoded batches of one record to a new file."""
    cdef PyThread_type_lock lock
    cdef int fd
    cdef int64_t position
    cdef int64_t next_offset
    cdef int64_t indexed        # the position of the last entry
    cdef int64_t* entries       # pairs of offset and position
    cdef int64_t n

    def __cinit__(self, bytes path not None):
        self.lock = PyThread_allocate_lock()
        self.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o644)
        if self.fd < 0 or self.lock == NULL:
            raise OSError(f"cannot create {path!r}")

    def append(self, bytes batch not None):
        """Write the batch, and return its offset."""
        cdef const char* data = PyBytes_AS_STRING(batch)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(batch)
        cdef Py_ssize_t written
        cdef int64_t offset
        PyThread_acquire_lock(self.lock, WAIT_LOCK)
        with nogil:
            written = pwrite(self.fd, data, size, self.position)
        offset = self.next_offset
        if written == size:
            if self.position - self.indexed >= INDEX_INTERVAL_BYTES:
                self.index(offset)
            self.position += size
            self.next_offset += 1
        PyThread_release_lock(self.lock)
        if written != size:
            raise OSError("the write failed")
        return offset

    cdef int index(self, int64_t offset) except -1:
        if self.n % 1024 == 0:
            self.entries = <int64_t*>realloc(self.entries, (self.n + 1024) * 2 * sizeof(int64_t))
            if self.entries == NULL:
                raise MemoryError
        self.entries[2 * self.n] = offset
        self.entries[2 * self.n + 1] = self.position
        self.n += 1
        self.indexed = self.position
        return 0

    def close(self):
        """Close the file."""
        close_fd(self.fd)
        self.fd = -1

    def __dealloc__(self):
        free(self.entries)
        if self.lock != NULL:
            PyThread_free_lock(self.lock)


# --- durable, by threads that share a sync -----------------------------------------------------

cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <unistd.h>

    typedef struct {
        int fd, appends, syncing, failed;
        const void *batch;
        size_t size;
        off_t position;
        long written, synced;
        pthread_mutex_t lock;
        pthread_cond_t changed;
    } SharedFile;

    static void *seg_append_durably(void *given)
    {
        SharedFile *file = given;
        pthread_mutex_lock(&file->lock);
        for (int n = 0; n < file->appends && !file->failed; n++) {
            if (pwrite(file->fd, file->batch, file->size, file->position) != (ssize_t)file->size)
                file->failed = 1;
            file->position += file->size;
            long mine = ++file->written;
            while (file->synced < mine && !file->failed) {
                if (file->syncing) {
                    pthread_cond_wait(&file->changed, &file->lock);
                    continue;
                }
                long covered = file->written;
                file->syncing = 1;
                pthread_mutex_unlock(&file->lock);
                int failed = fdatasync(file->fd);
                pthread_mutex_lock(&file->lock);
                file->syncing = 0;
                file->synced = covered;
                file->failed |= failed;
                pthread_cond_broadcast(&file->changed);
            }
        }
        pthread_mutex_unlock(&file->lock);
        return NULL;
    }

    static int seg_append_by_threads(int fd, const void *batch, size_t size, off_t position, int threads, int appends)
    {
        SharedFile file = {.fd = fd, .appends = appends, .batch = batch, .size = size, .position = position};
        pthread_t started[64];
        int count = 0;
        pthread_mutex_init(&file.lock, NULL);
        pthread_cond_init(&file.changed, NULL);
        while (count < threads && count < 64 && !pthread_create(&started[count], NULL, seg_append_durably, &file))
            count++;
        for (int n = 0; n < count; n++)
            pthread_join(started[n], NULL);
        return count == threads ? file.failed : 1;
    }
    """
    int seg_append_by_threads(int fd, const void* batch, size_t size, long position, int threads, int appends)


cdef class SharedSyncFloor:
    """SharedSyncFloor(path): C threads append the same batch to a new file, each append durable before the next."""
    cdef int fd
    cdef int64_t position

    def __cinit__(self, bytes path not None):
        self.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o644)
        if self.fd < 0:
            raise OSError(f"cannot create {path!r}")

    def append(self, bytes batch not None, int threads, int appends):
        """`appends` by each of so many threads."""
        cdef const char* data = PyBytes_AS_STRING(batch)
        cdef size_t size = PyBytes_GET_SIZE(batch)
        cdef int failed
        with nogil:
            failed = seg_append_by_threads(self.fd, data, size, self.position, threads, appends)
        if failed:
            raise OSError("a thread could not append")
        self.position += <int64_t>size * threads * appends

    def close(self):
        """Close the file."""
        close_fd(self.fd)
        self.fd = -1
