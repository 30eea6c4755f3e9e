"""log.fetch: what a broker sends, as it lies on disk, or converted for clients that know older formats only."""
import gc
import json
import os
import shutil
import socket
import threading

import pytest

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    LogClosedError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)
from seglog.format.batch import end_marker
from seglog.format.compression import Codec, decompressor
from seglog.log.log import Log
from seglog.metrics import Exposition
from seglog.reading.fetch_result import ConvertedFetch, FetchSlice, LogEnds
from seglog.upkeep.cleaner import clean
from support.descriptors import descriptors_of
from support.golden import unpack
from support.made_logs import NOW, batches_of, open_log

DOWN = [pytest.param(d, id=d.name) for d in sorted((unpack("kafka") / "convert/down").iterdir())]


@pytest.fixture
def path(in_memory):
    return in_memory / "data" / "orders-0"


def records(raw):
    return [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for b in batches_of(raw) for r in b]


def fetch_all(log, offset=0, **options):
    """All that a client gets that goes on fetching, as (fetches, bytes)."""
    fetched, raw = [], b""
    while True:
        fetched.append(log.fetch(offset, **options))
        got = bytes(fetched[-1].view())
        whole = batches_of(got)
        if not whole:
            return fetched, raw
        raw += got[: whole[-1].position + whole[-1].size_bytes]
        assert whole[-1].last_offset >= offset
        offset = whole[-1].last_offset + 1


def filled(log, count=20, value=b"v" * 100):
    for n in range(count):
        log.append(value, key=b"%d" % n)
    return log


# --- as it lies on disk -------------------------------------------------------------------------------------


def test_a_slice_is_the_bytes_of_the_file_from_the_batch_on_that_holds_the_offset(path):
    with open_log(path) as log:
        log.append_many([(b"k", b"v")] * 5)
        filled(log)
        raw = log.segments[0].path.read_bytes()
        whole = log.fetch(3)
        assert isinstance(whole, FetchSlice)
        assert (bytes(whole.view()), len(whole), whole.position) == (raw, len(raw), 0)
        second = batches_of(raw)[1]
        for size in (0, 1, second.size_bytes, second.size_bytes + 1, 1000):
            part = log.fetch(5, size)
            assert bytes(part.view()) == raw[second.position :][: max(size, second.size_bytes)]
            assert len(log.fetch(5, size, min_one=False)) == size
        assert whole.ends == LogEnds(0, 25, -1, ())


def test_the_bytes_are_not_copied(path):
    with open_log(path) as log:
        filled(log)
        view = log.fetch(0).view()
        assert view.readonly
        assert view.obj is log.segments[0].files().window


def test_a_fetch_goes_on_in_the_next_segment_and_ends_with_nothing(path):
    with open_log(path, segment_bytes=1000) as log:
        filled(log)
        assert len(log.segments) > 2
        fetched, raw = fetch_all(log)
        assert raw == b"".join(segment.path.read_bytes() for segment in log.segments)
        assert len(fetched) == len(log.segments) + 1
        assert len(fetched[-1]) == 0
        assert fetched[-1].fileno() == -1
        log.delete_records(9)
        for offset in (8, 21, -1):
            with pytest.raises(OffsetOutOfRangeError, match=r"\[9, 20"):
                log.fetch(offset)


def test_a_closed_directory_is_fetched_from_up_to_its_torn_tail(path):
    with open_log(path) as log:
        filled(log)
        raw = log.segments[0].path.read_bytes()
    for tail in (b"", raw[:50], bytes(100)):
        (path / ("0" * 20 + ".log")).write_bytes(raw + tail)
        with seglog.open_partition(path) as partition:
            for magic in (None, 2):
                assert bytes(partition.fetch(0, magic=magic).view()) == raw


def test_what_is_not_published_is_not_sent(path):
    with seglog.open(path, fsync="batch") as log:
        log.append(b"v")
        size = len(log.fetch(0))
        assert size == log.segments[0].size_bytes
        log.append(b"v")
        assert len(log.fetch(0)) == 2 * size


@pytest.mark.parametrize("wrong", [
    {"magic": 3}, {"magic": True}, {"magic": "2"}, {"max_bytes": -1}, {"max_bytes": 1.5}, {"isolation": "committed"},
    {"offset": "0"}, {"offset": None},
])
def test_what_is_no_argument_is_refused(path, wrong):
    with open_log(path) as log, pytest.raises(InvalidArgumentError):
        log.fetch(**{"offset": 0, **wrong})


def received(send, family=socket.AF_UNIX, wrap=lambda sock: sock):
    """What the other end of a connection gets."""
    ours, theirs = socket.socketpair(family)
    got = []

    def drain():
        while piece := theirs.recv(1 << 16):
            got.append(piece)

    reader = threading.Thread(target=drain)
    reader.start()
    with wrap(ours) as sock:
        sent = send(sock)
    reader.join()
    theirs.close()
    assert sent == sum(map(len, got))
    return b"".join(got)


class _Encrypting(socket.socket):
    """As ssl.SSLSocket: what is written to its descriptor would go out in plain."""

    def sendall(self, data, flags=0):
        super().sendall(bytes(byte ^ 0x5A for byte in data), flags)


def test_a_slice_is_sent_through_sockets_of_every_kind(path):
    with open_log(path) as log:
        filled(log, 300, b"v" * 5000)
        raw = log.segments[0].path.read_bytes()
        fetched = log.fetch(0, 1 << 30)
        assert received(fetched.send) == raw

        def with_timeout(sock):
            sock.settimeout(10)
            return sock

        assert received(fetched.send, wrap=with_timeout) == raw
        encrypted = received(
            log.fetch(0, 3000).send, wrap=lambda sock: _Encrypting(sock.family, sock.type, 0, sock.detach())
        )
        assert bytes(byte ^ 0x5A for byte in encrypted) == raw[: len(encrypted)]
        assert received(log.fetch(300).send) == b""


def test_sendfile_sends_what_a_socket_takes_and_goes_on(path):
    with open_log(path) as log:
        filled(log, 300, b"v" * 5000)
        fetched = log.fetch(7, 1_000_000)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        got = b""
        while len(got) < len(fetched):
            sent = fetched.sendfile(ours.fileno(), len(got))
            assert 0 < sent <= len(fetched)
            got += theirs.recv(sent, socket.MSG_WAITALL)
        assert got == fetched.view()
        assert fetched.sendfile(ours.fileno(), len(fetched)) == 0
        assert fetched.sendfile(ours.fileno(), 10, 5) == 5
        ours.close(), theirs.close()


# --- the bytes of its moment --------------------------------------------------------------------------------


def _truncate(log):
    log.truncate_to(3)
    log.append(b"another one at offset 3" * 9)


def _compact(log):
    log.roll()
    log.configure({"cleanup.policy": "compact"})
    for _ in range(2):
        log.append(b"more", key=b"1")
        log.roll()
    clean(log)
    assert 1 not in [r.offset for r in log.read()]


def _retain(log):
    log.roll()
    log.append(b"more")
    log.configure({"retention.bytes": 1})
    log.delete_old_segments()
    assert log.log_start_offset > 2


def _close(log):
    log.close()


CHANGES = {
    "truncated and appended to": _truncate,
    "rolled": lambda log: (log.roll(), log.append(b"more")),
    "its segment deleted": lambda log: (log.roll(), log.append(b"more"), log.delete_records(log.log_end_offset)),
    "compacted": _compact,
    "let go by retention": _retain,
    "configured": lambda log: (log.configure({"segment.bytes": "1MiB"}), log.append(b"more")),
    "closed": _close,
}


@pytest.mark.parametrize("was_sent_before", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_slice_sends_the_bytes_of_its_moment_whatever_becomes_of_the_log(path, change, was_sent_before):
    log = filled(open_log(path), 50)
    fetched = log.fetch(2, 2000)
    before = bytes(fetched.view())
    if was_sent_before:
        assert received(fetched.send) == before
    CHANGES[change](log)
    if change == "closed":
        with pytest.raises(LogClosedError):
            log.fetch(2)
        shutil.rmtree(path)
    else:
        with seglog.open(path.parent.parent / "other" / "orders-0") as other:     # takes descriptors that were let go
            other.append(b"other")
    gc.collect()
    assert received(fetched.send) == before
    assert bytes(fetched.view()) == before
    log.close()


def test_a_fetch_after_a_cut_gives_the_new_record(path):
    with filled(open_log(path), 50) as log:
        held = log.fetch(3, 200)
        _truncate(log)
        assert records(log.fetch(3).view())[0][-1] == b"another one at offset 3" * 9
        assert records(bytes(held.view())[: batches_of(bytes(held.view()))[0].size_bytes])[0][-1] == b"v" * 100


def test_a_fetch_that_meets_another_file_under_the_name_raises(path):
    with filled(open_log(path), 5) as log:
        segment = log.segments[0]
        segment.files()     # mapped; the descriptor is opened by the first fetch
        copy = path.with_name("copy")
        shutil.copy(segment.path, copy)
        os.replace(copy, segment.path)
        with pytest.raises(OffsetOutOfRangeError, match="not within"):
            log.fetch(0)


def test_descriptors_are_closed_when_nobody_holds_them(path):
    def count():
        return descriptors_of(path)

    log = filled(open_log(path, segment_bytes=1000))
    before = count()
    held = [log.fetch(segment.base_offset) for segment in log.segments]
    assert count() == before + len(held)
    log.close()
    assert count() > before - 10
    with_held = count()
    number = len(held)
    held.clear()
    gc.collect()
    assert count() == with_held - number


def test_a_file_that_a_broker_cuts_ends_the_sending_with_an_error(path):
    filled(open_log(path)).close()
    with seglog.open_partition(path) as partition:
        fetched = partition.fetch(0)
        os.truncate(partition.segments[0].path, 100)
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(StorageError, match="was truncated while"):
            fetched.send(ours)


# --- converted ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DOWN)
def test_kafkas_own_down_conversion_is_met(case, in_memory):
    meta = json.loads((case / "meta.json").read_text())
    raw = (case / "input.log").read_bytes()
    base = scan(Window(raw), decompress=decompressor())[0].base_offset
    directory = in_memory / "orders-0"
    directory.mkdir()
    (directory / f"{base:020}.log").write_bytes(raw)
    with seglog.open_partition(directory) as partition:
        options = {"offset": max(meta["first_offset"], base), "magic": meta["to_magic"], "max_bytes": 1 << 30}
        if "error" in meta:     # the real one converts all of it or nothing; a broker sends what comes before
            wanted = [b for b in batches_of(raw) if not b.is_control and b.last_offset >= options["offset"]]
            wanted = wanted[: next(n for n, b in enumerate(wanted) if b.codec == Codec.ZSTD)]
            got, refusal = [], None
            while refusal is None:
                try:
                    got += batches_of(partition.fetch(**options).view())
                except UnsupportedCompressionTypeError as error:
                    refusal = error
                options["offset"] = got[-1].last_offset + 1 if got else options["offset"]
            # (Of a batch without a codec a fetch gives what is not below its offset.)
            least = min((b.base_offset for b in got), default=0)
            assert [r.offset for b in got for r in b] == [r.offset for b in wanted for r in b if r.offset >= least]
            assert "zstd" in refusal.what
            return
        _, made = fetch_all(partition, **options)
    if meta["records_converted"] == 0:      # as in tests/kernels/test_message_packer.py
        assert made == b"".join(b.raw() for b in batches_of(raw) if b.magic <= meta["to_magic"])
        return
    kafkas = (case / "output.log").read_bytes()
    assert records(made) == records(kafkas)
    for mine, theirs in zip(batches_of(made), batches_of(kafkas), strict=True):
        for field in ("magic", "last_offset", "attributes", "max_timestamp"):
            assert getattr(mine, field) == getattr(theirs, field), field
        if mine.codec == 0:
            assert bytes(mine.raw()) == bytes(theirs.raw())


def test_what_the_client_knows_goes_out_as_it_is_up_to_the_first_batch_to_convert(path):
    with open_log(path, 0) as log:
        for version in (0, 1, 2):
            log.configure({"message.format.version": version})
            log.append_batch(seglog.build_batch([(b"k", b"v" * 50)] * 3, codec="gzip", timestamp=NOW))
        kinds = {
            magic: [(f.is_converted, [b.magic for b in batches_of(f.view())]) for f in fetch_all(log, magic=magic)[0]]
            for magic in (0, 1, 2)
        }
        assert kinds == {
            0: [(False, [0]), (True, [0, 0]), (False, [])],
            1: [(False, [0, 1]), (True, [1]), (False, [])],
            2: [(False, [0, 1, 2]), (False, [])],
        }
        disk = [b.raw() for b in log.batches()]
        assert bytes(log.fetch(0, magic=1).view()) == bytes(disk[0]) + bytes(disk[1])


def test_conversion_goes_by_pieces_and_holds_little(path):
    with open_log(path) as log:
        for n in range(40):
            log.append_batch(seglog.build_batch([(b"%d" % n, bytes(500_000))], codec="none", timestamp=NOW))
        fetched = log.fetch(0, 1 << 30, magic=1)
        assert isinstance(fetched, ConvertedFetch)
        sizes = [len(piece) for piece in fetched]
        assert len(sizes) > 4
        assert max(sizes) < 5 << 20
        assert fetched.next_offset == 40
        assert len(received(fetched.send)) == len(fetched.view()) == sum(sizes)
        assert log.format_counters.fetch_converted_batches[1].value == 3 * 40     # each iteration converts anew


def test_what_stands_before_the_first_zstd_batch_is_given_and_a_fetch_that_starts_there_raises(path):
    with open_log(path) as log:
        for codec in ("lz4", "none", "zstd", "none"):
            log.append_batch(seglog.build_batch([(b"k", b"v" * 50)] * 2, codec=codec, timestamp=NOW))
        fetched = log.fetch(0, magic=1)
        assert [r[0] for r in records(fetched.view())] == [0, 1, 2, 3]
        assert fetched.next_offset == 4
        for offset in (4, 5):
            with pytest.raises(UnsupportedCompressionTypeError, match="zstd") as raised:
                log.fetch(offset, magic=0)
            assert (raised.value.offset, "Fetch v10" in raised.value.hint) == (4, True)
        assert [r[0] for r in records(log.fetch(6, magic=0).view())] == [6, 7]


def test_damage_is_not_converted_and_what_stands_before_it_is_given(path):
    with filled(open_log(path), 10) as log:
        file = log.segments[0].path
    raw = bytearray(file.read_bytes())
    raw[batches_of(raw)[4].position + 70] ^= 1
    file.write_bytes(raw)
    with seglog.open_partition(path) as partition:
        assert [r[0] for r in records(partition.fetch(0, magic=1).view())] == [0, 1, 2, 3]
        with pytest.raises(CorruptRecordError, match="checksum"):
            partition.fetch(4, magic=1)
        assert bytes(partition.fetch(0).view()) == raw      # as Kafka: the client checks


def test_headers_and_control_batches_are_left_out_and_a_client_never_stays_at_a_marker(path):
    who = {"producer_id": 7, "producer_epoch": 0, "transactional": True, "timestamp": NOW}
    with open_log(path) as log:
        for n in range(3):
            log.append_batch(seglog.build_batch([(b"k", b"%d" % n, [("h", b"x")])], base_sequence=n, **who))
            log.append_batch(seglog.build_batch([end_marker(n != 1, 0)], control=True, **who))
        for offset, following in ((0, 0), (1, 2), (3, 4), (5, None)):
            fetched = log.fetch(offset, 10, magic=1)
            first = next(iter(records(fetched.view())), (None,))
            assert first[0] == following
        assert [r[-1] for r in records(fetch_all(log, magic=1)[1])] == [b"0", b"1", b"2"]
        committed = fetch_all(log, magic=1, isolation="read_committed")[1]
        assert [r[-1] for r in records(committed)] == [b"0", b"2"]


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_client_never_stays_at_offsets_that_compaction_emptied_at_a_batch_s_end(path, magic, codec):
    """A batch of v2 keeps its last offset. What older clients get ends before, and they ask behind it."""
    with Log(path, config={"cleanup.policy": "compact"}, fsync="never", clock=ManualClock(NOW)) as log:
        log.append_batch(seglog.build_batch([(b"a", b"1"), (b"b", b"2")], codec=codec, timestamp=NOW))
        log.roll()
        log.append(b"3", key=b"b", timestamp=NOW)
        log.roll()
        assert clean(log).outcome == "cleaned"
        assert [(b.base_offset, b.last_offset) for b in log.batches()] == [(0, 1), (2, 2)]
        fetched = log.fetch(1, magic=magic)
        assert [r[0] for r in records(fetched.view())] == [2]
        assert [r[0] for r in records(fetch_all(log, magic=magic)[1])] == [0, 2]


def test_what_is_converted_has_no_length_before_and_is_true_if_there_is_any(path):
    with open_log(path) as log:
        log.append(b"value")
        converted = log.fetch(0, magic=0)
        with pytest.raises(TypeError, match=r"use len\(fetch.view\(\)\), or size_bytes"):
            len(converted)
        assert converted
        assert b"".join(converted) == bytes(converted.view()) == b"".join(list(converted))
        log.append_batch(seglog.build_batch([end_marker(True, 0)], control=True, producer_id=7, producer_epoch=0,
                                            transactional=True, timestamp=NOW))
        assert not log.fetch(1, magic=0)


def test_conversion_may_be_forbidden(path):
    with open_log(path) as log:
        log.append(b"v")
        log.configure({"message.downconversion.enable": "false"})
        with pytest.raises(UnsupportedVersionError, match=r"message\.downconversion\.enable"):
            log.fetch(0, magic=1)
        assert len(log.fetch(0, magic=2))


def test_too_few_bytes_for_one_batch_are_none_for_an_older_client(path):
    with open_log(path, 1) as log:
        log.append(b"v" * 100)
        for magic in (0, 1):
            assert len(bytes(log.fetch(0, 50, magic=magic, min_one=False).view())) == 0
            assert len(records(log.fetch(0, 50, magic=magic).view())) == 1


# --- transactions, epochs -----------------------------------------------------------------------------------


def test_committed_slices_end_at_the_last_stable_offset_and_name_aborted_transactions(path):
    def send(log, producer, sequence, *values):
        log.append_batch(seglog.build_batch(
            [(b"k", value) for value in values], producer_id=producer, producer_epoch=0, base_sequence=sequence,
            transactional=True, timestamp=NOW))

    def end(log, producer, commit):
        log.append_batch(seglog.build_batch(
            [end_marker(commit, 0)], producer_id=producer, producer_epoch=0, transactional=True, control=True,
            timestamp=NOW))

    with open_log(path, segment_bytes=400) as log:
        send(log, 1, 0, b"a", b"b")         # 0, 1
        send(log, 2, 0, b"c")               # 2
        end(log, 1, False)                  # 3
        send(log, 3, 0, b"d")               # 4
        end(log, 3, False)                  # 5
        log.append(b"e")                    # 6
        assert len(log.segments) > 1
        assert log.last_stable_offset == 2
        assert log.aborted_transactions() == [(1, 0), (3, 4)]
        assert log.aborted_transactions(4) == [(3, 4)]
        assert log.aborted_transactions(0, 3) == [(1, 0)]
        assert log.aborted_transactions(6) == log.aborted_transactions(3, 3) == []
        fetched = log.fetch(0, isolation="read_committed")
        assert [b.base_offset for b in batches_of(fetched.view())] == [0]
        assert fetched.ends.aborted_transactions == ((1, 0),)
        assert len(log.fetch(2, isolation="read_committed")) == 0
        end(log, 2, True)                   # 7
        seen, aborted = [], set()
        for fetched in fetch_all(log, isolation="read_committed")[0]:
            aborted.update(fetched.ends.aborted_transactions)
            seen += [b.base_offset for b in batches_of(fetched.view())]
        assert (seen, aborted) == ([0, 2, 3, 4, 5, 6, 7], {(1, 0), (3, 4)})
        assert log.fetch(0).ends.aborted_transactions == ()


def test_where_a_leader_epoch_ends_can_be_asked(path):
    with open_log(path) as log:
        log.append(b"v")
        log.append_batch(seglog.build_batch([(b"k", b"v")], timestamp=NOW), leader_epoch=3)
        found = [log.end_offset_for(epoch) for epoch in (0, 1, 3)]
        assert [(end.epoch, end.end_offset) for end in found] == [(0, 1), (0, 1), (3, 2)]
        assert log.end_offset_for(4) is None
    with seglog.open_partition(path) as partition:
        assert partition.end_offset_for(0).end_offset == 1


# --- readers that know older formats ------------------------------------------------------------------------


def test_a_reader_stops_at_the_first_batch_that_it_does_not_know(path):
    with open_log(path, 0) as log:
        filled(log, 3)
        log.configure({"message.format.version": 1})
        filled(log, 3)
        for read, offset_of in ((log.read, lambda r: r.offset), (log.batches, lambda b: b.base_offset)):
            found = read(max_magic=0)
            assert [offset_of(next(found)) for _ in range(3)] == [0, 1, 2]
            with pytest.raises(UnsupportedVersionError, match="format v1, the reader knows formats up to v0") as raised:
                next(found)
            assert raised.value.offset == 3
            assert len(list(read(max_magic=1))) == len(list(read())) == 6
            assert len(list(read(0, 3, max_magic=0))) == 3


# --- counted ------------------------------------------------------------------------------------------------


def test_what_was_converted_is_shown_to_prometheus(path):
    with open_log(path, 1) as log:
        log.append_batch(seglog.build_batch([(b"k", b"v")] * 3, codec="gzip", timestamp=NOW))
        log.append_batch(seglog.build_batch([(b"k", b"v")] * 3, codec="gzip", magic=1, timestamp=NOW))
        size = len(log.fetch(0, magic=1))
        bytes(log.fetch(0, magic=0).view())
        exposition = Exposition()
        exposition.add(log.format_counters, topic="orders")
        lines = exposition.text().splitlines()
        for line in (
            f'seglog_log_fetch_zero_copy_bytes{{topic="orders",format="v1"}} {size}',
            'seglog_log_fetch_converted_batches{topic="orders",format="v0"} 2',
            'seglog_log_append_in_place_batches{topic="orders",format="v1"} 1',
            'seglog_log_append_converted_batches{topic="orders",format="v1"} 1',
            'seglog_log_append_recompressed_batches{topic="orders",format="v1"} 1',
            'seglog_log_append_recompressed_batches{topic="orders",format="v2"} 0',
        ):
            assert line in lines
