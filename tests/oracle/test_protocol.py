"""proto/kafka/messages.txt and the error codes against Kafka 3.9.1, field by field."""
import pytest

from seglog.wire.definitions import LAST_VERSION, NO_VERSIONS
from seglog.wire.error_codes import Errors
from support.message_table import table
from support.protocol_facts import parsed, structs_of_kafka, versions

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def definitions(kafka_oracle):
    return {name: parsed(text) for name, text in kafka_oracle("3.9.1").definitions().items()}


def test_every_field_of_every_message_is_kafkas(definitions):
    assert len(table()) == 2 + 2 * 56 + 2
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
