"""Kafka's protocol over sockets: one node on a log dir, for tests, laptops and the edge. docs/serve.md."""
