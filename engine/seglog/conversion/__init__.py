"""Converts partition directories to another record format, with a proof that no record changed."""
