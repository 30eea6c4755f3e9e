"""A message as JSON, as Kafka's own converters write it: names in camel case, bytes in base64, uuids as Kafka has them.

A field that the version lacks is left out, and so is a tagged field that has its default.
"""
from binascii import b2a_base64
from typing import Any

from seglog.wire.definitions import Field
from seglog.wire.json_text import uuid_text
from seglog.wire.structs import KafkaMessage, KafkaStruct, fields


def json_form(message: KafkaMessage, version: int) -> dict[str, Any]:
    """The message as a dict that `json_text` can write."""
    return _struct(message, message, version, version >= message.FLEXIBLE_FROM)


def _struct(message: KafkaMessage, struct: KafkaStruct, version: int, is_flexible: bool) -> dict[str, Any]:
    form = {}
    for field in fields(type(struct)):
        if version not in field.versions:
            continue
        value = getattr(struct, field.attribute)
        if is_flexible and field.tag is not None and value == _default(message, field):
            continue
        form[field.name[0].lower() + field.name[1:]] = _value(message, field, value, version, is_flexible)
    return form


def _default(message: KafkaMessage, field: Field) -> Any:
    return getattr(type(message), field.type)() if field.is_null_or_struct else field.default_value()


def _value(message: KafkaMessage, field: Field, value: Any, version: int, is_flexible: bool) -> Any:
    if value is None:
        return None
    if field.is_list:
        return [_value(message, field.element, one, version, is_flexible) for one in value]
    if field.is_struct:
        return _struct(message, value, version, is_flexible)
    if field.type == "bytes":
        return b2a_base64(value, newline=False).decode()
    if field.type == "uuid":
        return uuid_text(value)
    return value
