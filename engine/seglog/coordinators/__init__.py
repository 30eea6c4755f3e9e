"""Kafka's coordinators of groups and transactions: state machines without sockets."""
