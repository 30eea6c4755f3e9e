"""Delayed messages: which of them are due, kept in buckets whose snapshots are Pulsar's, byte for byte.

This room knows (ledger_id, entry_id, deliver_at), a clock and a storage interface, nothing else. What ledgers are,
who reads and who dispatches is the business of the rooms above.
"""
