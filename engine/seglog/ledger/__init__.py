"""Pulsar's half: entries, and the ledgers that hold them."""
