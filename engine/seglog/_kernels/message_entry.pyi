from typing_extensions import Buffer

def encode_message(
    producer_name: bytes,
    sequence_id: int,
    publish_time: int,
    deliver_at_time: int | None,
    key: bytes | None,
    is_key_base64: bool,
    properties: list[tuple[bytes, bytes]] | None,
    value: Buffer,
) -> bytes: ...
