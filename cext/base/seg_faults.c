/* See seg_faults.h. */
#define _GNU_SOURCE
#include "seg_faults.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

typedef struct {
    uintptr_t start;            /* 0: unused. Written last, and cleared first */
    uintptr_t end;
    int is_torn;
    int next_free;
} seg_watched;

static seg_watched maps[SEG_WATCHED_MAX];
static int maps_used = 0;       /* the slots that were ever in use */
static int first_free = -1;
static const int never_torn = 0;
static struct sigaction before; /* ours */
static int is_passing_on = 0;
static uintptr_t page_size = 0;

static int put_zeros(uintptr_t address)
{
    uintptr_t start, end, page;
    int slot, used = __atomic_load_n(&maps_used, __ATOMIC_ACQUIRE);
    for (slot = 0; slot < used; slot++) {
        start = __atomic_load_n(&maps[slot].start, __ATOMIC_ACQUIRE);
        if (start == 0 || address < start)
            continue;
        end = __atomic_load_n(&maps[slot].end, __ATOMIC_ACQUIRE);
        /* The map that faults stays in its slot; any other slot may be reused between these loads. */
        if (address >= end || __atomic_load_n(&maps[slot].start, __ATOMIC_ACQUIRE) != start)
            continue;
        page = address & ~(page_size - 1);
        /* The flag first: a reader that finds a zero then finds the flag set. */
        __atomic_store_n(&maps[slot].is_torn, 1, __ATOMIC_SEQ_CST);
        return mmap((void *)page, end - page, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            != MAP_FAILED;
    }
    return 0;
}

/* End as without any handler: the fault is repeated, or the signal sent again. */
static void give_up(int number, const siginfo_t *info)
{
    struct sigaction nothing;
    memset(&nothing, 0, sizeof nothing);
    nothing.sa_handler = SIG_DFL;
    sigaction(number, &nothing, NULL);
    if (info->si_code <= 0)
        raise(number);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    if (info->si_code > 0 && put_zeros((uintptr_t)info->si_addr)) {
        errno = saved;
        return;
    }
    /* The handler before may have been put over ours, and would pass the signal to us again: faulthandler does. */
    if (__atomic_exchange_n(&is_passing_on, 1, __ATOMIC_SEQ_CST)) {
        give_up(number, info);
        return;
    }
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler == SIG_IGN && info->si_code <= 0)
        ;
    else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)
        give_up(number, info);
    else
        before.sa_handler(number);
    __atomic_store_n(&is_passing_on, 0, __ATOMIC_SEQ_CST);
    errno = saved;
}

int seg_faults_install(void)
{
    struct sigaction now, ours;
    if (sigaction(SIGBUS, NULL, &now) != 0)
        return -1;
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault)
        return 0;
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_fault;
    /* NODEFER: a handler that sends the signal again must get it at once, while we know that we called it. */
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    before = now;
    return sigaction(SIGBUS, &ours, NULL);
}

int seg_faults_watch(void *pages, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    int slot = first_free;
    if (slot >= 0)
        first_free = maps[slot].next_free;
    else if (maps_used < SEG_WATCHED_MAX)
        slot = maps_used;
    else
        return -1;
    maps[slot].is_torn = 0;
    __atomic_store_n(&maps[slot].end, ((uintptr_t)pages + size + page - 1) & ~(page - 1), __ATOMIC_RELEASE);
    __atomic_store_n(&maps[slot].start, (uintptr_t)pages, __ATOMIC_RELEASE);
    if (slot == maps_used)
        __atomic_store_n(&maps_used, slot + 1, __ATOMIC_RELEASE);
    return slot;
}

void seg_faults_forget(int slot)
{
    if (slot < 0)
        return;
    __atomic_store_n(&maps[slot].start, 0, __ATOMIC_SEQ_CST);
    maps[slot].next_free = first_free;
    first_free = slot;
}

const int *seg_faults_flag(int slot)
{
    return slot < 0 ? &never_torn : &maps[slot].is_torn;
}
