"""Settings of single groups: what they do, and what keeps and bounds them. How each API answers stands in the
conversation (newest_conversation.py)."""
import threading
import time

import pytest

import seglog
from seglog.coordinators import group_settings
from seglog.errors import StorageError
from seglog.state.group_settings import FILE_NAME, HEARTBEAT_INTERVAL, SESSION_TIMEOUT, read_group_settings
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.waiting import wait_for
from support.wire_client import WireClient

# A server that lets groups have what a test can wait for.
QUICK = {
    "group.consumer.min.session.timeout.ms": 1, "group.consumer.min.heartbeat.interval.ms": 1,
    "offsets.topic.num.partitions": 1,
}


def alter(client, groups, **how):
    """Set these values; None deletes one. Returns the errors by group."""
    of = m.IncrementalAlterConfigsRequest
    answer = client.ask(of(resources=[of.AlterConfigsResource(resource_type=32, resource_name=name, configs=[
        of.AlterableConfig(name=key, config_operation=1 if value is None else 0, value=value and str(value))
        for key, value in settings.items()]) for name, settings in groups.items()], **how), 1)
    return {row.resource_name: row.error_code for row in answer.responses}


def settings(client, name):
    of = m.DescribeConfigsRequest
    answer = client.ask(of(resources=[of.DescribeConfigsResource(resource_type=32, resource_name=name)]), 4)
    return {row.name: (row.value, row.config_source) for row in answer.results[0].configs}


def heartbeat(client, group, **how):
    told = {"member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"],
            "topic_partitions": []}
    while (answer := client.ask(m.ConsumerGroupHeartbeatRequest(group_id=group, **{**told, **how}), 1)).error_code in (
            Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.NOT_COORDINATOR):
        client.ask(m.FindCoordinatorRequest(key_type=0, key=group), 3)
    assert not answer.error_code, answer
    return answer


def members(client, group):
    answer = client.ask(m.ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    return [one.member_id for one in answer.groups[0].members]


def test_a_group_keeps_its_own_settings_and_its_members_go_by_them(in_memory):
    path = in_memory / "data"
    with seglog.serve(path, topics={"orders": 1}, config=QUICK) as server, WireClient(server) as client:
        heartbeat(client, "slow")
        heartbeat(client, "fast")
        assert alter(client, {"fast": {HEARTBEAT_INTERVAL: 70, SESSION_TIMEOUT: 600}}) == {"fast": 0}
        # A long session began with the first heartbeat: the next one cuts it.
        assert heartbeat(client, "fast", member_epoch=2).heartbeat_interval_ms == 70
        assert heartbeat(client, "slow", member_epoch=2).heartbeat_interval_ms == 5_000
        assert members(client, "fast") == ["m"]
        wait_for(lambda: members(client, "fast") == [])
        assert members(client, "slow") == ["m"]
    with seglog.serve(path, config=QUICK) as server, WireClient(server) as client:
        assert settings(client, "fast") == {SESSION_TIMEOUT: ("600", 8), HEARTBEAT_INTERVAL: ("70", 8)}
        assert heartbeat(client, "fast").heartbeat_interval_ms == 70
        began_s = time.monotonic()
        wait_for(lambda: members(client, "fast") == [])
        assert time.monotonic() - began_s < 30
        assert alter(client, {"fast": {HEARTBEAT_INTERVAL: None}}) == {"fast": Errors.INVALID_CONFIG}   # 5 s > 0.6 s
        assert alter(client, {"fast": {SESSION_TIMEOUT: None}}) == {"fast": 0}
        assert read_group_settings(path) == {"fast": {HEARTBEAT_INTERVAL: 70}}
    # The operator's bounds count now, too: 5 s at least.
    with seglog.serve(path) as server, WireClient(server) as client:
        assert settings(client, "fast") == {SESSION_TIMEOUT: ("45000", 5), HEARTBEAT_INTERVAL: ("5000", 8)}


def test_the_changes_of_a_request_are_stored_at_once_or_all_refused(in_memory, monkeypatch):
    written = []

    def write(fs, log_dir, groups):
        written.append(dict(groups))
        if len(written) > 1:
            raise StorageError("no space left", file=log_dir)

    monkeypatch.setattr(group_settings, "write_group_settings", write)
    with seglog.serve(in_memory, config=QUICK) as server, WireClient(server) as client:
        given = {name: {SESSION_TIMEOUT: 50_000} for name in ("a", "b")}
        assert alter(client, {**given, "c": {SESSION_TIMEOUT: "no number"}}) == {
            "a": 0, "b": 0, "c": Errors.INVALID_CONFIG}
        assert written == [given]
        assert alter(client, given) == {"a": 0, "b": 0}        # nothing new: not written again
        assert alter(client, {"a": {SESSION_TIMEOUT: None}, "d": {SESSION_TIMEOUT: 50_000}}) == dict.fromkeys(
            "ad", Errors.KAFKA_STORAGE_ERROR)
        assert len(written) == 2
        assert settings(client, "a")[SESSION_TIMEOUT] == ("50000", 8)
        assert settings(client, "d")[SESSION_TIMEOUT] == ("45000", 5)


def test_what_one_operator_sets_another_does_not_undo_at_the_same_time(in_memory, monkeypatch):
    """The second request comes while the first one is written."""
    is_written, may_go_on = threading.Event(), threading.Event()
    write = group_settings.write_group_settings

    def slowly(*arguments):
        is_written.set()
        assert may_go_on.wait(60)
        write(*arguments)

    with seglog.serve(in_memory, config=QUICK) as server, WireClient(server) as one, WireClient(server) as other:
        assert alter(one, {"g": {SESSION_TIMEOUT: 49_000, HEARTBEAT_INTERVAL: 7_000}}) == {"g": 0}
        monkeypatch.setattr(group_settings, "write_group_settings", slowly)
        answers = []
        first = threading.Thread(target=lambda: answers.append(alter(one, {"g": {SESSION_TIMEOUT: 50_000}})))
        first.start()
        assert is_written.wait(60)
        later = threading.Thread(target=lambda: answers.append(alter(other, {"g": {HEARTBEAT_INTERVAL: 6_000}})))
        later.start()
        wait_for(lambda: server._server.requests.counts[44, 1] == 3)       # it waits for the first one
        may_go_on.set()
        first.join(60)
        later.join(60)
        assert answers == [{"g": 0}, {"g": 0}]
        assert read_group_settings(in_memory) == {"g": {SESSION_TIMEOUT: 50_000, HEARTBEAT_INTERVAL: 6_000}}


def test_no_more_groups_have_settings_than_may_and_no_longer_names(in_memory, monkeypatch):
    monkeypatch.setattr(group_settings, "GROUPS_MAX", 2)
    with seglog.serve(in_memory, config=QUICK) as server, WireClient(server) as client:
        one = {SESSION_TIMEOUT: 50_000}
        assert alter(client, {"a": one, "b": one}) == {"a": 0, "b": 0}
        assert alter(client, {"c": one}) == {"c": Errors.POLICY_VIOLATION}
        assert alter(client, {"a": {SESSION_TIMEOUT: 51_000}}) == {"a": 0}      # a known one
        assert alter(client, {"b": {SESSION_TIMEOUT: None}}) == {"b": 0}
        assert alter(client, {"c": one}) == {"c": 0}
        assert alter(client, {"x" * 1025: one}) == {"x" * 1025: Errors.INVALID_CONFIG}


def test_settings_that_cannot_be_read_are_told_and_left_alone(in_memory, caplog):
    (in_memory / FILE_NAME).write_bytes(b"{}\n")
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        assert "groups have the settings of the server" in caplog.text
        assert heartbeat(client, "g").heartbeat_interval_ms == 5_000
        assert alter(client, {"g": {SESSION_TIMEOUT: 50_000}}) == {"g": Errors.KAFKA_STORAGE_ERROR}
    assert (in_memory / FILE_NAME).read_bytes() == b"{}\n"


@pytest.mark.parametrize("text", ["5_0000", "５００００", "0x50", "50000.0", "++50000", "5" * 20])
def test_a_number_is_one_as_java_reads_it(in_memory, text):
    settings = group_settings.GroupSettings(group_settings.CoordinatorConfig())
    with pytest.raises(group_settings.InvalidConfigError, match="milliseconds from 45000 to 60000"):
        settings.checked("g", {SESSION_TIMEOUT: text})
    assert settings.checked("g", {SESSION_TIMEOUT: " +50000 "}) == {SESSION_TIMEOUT: 50_000}


