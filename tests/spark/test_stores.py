"""What every store promises a conversion: mounted paths, and objects in a directory, in `make test`; real HDFS and S3
servers in `make spark`.
"""
import contextlib
import errno
import hashlib
import os
import pickle
import secrets
from types import SimpleNamespace

import pytest

from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from seglog.stores.open_store import open_store
from seglog.stores.remote_store import PIECE_BYTES
from seglog.stores.store import LocalStore, RenamingStore
from support.objects_on_disk import ObjectsOnDisk

LOG, INDEX = "00000000000000000042.log", "00000000000000000042.txnindex"
REAL = [pytest.param(name, marks=pytest.mark.spark) for name in ("s3", "hdfs")]


@pytest.fixture(params=["local", "objects", *REAL])
def place(request, tmp_path, monkeypatch):
    """(a store, a workplace in it)"""
    if request.param == "local":
        url, options = tmp_path, {}
    else:
        of_objects = request.param == "objects"
        server = ObjectsOnDisk(tmp_path, monkeypatch) if of_objects else request.getfixturevalue(request.param)
        name = f"stores-{secrets.token_hex(8)}"
        url = f"{server.url}/{name}" if request.param == "hdfs" else f"{server.bucket(name)}/top"
        options = server.options
    store, path = open_store(url, options, OsFileSystem())
    workplace = f"{path}/new.seglog-spark"
    store.make_directory(workplace)
    return store, workplace


@pytest.fixture
def directory(place):
    store, workplace = place
    store.make_directory(f"{workplace}/staged")
    return f"{workplace}/staged"


def put(store, workplace, into, files):
    """As a task does it."""
    store.make_directory(f"{workplace}/attempts")
    with store.attempt(workplace) as attempt:
        for name, data in files.items():
            (attempt / name).write_bytes(data)
        store.take(attempt, files, into)


def test_a_file_holds_what_was_written_last(place):
    store, workplace = place
    assert store.read(f"{workplace}/journal") is None
    assert store.file(f"{workplace}/journal") is None
    for data in (b"first", b"the second one", b""):
        store.write(f"{workplace}/journal", data)
        assert store.read(f"{workplace}/journal") == data
        found = store.file(f"{workplace}/journal")
        assert (found.name, found.size_bytes) == ("journal", len(data))
    assert [file.name for file in store.files(workplace)] == ["journal"]


def test_a_listing_tells_what_a_look_at_one_file_tells(place, directory):
    store, workplace = place
    store.write(f"{directory}/b", b"12")
    store.write(f"{directory}/a", b"1")
    store.make_directory(f"{directory}/below")
    store.write(f"{directory}/below/c", b"123")
    assert store.files(directory) == [store.file(f"{directory}/a"), store.file(f"{directory}/b")]
    assert store.directories(directory) == ["below"]
    assert store.directories(workplace) == ["staged"]


def test_what_is_there_is_told_from_what_only_begins_alike(place, directory):
    store, _ = place
    store.write(f"{directory}/orders-1", b"a file")
    store.make_directory(f"{directory}/orders-10")
    store.write(f"{directory}/orders-10/x", b"in a directory")
    for name, there in (("orders-1", True), ("orders-10", True), ("orders-10/x", True), ("orders-", False),
                        ("orders", False), ("orders-100", False)):
        assert store.exists(f"{directory}/{name}") is there, name


def test_a_segment_comes_here_with_its_transaction_index_and_goes_away(place, directory):
    store, workplace = place
    put(store, workplace, directory, {LOG: b"batches", INDEX: b"aborted"})
    with store.local(directory, LOG, len(b"batches")) as path:
        assert path.read_bytes() == b"batches"
        assert path.with_name(INDEX).read_bytes() == b"aborted"
    if not isinstance(store, LocalStore):
        assert not path.exists()
    store.remove_file(f"{directory}/{INDEX}")
    with store.local(directory, LOG, len(b"batches")) as path:
        assert not path.with_name(INDEX).exists()


def test_an_error_names_the_file_in_the_store(place, directory):
    store, workplace = place
    put(store, workplace, directory, {LOG: b"batches"})
    with pytest.raises(StorageError) as caught, store.local(directory, LOG, len(b"batches")) as path:
        raise StorageError("cannot be", file=path)
    assert caught.value.file == f"{directory}/{LOG}"
    with pytest.raises((StorageError, FileNotFoundError)), store.local(directory, "none.log", 1) as path:
        path.read_bytes()


def test_what_an_attempt_left_is_nowhere_to_be_seen(place, directory):
    store, workplace = place
    store.make_directory(f"{workplace}/attempts")
    left = []

    def die():
        with store.attempt(workplace) as attempt:
            left.append(attempt)
            (attempt / LOG).write_bytes(b"half of it")
            raise RuntimeError("a task that dies")

    with pytest.raises(RuntimeError, match="dies"):
        die()
    assert not left[0].exists()
    assert store.files(directory) == []
    assert store.directories(workplace) in (["attempts", "staged"], [])     # an object store has no empty ones


def test_a_second_attempt_takes_the_place_of_the_first(place, directory):
    store, workplace = place
    put(store, workplace, directory, {LOG: b"of one attempt"})
    put(store, workplace, directory, {LOG: b"of the other"})
    assert store.read(f"{directory}/{LOG}") == b"of the other"
    assert len(store.files(directory)) == 1


def test_a_large_file_goes_and_comes_as_it_is(place, directory):
    store, workplace = place
    data = secrets.token_bytes(1 << 20) * 25 + b"odd"
    put(store, workplace, directory, {LOG: data})
    assert store.file(f"{directory}/{LOG}").size_bytes == len(data)
    with store.local(directory, LOG, len(data)) as path:
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(data).digest()


def test_what_is_gone_may_be_removed_again(place, directory):
    store, workplace = place
    store.write(f"{directory}/a", b"1")
    store.make_directory(f"{directory}/below/deeper")
    store.write(f"{directory}/below/deeper/b", b"2")
    for _ in range(2):
        store.remove_file(f"{directory}/a")
        store.remove_tree(f"{directory}/below")
    assert store.files(directory) == store.directories(directory) == []
    store.remove_tree(workplace)
    assert not store.exists(workplace)


def test_nothing_is_removed_but_what_a_conversion_made(place):
    store, workplace = place
    source = f"{workplace.removesuffix('.seglog-spark')}/orders-0"
    for remove in (store.remove_file, store.remove_tree):
        store.make_directory(source)
        store.write(f"{source}/{LOG}", b"batches")
        with pytest.raises(ValueError, match="not in a workplace"):
            remove(f"{source}/{LOG}" if remove == store.remove_file else source)
        assert store.read(f"{source}/{LOG}") == b"batches"


def test_a_directory_gets_a_name_in_one_step_and_never_one_that_is_taken(place, directory):
    store, workplace = place
    if not isinstance(store, RenamingStore):
        pytest.skip("an object store cannot rename")
    target = f"{workplace}/orders-0"
    put(store, workplace, directory, {LOG: b"batches"})
    store.rename(directory, target)
    assert not store.exists(directory)
    assert store.read(f"{target}/{LOG}") == b"batches"
    put_again = f"{workplace}/again"
    store.make_directory(put_again)
    store.write(f"{put_again}/{LOG}", b"of another")
    with pytest.raises(StorageError):
        store.rename(put_again, target)
    assert store.read(f"{target}/{LOG}") == b"batches"


def test_work_on_many_is_done_in_order_and_ends_with_the_first_error(place):
    store, _ = place
    assert list(store.each(lambda n: n * n, range(100))) == [n * n for n in range(100)]
    assert list(store.each(str, [])) == []
    begun = []

    def work(n):
        begun.append(n)
        if n == 3:
            raise StorageError("full")
        return n

    results = []
    with pytest.raises(StorageError, match="full"):
        results.extend(store.each(work, range(10_000)))
    assert len(begun) < 100


def test_a_store_goes_along_with_a_task_and_shows_no_secret(place):
    store, workplace = place
    store.write(f"{workplace}/journal", b"seen by the driver")
    there = pickle.loads(pickle.dumps(store))
    assert there.read(f"{workplace}/journal") == b"seen by the driver"
    assert "of-this-run-alone" not in repr(store)


def test_a_file_that_goes_while_its_directory_is_listed_is_left_out(tmp_path, monkeypatch):
    """Beside `backup create --every`, which renames what it has written and removes what it replaces."""
    for name in "abc":
        (tmp_path / name).write_bytes(b"x")
    listed = os.scandir

    @contextlib.contextmanager
    def slowly(path):
        with listed(path) as entries:
            entries = list(entries)
            (tmp_path / "b").unlink()
            yield iter(entries)

    monkeypatch.setattr(os, "scandir", slowly)
    assert [file.name for file in LocalStore().files(str(tmp_path))] == ["a", "c"]


@contextlib.contextmanager
def ends(begun, error):
    """A stream of an object, in whose second write an exception comes."""
    writes = 0
    with begun as stream:
        write = stream.write

        def write_some(data):
            nonlocal writes
            writes += 1
            if writes == 2:
                raise error
            write(data)

        yield SimpleNamespace(write=write_some)


@pytest.mark.parametrize("there", ["nothing", "an older part", "the whole"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "the disk")], ids=["interrupt", "disk"])
def test_an_upload_that_ends_half_way_leaves_no_part_of_an_object(tmp_path, monkeypatch, error, there):
    """Another attempt of the same task may have put the whole object: that stays."""
    server = ObjectsOnDisk(tmp_path / "cloud", monkeypatch)
    store, path = open_store(f"{server.bucket('lake')}/top", server.options, OsFileSystem())
    file = tmp_path / LOG
    file.write_bytes(os.urandom(2 * PIECE_BYTES + 5))
    if there != "nothing":
        store.write(f"{path}/{LOG}", file.read_bytes()[: 7 if there == "an older part" else None])
    client = type(store._fs)
    begin = client.open_output_stream
    monkeypatch.setattr(client, "open_output_stream", lambda *args, **named: ends(begin(*args, **named), error))
    if there == "the whole":        # a stream that the store refused: nothing is put
        monkeypatch.setattr(client, "open_output_stream", raises(error))
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StorageError):
        store.upload(file, f"{path}/{LOG}")
    assert list(server.objects(path)) == ([LOG] if there == "the whole" else [])
    monkeypatch.setattr(client, "open_output_stream", begin)
    store.upload(file, f"{path}/{LOG}")
    assert server.objects(path)[LOG] == file.read_bytes()


def raises(error):
    def call(*_, **__):
        raise error

    return call
