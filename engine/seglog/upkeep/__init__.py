"""What keeps a directory in order: recovery by hand, indexes made from the log."""
