from collections.abc import Iterable

def encode_record(
    kind: int,
    items: Iterable[tuple[int, int, int, int]],
    at_ms: int,
    holder: int,
    text: bytes,
    journal_id: int,
    position: int,
    synced_to: int,
    subscription: int = 0,
) -> bytes: ...
