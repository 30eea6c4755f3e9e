/* What a load from a map does when the file has no such bytes any more: zeros, and a flag, instead of SIGBUS.

   Another process may truncate a mapped file (a broker, its follower's log), and a disk may fail to give a page. A
   handler of SIGBUS then puts zeros from that page to the end of the map, and sets the map's flag; the load is repeated
   and goes on. The reader looks at the flag before it believes what it read. There is no longjmp, so that no reader is
   left in the middle. Every other SIGBUS goes to the handler that was there before.

   The handler uses no lock and no memory of others: maps are in a table of fixed size, whose entries are read with
   atomic loads. It calls mmap, sigaction and raise only: system calls. The GIL guards all other functions. */
#ifndef SEG_FAULTS_H
#define SEG_FAULTS_H

#include <stddef.h>

/* As many maps as Linux gives a process (vm.max_map_count). Any further one is not watched. */
#define SEG_WATCHED_MAX 65536

/* Make ours the handler of SIGBUS, unless it is; the one that it replaces is called for all other faults. Others may
   have replaced it: call this before each map. Returns 0, or -1 with errno. */
int seg_faults_install(void);

/* Watch the pages of a map. Returns its slot; -1: there is none, and it is not watched. */
int seg_faults_watch(void *pages, size_t size);

/* Before the pages are unmapped. */
void seg_faults_forget(int slot);

/* Not zero: some bytes of the map were not there. Valid until seg_faults_forget. */
const int *seg_faults_flag(int slot);

#endif
