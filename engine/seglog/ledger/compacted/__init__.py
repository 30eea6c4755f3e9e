"""Compacted ledgers of a topic, and the batches within them."""
