"""The generated module, and that a message of every version comes back as it was sent."""
import random
from itertools import chain

import pytest

from seglog.wire import codec, messages, stored_records
from seglog.wire.definitions import parse_field
from seglog.wire.messages import REQUESTS, RESPONSES
from seglog.wire.structs import fields
from support.message_table import generator, records_table, table
from support.random_messages import random_message

ALONE = [
    messages.ConsumerProtocolSubscription, messages.ConsumerProtocolAssignment, *stored_records.CONTROL.values(),
    *(message for kind in (stored_records.KEYS, stored_records.VALUES, stored_records.METADATA)
      for of_topic in kind.values() for message in of_topic.values()),
]
EVERY = [*REQUESTS.values(), *RESPONSES.values(), *ALONE]


def versions(message):
    return range(message.MIN_VERSION, message.MAX_VERSION + 1)


def test_the_module_is_what_the_table_gives():
    assert generator().MODULE.read_text() == generator().python_module(table())
    assert generator().RECORDS_MODULE.read_text() == generator().records_module(records_table())


def test_every_request_has_a_response_of_the_same_versions():
    assert REQUESTS.keys() == RESPONSES.keys()
    for key, request in REQUESTS.items():
        response = RESPONSES[key]
        assert request.API_KEY == response.API_KEY == key
        assert (request.MIN_VERSION, request.MAX_VERSION) == (response.MIN_VERSION, response.MAX_VERSION)
        assert request.FLEXIBLE_FROM == response.FLEXIBLE_FROM


def test_a_struct_of_the_table_is_a_class_with_its_fields():
    for message in EVERY:
        inside = [message, *(value for value in vars(message).values() if isinstance(value, type))]
        for struct in inside:
            assert tuple(field.attribute for field in fields(struct)) == struct.__slots__
            assert repr(struct()) == f"{struct.__qualname__}()"
            for field in fields(struct):
                assert getattr(struct(), field.attribute) == field.default_value()


@pytest.mark.parametrize("message", EVERY, ids=lambda message: message.__name__)
def test_a_message_of_every_version_comes_back(message):
    rnd = random.Random(message.__name__)
    for version in versions(message):
        for _ in range(4):
            sent = random_message(rnd, message, version)
            assert codec.decode_message(message, version, codec.encode_message(sent, version)) == sent


def test_a_request_and_its_response_come_back_in_their_frames():
    rnd = random.Random(7)
    for key, request in REQUESTS.items():
        for version in versions(request):
            sent, answer = (random_message(rnd, one, version) for one in (request, RESPONSES[key]))
            header = codec.new_header(sent, version, correlation_id=version - 3, client_id="älter")
            frame = codec.encode_request(header, sent)
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            assert codec.decode_request(frame[4:]) == (header, sent)
            segments = codec.encode_response(header, answer)
            frame = b"".join(segments)
            assert sum(map(len, segments)) == len(frame) == int.from_bytes(frame[:4], "big") + 4
            assert codec.decode_response(header, frame[4:]) == answer


def test_lists_and_nulls_of_every_kind_are_met():
    """What the random messages are worth: they set every field of every version, also to null."""
    rnd = random.Random(1)
    missing = set()
    for message in EVERY:
        for version in versions(message):
            met = set()
            for _ in range(40):
                met |= set(_paths(random_message(rnd, message, version, length=2)))
            for struct in _structs(message, message, version):
                for field in fields(struct):
                    if version in field.versions and version in field.nullable:
                        missing |= {(struct.__qualname__, field.attribute)} - met
    assert missing == set()


def _structs(message, struct, version):
    """The struct and those in it that this version of the message has."""
    yield struct
    for field in fields(struct):
        if version in field.versions and field.is_struct:
            yield from _structs(message, getattr(message, field.type), version)


def _paths(struct):
    for name in struct.__slots__:
        value = getattr(struct, name)
        if value is None:
            yield type(struct).__qualname__, name
        for inner in value if isinstance(value, list) else [value]:
            if hasattr(inner, "__slots__"):
                yield from _paths(inner)


@pytest.mark.parametrize("line", ["Name string 0+ nil", "Name string 0+ tag", "Name string"])
def test_a_line_that_is_no_field_is_refused(line):
    with pytest.raises((ValueError, StopIteration)):
        parse_field(line)


def test_fields_that_a_version_lacks_are_left_out():
    request = messages.ProduceRequest(transactional_id="t", acks=1)
    old = codec.decode_message(messages.ProduceRequest, 2, codec.encode_message(request, 2))
    assert (old.transactional_id, old.acks) == (None, 1)


def test_names_of_structs_are_taken_once_in_a_message():
    for message in [*table(), *records_table()]:
        used = {field.type for struct in chain([message], message.structs.values()) for field in struct.fields()
                if field.is_struct}
        assert used == message.structs.keys()
