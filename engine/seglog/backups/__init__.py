"""What a backup store holds, and how it is read: objects, manifests, and the files of a snapshot.

docs/formats/backup.md. `archive/` makes, checks and restores backups.
"""
