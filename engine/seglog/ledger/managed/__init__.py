"""Managed ledgers: a topic's ledgers, its manifest and its cursors."""
