"""Definitions of messages in Kafka's jars, in the terms of our tables."""
import json
import re

from seglog.wire.definitions import INTEGERS, NO_VERSIONS, parse_versions


def parsed(text: str) -> dict:
    """A definition: JSON with comments."""
    return json.JSONDecoder().raw_decode(
        re.sub(r"(?m)^\s*//.*$", "", re.sub(r"(?<=[,{\[\]}])\s*//.*", "", text)).lstrip()
    )[0]


def versions(text):
    return NO_VERSIONS if text in (None, "none") else parse_versions(text)


def default(kind, given):
    """As our table writes it: None for the usual one. Kafka takes null for none, and "null" for null."""
    if given is None:
        return None
    text = str(given)
    if kind in INTEGERS:
        text = str(int(text, 0))
    usual = {"bool": "false", "string": ""}.get(kind, "0")
    return None if text.lower() == usual else text.lower() if kind == "bool" else text


def facts_of_kafka(field):
    kind = field["type"]
    tag = None if field.get("tag") is None else int(field["tag"])
    here = field.get("versions", field.get("taggedVersions"))
    if tag is not None:
        # So our notation needs no versions for tags.
        assert field["taggedVersions"] == here
    return (
        field["name"], kind.removeprefix("[]"), kind.startswith("[]"), versions(here),
        versions(field.get("nullableVersions")), tag, field.get("flexibleVersions") == "none",
        default(kind, field.get("default")),
    )


def structs_of_kafka(definition):
    """Every struct of a message with its fields, the message itself among them."""
    found = {}

    def enter(name, fields):
        found[name] = [facts_of_kafka(field) for field in fields]
        for field in fields:
            if "fields" in field:
                enter(field["type"].removeprefix("[]"), field["fields"])

    enter(definition["name"], definition["fields"])
    for common in definition.get("commonStructs", ()):
        enter(common["name"], common["fields"])
    return found
