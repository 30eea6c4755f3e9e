"""How Kafka's tools print JSON and ids."""
import json
from base64 import urlsafe_b64encode
from typing import Any


def json_text(form: Any) -> str:
    """JSON without spaces, in Unicode."""
    return json.dumps(form, ensure_ascii=False, separators=(",", ":"))


def uuid_text(uuid: bytes) -> str:
    """The 16 bytes in base64 for URLs, without padding."""
    return urlsafe_b64encode(uuid).decode().rstrip("=")
