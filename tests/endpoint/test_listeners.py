"""A server with several listeners: each has its protocol, and tells its clients the addresses of its own."""
import functools
import ssl

import pytest

import seglog
from seglog.errors import InvalidArgumentError, InvalidConfigError, StorageError
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    DescribeClusterRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from support.certificates import client_context, server_context
from support.descriptors import descriptors_of
from support.wire_client import WireClient

USERS = {"alice": "secret"}
EVERY = ["PLAINTEXT://127.0.0.1:0", "SSL://127.0.0.1:0", "SASL_PLAINTEXT://127.0.0.1:0", "SASL_SSL://127.0.0.1:0"]


class Door:
    """A listener as WireClient asks for it."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.host, self.port = host, int(port)


def wrapped(name, certificate):
    """What puts a socket of a client of this listener under TLS; None: nothing."""
    if "SSL" not in name:
        return None
    return functools.partial(client_context(certificate).wrap_socket, server_hostname="127.0.0.1")


def entered(server, name, certificate):
    """A client of this listener, logged in if it asks for that."""
    client = WireClient(Door(server.listeners[name]), wrap=wrapped(name, certificate))
    if "SASL" in name:
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert not client.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2).error_code
    return client


def told(client):
    """The addresses that a client is told of the only node: by Metadata, DescribeCluster and FindCoordinator."""
    found = [
        client.ask(MetadataRequest(topics=None), 12).brokers[0],
        client.ask(DescribeClusterRequest(), 1).brokers[0],
        client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators[0],
    ]
    return {f"{one.host}:{one.port}" for one in found}


def test_each_listener_has_its_protocol_and_tells_its_own_address(in_memory, certificate):
    with seglog.serve(
        in_memory / "data", topics={"orders": 1}, listen=EVERY, users=USERS, tls=server_context(certificate),
    ) as server:
        assert list(server.listeners) == ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
        assert server.bootstrap_servers == server.listeners["PLAINTEXT"] == f"{server.host}:{server.port}"
        assert len(set(server.listeners.values())) == 4
        for name, address in server.listeners.items():
            with entered(server, name, certificate) as client:
                assert told(client) == {address}
        for name in ("SASL_PLAINTEXT", "SASL_SSL"):
            with WireClient(Door(server.listeners[name]), wrap=wrapped(name, certificate)) as client:
                client.send(MetadataRequest(topics=None), 12)       # without a login
                assert client.is_closed()
        with WireClient(Door(server.listeners["PLAINTEXT"])) as client:      # nobody asks for one here
            assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == Errors.ILLEGAL_SASL_STATE


def test_each_listener_tells_the_address_that_was_given_for_it(in_memory):
    with seglog.serve(
        in_memory / "data", listen=["INTERNAL://127.0.0.1:0", "outside://127.0.0.1:0"],
        advertise=["OUTSIDE://kafka.example:19092"],
        config={"listener.security.protocol.map": "INTERNAL:PLAINTEXT, OUTSIDE:PLAINTEXT"},
    ) as server:
        for name, address in (("INTERNAL", server.listeners["INTERNAL"]), ("OUTSIDE", "kafka.example:19092")):
            with WireClient(Door(server.listeners[name])) as client:
                assert told(client) == {address}


def test_the_only_listener_needs_no_name(in_memory):
    for listen in ("127.0.0.1:0", "PLAINTEXT://127.0.0.1:0", ["127.0.0.1:0"]):
        with seglog.serve(in_memory / "data", listen=listen, advertise="kafka.example:9092") as server:
            assert list(server.listeners) == ["PLAINTEXT"]
            with WireClient(server) as client:
                assert told(client) == {"kafka.example:9092"}


def test_a_listener_without_a_login_does_not_ask_for_one_because_another_does(in_memory):
    """Nor is it among the connections that may be few, or must be quick."""
    with seglog.serve(
        in_memory / "data", listen=EVERY[::2], users=USERS,
        config={"seglog.max.connections.logging.in": 1, "seglog.connections.login.timeout.ms": 300},
    ) as server:
        clients = [WireClient(Door(server.listeners["PLAINTEXT"])) for _ in range(5)]
        with WireClient(Door(server.listeners["SASL_PLAINTEXT"])) as silent:
            assert silent.is_closed()       # after its 0.3 s
        for client in clients:
            with client:
                assert client.ask(MetadataRequest(topics=None), 12).brokers


@pytest.mark.parametrize(("arguments", "words"), [
    ({"listen": ["127.0.0.1:0", "127.0.0.1:0"]}, "two listeners have the name PLAINTEXT"),
    ({"listen": ["A://127.0.0.1:0"]}, "the listener A has no protocol"),
    ({"listen": ["SSL://127.0.0.1:0"]}, "SSL needs a certificate"),
    ({"listen": ["PLAINTEXT://127.0.0.1"]}, "invalid address '127.0.0.1'"),
    ({"listen": ["PLAINTEXT://:9092"]}, "invalid address ':9092'"),
    ({"listen": ["a b://127.0.0.1:0"]}, "no listener can have the name"),
    ({"listen": []}, "needs an address"),
    ({"listen": [9092]}, "listen must be a string"),
    ({"listen": {"PLAINTEXT": 1}}, "listen must be a string"),
    ({"listen": EVERY[::2], "users": USERS, "advertise": "kafka.example:9092"}, "does not say which listener"),
    ({"advertise": "OTHER://kafka.example:9092"}, "is for the listener OTHER"),
    ({"advertise": ["a:1", "b:2"]}, "has another address"),
    # TLS and users of another listener do not protect this one.
    ({"listen": ["PLAINTEXT://0.0.0.0:0", "SASL_PLAINTEXT://127.0.0.1:0"], "users": USERS},
     "without authentication and TLS"),
], ids=lambda one: one if isinstance(one, str) else "")
def test_a_listener_that_makes_no_sense_is_refused(tmp_path, arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        seglog.serve(tmp_path / "data", **arguments)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("text", ["INTERNAL", "INTERNAL:TLS", "A:SSL,a:PLAINTEXT", ":SSL", 5])
def test_a_map_of_protocols_that_makes_no_sense_is_refused(tmp_path, text):
    with pytest.raises(InvalidConfigError, match=r"listener\.security\.protocol\.map"):
        seglog.serve(tmp_path / "data", config={"listener.security.protocol.map": text})


def test_a_listener_whose_address_is_taken_leaves_none_open(in_memory):
    with seglog.serve(in_memory / "one") as other:
        before = descriptors_of("socket:")
        with pytest.raises(StorageError, match="cannot listen"), seglog.serve(
            in_memory / "two", listen=["PLAINTEXT://127.0.0.1:0", f"SASL_PLAINTEXT://{other.bootstrap_servers}"],
            users=USERS,
        ):
            pass
        assert descriptors_of("socket:") == before


def test_a_certificate_that_tls_requires_is_asked_for_by_the_listeners_with_tls_only(in_memory, certificate):
    here = server_context(certificate, asks_clients=ssl.CERT_REQUIRED)
    with seglog.serve(in_memory / "data", listen=EVERY[:2], tls=here) as server:
        with WireClient(server) as client:
            assert told(client) == {server.listeners["PLAINTEXT"]}
        with pytest.raises((ssl.SSLError, ConnectionError)), entered(server, "SSL", certificate) as client:
            told(client)
