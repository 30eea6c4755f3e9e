"""Finds what is wrong with a partition directory, a log dir or a ledger; never changes anything."""
