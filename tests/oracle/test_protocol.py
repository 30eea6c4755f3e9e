"""proto/kafka/messages.txt and the error codes against Kafka 3.9.1, field by field."""
import json
import re

import pytest

from seglog.wire.definitions import INTEGERS, LAST_VERSION, NO_VERSIONS, parse_versions
from seglog.wire.error_codes import Errors
from support.message_table import table

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def definitions(kafka_oracle):
    return {name: json.loads(re.sub(r"(?m)^\s*//.*$", "", re.sub(r"(?<=[,{\[])\s*//.*", "", text)))
            for name, text in kafka_oracle("3.9.1").definitions().items()}


def versions(text):
    return NO_VERSIONS if text in (None, "none") else parse_versions(text)


def default(kind, given):
    """As our table writes it: None for the usual one."""
    if given is None:
        return None
    text = str(given)
    if kind in INTEGERS:
        text = str(int(text, 0))
    usual = {"bool": "false", "string": ""}.get(kind, "0")
    return None if text.lower() == usual else text.lower() if kind == "bool" else text


def facts_of_kafka(field):
    kind = field["type"]
    tag = field.get("tag")
    if tag is not None:
        # So our notation needs no versions for tags.
        assert field["taggedVersions"] == field["versions"]
    given = "null" if "default" in field and field["default"] is None else field.get("default")
    return (
        field["name"], kind.removeprefix("[]"), kind.startswith("[]"), versions(field["versions"]),
        versions(field.get("nullableVersions")), tag, field.get("flexibleVersions") == "none", default(kind, given),
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


def test_every_field_of_every_message_is_kafkas(definitions):
    assert len(table()) == 2 + 2 * 34 + 8
    for message in table():
        theirs = definitions[message.name]
        assert (message.api_key, message.kind) == (theirs.get("apiKey", -1), theirs["type"])
        assert message.versions == versions(theirs["validVersions"]), message.name
        assert (message.flexible or NO_VERSIONS) == versions(theirs["flexibleVersions"]), message.name
        structs = (message, *message.structs.values())
        ours = {struct.name: [tuple(field) for field in struct.fields()] for struct in structs}
        assert ours == structs_of_kafka(theirs), message.name


def test_tagged_fields_are_as_our_coders_take_them(definitions):
    """Tags are below 128 and consecutive versions: a count and a tag are one byte each."""
    for message in table():
        for struct in (message, *message.structs.values()):
            tags = [field.tag for field in struct.fields() if field.tag is not None]
            assert tags == sorted(set(tags))
            assert all(tag < 128 for tag in tags)
            assert all(field.versions.last == LAST_VERSION for field in struct.fields() if field.tag is not None)


def test_every_error_code_is_kafkas(kafka_oracle):
    assert {error.name: error.value for error in Errors} == kafka_oracle("3.9.1").error_codes()
