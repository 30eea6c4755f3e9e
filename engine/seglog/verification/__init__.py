"""What is wrong with a partition directory, a log dir or a ledger: found and named, never changed."""
