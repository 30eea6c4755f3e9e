"""Kafka's bytes that are no record formats: the protocol's tables, messages, coders and error codes. No sockets."""
