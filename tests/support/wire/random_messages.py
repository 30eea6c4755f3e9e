"""Messages with random values in all the fields that a version has."""

from seglog.wire.definitions import INTEGERS
from seglog.wire.structs import fields

INTEGER_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
WORDS = ["", "a", "topic", "größe", "\U0001f40d", "x" * 130, "y" * 300]


def random_message(rnd, message, version, length=3):
    """A message whose lists have up to `length` elements. A field that may be null is so one time in four."""
    return _struct(rnd, message, message, version, length)


def _struct(rnd, message, struct, version, length):
    made = struct()
    for field in fields(struct):
        if version in field.versions:
            setattr(made, field.attribute, _value(rnd, message, field, version, length))
    return made


def _value(rnd, message, field, version, length):
    if version in field.nullable and rnd.random() < 0.25:
        return None
    if field.is_list:
        return [_value(rnd, message, field.element, version, length) for _ in range(rnd.randint(0, length))]
    if field.is_struct:
        struct = getattr(message, field.type)
        made = _struct(rnd, message, struct, version, length)
        # A tagged struct of defaults is not sent, and None is what says so, unless null is something else.
        return None if field.tag is not None and made == struct() and not field.is_null_or_struct else made
    if field.type in INTEGERS:
        bits = INTEGER_BITS[field.type]
        value = rnd.getrandbits(rnd.choice((1, 7, bits))) & ((1 << bits) - 1)
        return value - (1 << bits) if not field.type.startswith("u") and value >> (bits - 1) else value
    return {
        "bool": lambda: rnd.random() < 0.5,
        "float64": rnd.random,
        "uuid": lambda: rnd.randbytes(16),
        "string": lambda: rnd.choice(WORDS),
        "bytes": lambda: rnd.randbytes(rnd.choice((0, 5, 200))),
        "records": lambda: rnd.randbytes(rnd.choice((0, 5, 200, 5000))),
    }[field.type]()
