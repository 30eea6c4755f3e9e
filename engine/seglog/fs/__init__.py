"""The only room that touches the operating system to change something.

files     FileSystem: every change, one method each; OsFileSystem: this machine's
aside     write_atomically, shorten, make_directories: changes of one file that a crash leaves done or not done
staging   Staging: a directory that becomes its target as a whole or not at all
mapping   Mapping: a file's bytes, read-only, alive as long as a view of them
lock      lock_log_dir, lock_partition: Kafka's kind of lock, and ours; turns: one after the other; is_locked only looks
refusals  what the operating system refuses, in words

What is assumed of the system below: docs/durability.md.
"""
