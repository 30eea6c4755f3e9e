"""Frames that no seglog process sends to the owner of a log, and answers that no owner gives."""
import json
import os
import random
import socket
import struct
import threading
import time

import pytest

import seglog
from seglog.attach.channel import VERSION, Channel, GoneError
from seglog.attach.sent_batches import OwnProducer
from seglog.attach.shared_log import SOCKET
from seglog.errors import ProtocolError, SeglogError
from seglog.format.batch import end_marker
from seglog.fs import local_socket

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
MUTATIONS = 10_000 if TORTURE else 1000

RECORDS = [(b"k", b"v"), (None, b"w", [("h", b"x")])]
STAMPED = OwnProducer().stamped([seglog.build_batch(RECORDS), seglog.build_batch(RECORDS)])
CALLS = [
    ({"call": "append", "since": 0, "wait": True}, STAMPED[:1]),
    ({"call": "append", "since": 0, "wait": False, "is_again": True}, STAMPED),
    ({"call": "append", "since": 0}, [seglog.build_batch(RECORDS)]),
    ({"call": "append", "since": 0}, [seglog.build_batch(
        [end_marker(True, 0)], control=True, transactional=True, producer_id=5, producer_epoch=0)]),
    ({"call": "append", "since": 0}, [seglog.build_batch(
        RECORDS, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)]),
    ({"call": "append", "since": 0}, [seglog.build_batch(RECORDS[:1], magic=1)]),
    ({"call": "flush"}, []), ({"call": "look"}, []), ({"call": "stats"}, []),
    ({"call": "delete_records", "before": 0}, []), ({"call": "snapshot", "path": "/"}, []),
]
STRANGE = [None, True, -1, 0, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "x", "\ud800", "\x00",
           "/no/such/\ud800", "/\x00", "/x", [], [[]], {}, {"a": 1}, "é" * 200]


@pytest.fixture
def owner(in_memory):
    with seglog.open(in_memory / "orders-0", attach=True, fsync="never") as log:
        yield log


def hello(owner, **other):
    channel = Channel(local_socket.connect(owner.path, SOCKET, 30))
    channel.send({"hello": "seglog", "version": VERSION, "holder": "h", "is_main": False, **other})
    return channel, channel.receive()[0]


def raw_frame(header, values):
    text = json.dumps({**header, "sizes": [len(value) for value in values]}).encode()
    return struct.pack(">II", len(text), sum(map(len, values))) + text + b"".join(values)


def mutated(chance):
    header, values = chance.choice(CALLS)
    header, values = dict(header), list(values)
    if values and chance.random() < 0.4:
        value = bytearray(values[0])
        for _ in range(chance.choice((1, 1, 3))):
            value[chance.randrange(len(value))] = chance.randrange(256)
        if chance.random() < 0.2:
            del value[chance.randrange(len(value)) :]
        values[0] = bytes(value)
    for _ in range(chance.choice((0, 1, 1, 2))):
        name = chance.choice([*header, "sizes", "other"])
        if chance.random() < 0.2:
            header.pop(name, None)
        else:
            header[name] = chance.choice(STRANGE)
    raw = bytearray(raw_frame(header, values))
    if chance.random() < 0.2:
        at = chance.randrange(4, len(raw)) if chance.random() < 0.8 else chance.randrange(len(raw))
        raw[at] = chance.randrange(256)
    if chance.random() < 0.1:
        del raw[chance.randrange(len(raw)) :]
    return bytes(raw)


def test_mutated_frames_end_their_connection_at_most_and_the_log_goes_on(owner, caplog):
    chance, answered, channel = random.Random(6), 0, None
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
    last = owner.append(b"x")
    assert owner[last].value == b"x"
    assert owner.last_stable_offset == owner.log_end_offset, "a transaction was begun"
    assert not [batch for batch in owner.batches() if batch.is_control]
    if channel is not None:
        channel.close()
    owner.close()
    assert not seglog.verify(owner.path).findings


ANSWERS = [
    {}, {"results": 5}, {"results": []}, {"results": [5]}, {"results": [[0, 0]]}, {"results": [["0", 0, False]]},
    {"results": [[0, 0, 1]]}, {"results": [[0, 0, False], [1, 1, False]]}, {"offset": "x"}, {"stats": 5},
    {"stats": {"a": 1}}, {"error": 5}, {"error": {"what": "x", "code": []}}, {"cleaner_offset": "x"},
    {"error": {"what": "x", "code": "log_failed", "errno": "x"}},
]
GREETING = {"version": VERSION, "owner": "x", "end": 0, "config": {}, "leader_epoch": 0, "options": {"fsync": "batch"}}


class FalseOwner:
    """Listens for a log, and answers as it is told."""

    def __init__(self, path, greeting):
        self.greeting, self.answers = greeting, iter(())
        self.listener, _ = local_socket.listen(path, SOCKET)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        channel = Channel(connection)
        try:
            channel.receive()
            channel.send(self.greeting)
            while True:
                channel.receive()
                channel.send(next(self.answers))
        except (GoneError, StopIteration):
            pass
        finally:
            channel.close()

    def end(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def test_answers_that_no_owner_gives_raise_an_error_of_ours(in_memory):
    path = in_memory / "orders-0"
    seglog.open(path).close()
    false = FalseOwner(path, GREETING)
    log = seglog.open(path, attach=True)
    try:
        for call in (lambda: log.append(b"x"), lambda: log.append_many([(None, b"x")]), log.roll, log.stats,
                     lambda: log.delete_records(0), lambda: log.recovery_point, lambda: log.snapshot("/x-0"),
                     lambda: log.append_batch(seglog.build_batch([(None, b"x")]))):
            for answer in ANSWERS:
                false.answers = iter([answer])
                with pytest.raises(SeglogError):
                    call()
    finally:
        log._is_ending = True
        log.close()
        false.end()


@pytest.mark.parametrize("wrong", [
    {"owner": 5}, {"end": "x"}, {"end": None}, {"config": 5}, {"config": {"segment.bytes": []}}, {"leader_epoch": "x"},
    {"options": 5}, {"options": {"fsync": "x"}}, {"version": 5}, {"error": 5},
])
def test_a_greeting_that_no_owner_gives_is_a_protocol_error(in_memory, wrong):
    path = in_memory / "orders-0"
    seglog.open(path).close()
    false = FalseOwner(path, {**GREETING, **wrong})
    try:
        with pytest.raises(ProtocolError):
            seglog.open(path, attach=True)
    finally:
        false.end()
