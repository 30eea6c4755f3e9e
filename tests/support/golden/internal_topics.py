"""Records of Kafka's internal topics as we decode them, and log dirs of KRaft brokers with Kafka's own answers."""
import json
from functools import cache
from pathlib import Path

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import ProtocolError, UnsupportedVersionError
from seglog.format.compression import decompressor
from seglog.wire.internal_topics import InternalRecords
from seglog.wire.json_text import json_text
from support.golden import unpack

KRAFT_VERSIONS = ("3.9.1", "4.1.1", "4.4.0")


def kraft(version: str) -> Path:
    """The log dir of a broker that was killed."""
    return unpack("kraft") / version / "data"


@cache
def kraft_answers(version: str) -> dict:
    """`groups` and `topics`, as the broker's own clients said."""
    return json.loads((unpack("kraft") / version / "expected.json").read_text())


def cluster(when: str, broker: int) -> Path:
    """The log dir of one of three brokers, `before` they followed their leaders again after unclean elections, or
    `after`."""
    return unpack("cluster") / when / str(broker) / "data"


@cache
def cluster_answers() -> dict:
    """What the clients of those brokers said, and where the brokers cut their logs: make_cluster.py."""
    return json.loads((unpack("cluster") / "expected.json").read_text())


@cache
def kraft_said(version: str) -> dict[str, dict[int, tuple[str | None, str | None]]]:
    """What kafka-dump-log says of each file of an internal topic: by offset, key and payload."""
    answers = json.loads((unpack("kraft") / version / "internal.json").read_text())
    return {file: {int(n): tuple(row) for n, row in rows.items()} for file, rows in answers.items()}


def records_in(file: Path):
    """The data records of a .log or a .checkpoint."""
    for batch in scan(Window(file.read_bytes()), check_crc=True, decompress=decompressor()):
        if not batch.is_control:
            yield from batch


def said_by_us(topic: str, file: Path) -> dict[int, tuple[str | None, str | None]]:
    """The same by us; "raw" for what does not decode."""
    decode = InternalRecords.of(topic)
    return {record.offset: (_key(decode, record), _value(decode, record)) for record in records_in(file)}


def _key(decode, record):
    return None if record.key is None else _text(lambda: decode.key(record.key))


def _value(decode, record):
    return "<DELETE>" if record.value is None else _text(lambda: decode.value(record.key, record.value))


def _text(form):
    try:
        return json_text(form())
    except (ProtocolError, UnsupportedVersionError):
        return "raw"
