"""Groups from __consumer_offsets alone, against what the broker's own clients said."""
import pytest

import seglog
from seglog.coordinators.stored_groups import StoredGroups
from seglog.format.batch import build_batch, end_marker
from seglog.wire.codec import encode_versioned
from seglog.wire.internal_records import encode_key
from seglog.wire.stored_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
)
from support.internal_topics import KRAFT_VERSIONS, kraft, kraft_answers

OFFSETS = "__consumer_offsets-0"


def groups_in(path):
    stored = StoredGroups()
    with seglog.open_partition(path) as partition:
        stored.add_partition(partition.batches())
    return stored


@pytest.mark.parametrize("version", KRAFT_VERSIONS)
def test_groups_are_what_the_broker_said(version):
    stored = groups_in(kraft(version) / OFFSETS)
    groups, expected = stored.groups(), kraft_answers(version)["groups"]
    assert stored.unknown == 0
    assert groups.keys() == expected.keys()
    for name, group in groups.items():
        assert {
            f"{where[0]}-{where[1]}": [group.offsets.get(where).offset, group.offsets.get(where).metadata]
            for where in group.offsets.partitions()
        } == expected[name]["offsets"]
        assert [member.instance_id or "" for member in group.members.values()] == expected[name]["members"]
        assert bool(group.members) == (expected[name]["state"].upper() == "STABLE")
    assert {group.kind for group in groups.values()} == {"offsets only", "classic", "consumer"}
    assert [commit[:2] for commit in groups["open"].offsets.waiting()] == [("orders", 0)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / OFFSETS


def offset(group, number, partition=0):
    key = encode_key(OffsetCommitKey(group=group, topic="t", partition=partition))
    return key, None if number is None else encode_versioned(OffsetCommitValue(offset=number), 3)


def classic(group, *members):
    value = GroupMetadataValue(protocol_type="x", generation=3, members=[
        GroupMetadataValue.MemberMetadata(member_id=member, assignment=b"no assignment") for member in members
    ])
    return encode_key(GroupMetadataKey(group=group)), encode_versioned(value, 3)


def append(log, *records, **batch):
    log.append_batch(build_batch(records, **batch), from_coordinator=True)


def test_commits_of_a_transaction_count_at_its_marker(path):
    producer = {"producer_id": 7, "producer_epoch": 0}
    with seglog.open(path) as log:
        append(log, offset("g", 1))
        append(log, offset("g", 2), transactional=True, base_sequence=0, **producer)
        append(log, offset("g", 3, partition=1), transactional=True, base_sequence=0, **producer)
    group = groups_in(path).groups()["g"]
    assert group.offsets.latest() == {("t", 0): 1}
    assert group.offsets.waiting() == [("t", 0, 2, 7), ("t", 1, 3, 7)]
    with seglog.open(path) as log:
        log.append_batch(build_batch([end_marker(True, 0)], control=True, transactional=True, **producer),
                         from_coordinator=True)
    group = groups_in(path).groups()["g"]
    assert (group.offsets.latest(), group.offsets.waiting()) == ({("t", 0): 2, ("t", 1): 3}, [])


def test_tombstones_remove_what_they_name(path):
    with seglog.open(path) as log:
        append(log, offset("g", 1), classic("g", "m"), offset("h", 1), classic("i"))
        append(log, offset("h", None), (classic("i")[0], None))
    assert groups_in(path).groups().keys() == {"g"}
    with seglog.open(path) as log:
        append(log, (classic("g")[0], None))
    group = groups_in(path).groups()["g"]
    assert (group.kind, group.epoch, group.members, group.offsets.latest()) == ("offsets only", -1, {}, {("t", 0): 1})


def test_a_group_changes_its_kind(path):
    """As a broker does it when the last member of a group comes by the new protocol: the old record is removed."""
    key = encode_key(ConsumerGroupMetadataKey(group_id="g"))
    with seglog.open(path) as log:
        append(log, classic("g", "m"), (classic("g")[0], None))
        append(log, (key, encode_versioned(ConsumerGroupMetadataValue(epoch=9), 0)))
    group = groups_in(path).groups()["g"]
    assert (group.kind, group.epoch, group.members) == ("consumer", 9, {})
    with seglog.open(path) as log:
        append(log, (key, None), classic("g", "m"))
    group = groups_in(path).groups()["g"]
    assert (group.kind, group.epoch, list(group.members)) == ("classic", 3, ["m"])


def test_share_groups_have_members_too(path):
    member = ShareGroupMemberMetadataValue(client_id="c", client_host="/h")
    with seglog.open(path) as log:
        append(log, (encode_key(ShareGroupMetadataKey(group_id="s")),
                     encode_versioned(ShareGroupMetadataValue(epoch=2), 0)),
               (encode_key(ShareGroupMemberMetadataKey(group_id="s", member_id="m")), encode_versioned(member, 0)))
    group = groups_in(path).groups()["s"]
    assert (group.kind, group.epoch, group.members["m"].client_id) == ("share", 2, "c")


def test_records_that_do_not_decode_are_counted(path):
    with seglog.open(path) as log:
        append(log, (b"\0\x63", b""), (b"", b""), (b"\0\1\0\1g", b""), (classic("g")[0], b"\0\x09"), offset("g", 1))
        log.append(b"x")
    stored = groups_in(path)
    assert (stored.unknown, stored.groups()["g"].offsets.latest()) == (5, {("t", 0): 1})
