"""Stores that lie: nothing is written outside of the target, nothing before its size was checked, and each bad answer
is an error with a name.

The servers are support.hostile_stores, on loopback. What healthy servers answer: test_hdfs.py, test_object_store.py.
"""
import logging
import os
import random
import ssl

import pytest

import seglog as seglog_package
from seglog.errors import CorruptCheckpointError, NotALogError, SeglogError, StorageError
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFile, OsFileSystem
from seglog.spark import convert_topics, fetch_topics
from seglog.stores.hdfs_store import HdfsStore
from seglog.stores.open_store import open_store
from support.certificates import self_signed
from support.command import seglog
from support.hostile_names import NO_FILE, NO_PARTITION, NO_TEXT
from support.hostile_stores import PWNED, BusyObjects, HostileObjects, HostileWebHdfs
from support.spark_double import SparkDouble

LOG = "00000000000000000000.log"


@pytest.fixture
def hdfs():
    with HostileWebHdfs() as server:
        yield server


@pytest.fixture
def objects():
    with HostileObjects() as server:
        yield server


@pytest.fixture
def room(tmp_path):
    """A target deep enough that "../../.." still ends within tmp_path; then `room.rest()`: all that is not below it."""
    class Room:
        target = tmp_path / "a/b/c/d/log-dir"

        @staticmethod
        def rest():
            found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
            above = {"a", "a/b", "a/b/c", "a/b/c/d"}
            return {name for name in found - above if not f"{name}/".startswith("a/b/c/d/log-dir/")}

        @staticmethod
        def partitions():
            return {path.name for path in Room.target.glob("*") if path.is_dir()}

    Room.target.parent.mkdir(parents=True)
    return Room


def ids(name):
    return ascii(name)[:40]


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NO_FILE, *NO_TEXT], ids=ids)
def test_webhdfs_cannot_name_a_file_out_of_its_partition(hdfs, room, name):
    hdfs.put("/data", "orders-0")
    hdfs.put("/data/orders-0", LOG, b"x")
    hdfs.put("/data/orders-0", name, PWNED)
    result = seglog("restore", f"{hdfs.url}/data", room.target, status=3)
    assert "[storage]" in result.stderr
    assert "internal" not in result.stderr
    assert room.rest() == set()
    assert room.partitions() == set()


@pytest.mark.parametrize("name", [*NO_PARTITION, *NO_TEXT], ids=ids)
def test_webhdfs_cannot_name_a_partition_out_of_its_log_dir(hdfs, room, name):
    hdfs.put("/data", name)
    hdfs.put(f"/data/{name}", LOG, b"x")
    with pytest.raises((StorageError, NotALogError)):
        list(fetch_topics(f"{hdfs.url}/data", room.target))
    assert room.rest() == set()
    assert room.partitions() == set()


@pytest.mark.parametrize("name", ["../../evil-0", "/evil-0", "a/evil-0", "evil\0-0", "../evil-0"], ids=ids)
def test_a_conversion_takes_no_bad_name_from_webhdfs_either(hdfs, room, name):
    hdfs.put("/data", name)
    hdfs.put(f"/data/{name}", LOG, b"")
    with pytest.raises(StorageError, match="not the name"):
        convert_topics(SparkDouble(), f"{hdfs.url}/data", room.target)
    assert {name for name in room.rest() if "evil" in name} == set()
    assert room.partitions() == set()


@pytest.mark.parametrize("key", ["../x-0/1", "./x-0/1", "orders-0/..", "orders-0/.", "orders-0/a b", "orders-0/a\\b"])
def test_an_object_store_cannot_name_a_file_out_of_its_partition(objects, room, key):
    objects.objects = {f"data/orders-0/{LOG}": b"x", f"data/{key}": PWNED}
    with pytest.raises(StorageError, match="not the name"):
        list(fetch_topics("s3://lake/data", room.target, store_options=objects.options))
    assert room.rest() == set()
    assert room.partitions() == set()


def versioned(objects, partitions, files):
    """A manifest of these partitions, each with these files."""
    objects.objects["data/seglog-manifest.json"] = format_json(
        "seglog-topics-manifest", 1, serial=1, partitions=partitions
    )
    for name, prefix in partitions.items():
        listed = format_json("seglog-partition-files", 1, files={file: len(data) for file, data in files.items()})
        objects.objects[f"data/{prefix}/{name}.files"] = listed
        objects.objects |= {f"data/{prefix}/{name}/{file}": data for file, data in files.items()}


@pytest.mark.parametrize("name", NO_PARTITION, ids=ids)
def test_a_manifest_cannot_name_a_partition_out_of_the_log_dir(objects, room, name):
    versioned(objects, {name: "v1-00000000"}, {LOG: b"x"})
    with pytest.raises(CorruptCheckpointError):
        list(fetch_topics("s3://lake/data", room.target, store_options=objects.options))
    assert room.rest() == set()
    assert not room.target.exists()


def test_two_partitions_of_a_manifest_cannot_become_one(objects, room):
    versioned(objects, {"a/t-0": "v1-00000000", "b/t-0": "v1-00000000"}, {LOG: b"x"})
    with pytest.raises(CorruptCheckpointError, match="separator"):
        list(fetch_topics("s3://lake/data", room.target, store_options=objects.options))
    assert not room.target.exists()


@pytest.mark.parametrize("name", NO_FILE, ids=ids)
def test_a_list_of_files_cannot_name_one_out_of_its_partition(objects, room, name):
    versioned(objects, {"orders-0": "v1-00000000"}, {LOG: b"x"})
    objects.objects["data/v1-00000000/orders-0.files"] = format_json(
        "seglog-partition-files", 1, files={LOG: 1, name: len(PWNED)}
    )
    with pytest.raises(CorruptCheckpointError):
        list(fetch_topics("s3://lake/data", room.target, store_options=objects.options))
    assert room.rest() == set()
    assert room.partitions() == set()


# --- sizes ---------------------------------------------------------------------------------------


class CountingFs(OsFileSystem):
    """Remembers how large each file has been."""

    def __init__(self):
        self.most = {}

    def create(self, path, within=None, mode=0o666):
        file = super().create(path, within, mode)
        fs = self

        class Counted(OsFile):
            def append(self, *buffers):
                begin = super().append(*buffers)
                name = os.path.basename(self.path)
                fs.most[name] = max(fs.most.get(name, 0), self.position)
                return begin

        file.__class__ = Counted
        return file


@pytest.mark.parametrize("came", [0, 1, 999, 1001, 40 << 20])
def test_webhdfs_cannot_send_more_or_less_than_it_said(hdfs, room, came):
    hdfs.put("/data", "orders-0")
    hdfs.put("/data/orders-0", LOG, bytes(came), length=1000)
    fs = CountingFs()
    with pytest.raises(SeglogError) as caught:
        list(fetch_topics(f"{hdfs.url}/data", room.target, fs=fs))
    assert caught.value.code == "proof_mismatch"
    assert caught.value.file.endswith(f"/data/orders-0/{LOG}")
    assert fs.most.get(LOG, 0) <= 1000
    assert room.partitions() == set()


@pytest.mark.parametrize("came", [0, 1, 999, 1001, 20 << 20])
def test_an_object_store_cannot_send_more_or_less_than_the_list_says(objects, room, came):
    versioned(objects, {"orders-0": "v1-00000000"}, {LOG: bytes(came)})
    objects.objects["data/v1-00000000/orders-0.files"] = format_json("seglog-partition-files", 1, files={LOG: 1000})
    fs = CountingFs()
    with pytest.raises(SeglogError) as caught:
        list(fetch_topics("s3://lake/data", room.target, store_options=objects.options, fs=fs))
    assert caught.value.code == "proof_mismatch"
    assert fs.most.get(LOG, 0) <= 1000
    assert room.partitions() == set()


@pytest.mark.parametrize("lie", [-1, 2**63, 1.5, "7", None, True, [], {}], ids=repr)
def test_what_is_no_size_is_not_believed(hdfs, room, lie):
    hdfs.put("/data", "orders-0")
    hdfs.put("/data/orders-0", LOG, b"x", length=lie)
    with pytest.raises(StorageError, match="not a file size"):
        list(fetch_topics(f"{hdfs.url}/data", room.target))
    assert room.partitions() == set()


def test_a_segment_to_convert_is_no_longer_than_its_listing_says(hdfs, room, tmp_path):
    hdfs.put("/data", "orders-0")
    hdfs.put("/data/orders-0", LOG, bytes(20 << 20), length=61)
    store, path = open_store(f"{hdfs.url}/data", {"scratch": str(tmp_path)}, OsFileSystem())
    with pytest.raises(SeglogError) as caught, store.local(f"{path}/orders-0", LOG, 61):
        pass
    assert caught.value.code == "proof_mismatch"
    assert not list(tmp_path.rglob("*.log"))


# --- answers that are none -------------------------------------------------------------------------

ODD = [
    b"", b"{}", b"[]", b"null", b"7", b'"text"', b"<html>", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000,
    b'{"FileStatuses": null}', b'{"FileStatuses": {"FileStatus": null}}', b'{"FileStatuses": {"FileStatus": [7]}}',
    b'{"FileStatuses": {"FileStatus": [{}]}}', b'{"FileStatuses": {"FileStatus": {"pathSuffix": "a"}}}',
    b'{"FileStatuses": {"FileStatus": [{"pathSuffix": "a", "type": "PIPE", "length": 1}]}}',
    b'{"FileStatuses": {"FileStatus": [{"pathSuffix": "orders-0", "type": "FILE", "length": 1, "modificationTime": "x",'
    b' "fileId": 1}]}}',
    b'{"FileStatus": []}', b'{"FileStatus": {"type": 7}}', b'{"Location": 7}', b'{"Location": "no URL"}',
    b'{"Location": "file:///etc/passwd"}', b'{"Location": "http://"}', b'{"Location": "http://[::1"}',
    b'{"Location": "http://127.0.0.1:99999/"}', b'{"Location": "http://127.0.0.1:x/"}',
    b'{"Location": "http://127.0.0.1:1/\\r\\nX: y"}', b'{"Location": "http://\\u20ac/"}',
    (500, b"[" * 100_000), (403, b'{"RemoteException": {"exception": [], "message": 7}}'), (302, b""), (204, b""),
]


@pytest.mark.parametrize("operation", ["LISTSTATUS", "GETFILESTATUS", "OPEN"])
@pytest.mark.parametrize("body", ODD, ids=lambda body: ascii(body)[:60])
def test_an_odd_answer_of_webhdfs_is_an_error_with_a_name(hdfs, room, operation, body):
    hdfs.put("/data", "orders-0")
    hdfs.put("/data/orders-0", LOG, b"x")
    hdfs.answers[operation, "*"] = body
    result = seglog("restore", f"{hdfs.url}/data", room.target, status=3)
    assert "[storage]" in result.stderr
    assert room.rest() == set()
    assert room.partitions() == set()


@pytest.mark.parametrize("body", ODD[:20], ids=lambda body: ascii(body)[:60])
def test_an_odd_answer_to_a_change_is_an_error_with_a_name(hdfs, body):
    store, path = HdfsStore.open(f"{hdfs.url}/data", {})
    hdfs.answers["CREATE", "*"] = body
    with pytest.raises(StorageError):
        store.write(f"{path}/x", b"data")


@pytest.mark.parametrize("answer", [
    (200, b""), (200, b"<"), (200, b"{}"), (200, b"\xff"), (500, b""), (302, b""), (404, b""),
    (200, b"<ListBucketResult><Contents><Key>data/orders-0/x</Key><Size>-7</Size></Contents></ListBucketResult>"),
    (200, b"<ListBucketResult><Contents><Key></Key><Size>1</Size></Contents></ListBucketResult>"),
    (200, b"<ListBucketResult><Contents><Key>elsewhere/x</Key><Size>1</Size></Contents></ListBucketResult>"),
    (200, b"<ListBucketResult><CommonPrefixes><Prefix>/</Prefix></CommonPrefixes></ListBucketResult>"),
    (200, b"<a>" * 2_000),
], ids=ascii)
def test_an_odd_listing_of_an_object_store_is_an_error_with_a_name(objects, room, answer):
    objects.answers["LIST"] = answer
    with pytest.raises((StorageError, NotALogError)):
        list(fetch_topics("s3://lake/data", room.target, store_options=objects.options))
    assert room.rest() == set()
    assert room.partitions() == set()


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"[" * 100_000, b"\xff" * 100, b"9" * 5000], ids=lambda raw: ascii(raw)[:20]
)
def test_an_odd_manifest_is_an_error_with_a_name(objects, room, raw):
    objects.objects["data/seglog-manifest.json"] = raw
    options = [f"--store-option={key}={value}" for key, value in objects.options.items()]
    result = seglog("restore", "s3://lake/data", room.target, *options, status=1)
    assert "[corrupt_checkpoint]" in result.stderr
    assert not room.target.exists()


# --- who is on the way -------------------------------------------------------------------------------


@pytest.mark.parametrize(("url", "options", "warned"), [
    ("webhdfs://namenode.example:9870/data", {}, True),
    ("hdfs://192.0.2.7/data", {}, True),
    ("webhdfs://[2001:db8::1]:9870/data", {}, True),
    ("webhdfs://localhost:9870/data", {}, False),
    ("webhdfs://127.0.0.3:9870/data", {}, False),
    ("webhdfs://[::1]:9870/data", {}, False),
    ("swebhdfs://namenode.example:9871/data", {}, False),
    ("s3://lake/data", {"scheme": "http", "endpoint_override": "minio.example:9000"}, True),
    ("s3://lake/data", {"scheme": "http"}, True),
    ("s3://lake/data", {"scheme": "http", "endpoint_override": "127.0.0.1:9000"}, False),
    ("s3://lake/data", {"scheme": "http", "endpoint_override": "localhost"}, False),
    ("s3://lake/data", {"endpoint_override": "minio.example:9000"}, False),
])
def test_plain_http_beyond_this_machine_is_warned_of(caplog, url, options, warned):
    with caplog.at_level(logging.WARNING):
        open_store(url, options, OsFileSystem())
    assert ["plain HTTP" in record.message for record in caplog.records] == [True] * warned


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("tls"))


def test_swebhdfs_speaks_to_nobody_but_the_one_whose_certificate_is_trusted(certificate, room):
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with HostileWebHdfs(context) as server:
        server.put("/data", "orders-0")
        server.put("/data/orders-0", LOG, b"")
        with pytest.raises(StorageError, match="certificate is not trusted") as caught:
            list(fetch_topics(f"{server.url}/data", room.target))
        assert "tls_ca_file_path" in caught.value.hint
        assert not room.target.exists()
        options = {"tls_ca_file_path": str(cert)}
        fetched = list(fetch_topics(f"{server.url}/data", room.target, store_options=options))
        assert [row.partition for row in fetched] == ["orders-0"]
        # A namenode cannot send us on to plain HTTP: the token would go with us.
        server.answers["OPEN", "*"] = b'{"Location": "http://127.0.0.1:1/data-of/x"}'
        with pytest.raises(StorageError, match="location"):
            open_store(f"{server.url}/data", options, OsFileSystem())[0].read(f"{server.url}/data/orders-0/{LOG}")


def test_a_file_of_certificates_that_is_none_is_told(tmp_path):
    options = {"tls_ca_file_path": "none.pem"}
    with pytest.raises(StorageError) as caught:
        list(fetch_topics("swebhdfs://127.0.0.1:1/data", tmp_path / "x", store_options=options))
    assert "No such file" in caught.value.what


# --- the target ----------------------------------------------------------------------------------


def test_a_link_in_the_log_dir_is_no_partition_to_fetch_into(hdfs, room, tmp_path):
    hdfs.put("/data", "orders-0")
    hdfs.put("/data/orders-0", LOG, b"x")
    room.target.mkdir()
    (tmp_path / "elsewhere").mkdir()
    for leads_to in ("elsewhere", "nowhere"):
        link = room.target / "orders-0"
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / leads_to)
        with pytest.raises(SeglogError):
            list(fetch_topics(f"{hdfs.url}/data", room.target))
        assert room.rest() == {"elsewhere"}


def test_a_staging_that_is_exchanged_for_a_link_meanwhile_gets_no_file(tmp_path):
    from seglog.fs.staging import Staging

    (tmp_path / "log-dir").mkdir()
    (tmp_path / "elsewhere").mkdir()
    staging = Staging.of_partition(OsFileSystem(), tmp_path / "log-dir/orders-0").__enter__()
    staging.create("first").close()
    staging.path.rename(tmp_path / "moved")
    staging.path.symlink_to(tmp_path / "elsewhere")
    staging.create("second").close()
    staging.close()
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["first", "second"]
    assert not list((tmp_path / "elsewhere").iterdir())


# --- a store that asks for fewer requests ----------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 8, 100, 4096, 50_000])
@pytest.mark.parametrize("position", [0, 30_000, 49_990])
def test_a_part_is_asked_for_again_however_short_it_is(size_bytes, position):
    """Shorter than the document of the error, it was given up at once."""
    with BusyObjects(refusals=2) as server:
        server.objects["a/b"] = data = os.urandom(50_000)
        store, path = open_store(f"{server.url}/a/b", server.options, OsFileSystem())
        assert store.part(path, position, size_bytes) == data[position : position + size_bytes]
        assert server.refused == 2


@pytest.mark.parametrize("size_bytes", [1, 34, 5000])
def test_a_small_object_is_asked_for_again(size_bytes):
    with BusyObjects(refusals=2) as server:
        server.objects["a/b"] = data = os.urandom(size_bytes)
        store, path = open_store(f"{server.url}/a/b", server.options, OsFileSystem())
        assert store.read(path) == data
        assert store.part(path, size_bytes - 1, 1) == data[-1:]
        assert server.refused == 2


@pytest.mark.parametrize("size_bytes", [34, 5000])
def test_retries_are_an_option_and_end(size_bytes):
    with BusyObjects(refusals=100) as server:
        server.objects["a/b"] = bytes(size_bytes)
        store, path = open_store(f"{server.url}/a/b", {**server.options, "retries": "2"}, OsFileSystem())
        with pytest.raises(StorageError, match="cannot read") as error:
            store.read(path)
        assert "retries=N" in error.value.hint
        assert server.refused == 3


def test_a_topic_is_read_though_a_fifth_of_all_requests_is_refused(log_dir):
    with BusyObjects(dice=random.Random(5)) as server:
        for file in sorted(log_dir.rglob("*")):
            if file.is_file():
                server.objects[f"kafka/{file.relative_to(log_dir)}"] = file.read_bytes()
        rows = seglog_package.scan(
            f"{server.url}/kafka/orders-*", isolation="read_committed", store_options=server.options
        ).to_arrow()
        assert rows == seglog_package.scan(log_dir / "orders-*", isolation="read_committed").to_arrow()
        assert server.refused > 5
