"""A topic as its consumers see it: what is delivered to whom, and when."""
