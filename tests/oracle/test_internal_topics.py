"""proto/kafka/records.txt against the definitions in the jars, and our decoders against Kafka's, record by record."""
import json
import random

import pytest

from seglog._kernels.batch_builder import BatchBuilder
from seglog.format.names import file_name
from seglog.wire import stored_records
from seglog.wire.codec import encode_message, encode_versioned
from seglog.wire.coders import put_uvarint
from seglog.wire.definitions import NO_VERSIONS
from seglog.wire.internal_records import encode_key
from support.internal_topics import KRAFT_VERSIONS, kraft, said_by_us
from support.message_table import records_table
from support.old_directories import root as old_brokers
from support.protocol_facts import parsed, structs_of_kafka, versions
from support.random_messages import random_message

pytestmark = pytest.mark.oracle

# The jar that has the records of a topic; control records are in the clients.
JARS = {
    "__consumer_offsets": "kafka-group-coordinator", "__transaction_state": "kafka-transaction-coordinator",
    "__share_group_state": "kafka-share-coordinator", "__cluster_metadata": "kafka-metadata",
    "__remote_log_metadata": "kafka-storage", "": "kafka-clients",
}
KINDS = {"key": "coordinator-key", "value": "coordinator-value", "metadata": "metadata", "control": "data"}
# Of 3.3.2; nothing ever wrote it, and 3.9.1 no longer has it.
GONE = {"AccessControlRecord"}
# Values of the older type of offset keys: version 0 of OffsetCommitValue.
SAME = {"LegacyOffsetCommitValue"}


def definitions(oracle):
    found = ((jar, parsed(text)) for (jar, _), text in oracle.all_definitions().items() if '"validVersions"' in text)
    return {(jar, its["name"]): its for jar, its in found}


def test_every_field_of_every_record_is_of_kafka_440(kafka_oracle):
    theirs = definitions(kafka_oracle("4.4.0"))
    for message in records_table():
        if message.name in GONE:
            continue
        its = theirs[JARS[message.topic], message.name]
        assert its["type"] == KINDS[message.kind]
        if message.kind != "control":
            assert message.api_key == its["apiKey"]
        assert message.versions == versions(its["validVersions"]), message.name
        assert (message.flexible or NO_VERSIONS) == versions(its["flexibleVersions"]), message.name
        structs = (message, *message.structs.values())
        ours = {struct.name: [tuple(field) for field in struct.fields()] for struct in structs}
        assert ours == structs_of_kafka(its), message.name


def test_no_record_of_kafka_440_is_missing(kafka_oracle):
    ours = {message.name for message in records_table()}
    jars = set(JARS.values()) - {"kafka-clients"}
    wanted = {
        name for (jar, name), its in definitions(kafka_oracle("4.4.0")).items()
        if jar in jars and its["type"] in ("coordinator-key", "coordinator-value", "metadata")
    }
    assert wanted - ours == SAME
    legacy = definitions(kafka_oracle("4.4.0"))["kafka-group-coordinator", "LegacyOffsetCommitValue"]
    value = next(message for message in records_table() if message.name == "OffsetCommitValue")
    assert fields_at(structs_of_kafka(legacy)["LegacyOffsetCommitValue"], 0) == fields_at(value.fields(), 0)


def fields_at(fields, version):
    """Name, type, whether a list, whether it may be null, tag, rigid; without defaults, which are no bytes."""
    return [
        (name, kind, is_list, version in nullable, tag, rigid)
        for name, kind, is_list, here, nullable, tag, rigid, _ in fields if version in here
    ]


def known_to(fields, facts):
    """Without the tagged fields that came later, which take no version."""
    names = {name for name, *_ in fields}
    return [fact for fact in facts if fact[0] in names or fact[4] is None]


# What a version of a record had in a preview, and has no more: a broker that takes it over cannot read it either.
PREVIEWS = {
    # KRaft has had credentials since 3.5, tokens since 3.6, a broker tiers since 3.6.
    "3.3.2": {
        "DelegationTokenRecord", "UserScramCredentialRecord", "RemoteLogSegmentMetadataRecord",
        "RemoteLogSegmentMetadataSnapshotRecord", "RemoteLogSegmentMetadataUpdateRecord",
    },
    "3.9.1": {"ShareGroupMetadataValue", "ShareGroupPartitionMetadataKey", "ShareGroupPartitionMetadataValue"},
    "4.1.1": set(),
}


@pytest.mark.parametrize("version", PREVIEWS)
def test_records_of_an_older_kafka_have_the_same_fields(kafka_oracle, version):
    ours = {message.name: message for message in records_table()}
    compared = set()
    for (jar, name), its in definitions(kafka_oracle(version)).items():
        is_record = jar.startswith("kafka_") or jar in JARS.values()
        if not is_record or its["type"] in ("request", "response", "header") or name in SAME:
            continue
        if name not in ours:
            continue
        theirs = structs_of_kafka(its)
        message = ours[name]
        differing = []
        for number in range(versions(its["validVersions"]).first, versions(its["validVersions"]).last + 1):
            at = message.versions.first if message.kind == "key" else number
            for struct, fields in theirs.items():
                mine = message if struct == name else message.structs.get(struct)
                if mine is None or fields_at(fields, number) != known_to(fields, fields_at(mine.fields(), at)):
                    differing.append((struct, number))
        assert not differing or name in PREVIEWS[version], (name, differing)
        compared.add(name)
    assert len(compared) > 20


# --- bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", KRAFT_VERSIONS)
def test_golden_topics_of_kraft_say_to_us_what_they_say_to_kafka(kafka_oracle, version):
    for topic in ("__consumer_offsets", "__transaction_state", "__cluster_metadata"):
        files = [
            file for pattern in ("*.log", "*.checkpoint")
            for file in sorted(kraft(version).glob(f"{topic}-*/{pattern}")) if file.stat().st_size
        ]
        answers = kafka_oracle("4.4.0").internal(topic, files)
        assert {file: said_by_us(topic, file) for file in files} == answers
        assert sum(map(len, answers.values())) >= 10


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_golden_topics_of_old_brokers_say_to_us_what_they_say_to_kafka(kafka_oracle, topic):
    files = sorted(old_brokers().glob(f"*/logs/{topic}-*/*.log"))
    answers = kafka_oracle("4.1.1").internal(topic, files)
    assert {file: said_by_us(topic, file) for file in files} == answers
    assert len(answers) >= 4


def metadata_value(message, version):
    out = bytearray([1])
    put_uvarint(out, message.API_KEY)
    put_uvarint(out, version)
    return bytes(out) + encode_message(message, version)


def random_records(rnd, topic):
    """Of each type and version, as key and value."""
    for message in stored_records.METADATA.get(topic, {}).values():
        if message.__name__ in GONE:
            continue
        for version in range(message.MIN_VERSION, message.MAX_VERSION + 1):
            for _ in range(8):
                yield None, metadata_value(random_message(rnd, message, version), version)
    for kind, value in stored_records.VALUES.get(topic, {}).items():
        key = stored_records.KEYS[topic][kind]
        for version in range(value.MIN_VERSION, value.MAX_VERSION + 1):
            for _ in range(8):
                written = encode_versioned(random_message(rnd, value, version), version)
                yield encode_key(random_message(rnd, key, 0)), written
        yield encode_key(random_message(rnd, key, 0)), None


TOPICS = "__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"


@pytest.mark.parametrize("topic", TOPICS)
def test_random_records_of_every_type_and_version_say_to_us_what_they_say_to_kafka(kafka_oracle, tmp_path, topic):
    file = tmp_path / f"{topic}-0" / file_name(0, ".log")
    file.parent.mkdir()
    batch, count = BatchBuilder(0), 0
    for count, (key, value) in enumerate(random_records(random.Random(topic), topic), 1):
        batch.append(count - 1, 0, key, value)
    file.write_bytes(batch.finish())
    theirs = kafka_oracle("4.4.0").internal(topic, [file])[file]
    ours = said_by_us(topic, file)
    assert len(ours) == count
    for offset, said in ours.items():
        # As JSON: Java writes numbers with exponents otherwise.
        assert [text and text != "<DELETE>" and json.loads(text) for text in said] == [
            text and text != "<DELETE>" and json.loads(text) for text in theirs[offset]
        ], offset
