"""proto/kafka/messages.txt and the error codes against two Kafkas: 3.9.1, the last release that has every version from
0 on, and 4.4.0, which has the latest ones.
"""
import pytest

from seglog.wire.definitions import LAST_VERSION, NO_VERSIONS, Versions
from seglog.wire.error_codes import Errors
from support.message_table import table
from support.protocol_facts import parsed, structs_of_kafka, versions

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def definitions(kafka_oracle):
    return [
        {name: parsed(text) for name, text in kafka_oracle(version).definitions().items()}
        for version in ("3.9.1", "4.4.0")
    ]


def stable(definition):
    """Its versions that are no draft."""
    first, last = versions(definition["validVersions"])
    return Versions(first, last - bool(definition.get("latestVersionUnstable")))


def fields_in(version, structs):
    """What a message of this version has: of each struct its fields, without the versions that have them."""
    return {
        name: [
            (field_name, kind, is_list, version in nullable, tag, is_rigid, default)
            for field_name, kind, is_list, here, nullable, tag, is_rigid, default in fields if version in here
        ]
        for name, fields in structs.items()
    }


def test_every_field_of_every_message_is_kafkas(definitions):
    assert len(table()) == 2 + 2 * 59 + 2
    for message in table():
        theirs = [one[message.name] for one in definitions if message.name in one]
        assert {(message.api_key, message.kind)} == {(one.get("apiKey", -1), one["type"]) for one in theirs}
        assert {message.flexible or NO_VERSIONS} == {versions(one["flexibleVersions"]) for one in theirs}, message.name
        structs = (message, *message.structs.values())
        ours = {struct.name: [tuple(field) for field in struct.fields()] for struct in structs}
        for number in range(message.versions.first, message.versions.last + 1):
            witness = next(one for one in reversed(theirs) if number in stable(one))
            empty = {name: [] for name in ours}
            found = empty | fields_in(number, structs_of_kafka(witness))
            assert fields_in(number, ours) == found, f"{message.name} v{number}"


def test_every_version_of_both_is_there(definitions):
    """A request says whether the last version is a draft, for its response, too."""
    for message in table():
        named = message.name.removesuffix("Response") + "Request" if message.kind == "response" else message.name
        having = [one[named] for one in definitions if named in one]    # 3.9.1 has ListConfigResources by another name
        first = versions(having[0]["validVersions"]).first
        assert message.versions == (first, max(stable(one).last for one in having)), message.name


def test_tagged_fields_are_as_our_coders_take_them():
    """Tags are below 128 and consecutive versions: a count and a tag are one byte each."""
    for message in table():
        for struct in (message, *message.structs.values()):
            tags = [field.tag for field in struct.fields() if field.tag is not None]
            assert tags == sorted(set(tags))
            assert all(tag < 128 for tag in tags)
            assert all(field.versions.last == LAST_VERSION for field in struct.fields() if field.tag is not None)


def test_every_error_code_is_kafkas(kafka_oracle):
    assert {error.name: error.value for error in Errors} == kafka_oracle("4.4.0").error_codes()
