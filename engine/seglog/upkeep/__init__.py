"""Maintains directories: retention, compaction, recovery by hand, rebuilding indexes."""
