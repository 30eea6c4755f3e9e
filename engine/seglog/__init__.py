"""seglog: the storage engine of a message log, byte-compatible with Kafka and Pulsar.

    import seglog

    with seglog.open("data/orders-0") as log:
        offset = log.append(b"value", key=b"key")
        for record in log.read(since="-2h"):
            print(record.offset, record.timestamp, record.key, record.value, record.headers)

The public names are those of this package and of `seglog.aio`, `seglog.errors`, `seglog.kombu`, `seglog.metrics`,
`seglog.polars`, `seglog.pulsar`, `seglog.spark` and `seglog.testing`; the other packages hold the implementation.
`__init__.pyi` lists them. Each is imported when it is first used, so that `import seglog` costs next to nothing.
"""
from seglog._public import lazy_names
from seglog._version import __version__ as __version__

__getattr__, __dir__ = lazy_names(__name__, f"{__path__[0]}/__init__.pyi")
del lazy_names
