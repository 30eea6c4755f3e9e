"""The Pulsar side: entries, and the ledgers that store them."""
