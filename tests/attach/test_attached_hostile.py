"""Frames that no seglog process sends: each side takes the other's for hostile."""
import json
import os
import random
import select
import socket
import struct
import threading
import time
from contextlib import suppress

import pytest

import seglog
from seglog.attach.channel import SOCKET, VERSION, Channel, GoneError
from seglog.attach.errors_sent import error_received, error_sent
from seglog.errors import ProtocolError, SeglogError, StorageError, UnsupportedVersionError
from seglog.fs import local_socket

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
MUTATIONS = 100_000 if TORTURE else 1500

CALLS = [
    ({"call": "put", "keys": ["k", None], "properties": {"a": "b"}, "priority": 0, "is_many": True, "delay": 1.5,
      "at_ms": None, "unique_for": None, "timeout": 0.0, "token": "abc:1", "since": [0, 1], "is_again": True},
     [b"x", b"y"]),
    ({"call": "put", "keys": [["ff"]], "properties": None, "priority": 1, "is_many": False, "delay": None,
      "at_ms": 1700000000000, "unique_for": 0.01, "timeout": 0.0, "token": "abc:2", "since": None}, [b"x"]),
    ({"call": "get", "count": 2, "timeout": 0.0, "lease": 0.01}, []),
    ({"call": "ack", "jobs": [["0:0", 1], ["1/0:0:1", 1]], "wait": True}, []),
    ({"call": "nack", "id": "0:0", "attempt": 1, "reason": "why", "is_late_allowed": False, "delay": 0}, []),
    ({"call": "extend", "id": "0:0:1", "attempt": 1, "lease": 0.1}, []),
    ({"call": "release", "jobs": [["0:0", 1]]}, []),
    ({"call": "requeue", "ids": ["0:0"]}, []),
    ({"call": "peek", "skip": 0, "count": 3}, []),
    ({"call": "dead", "skip": 0, "count": 3}, []),
    ({"call": "pause", "is_paused": False}, []),
    ({"call": "stats"}, []),
]
STRANGE = [None, True, -1, 0, 2**31, 2**63, 2**64, 10**30, 1.5, 1e308, float("nan"), float("inf"), "", "x", "0:0",
           "-1/0:0", "999999999999999999:999999999999999999", "0:0:999999999",
           "\ud800", "\x00", [], [[]], [1], {}, {"a": 1},
           [["0:0", 1]], [["0:0", "x"]], [None] * 3, "é" * 200]


@pytest.fixture
def owner(in_memory):
    with seglog.Queue(in_memory / "jobs", attach=True, fsync="never", retry_delay=0) as queue:
        yield queue


def hello(owner, **other):
    channel = Channel(local_socket.connect(owner.path, SOCKET, 30))
    channel.send({"hello": "seglog", "version": VERSION, "holder": "h", "is_main": False, **other})
    return channel, channel.receive()[0]


def raw_frame(header, values=()):
    text = json.dumps({**header, "sizes": [len(value) for value in values]}).encode()
    return struct.pack(">II", len(text), sum(map(len, values))) + text + b"".join(values)


def mutated(chance):
    header, values = chance.choice(CALLS)
    header = dict(header)
    for _ in range(chance.choice((0, 1, 1, 2))):
        name = chance.choice([*header, "sizes", "other"])
        if name == "timeout":       # others let it wait for ever, as they should
            header[name] = chance.choice([-1, 0, "x", [], {}, True, float("nan")])
        elif chance.random() < 0.2:
            header.pop(name, None)
        else:
            header[name] = chance.choice(STRANGE)
    raw = bytearray(raw_frame(header, values))
    if chance.random() < 0.4:
        for _ in range(chance.choice((1, 1, 3))):
            at = chance.randrange(4, len(raw)) if chance.random() < 0.8 else chance.randrange(len(raw))
            raw[at] = chance.randrange(256)
    if chance.random() < 0.1:
        del raw[chance.randrange(len(raw)) :]
    return bytes(raw)


def test_mutated_frames_end_their_connection_at_most_and_the_queue_goes_on(owner, caplog):
    chance, answered = random.Random(5), 0
    main, _ = hello(owner, is_main=True)
    channel = None
    for _ in range(MUTATIONS):
        if channel is None:
            channel, _ = hello(owner)
        raw = mutated(chance)
        is_whole = len(raw) >= 8 and 8 + sum(struct.unpack(">II", raw[:8])) == len(raw)
        try:
            channel._socket.sendall(raw)
            if not is_whole:        # it would wait for the rest
                channel._socket.shutdown(socket.SHUT_WR)
            while True:
                header, _ = channel.receive(time.monotonic() + 60)
                answered += "error" not in header
                if is_whole and header.get("error", {}).get("code") != ProtocolError.code:
                    break
        except (GoneError, OSError):
            channel.close()
            channel = None
    assert answered > MUTATIONS // 10
    assert not [record for record in caplog.records if record.exc_info], "a call failed with an error that is not ours"
    owner.purge()
    owner.put(b"x")
    assert owner.get(timeout=60).value == b"x"
    main.close()
    if channel is not None:
        channel.close()


@pytest.mark.parametrize("raw", [
    b"", b"\xff" * 8, b"\0" * 8, struct.pack(">II", 2, 0) + b"{}", struct.pack(">II", 2, 0) + b"[]",
    struct.pack(">II", 100_000, 0) + b"[" * 100_000, struct.pack(">II", 2, 2**32 - 1) + b"{}",
    b"GET / HTTP/1.1\r\n\r\n",
    raw_frame({"hello": "seglog", "version": 1, "holder": 5}), raw_frame({"hello": "other"}),
    raw_frame({"hello": "seglog", "version": 1, "holder": "x" * 65}),
    raw_frame({"hello": "seglog", "version": 1, "holder": "x", "is_main": True, "held": [[1]]}),
    raw_frame({"hello": "seglog", "version": 1, "holder": "x", "is_main": True, "held": 5}),
])
def test_what_is_no_first_frame_ends_the_connection(owner, raw):
    channel = Channel(local_socket.connect(owner.path, SOCKET, 30))
    channel._socket.sendall(raw)
    channel._socket.shutdown(socket.SHUT_WR)
    answers = []
    with suppress(GoneError):
        while True:
            answers.append(channel.receive()[0])
    assert len(answers) <= 1
    assert all("error" in answer for answer in answers)
    channel.close()
    assert owner.stats().backlog == 0


def test_a_process_with_another_version_of_the_frames_is_refused_by_name(owner):
    channel, answer = hello(owner, version=VERSION + 1)
    channel.close()
    error = error_received(answer["error"])
    assert isinstance(error, UnsupportedVersionError)
    assert "same version of seglog" in error.hint


def test_a_token_that_is_no_text_in_utf_8_is_a_protocol_error(owner, caplog):
    main, _ = hello(owner, is_main=True)
    channel, _ = hello(owner)
    channel.send({"call": "put", "keys": [None], "token": "\ud800", "priority": 0, "is_again": True}, [b"x"])
    assert channel.receive()[0]["error"]["code"] == ProtocolError.code
    assert not [record for record in caplog.records if record.exc_info]
    channel.close()
    main.close()


def test_jobs_whose_answer_nobody_read_are_delivered_again(owner):
    owner.put(b"x")
    main, _ = hello(owner, is_main=True)
    channel, _ = hello(owner)
    channel.send({"call": "get", "count": 1, "timeout": 0, "lease": 600})
    assert select.select([channel._socket], [], [], 60)[0]
    channel.close()
    assert owner.get(timeout=60).attempt == 2
    main.close()


ANSWERS = [
    {}, {"ids": 5}, {"ids": []}, {"ids": [5]}, {"jobs": 5}, {"jobs": [{}]}, {"jobs": [5]}, {"jobs": [{"id": "0:0"}]},
    {"count": "x"},
    {"jobs": [{"id": 5, "attempt": 1}]}, {"error": 5}, {"error": {"code": 5, "what": 5}},
    {"error": {"what": "x", "code": []}},
    {"stats": 5}, {"stats": {"ready": 1}}, {"error": {"what": "x", "code": "no_such", "position": "x", "hint": 5}},
    {"jobs": [{"id": "0:0", "attempt": 1, "enqueued_ms": 1, "due_ms": 1, "properties": {}, "key": [5]}]},
]


def test_answers_that_no_owner_gives_raise_an_error_of_ours(tmp_path):
    path = tmp_path / "jobs"
    path.mkdir()
    answers = iter([])
    listener, _ = local_socket.listen(path, SOCKET)

    def serve(connection):
        channel = Channel(connection)
        try:
            first, _ = channel.receive()
            channel.send({"version": VERSION, "positions": {}, "owner": "x"})
            while first:
                channel.receive()
                answer = next(answers)
                channel.send(answer, [b"x"] * len(answer["jobs"]) if isinstance(answer.get("jobs"), list) else [])
        except (GoneError, StopIteration):
            pass
        finally:
            channel.close()

    def accept():
        while True:
            try:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    jobs = seglog.Queue(path, attach=True)
    try:
        for call in (lambda: jobs.put(b"x"), lambda: jobs.get(timeout=0), jobs.stats, lambda: len(jobs.dead),
                     lambda: jobs.peek(1), lambda: jobs.dead.peek(1), jobs.purge):
            for answer in ANSWERS:
                answers = iter([answer])
                try:
                    call()
                except SeglogError:
                    continue
                assert answer.keys() & {"count", "jobs"}, answer
    finally:
        jobs._is_ending = True
        jobs.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_another_user_is_refused(owner, monkeypatch):
    monkeypatch.setattr("seglog.attach.channel.peer_of", lambda connection: (1, os.geteuid() + 1))
    channel = Channel(local_socket.connect(owner.path, SOCKET, 30))
    with pytest.raises(ProtocolError, match="user"):
        channel.check_peer()
    assert "user" in channel.receive()[0]["error"]["what"]
    channel.close()


def test_errors_are_the_same_after_they_were_sent():
    error = StorageError("it failed", file="/a/b", position=5, offset=7, hint="do this")
    again = error_received(json.loads(json.dumps(error_sent(error))))
    assert (type(again), str(again), again.hint) == (type(error), str(error), error.hint)
    assert isinstance(error_received(error_sent(ZeroDivisionError("x"))), StorageError)
