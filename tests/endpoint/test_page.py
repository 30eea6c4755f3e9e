"""The page and the metrics of a server."""
import base64
import json
import re
import socket
import struct
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

import seglog
from seglog.errors import InvalidArgumentError
from seglog.wire.messages import ApiVersionsRequest, FindCoordinatorRequest, OffsetCommitRequest
from support.browser import by_axe, in_browser, needs_axe, needs_chromium
from support.waiting import wait_for
from support.wire_client import WireClient, produce_request

SMALL = {"offsets.topic.num.partitions": 2}


@pytest.fixture
def shown(in_memory):
    with seglog.serve(in_memory / "data", topics={"orders": 2}, http="127.0.0.1:0", config=SMALL) as server:
        with WireClient(server) as client:
            client.ask(produce_request("orders", 1, seglog.build_batch([(b"k", b"a"), (b"k", b"b")])), 11)
        yield server


def got(server, path):
    with urllib.request.urlopen(f"http://{server.http_address}{path}", timeout=60) as answer:
        return answer.headers, answer.read().decode()


def test_the_page_shows_partitions_and_their_offsets(shown):
    headers, page = got(shown, "/")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "script" not in page
    body = ElementTree.fromstring("<body>" + page.split("<body>")[1].split("</html>")[0])
    rows = [[cell.text or "" for cell in row] for row in body.findall(".//table[@id='topics']/tbody/tr")]
    assert [row[:4] for row in rows] == [["orders-0", "0", "0", "0"], ["orders-1", "0", "2", "2"]]
    state = json.loads(got(shown, "/state.json")[1])
    assert [row["log_end_offset"] for row in state["topics"][0]["partitions"]] == [0, 2]


def test_prometheus_reads_the_metrics(shown):
    wait_for(lambda: len(shown._running().topics.logs()) == 2)      # they are opened in the background
    families = {family.name: family for family in text_string_to_metric_families(got(shown, "/metrics")[1])}
    requests = {tuple(sample.labels.values()): sample.value for sample in families["seglog_server_requests"].samples}
    assert requests["PRODUCE", "11"] == 1
    ends = {
        (sample.labels["topic"], sample.labels["partition"]): sample.value
        for sample in families["seglog_log_end_offset"].samples if sample.labels["path"].startswith(str(shown.path))
    }
    assert ends == {("orders", "0"): 0, ("orders", "1"): 2}


def commit(server, group):
    request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[
        OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[
            OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=1, committed_offset=1)])])
    with WireClient(server) as client:
        client.ask(FindCoordinatorRequest(key=group), 1)
        assert not client.ask(request, 6).topics[0].partitions[0].error_code


def test_a_group_and_its_lag_are_shown(shown):
    commit(shown, "<billing>")
    group, = json.loads(got(shown, "/state.json")[1])["groups"]
    assert group["group"] == "<billing>"
    assert group["offsets"] == [{"topic": "orders", "partition": 1, "offset": 1, "lag": 1}]
    assert "<td>&lt;billing&gt;</td>" in got(shown, "/")[1]


def test_what_a_client_wanted_and_the_server_lacks_is_counted_and_logged_with_its_software(shown, caplog):
    def ask(key, version):
        with WireClient(shown) as client:
            client.ask(ApiVersionsRequest(client_software_name="some-client", client_software_version="1.2"), 3)
            client.socket.sendall(struct.pack(">ihhih", 10, key, version, 1, -1))
            assert client.is_closed()

    for key, version in ((76, 1), (0, 99), (0, 99)):
        ask(key, version)
    text = got(shown, "/metrics")[1]
    assert 'seglog_server_unsupported_requests_total{api="76",version="1"} 1' in text
    assert 'seglog_server_unsupported_requests_total{api="PRODUCE",version="99"} 2' in text
    assert "unsupported version 1 of API 76; it is some-client 1.2" in caplog.text


@pytest.mark.parametrize(("request_line", "status"), [
    (b"GET /nowhere HTTP/1.1\r\n\r\n", 404), (b"POST / HTTP/1.1\r\n\r\n", 405), (b"nonsense\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000, 400), (b"HEAD / HTTP/1.1\r\n\r\n", 200),
])
def test_other_requests_get_their_status(shown, request_line, status):
    host, _, port = shown.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request_line)
        assert connection.recv(12) == b"HTTP/1.1 %d" % status


def test_the_page_is_not_shown_to_other_machines_unasked(tmp_path):
    with pytest.raises(seglog.errors.InvalidArgumentError, match="other machines"):
        seglog.serve(tmp_path, http="0.0.0.0:0", users={"alice": "secret"})


# --- in a browser --------------------------------------------------------------------------------


@needs_chromium
def test_a_browser_shows_topics_and_groups_without_an_error(shown, tmp_path):
    commit(shown, "<billing>")
    page, said = in_browser(f"http://{shown.http_address}/", tmp_path / "profile")
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page)
    assert {"orders-0", "orders-1", "&lt;billing&gt;"} <= set(cells)
    assert "CONSOLE" not in said


@pytest.mark.long
@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_mend_on_the_page(shown, tmp_path, scheme):
    commit(shown, "<billing>")
    # The page is loaded every two seconds: it shows rates.
    page = got(shown, "/")[1].replace('<meta http-equiv="refresh" content="2">', "")
    found = by_axe(page, tmp_path, scheme)
    assert found["passes"] > 10
    assert not found["violations"]


# --- who may see it -------------------------------------------------------------------------------


def raw(server, *fields, path="/state.json"):
    host, _, port = server.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall("\r\n".join([f"GET {path} HTTP/1.1", *fields, "", ""]).encode())
        answer = b""
        while piece := sock.recv(1 << 16):
            answer += piece
    return answer


@pytest.mark.parametrize(("host", "status"), [
    ("127.0.0.1:8080", b"200"), ("localhost", b"200"), ("LOCALHOST:1", b"200"), ("[::1]:8080", b"200"),
    ("kafka.example:9092", b"200"), ("rebound.example", b"421"), ("rebound.example:8080", b"421"), ("", b"421"),
    ("127.0.0.1.rebound.example", b"421"), ("localhost.rebound.example:80", b"421"),
])
def test_a_name_that_was_made_to_lead_here_shows_nothing(in_memory, host, status):
    with seglog.serve(in_memory, topics={"secret": 1}, http="127.0.0.1:0", advertise="kafka.example:9092") as server:
        answer = raw(server, f"Host: {host}")
        assert answer.split(b" ")[1] == status
        assert (b"secret" in answer) is (status == b"200")


def test_the_page_asks_for_the_users_of_the_server(in_memory, caplog):
    def basic(text):
        return "Authorization: Basic " + base64.b64encode(text.encode()).decode()

    with seglog.serve(in_memory, topics={"secret": 1}, http="127.0.0.1:0", users={"alice": "s:ecret"}) as server:
        for fields in ([], [basic("alice:wrong")], [basic("bob:")], [basic("alice")], ["Authorization: Basic *"],
                       ["Authorization: Bearer x"]):
            answer = raw(server, "Host: localhost", *fields)
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert b"WWW-Authenticate: Basic" in answer
            assert b"secret" not in answer
        assert b"secret" in raw(server, "Host: localhost", basic("alice:s:ecret"))
    assert "login failed: 'alice' from /127.0.0.1" in caplog.text


def test_with_an_authorizer_the_page_is_for_those_who_may_describe_the_cluster(in_memory):
    def basic(name):
        return "Authorization: Basic " + base64.b64encode(f"{name}:secret".encode()).decode()

    who = {"admin": "secret", "alice": "secret"}
    config = {"super.users": "User:admin"}
    with seglog.serve(in_memory, topics={"hidden": 1}, http="127.0.0.1:0", users=who, authorizer=True,
                      config=config) as server:
        for path in ("/", "/state.json", "/metrics"):
            answer = raw(server, "Host: localhost", basic("alice"), path=path)
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"hidden" not in answer
            assert raw(server, "Host: localhost", basic("admin"), path=path).startswith(b"HTTP/1.1 200 ")
    with seglog.serve(in_memory, http="127.0.0.1:0", authorizer=True, config=config) as server:
        assert raw(server, "Host: localhost").startswith(b"HTTP/1.1 403 ")


def test_passwords_go_over_tls_or_not_beyond_this_machine(tmp_path):
    with pytest.raises(InvalidArgumentError, match="would ask for passwords"):
        seglog.serve(tmp_path, http="0.0.0.0:0", users={"alice": "secret"}, insecure=True)
