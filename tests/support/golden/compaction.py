"""The golden topics, and what Pulsar's compactors made of them."""
import json
from functools import cache

from seglog.ledger.compacted.raw_message import read_raw_message
from seglog.ledger.entry import Entry
from seglog.ledger.entry_fields import entry_fields
from support.delayed import stream
from support.golden import unpack

TOPICS = range(5)
# Bytes that depend on the version of the codec's library: those records are compared decoded.
LIBRARY_CODECS = {"LZ4", "ZSTD", "SNAPPY"}


@cache
def golden_topic(name):
    """(records, what is said of each, the summary or None) of `topic0.in`, `topic0.new.drop` ..."""
    path = unpack("pulsar") / f"{name}.bin"
    says = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    summary = says.pop(0) if says[0].get("summary") else None
    records = stream(path)
    assert len(records) == len(says)
    return records, says, summary


def every_golden_record():
    """(record, what is said of it) of all topics and all compacted ledgers."""
    for topic in TOPICS:
        for kind in ("in", "new.retain", "new.drop", "old.retain", "old.drop"):
            records, says, _ = golden_topic(f"topic{topic}.{kind}")
            yield from zip(records, says, strict=True)


def decoded(record):
    """All that a record says but how it is compressed."""
    position, data = read_raw_message(record)
    fields = entry_fields(Entry(data))
    for name in ("size", "checksum", "payload_size", "payload_offset"):
        fields.pop(name, None)
    return position, fields
