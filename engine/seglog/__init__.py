"""seglog: the storage engine of a message log, byte-compatible with Kafka and Pulsar."""
from seglog import errors
from seglog._version import __version__
from seglog.errors import SeglogError

__all__ = ["SeglogError", "__version__", "errors"]
