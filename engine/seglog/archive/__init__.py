"""Backups of logs and log dirs: incremental, checked, restored as of a moment. docs/backup.md tells how to use them,
docs/formats/backup.md what is stored.
"""
