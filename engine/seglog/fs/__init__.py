"""The only room that changes files: all changes go through it.

files     FileSystem: every change, one method each; OsFileSystem: this machine's
aside     write_atomically, shorten, make_directories: changes of one file that a crash leaves done or not done
removal   remove_tree: whole directories, never out of their root
staging   Staging: a directory that becomes its target as a whole or not at all
mapping   Mapping: a file's bytes, read-only, valid as long as a view of them lives
lock      lock_log_dir, lock_partition: Kafka's kind of lock, and ours; turns: one after the other; is_locked only looks
refusals  errors of the operating system, in words

docs/durability.md says what is assumed of the operating system.
"""
