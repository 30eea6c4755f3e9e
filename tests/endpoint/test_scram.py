"""Logins by SCRAM: the example of RFC 7677, clients of others, users that clients make, hostile tokens."""
import asyncio
import base64
import hashlib
import hmac
import os
import random
import secrets
import stat
import struct
import warnings

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

import seglog
from seglog.endpoint.scram import ScramError, ScramExchange
from seglog.endpoint.users import Users
from seglog.errors import CorruptSettingsError, InvalidArgumentError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.state.users import FILE_NAME, Credential, Mechanism, read_users, write_users
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AlterUserScramCredentialsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from support.wire_client import WireClient

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)     # of its own imports
    import kafka

SASL = "SASL_PLAINTEXT://127.0.0.1:0"
BOTH = ["PLAINTEXT://127.0.0.1:0", SASL]
USERS = {"alice": "secret", "böb, =x": "пароль"}
COUNT = 100_000 if os.environ.get("SEGLOG_TORTURE") else 2_000     # `make torture` sets it


class Door:
    def __init__(self, address):
        self.host, _, port = address.rpartition(":")
        self.port = int(port)


class Client:
    """The client's side of RFC 5802, written from it alone."""

    def __init__(self, mechanism, name, password, *, header="n,,", nonce="client"):
        self.hash_name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self.password, self.header = password.encode(), header
        self.bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"

    def mac(self, key, text):
        return hmac.digest(key, text, self.hash_name)

    def first(self):
        return f"{self.header}{self.bare}".encode()

    def final(self, answer):
        nonce, salt, iterations = (part[2:] for part in answer.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self.hash_name, self.password, base64.b64decode(salt), int(iterations))
        without = f"c={base64.b64encode(self.header.encode()).decode()},r={nonce}"
        said = f"{self.bare},{answer.decode()},{without}".encode()
        key = self.mac(salted, b"Client Key")
        signature = self.mac(hashlib.new(self.hash_name, key).digest(), said)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.expected = b"v=" + base64.b64encode(self.mac(self.mac(salted, b"Server Key"), said))
        return f"{without},p={base64.b64encode(proof).decode()}".encode()


def credential_of(mechanism, password, salt=b"salt"):
    made = Credential.of_password(mechanism, password.encode(), salt)
    return lambda *_: (made, True)


def test_the_example_of_the_rfc(monkeypatch):
    """RFC 7677, section 3."""
    monkeypatch.setattr(secrets, "token_urlsafe", lambda _: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    exchange = ScramExchange(
        Mechanism.SCRAM_SHA_256,
        credential_of(Mechanism.SCRAM_SHA_256, "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")))
    assert exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert exchange.final(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.name == "user"


@pytest.mark.parametrize("first", [
    b"", b"n", b"p=tls-unique,,n=u,r=x", b"n,,n=u", b"n,,n=,r=x", b"n,,n=u=,r=x", b"n,,n=u,r=", b"n,,n=u,r=a\x7f",
    b"n,a=v,n=u,r=x", b"n,,m=ext,n=u,r=x", b"n,,n=\xff,r=x", b"n,,n=u\0,r=x", b"n,,n=u,r=" + b"x" * 513,
], ids=repr)
def test_a_first_token_that_is_none(first):
    with pytest.raises(ScramError):
        ScramExchange(Mechanism.SCRAM_SHA_256, credential_of(Mechanism.SCRAM_SHA_256, "p")).first(first)


def left_over_bits(final):
    """The same proof in another base64: 64 bytes take 86 digits, and the last one has four bits that mean nothing."""
    digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    assert final.endswith(b"==")
    return final[:-3] + digits[digits.index(final[-3]) + 1 :][:1] + b"=="


@pytest.mark.parametrize("change", [
    lambda final: final.replace(b"c=biws", b"c=eSws"), lambda final: final.replace(b"r=client", b"r=clienT"),
    lambda final: final[:-1], lambda final: final + b"A", lambda final: final.replace(b",p=", b",q="),
    lambda final: final[: final.index(b"p=") + 2], lambda final: final.replace(b"p=", b"p=AAAA"),
    lambda final: final.replace(b",p=", b",x=y,p="), lambda final: b"",
    lambda final: final.replace(b"p=", b"p=!"), left_over_bits,
])
def test_a_final_token_that_is_changed_in_any_way_is_refused(change):
    exchange = ScramExchange(Mechanism.SCRAM_SHA_512, credential_of(Mechanism.SCRAM_SHA_512, "p"))
    client = Client("SCRAM-SHA-512", "u", "p")
    with pytest.raises(ScramError):
        exchange.final(change(client.final(exchange.first(client.first()))))


def test_no_changed_token_crashes_or_logs_in():
    """Bytes are changed at random; the login succeeds only with the token that the client made."""
    rnd = random.Random(38)
    credential = credential_of(Mechanism.SCRAM_SHA_256, "p")
    client = Client("SCRAM-SHA-256", "u", "p")
    exchange = ScramExchange(Mechanism.SCRAM_SHA_256, credential)
    final = client.final(exchange.first(client.first()))
    refused = 0
    for _ in range(COUNT):
        first, changed = bytearray(client.first()), bytearray(final)
        for token in (first, changed):
            for _ in range(rnd.randrange(1, 4)):
                token[rnd.randrange(len(token))] = rnd.choice([rnd.randrange(256), *b",=nrcpai\0"])
        try:
            ScramExchange(Mechanism.SCRAM_SHA_256, credential).first(bytes(first))
        except ScramError:
            refused += 1
        if bytes(changed) != final:
            with pytest.raises(ScramError):
                exchange.final(bytes(changed))
    assert 0 < refused < COUNT
    assert exchange.final(final) == client.expected


# --- over the wire -------------------------------------------------------------------------------


def logged_in(client, mechanism, name, password, *, version=2):
    """Log in by hand; the error of the last answer."""
    assert not client.ask(SaslHandshakeRequest(mechanism=mechanism), 1).error_code
    side = Client(mechanism, name, password)
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=side.first()), version)
    assert not answer.error_code
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=side.final(answer.auth_bytes)), version)
    assert answer.error_code or answer.auth_bytes == side.expected
    return answer.error_code


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_knows_the_password_is_served_and_nobody_learns_who_there_is(in_memory, mechanism):
    with seglog.serve(in_memory / "data", topics={"orders": 1}, users=USERS) as server:
        for name, password in USERS.items():
            with WireClient(server) as client:
                assert not logged_in(client, mechanism, name, password)
                assert client.ask(MetadataRequest(topics=None), 12).brokers
        for name, password in (("alice", "Secret"), ("nobody", "secret"), ("alice", "")):
            with WireClient(server) as client:
                assert logged_in(client, mechanism, name, password) == Errors.SASL_AUTHENTICATION_FAILED
                assert client.is_closed()
        firsts = set()
        for _ in range(2):
            with WireClient(server) as client:      # an unknown user gets the same salt each time, as a known one
                client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
                answer = client.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=nobody,r=x"), 2)
                firsts.add(answer.auth_bytes.split(b",", 1)[1])
        assert len(firsts) == 1


def test_the_oldest_handshake_is_followed_by_bare_tokens(in_memory):
    with seglog.serve(in_memory / "data", users=USERS) as server, WireClient(server) as client:
        client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 0)
        side = Client("SCRAM-SHA-512", "alice", "secret")

        def token(data):
            client.socket.sendall(struct.pack(">i", len(data)) + data)
            return client.receive_frame()

        assert token(side.final(token(side.first()))) == side.expected
        assert client.ask(MetadataRequest(topics=None), 12).brokers


def test_one_login_is_good_for_one_mechanism_and_one_exchange(in_memory):
    with seglog.serve(in_memory / "data", users=USERS) as server:
        with WireClient(server) as client:
            client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
            assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == Errors.ILLEGAL_SASL_STATE
            assert client.is_closed()
        with WireClient(server) as client:      # a password in clear, to SCRAM
            client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
            answer = client.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2)
            assert answer.error_code == Errors.SASL_AUTHENTICATION_FAILED
            assert client.is_closed()
        with WireClient(server) as client:
            assert not logged_in(client, "SCRAM-SHA-256", "alice", "secret")
            answer = client.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=x"), 2)
            assert answer.error_code == Errors.ILLEGAL_SASL_STATE


# --- clients of others ---------------------------------------------------------------------------


def sasl_of(mechanism, name="alice", password="secret"):
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_plain_username": name,
            "sasl_plain_password": password}


def librdkafka_of(server, mechanism, name="alice", password="secret"):
    return {"bootstrap.servers": server.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT", "log_level": 0,
            "sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": password}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_clients_of_others_log_in(in_memory, mechanism):
    with seglog.serve(in_memory / "data", topics={"orders": 1}, users=USERS) as server:
        producer = confluent_kafka.Producer(librdkafka_of(server, mechanism))
        producer.produce("orders", b"by librdkafka")
        assert producer.flush(30) == 0
        by_python = kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers, **sasl_of(mechanism))
        by_python.send("orders", b"by kafka-python").get(30)
        by_python.close()
        consumer = kafka.KafkaConsumer(
            "orders", bootstrap_servers=server.bootstrap_servers, auto_offset_reset="earliest", **sasl_of(mechanism),
            consumer_timeout_ms=20_000)
        assert [next(consumer).value for _ in range(2)] == [b"by librdkafka", b"by kafka-python"]
        consumer.close()
        assert server.log("orders").log_end_offset == 2


def test_aiokafka_logs_in_and_is_told_of_a_wrong_password(in_memory):
    async def run():
        async with seglog.serve(in_memory / "data", topics={"orders": 1}, users=USERS) as server:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=server.bootstrap_servers, **sasl_of("SCRAM-SHA-512"))
            await producer.start()
            await producer.send_and_wait("orders", b"by aiokafka")
            await producer.stop()
            other = aiokafka.AIOKafkaProducer(
                bootstrap_servers=server.bootstrap_servers, **sasl_of("SCRAM-SHA-512", password="wrong"))
            with pytest.raises(aiokafka.errors.KafkaError):
                await other.start()
            await other.stop()

    asyncio.run(run())


# --- users that clients make ---------------------------------------------------------------------


def admin(server, listener="PLAINTEXT", **settings):
    return AdminClient({"bootstrap.servers": server.listeners[listener], "log_level": 0, **settings})


def altered(client, *changes):
    return {name: one.exception(30) for name, one in client.alter_user_scram_credentials(list(changes)).items()}


def upsertion(name, password, mechanism=ScramMechanism.SCRAM_SHA_256, iterations=8192):
    return UserScramCredentialUpsertion(
        name, ScramCredentialInfo(mechanism, iterations), password)


def logs_in(server, name, password, mechanism="SCRAM-SHA-256"):
    with WireClient(Door(server.listeners["SASL_PLAINTEXT"])) as client:
        return not logged_in(client, mechanism, name, password)


def test_a_user_that_a_client_makes_logs_in_also_after_a_restart_and_no_more_once_it_is_gone(in_memory):
    with seglog.serve(in_memory / "data", listen=BOTH) as server:
        client = admin(server)
        assert altered(client, upsertion("carol", b"first")) == {"carol": None}
        dora = upsertion("dora", b"d", ScramMechanism.SCRAM_SHA_512)
        assert altered(client, upsertion("carol", b"second"), dora) == {"carol": None, "dora": None}
        assert [logs_in(server, "carol", text) for text in ("first", "second")] == [False, True]
        assert logs_in(server, "dora", "d", "SCRAM-SHA-512")
        assert not logs_in(server, "dora", "d", "SCRAM-SHA-256")
        described = {
            name: [(one.mechanism, one.iterations) for one in found.result(30).scram_credential_infos]
            for name, found in client.describe_user_scram_credentials(["carol", "dora"]).items()}
        assert described == {
            "carol": [(ScramMechanism.SCRAM_SHA_256, 8192)], "dora": [(ScramMechanism.SCRAM_SHA_512, 8192)]}
    assert stat.S_IMODE((in_memory / "data" / FILE_NAME).stat().st_mode) == 0o600
    assert b"second" not in (in_memory / "data" / FILE_NAME).read_bytes()
    with seglog.serve(in_memory / "data", listen=BOTH) as server:
        assert logs_in(server, "carol", "second")
        client = admin(server)
        assert altered(client, UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)) == {"carol": None}
        assert not logs_in(server, "carol", "second")
    assert list(read_users(in_memory / "data")) == ["dora"]


def test_a_client_cannot_change_the_users_of_the_operator(in_memory):
    with seglog.serve(in_memory / "data", listen=BOTH, users=USERS) as server:
        found = altered(admin(server), upsertion("alice", b"mine"))
        assert found["alice"].args[0].name() == "UNACCEPTABLE_CREDENTIAL"
        assert logs_in(server, "alice", "secret")
        assert not logs_in(server, "alice", "mine")
    assert not (in_memory / "data" / FILE_NAME).exists()


@pytest.mark.parametrize("change", [
    {"salt": b""}, {"salt": b"x" * 256}, {"salted_password": b""}, {"salted_password": b"x" * 64}, {"name": "a\x1b[2J"},
    {"name": "x" * 256}, {"mechanism": -1}, {"mechanism": 127}, {"iterations": -1}, {"iterations": 2**31 - 1},
], ids=repr)
def test_what_no_client_makes_is_refused(in_memory, change):
    made = {"name": "erin", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": bytes(32), **change}
    with seglog.serve(in_memory / "data") as server, WireClient(server) as client:
        answer = client.ask(AlterUserScramCredentialsRequest(
            upsertions=[AlterUserScramCredentialsRequest.ScramCredentialUpsertion(**made)]), 0)
        assert answer.results[0].error_code in (
            Errors.UNACCEPTABLE_CREDENTIAL, Errors.UNSUPPORTED_SASL_MECHANISM)
    assert not (in_memory / "data" / FILE_NAME).exists()


def test_a_change_that_cannot_be_written_is_refused_and_forgotten(in_memory, monkeypatch):
    with seglog.serve(in_memory / "data", listen=BOTH) as server:
        assert altered(admin(server), upsertion("carol", b"first")) == {"carol": None}
        with monkeypatch.context() as failing:
            failing.setattr("seglog.fs.aside._new_scratch", _full)
            found = altered(admin(server), upsertion("carol", b"second"))
            assert found["carol"].args[0].name() == "KAFKA_STORAGE_ERROR"
        assert [logs_in(server, "carol", text) for text in ("first", "second")] == [True, False]


def _full(*_):
    raise StorageError("no space left on device")


# --- starting ------------------------------------------------------------------------------------


def test_a_server_that_nobody_could_log_in_to_does_not_start(in_memory):
    with pytest.raises(InvalidArgumentError, match="there are no users"), seglog.serve(in_memory / "data", listen=SASL):
        pass
    write_users(OsFileSystem(), in_memory / "data", {
        "carol": {Mechanism.SCRAM_SHA_256: Credential.of_password(Mechanism.SCRAM_SHA_256, b"c")}})
    with seglog.serve(in_memory / "data", listen=SASL) as server:
        assert logs_in(server, "carol", "c")
        with WireClient(server) as client:      # PLAIN would need to know passwords
            answer = client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            assert answer.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]


def test_users_that_no_listener_asks_for_are_told(in_memory, caplog):
    (in_memory / "data").mkdir()
    write_users(OsFileSystem(), in_memory / "data", {
        "carol": {Mechanism.SCRAM_SHA_256: Credential.of_password(Mechanism.SCRAM_SHA_256, b"c")}})
    with seglog.serve(in_memory / "data") as server, WireClient(server) as client:
        assert client.ask(MetadataRequest(topics=None), 12).brokers
    assert "the log dir has users, and no listener asks for them" in caplog.text


def test_a_server_whose_users_cannot_be_read_does_not_start(in_memory):
    (in_memory / "data").mkdir()
    (in_memory / "data" / FILE_NAME).write_bytes(b"{}")
    with pytest.raises(CorruptSettingsError, match="users"), seglog.serve(in_memory / "data"):
        pass


# --- passwords of stored users, as the page asks for them ----------------------------------------


def test_an_unknown_name_takes_as_long_as_a_wrong_password_and_one_is_tried_at_a_time(in_memory, monkeypatch):
    in_memory.mkdir(exist_ok=True)
    write_users(OsFileSystem(), in_memory, {
        "carol": {Mechanism.SCRAM_SHA_256: Credential.of_password(Mechanism.SCRAM_SHA_256, b"c")}})
    users = Users({"alice": "a"}, OsFileSystem(), in_memory)
    tried, at_once = [], []
    fits = Credential.fits

    def counted(credential, mechanism, password):
        at_once.append(1)
        tried.append(len(at_once))
        try:
            return fits(credential, mechanism, password)
        finally:
            at_once.pop()

    monkeypatch.setattr(Credential, "fits", counted)

    async def ask():
        assert await users.knows("carol", b"c")
        for name in ("carol", "nobody", "alice"):
            tried.clear()
            assert not await users.knows(name, b"wrong")
            assert len(tried) == 1, name
        tried.clear()
        assert not any(await asyncio.gather(*(users.knows(f"n{number}", b"wrong") for number in range(8))))
        assert tried == [1] * 8
        assert await users.knows("alice", b"a")
        assert not await users.knows("", b"")
        assert len(tried) == 8

    asyncio.run(ask())
