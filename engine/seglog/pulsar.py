"""Pulsar's storage: managed ledgers and their cursors, entries, delayed delivery, compacted topics.

    from seglog import pulsar

    with pulsar.ManagedLedger("topics/orders") as topic:
        cursor = topic.open_cursor("billing", initial="earliest")
        for entry in cursor.read():
            cursor.ack(entry.position)

`pulsar.pyi` lists the public names. Each is imported when it is first used.
"""
from seglog._public import lazy_names

__getattr__, __dir__ = lazy_names(__name__, f"{__file__.removesuffix('.py')}.pyi")
del lazy_names
