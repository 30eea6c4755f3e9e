"""Delayed messages: which of them are due, kept in buckets whose snapshots are byte-compatible with Pulsar's.

This room knows only (ledger_id, entry_id, deliver_at), a clock and a storage interface. Ledgers, readers and
dispatchers belong to the rooms above.
"""
