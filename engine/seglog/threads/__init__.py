"""What the threads of a process share: the write gate, the sync thread, queues, background work, maintenance."""
