/* Records what a process asks the kernel to change below one directory, and makes chosen calls fail.
 *
 *     LD_PRELOAD=recorder.so OUTSIDE_ROOT=/disk OUTSIDE_RECORD=/elsewhere/record OUTSIDE_NOTES=/elsewhere/notes worker
 *
 * It begins with a call of outside_begin(): a process that is there already may be one to record (fork_server.py).
 *
 * The record is a row of `struct head`, each followed by two paths and data (recording.py reads it). It is the one order
 * of everything: the call and its entry in the record are made under one mutex. A sync has two entries, one for its begin
 * and one for its end, and no mutex between them: what is written meanwhile is not covered by it. What the process writes
 * to OUTSIDE_NOTES is an entry as well: so the record says which changes came before an acknowledgement.
 *
 * OUTSIDE_SYNC_DELAY_US: a sync takes that much longer. OUTSIDE_WRITE_DELAY_US: a write lands that much later than it is
 * called, and a sync that begins meanwhile does not cover it.
 *
 * OUTSIDE_FAULTS holds faults, separated by ';':  CALL PATTERN NTH ACTION ERRNO SPAN
 *     CALL     write, sync, create, rename, link, unlink, mkdir, rmdir, truncate, allocate, or any
 *     PATTERN  a shell pattern for the path below the root
 *     NTH      which of the calls that match, from 1
 *     ACTION   fail, short (half of a write is done, and half is returned), half (the same, and the next write of that
 *              file fails), ignore (a sync does nothing and says nothing: for tests of this harness), kill (SIGKILL)
 *     SPAN     once, or on: every later call that matches fails, too
 *
 * Every wrapper makes the system call itself, so nothing depends on the order in which libraries are found. Changes by
 * calls that are not here (sendfile, a writable map ...) are found at the end: disk.py compares its tree with the real one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

struct head {
    uint32_t size;              /* of the whole entry */
    uint32_t thread;
    int32_t result;             /* 0, or the errno that the caller got */
    uint16_t path_size, other_size;
    uint64_t inode;
    int64_t position;           /* of a write; a length; the number of a sync; the flags of a rename */
    uint32_t data_size;
    uint8_t op;                 /* see recording.py */
    uint8_t is_directory;
    uint8_t pad[2];
};

struct fault {
    char call[16], pattern[PATH_MAX], action[16], span[8];
    long nth, seen;
    int number;                 /* errno */
    uint64_t next_inode;        /* action half: the next write of this file fails */
};

#define FAULTS_MAX 8
static struct fault faults[FAULTS_MAX];
static int fault_count;
static char root[PATH_MAX], notes[PATH_MAX];
static size_t root_size;
static int record_fd = -1;
static long sync_delay_us, write_delay_us;
static int64_t sync_number;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void put(uint8_t op, int result, const char *path, const char *other, uint64_t inode, int is_directory,
                int64_t position, const struct iovec *data, int count, size_t data_size);

/* Begin to record: until this is called, every call goes to the system as it came. */
PUBLIC void outside_begin(void)
{
    const char *record = getenv("OUTSIDE_RECORD"), *delay = getenv("OUTSIDE_SYNC_DELAY_US");
    const char *spec = getenv("OUTSIDE_FAULTS");
    if (!record || !getenv("OUTSIDE_ROOT"))
        return;
    snprintf(root, sizeof root, "%s/", getenv("OUTSIDE_ROOT"));
    root_size = strlen(root);
    snprintf(notes, sizeof notes, "%s", getenv("OUTSIDE_NOTES") ? getenv("OUTSIDE_NOTES") : "");
    sync_delay_us = delay ? atol(delay) : 0;
    delay = getenv("OUTSIDE_WRITE_DELAY_US");
    write_delay_us = delay ? atol(delay) : 0;
    for (; spec && *spec && fault_count < FAULTS_MAX; fault_count++) {
        struct fault *f = &faults[fault_count];
        if (sscanf(spec, "%15s %4095s %ld %15s %d %7s", f->call, f->pattern, &f->nth, f->action, &f->number, f->span) != 6)
            _exit(97);
        spec = strchr(spec, ';');
        spec = spec ? spec + 1 : "";
    }
    record_fd = (int)syscall(SYS_openat, AT_FDCWD, record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (record_fd < 0)
        _exit(98);
    /* Out of the way: a test may count descriptors, and the worker may close low ones. */
    int high = fcntl(record_fd, F_DUPFD_CLOEXEC, 800);
    if (high >= 0) {
        syscall(SYS_close, record_fd);
        record_fd = high;
    }
    put('P', 0, NULL, NULL, 0, 0, 0, NULL, 0, 0);
}

static void put(uint8_t op, int result, const char *path, const char *other, uint64_t inode, int is_directory,
                int64_t position, const struct iovec *data, int count, size_t data_size)
{
    int saved = errno;
    struct head head = {
        .thread = (uint32_t)syscall(SYS_gettid), .result = result, .path_size = (uint16_t)(path ? strlen(path) : 0),
        .other_size = (uint16_t)(other ? strlen(other) : 0), .inode = inode, .position = position,
        .data_size = (uint32_t)data_size, .op = op, .is_directory = (uint8_t)is_directory,
    };
    head.size = (uint32_t)(sizeof head + head.path_size + head.other_size + data_size);
    char *entry = malloc(head.size), *at = entry;
    if (!entry)
        _exit(96);
    at = (char *)memcpy(at, &head, sizeof head) + sizeof head;
    at = (char *)memcpy(at, path ? path : "", head.path_size) + head.path_size;
    at = (char *)memcpy(at, other ? other : "", head.other_size) + head.other_size;
    for (int i = 0; i < count && data_size; i++) {
        size_t n = data[i].iov_len < data_size ? data[i].iov_len : data_size;
        at = (char *)memcpy(at, data[i].iov_base, n) + n;
        data_size -= n;
    }
    if (syscall(SYS_write, record_fd, entry, head.size) != (long)head.size)
        _exit(95);
    free(entry);
    errno = saved;
}

/* --- what a call is about ----------------------------------------------------------------- */

static int below_root(const char *path)
{
    return record_fd >= 0 && strncmp(path, root, root_size) == 0;
}

/* The path of a descriptor, as the kernel knows it now. */
static int path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = 0;
    return size > 0;
}

static int absolute(int dirfd, const char *path, char *out)
{
    char above[PATH_MAX];
    if (path[0] == '/')
        return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX;
    if (dirfd == AT_FDCWD ? syscall(SYS_getcwd, above, sizeof above) <= 0 : !path_of(dirfd, above))
        return 0;
    return snprintf(out, PATH_MAX, "%s/%s", above, path) < PATH_MAX;
}

static int watched(int fd, char *path, struct stat *status)
{
    if (record_fd < 0 || fd == record_fd || !path_of(fd, path))
        return 0;
    if (!below_root(path) && strncmp(path, root, root_size - 1) != 0)
        return 0;
    if (strlen(path) == root_size - 1 ? 0 : !below_root(path))
        return 0;
    int saved = errno;
    int good = fstat(fd, status) == 0;
    errno = saved;
    return good;
}

/* The fault that this call has; counts. Under the mutex. */
static struct fault *fault_of(const char *call, const char *path, uint64_t inode)
{
    struct fault *found = NULL;
    for (int i = 0; i < fault_count; i++) {
        struct fault *f = &faults[i];
        if (f->next_inode && f->next_inode == inode && strcmp(call, "write") == 0) {
            f->next_inode = 0;
            static struct fault next = {.action = "fail"};
            next.number = f->number;
            return &next;
        }
        if (strcmp(f->call, "any") != 0 && strcmp(f->call, call) != 0)
            continue;
        if (fnmatch(f->pattern, strlen(path) < root_size ? "" : path + root_size, 0) != 0)
            continue;
        f->seen++;
        if (f->seen == f->nth || (f->seen > f->nth && strcmp(f->span, "on") == 0))
            found = f;
    }
    if (found && strcmp(found->action, "kill") == 0)
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    return found;
}

static int is(const struct fault *fault, const char *action)
{
    return fault && strcmp(fault->action, action) == 0;
}

static int refuse(const struct fault *fault, const char *call, const char *path)
{
    struct iovec what = {(void *)call, strlen(call)};
    put('F', fault->number, path, NULL, 0, 0, 0, &what, 1, what.iov_len);
    errno = fault->number;
    return -1;
}

/* --- bytes ---------------------------------------------------------------------------------- */

static ssize_t raw_write(int fd, const struct iovec *pieces, int count, int64_t position)
{
    return position < 0 ? syscall(SYS_writev, fd, pieces, count) : syscall(SYS_pwritev, fd, pieces, count, position, 0);
}

/* position < 0: where the descriptor stands. */
static ssize_t recorded_write(int fd, const struct iovec *pieces, int count, int64_t position)
{
    char path[PATH_MAX];
    struct stat status;
    if (record_fd >= 0 && fd > 2 && path_of(fd, path) && notes[0] && strcmp(path, notes) == 0) {
        size_t size = 0;
        for (int i = 0; i < count; i++)
            size += pieces[i].iov_len;
        pthread_mutex_lock(&mutex);
        ssize_t written = raw_write(fd, pieces, count, position);
        put('N', 0, NULL, NULL, 0, 0, 0, pieces, count, size);
        pthread_mutex_unlock(&mutex);
        return written;
    }
    if (!watched(fd, path, &status) || !S_ISREG(status.st_mode))
        return raw_write(fd, pieces, count, position);
    if (write_delay_us)
        usleep((useconds_t)write_delay_us);
    pthread_mutex_lock(&mutex);
    struct fault *fault = fault_of("write", path, status.st_ino);
    if (fault && !is(fault, "short") && !is(fault, "half") && !is(fault, "ignore")) {
        int result = refuse(fault, "write", path);
        pthread_mutex_unlock(&mutex);
        return result;
    }
    struct iovec half[1];
    if (fault && !is(fault, "ignore") && count > 0 && pieces[0].iov_len > 1) {
        half[0] = (struct iovec){pieces[0].iov_base, pieces[0].iov_len / 2};
        pieces = half;
        count = 1;
        if (is(fault, "half"))
            fault->next_inode = status.st_ino;
    }
    int64_t begin = position;
    if (position < 0) {
        fstat(fd, &status);
        begin = fcntl(fd, F_GETFL) & O_APPEND ? status.st_size : syscall(SYS_lseek, fd, 0L, SEEK_CUR);
    }
    ssize_t written = raw_write(fd, pieces, count, position);
    if (written > 0)
        put('W', 0, path, NULL, status.st_ino, 0, begin, pieces, count, (size_t)written);
    pthread_mutex_unlock(&mutex);
    return written;
}

PUBLIC ssize_t write(int fd, const void *data, size_t size)
{
    struct iovec piece = {(void *)data, size};
    return record_fd < 0 ? syscall(SYS_write, fd, data, size) : recorded_write(fd, &piece, 1, -1);
}

PUBLIC ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    return recorded_write(fd, pieces, count, -1);
}

PUBLIC ssize_t pwrite64(int fd, const void *data, size_t size, off64_t position)
{
    struct iovec piece = {(void *)data, size};
    return recorded_write(fd, &piece, 1, position);
}

PUBLIC ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t position)
{
    return recorded_write(fd, pieces, count, position);
}

PUBLIC ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t position, int flags)
{
    (void)flags;
    return recorded_write(fd, pieces, count, position);
}

PUBLIC ssize_t pwrite(int fd, const void *data, size_t size, off_t position)
{
    return pwrite64(fd, data, size, position);
}

PUBLIC ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t position)
{
    return recorded_write(fd, pieces, count, position);
}

PUBLIC ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t position, int flags)
{
    (void)flags;
    return recorded_write(fd, pieces, count, position);
}

PUBLIC int ftruncate64(int fd, off64_t size)
{
    char path[PATH_MAX];
    struct stat status;
    if (!watched(fd, path, &status))
        return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&mutex);
    struct fault *fault = fault_of("truncate", path, status.st_ino);
    int result = fault ? refuse(fault, "truncate", path) : (int)syscall(SYS_ftruncate, fd, size);
    if (result == 0)
        put('T', 0, path, NULL, status.st_ino, 0, size, NULL, 0, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}

PUBLIC int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

static int allocate(int fd, int mode, off64_t position, off64_t size)
{
    char path[PATH_MAX];
    struct stat status;
    if (!watched(fd, path, &status))
        return (int)syscall(SYS_fallocate, fd, mode, position, size);
    pthread_mutex_lock(&mutex);
    struct fault *fault = fault_of("allocate", path, status.st_ino);
    int result = fault ? refuse(fault, "allocate", path) : (int)syscall(SYS_fallocate, fd, mode, position, size);
    if (result == 0 && !(mode & 1 /* FALLOC_FL_KEEP_SIZE */) && position + size > status.st_size)
        put('T', 0, path, NULL, status.st_ino, 0, position + size, NULL, 0, 0);
    if (result == 0 && (mode & ~1))
        put('X', 0, path, NULL, status.st_ino, 0, mode, NULL, 0, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}

PUBLIC int fallocate64(int fd, int mode, off64_t position, off64_t size)
{
    return allocate(fd, mode, position, size);
}

PUBLIC int fallocate(int fd, int mode, off_t position, off_t size)
{
    return allocate(fd, mode, position, size);
}

PUBLIC int posix_fallocate64(int fd, off64_t position, off64_t size)
{
    int saved = errno, number = allocate(fd, 0, position, size) == 0 ? 0 : errno;
    errno = saved;
    return number;
}

PUBLIC int posix_fallocate(int fd, off_t position, off_t size)
{
    return posix_fallocate64(fd, position, size);
}

/* --- syncs ------------------------------------------------------------------------------------ */

static int synced(int fd, long call)
{
    char path[PATH_MAX];
    struct stat status;
    if (!watched(fd, path, &status))
        return (int)syscall(call, fd);
    int is_directory = S_ISDIR(status.st_mode);
    pthread_mutex_lock(&mutex);
    struct fault *fault = fault_of("sync", path, status.st_ino);
    int ignored = is(fault, "ignore"), number = fault && !ignored ? fault->number : 0;
    int64_t mine = ++sync_number;
    if (!ignored)
        put('S', 0, path, NULL, status.st_ino, is_directory, mine, NULL, 0, 0);
    pthread_mutex_unlock(&mutex);
    if (number == 0 && syscall(call, fd) != 0)
        number = errno;
    if (sync_delay_us)
        usleep((useconds_t)sync_delay_us);
    pthread_mutex_lock(&mutex);
    if (!ignored)
        put('E', number, path, NULL, status.st_ino, is_directory, mine, NULL, 0, 0);
    pthread_mutex_unlock(&mutex);
    errno = number ? number : errno;
    return number ? -1 : 0;
}

PUBLIC int fsync(int fd)
{
    return synced(fd, SYS_fsync);
}

PUBLIC int fdatasync(int fd)
{
    return synced(fd, SYS_fdatasync);
}

/* --- names ------------------------------------------------------------------------------------ */

static uint64_t inode_at(const char *path, int *is_directory)
{
    struct stat status;
    int saved = errno, found = lstat(path, &status) == 0;
    errno = saved;
    if (is_directory)
        *is_directory = found && S_ISDIR(status.st_mode);
    return found ? status.st_ino : 0;
}

static int opened(int dirfd, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    if (record_fd < 0 || !(flags & (O_CREAT | O_TRUNC)) || !absolute(dirfd, name, path) || !below_root(path))
        return (int)syscall(SYS_openat, dirfd, name, flags, mode);
    pthread_mutex_lock(&mutex);
    uint64_t before = inode_at(path, NULL);
    struct fault *fault = before && !(flags & O_TRUNC) ? NULL : fault_of("create", path, 0);
    int fd = fault ? refuse(fault, "create", path) : (int)syscall(SYS_openat, dirfd, name, flags, mode);
    if (fd >= 0) {
        uint64_t inode = inode_at(path, NULL);
        if (!before)
            put('C', 0, path, NULL, inode, 0, 0, NULL, 0, 0);
        else if (flags & O_TRUNC)
            put('T', 0, path, NULL, inode, 0, 0, NULL, 0, 0);
    }
    pthread_mutex_unlock(&mutex);
    return fd;
}

#define MODE_OF(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

PUBLIC int open64(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}

PUBLIC int open(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}

PUBLIC int openat64(int dirfd, const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(dirfd, path, flags, mode);
}

PUBLIC int openat(int dirfd, const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(dirfd, path, flags, mode);
}

/* One change of names: `op` as in the record, `call` as in a fault. */
static int named(uint8_t op, const char *call, int dirfd, const char *name, int other_dirfd, const char *other, long flags)
{
    char path[PATH_MAX], target[PATH_MAX] = "";
    int is_directory = 0, result = -1, known = record_fd >= 0 && absolute(dirfd, name, path);
    if (known && other)
        known = absolute(other_dirfd, other, target);
    int recorded = known && (below_root(path) || (other && below_root(target)));
    if (recorded)
        pthread_mutex_lock(&mutex);
    uint64_t inode = recorded ? inode_at(path, &is_directory) : 0;
    struct fault *fault = recorded ? fault_of(call, path, inode) : NULL;
    if (fault)
        refuse(fault, call, path);
    else if (op == 'R')
        result = (int)syscall(SYS_renameat2, dirfd, name, other_dirfd, other, flags);
    else if (op == 'L')
        result = (int)syscall(SYS_linkat, dirfd, name, other_dirfd, other, flags);
    else if (op == 'U')
        result = (int)syscall(SYS_unlinkat, dirfd, name, flags);
    else if (op == 'M')
        result = (int)syscall(SYS_mkdirat, dirfd, name, flags);
    else
        result = (int)syscall(SYS_symlinkat, name, other_dirfd, other);
    if (recorded && result == 0) {
        if (op == 'M')
            inode = inode_at(path, &is_directory);
        put(op, 0, path, target, inode, is_directory, op == 'R' ? flags : 0, NULL, 0, 0);
    }
    if (recorded)
        pthread_mutex_unlock(&mutex);
    return result;
}

PUBLIC int renameat2(int dirfd, const char *name, int other_dirfd, const char *other, unsigned flags)
{
    return named('R', "rename", dirfd, name, other_dirfd, other, flags);
}

PUBLIC int renameat(int dirfd, const char *name, int other_dirfd, const char *other)
{
    return named('R', "rename", dirfd, name, other_dirfd, other, 0);
}

PUBLIC int rename(const char *name, const char *other)
{
    return named('R', "rename", AT_FDCWD, name, AT_FDCWD, other, 0);
}

PUBLIC int linkat(int dirfd, const char *name, int other_dirfd, const char *other, int flags)
{
    return named('L', "link", dirfd, name, other_dirfd, other, flags);
}

PUBLIC int link(const char *name, const char *other)
{
    return named('L', "link", AT_FDCWD, name, AT_FDCWD, other, 0);
}

PUBLIC int unlinkat(int dirfd, const char *name, int flags)
{
    return named('U', flags & AT_REMOVEDIR ? "rmdir" : "unlink", dirfd, name, AT_FDCWD, NULL, flags);
}

PUBLIC int unlink(const char *name)
{
    return named('U', "unlink", AT_FDCWD, name, AT_FDCWD, NULL, 0);
}

PUBLIC int rmdir(const char *name)
{
    return named('U', "rmdir", AT_FDCWD, name, AT_FDCWD, NULL, AT_REMOVEDIR);
}

PUBLIC int mkdirat(int dirfd, const char *name, mode_t mode)
{
    return named('M', "mkdir", dirfd, name, AT_FDCWD, NULL, mode);
}

PUBLIC int mkdir(const char *name, mode_t mode)
{
    return named('M', "mkdir", AT_FDCWD, name, AT_FDCWD, NULL, mode);
}
