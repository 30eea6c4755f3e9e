"""A topic as its consumers see it: which messages they get, and when."""
