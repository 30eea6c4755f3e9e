"""One .log with its indexes: everything that a log and a ledger share."""
