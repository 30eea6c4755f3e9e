"""Opening a log after a crash: the loader, the replay of its records, which indexes are trusted."""
