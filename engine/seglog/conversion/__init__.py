"""Partition directories from one record format to another, with a proof that no record changed."""
