"""The golden entries, and Pulsar's own reading of them."""
import json
from functools import cache

from support.delayed import stream
from support.golden import unpack

DAMAGED = {"corrupt-payload-crc", "empty-broker-metadata"}


@cache
def golden_entries() -> list[tuple[bytes, dict]]:
    """(entry, what PulsarOracle says of it), 287 of them."""
    says = [json.loads(line) for line in (unpack("pulsar") / "entries.jsonl").read_text().splitlines()]
    return list(zip(stream(unpack("pulsar") / "entries.bin"), says, strict=True))


def named(case: str) -> bytes:
    """The first golden entry whose case begins with `case`."""
    return next(entry for entry, says in golden_entries() if says["case"].startswith(case))
