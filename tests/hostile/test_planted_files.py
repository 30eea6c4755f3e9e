"""Something else in place of each file of a log dir, a queue, a backup, a table and a broker of kombu: a pipe that
nobody writes, a directory, a
link to nothing or to itself, a device without end, a sparse file of a tebibyte. Every door gives a result or a
SeglogError, at once, and takes no memory for it.

Each look is a process of its own, forked from this one, so that one that hangs or grows is seen and named.
"""
import faulthandler
import os
import resource
import shutil
import signal
import sys
import traceback
from contextlib import suppress

import pytest

import seglog
import seglog.attach.shared_queue
from seglog.errors import SeglogError
from seglog.verification import moving_files
from support.hostile_child import SANITIZED
from support.serve_process import ServeProcess
from support.wire_client import WireClient, produce_request

IS_FULL = bool(os.environ.get("SEGLOG_TORTURE"))
# `make test` looks at so many of the cases of a sample.
LOOKS = 12
HANGS_AFTER_S = 60
# What a process may have besides maps of files: reading a tebibyte takes more.
MEMORY_BYTES = 4 << 30


def make_queue(path):
    with seglog.Queue(path, max_attempts=1, fsync="never") as queue:
        queue.put_many([b"a", b"b", b"c", b"d"])
        queue.put(b"once", key="k", unique_for=600)
        queue.put(b"late", delay=600)
        queue.get(timeout=30).ack()
        queue.get(timeout=30).nack(reason="bad")


def make_log(path):
    with seglog.open(path / "orders-0", config={"segment.bytes": 4096}) as log:
        for _ in range(3):
            log.append_many([(b"key", bytes(50))] * 40)
        log.append_batch(seglog.build_batch([(b"key", b"value")], producer_id=7, producer_epoch=0, base_sequence=0))


def make_served(path):
    with ServeProcess(
        path, "--listen", "127.0.0.1:0", "--create-topic", "orders:1", "--fsync", "never",
    ) as server, WireClient(server) as client:
        client.ask(produce_request("orders", 0, seglog.build_batch([(b"key", b"value")])), 11)
        assert server.end(signal.SIGTERM) == 0


def make_backup(path):
    make_log(path.parent / "source")
    seglog.backup(path.parent / "source", path)


def use_queue(path):
    with seglog.Queue(path, fsync="never") as queue:
        queue.put(b"job")
        queue.stats()
        queue.dead.peek(2)
        queue.get(timeout=0)


def use_shared_queue(path):
    with seglog.Queue(path, fsync="never", attach=True) as queue:
        queue.put(b"job")


def use_log(path):
    with seglog.open(path / "orders-0", fsync="never") as log:
        log.append(b"value")
        assert sum(1 for _ in log.read()) > 0


def use_partition(path):
    with seglog.open_partition(path / "orders-0") as log:
        sum(1 for _ in log.read())


def verify(path):
    seglog.verify(path)


def serve(path):
    with seglog.serve(path) as server, WireClient(server) as client:
        client.ask(produce_request("orders", 0, seglog.build_batch([(b"key", b"value")])), 11)


def back_up(path):
    seglog.backup(path, path.parent / "store")


def restore(path):
    seglog.restore(path, path.parent / "restored")


SAMPLES = {
    "queue": (make_queue, (use_queue, use_shared_queue, back_up)),
    "log": (make_log, (use_log, use_partition, verify, back_up)),
    "served": (make_served, (serve,)),
    "backup": (make_backup, (restore,)),
}


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def longer(path, raw):
    path.write_bytes(raw)
    os.truncate(path, 1 << 40)


needs_memory_limit = pytest.mark.skipif(
    sys.platform != "linux", reason="a limit of memory that leaves maps of files out is Linux's")
needs_room_below_it = pytest.mark.skipif(
    SANITIZED, reason="a sanitizer takes more than the limit; test_hostile_bytes goes through the same doors")

PLANTED = {
    "a pipe": lambda path, raw: os.mkfifo(path),
    "a directory": lambda path, raw: path.mkdir(),
    "a link to nothing": lambda path, raw: path.symlink_to("nothing"),
    "a link to itself": lambda path, raw: path.symlink_to(path.name),
    "a link to a device": lambda path, raw: path.symlink_to("/dev/zero"),
    "a tebibyte of zeros": lambda path, raw: sparse(path),
    "a tebibyte of zeros after its bytes": longer,
}


def looked_at(door, path, story):
    """The status of a process that goes through a door; what it says is in the file `story`."""
    process_id = os.fork()
    if process_id:
        return os.waitpid(process_id, 0)[1]
    try:        # the child; nothing of it must come back into pytest
        with open(story, "w") as told:
            # Not dump_traceback_later: if the parent has called it, the child waits for a thread that it has not.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=told, chain=True)
            signal.alarm(HANGS_AFTER_S)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
            try:
                with suppress(SeglogError):
                    door(path)
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=told)
                told.flush()
    finally:
        os._exit(1)


def make_delta(path):
    make_log(path.parent / "source")
    write_delta(path)


def make_iceberg(path):
    make_log(path.parent / "source")
    write_iceberg(path)


def write_delta(path):
    write(path, "delta")


def write_iceberg(path):
    write(path, "iceberg")


def write(path, format_):
    """On from where the table ends."""
    with seglog.open(path.parent / "source/orders-0", fsync="never") as log:
        log.append(b"value")
    list(seglog.write_table(path.parent / "source", path, format=format_))


def make_kombu(path):
    use_kombu(path)


def use_kombu(path):
    import kombu

    import seglog.kombu  # noqa: F401
    with kombu.Connection(f"seglog:///{path}") as connection, connection.SimpleQueue("tasks") as tasks:
        tasks.put("task")
        tasks.get(timeout=30)       # and not acknowledged


# Each made in a process of its own: threads of pyarrow and deltalake do not live on in a fork.
OF_LIBRARIES = {
    "delta": ("deltalake", make_delta, write_delta), "iceberg": ("pyiceberg", make_iceberg, write_iceberg),
    "kombu": ("kombu", make_kombu, use_kombu),
}
# These are looked at each time: a pipe that hung it, and files that took their size in memory.
ALWAYS = {("v1.metadata.json", "a pipe"), ("v2.metadata.json", "a pipe"), ("v2.metadata.json", "a tebibyte of zeros")}


@pytest.mark.long
@needs_memory_limit
@needs_room_below_it
@pytest.mark.parametrize("sample", OF_LIBRARIES)
def test_what_is_planted_in_a_table_or_a_broker_of_kombu_is_a_result_or_an_error_of_ours(in_memory, sample):
    library, make, door = OF_LIBRARIES[sample]
    pytest.importorskip(library)
    whole, story = in_memory / "whole", in_memory / "story"
    assert looked_at(make, whole, story) == 0, story.read_text()
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    cases = [(file, what) for file in files for what in PLANTED]
    found = []
    for number, (file, what) in enumerate(cases):
        if not (IS_FULL or number % (len(cases) // 3) == 0 or (file.name, what) in ALWAYS):
            continue
        shutil.rmtree(in_memory / "used", ignore_errors=True)
        shutil.copytree(whole, in_memory / "used")
        target = in_memory / "used" / file
        target.unlink()
        PLANTED[what](target, (whole / file).read_bytes())
        if looked_at(door, in_memory / "used", story) != 0:
            found.append(f"{what} as {file}:\n{story.read_text()[-1500:]}")
    assert not found, "\n\n".join(found)


@pytest.mark.long
@needs_memory_limit
@needs_room_below_it
@pytest.mark.parametrize("sample", SAMPLES)
def test_what_is_planted_in_place_of_a_file_is_a_result_or_an_error_of_ours(in_memory, monkeypatch, sample):
    monkeypatch.setattr(moving_files, "GLANCE_S", 0)
    make, doors = SAMPLES[sample]
    whole = in_memory / "whole"
    make(whole)
    for door in doors:
        shutil.copytree(whole, in_memory / "used")
        assert looked_at(door, in_memory / "used", in_memory / "story") == 0, (in_memory / "story").read_text()
        shutil.rmtree(in_memory / "used")
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    cases = [(file, what, door) for file in files for what in PLANTED for door in doors]
    found = []
    for file, what, door in cases if IS_FULL else cases[:: len(cases) // LOOKS]:
        shutil.rmtree(in_memory / "used", ignore_errors=True)
        for made in ("restored", "store"):
            shutil.rmtree(in_memory / made, ignore_errors=True)
        shutil.copytree(whole, in_memory / "used")
        target = in_memory / "used" / file
        target.unlink()
        PLANTED[what](target, (whole / file).read_bytes())
        if looked_at(door, in_memory / "used", in_memory / "story") != 0:
            found.append(f"{what} as {file}, {door.__name__}:\n{(in_memory / 'story').read_text()[-1500:]}")
    print(f"{len(cases)} cases in all")
    assert not found, "\n\n".join(found)
