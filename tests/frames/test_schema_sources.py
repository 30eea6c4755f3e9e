"""Where schemas are found: a registry, a folder, the topic `_schemas`; and what is said if they are not."""
import json
import pickle
import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest

import seglog
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    SchemaNotFoundError,
    StorageError,
    UndecodableRecordError,
)
from seglog.frames.typed.decoding import source_of
from seglog.frames.typed.schema_folder import SchemaFolder
from seglog.frames.typed.schema_source import Reference, SchemaSource, StoredSchema
from seglog.frames.typed.schemas_topic import SchemasTopic
from support.certificates import self_signed
from support.schemas import Registry, avro, framed, schema_key, schema_value, serving, write_schemas, write_topic

MONEY = {"type": "record", "name": "Money", "namespace": "shop.types", "fields": [
    {"name": "cents", "type": "long"}, {"name": "currency", "type": "string"}]}
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "price", "type": "shop.types.Money"}, {"name": "tip", "type": ["null", "shop.types.Money"]}]}
WHOLE = ORDER | {"fields": [{"name": "price", "type": MONEY}, {"name": "tip", "type": ["null", "shop.types.Money"]}]}
REFERENCES = [{"name": "shop.types.Money", "subject": "money-value", "version": 1}]
VALUE = {"price": {"cents": 5, "currency": "EUR"}, "tip": {"cents": 1, "currency": "EUR"}}
SUBJECTS = {
    "money-value": [(1, json.dumps(MONEY), "AVRO", [])],
    "orders-value": [(2, json.dumps(ORDER), "AVRO", REFERENCES)],
    ":.test:orders-value": [(2, '"long"', "AVRO", [])],
    "proto-value": [(7, 'syntax = "proto3";', "PROTOBUF", [])],
}


@pytest.fixture
def orders(tmp_path):
    return write_topic(tmp_path / "orders-0", [framed(2, avro(WHOLE, VALUE))] * 3)


def read(path, schemas, **typed):
    how = seglog.Typed("avro", **typed) if typed else "avro"
    return seglog.scan(path, decode={"value": how}, schemas=schemas).to_arrow()["value"].to_pylist()


def test_a_registry_gives_the_newest_schema_and_those_of_the_ids(orders):
    registry = Registry(SUBJECTS)
    with serving(registry) as url:
        assert read(orders, url) == [VALUE] * 3
        assert read(orders, f"{url}/") == [VALUE] * 3
    assert registry.asked.count("/schemas/ids/2") == 2      # once a scan


def test_a_schema_that_another_one_refers_to_is_in_the_topic(tmp_path, orders):
    write_schemas(tmp_path, ("money-value", 1, 1, MONEY), ("orders-value", 1, 2, ORDER, {"references": REFERENCES}))
    assert read(orders, None) == [VALUE] * 3
    assert read(orders, tmp_path) == [VALUE] * 3            # the log dir that it is in
    assert read(orders, tmp_path / "_schemas-0") == [VALUE] * 3


def test_ids_of_another_context_are_other_schemas(tmp_path, orders):
    with serving(Registry(SUBJECTS)) as url:
        write_topic(tmp_path / "numbers-0", [framed(2, avro("long", 77))])
        assert read(tmp_path / "numbers-0", url, subject=":.test:orders-value") == [77]
        assert read(orders, url) == [VALUE] * 3
    write_schemas(tmp_path, ("money-value", 1, 1, MONEY), (":.test:orders-value", 1, 2, "long"),
                  ("orders-value", 1, 2, ORDER, {"references": REFERENCES}))
    assert read(tmp_path / "numbers-0", None, subject=":.test:orders-value") == [77]
    assert read(orders, None) == [VALUE] * 3


def test_a_login_is_sent_and_never_shown(orders):
    registry = Registry(SUBJECTS, login="Basic dXNlcjpwYTpzc0Bz")     # user:pa:ss@s
    with serving(registry) as url:
        there = url.replace("//", "//user:pa%3Ass%40s@")
        assert read(orders, there) == [VALUE] * 3
        source = seglog.SchemaRegistry(url, username="user", password="pa:ss@s")
        assert read(orders, source) == [VALUE] * 3
        assert "pa" not in repr(source)
        for wrong in (url, there.replace("user:", "user:x"), seglog.SchemaRegistry(url, token="t")):
            with pytest.raises(StorageError, match="refuses access") as caught:
                read(orders, wrong)
            assert "pa%3A" not in str(caught.value)
            assert "pa:ss" not in str(caught.value)


def test_one_connection_serves_a_scan_and_a_closed_one_is_opened_again(orders):
    registry = Registry(SUBJECTS)
    with serving(registry) as url:
        source = seglog.SchemaRegistry(url)
        assert read(orders, source) == [VALUE] * 3
        assert registry.connections == 1
        registry.closes = True
        assert read(orders, source) == [VALUE] * 3
        assert read(orders, source) == [VALUE] * 3


def test_threads_and_pickles_share_what_is_known(orders):
    registry = Registry(SUBJECTS)
    with serving(registry) as url:
        source = seglog.SchemaRegistry(url)
        found = []
        threads = [threading.Thread(target=lambda: found.append(source.by_id(2))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(repr, found))) == 1
        before = len(registry.asked)
        copy = pickle.loads(pickle.dumps(source))
        assert copy.by_id(2) == found[0]
        assert len(registry.asked) == before


def test_tls_is_checked(tmp_path, orders):
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(Registry(SUBJECTS), tls=context) as url:
        assert read(orders, seglog.SchemaRegistry(url, ca_file=certificate)) == [VALUE] * 3
        with pytest.raises(StorageError, match="certificate"):
            read(orders, url)


@pytest.mark.parametrize("answer", [
    b"<html>", b"", b"[]", b'{"schema": 5}', b'{"id": 2}', b"[" * 100_000, b'{"id": 2, "schema": "x", "references": 5}',
    b'{"id": 2, "schema": "\\"long\\"", "schemaType": "THRIFT"}',
])
def test_an_odd_answer_is_an_error_that_names_the_registry(orders, answer):
    registry = Registry(SUBJECTS)
    registry.answer = lambda path, headers: (200, answer)
    with serving(registry) as url, pytest.raises((StorageError, InvalidArgumentError)) as caught:
        read(orders, url)
    assert url in str(caught.value) or "schema" in str(caught.value)


CHECK_URL = "check that the URL is that of a schema registry"


@pytest.mark.parametrize(("status", "answer", "told", "todo"), [
    (404, b"<html>nginx</html>", "HTTP 404, and not as a registry does", CHECK_URL),
    (405, {"message": "no"}, "HTTP 405: no", CHECK_URL),
    (302, b"", "HTTP 302: nothing", "give the URL to which it redirects"),
    (500, {"message": "a" * 5000}, "HTTP 500: " + "a" * 200, "run again once the registry answers"),
    (500, {"message": "\x1b[31mred\nline"}, "HTTP 500: ?[31mred?line", "run again once the registry answers"),
    (429, {"message": ["x"]}, "HTTP 429: nothing", "run again once the registry answers"),
])
def test_an_answer_that_is_an_error_is_told_shortly_with_what_to_do(orders, status, answer, told, todo):
    """Text of the registry went to the terminal as it was, of any length; the hint was to free space."""
    registry = Registry(SUBJECTS)
    registry.answer = lambda path, headers: (status, answer)
    with serving(registry) as url:
        with pytest.raises(StorageError) as caught:
            read(orders, url)
        assert str(caught.value) == f"the registry answers {told} ({url})"
        assert caught.value.hint == todo


@pytest.mark.parametrize(("url", "options"), [
    (5, {}), (None, {}), ("http://ex ample:1", {}), ("http://a..b:1", {}), (f"http://{'a' * 70}.com", {}),
    ("http://registry", {"token": "a\nb"}), ("http://registry", {"token": "\u20ac"}), ("http://registry", {"token": 5}),
    ("http://registry", {"username": "\ud800"}), ("http://registry", {"username": 5}),
    ("http://registry", {"username": "u", "password": b"p"}), ("http://registry", {"password": "p"}),
    *(("http://registry", {"timeout": wrong}) for wrong in (0, -1, "x", None, float("inf"), float("nan"), True)),
    ("https://registry", {"ca_file": 5}), ("https://registry", {"key": "file"}),
])
def test_what_a_registry_cannot_be_reached_by_is_refused(orders, url, options):
    """Errors of Python's own libraries came out of the scan."""
    with pytest.raises(InvalidArgumentError) as caught:
        read(orders, seglog.SchemaRegistry(url, **options))
    assert "not the URL of a schema registry" in str(caught.value) or any(name in str(caught.value) for name in options)


def test_any_spelling_of_a_registrys_url_is_taken(orders):
    registry = Registry(SUBJECTS)
    with serving(registry) as url:
        assert read(orders, url.replace("http", "HTTP")) == [VALUE] * 3
        known = registry.answer
        registry.answer = lambda path, headers: known(path.removeprefix("/%C3%A4%20b"), headers)
        assert read(orders, f"{url}/\u00e4 b?c#d") == [VALUE] * 3


def test_a_registry_that_answers_bit_by_bit_is_given_up(orders):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def drip():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while True:
                    connection.send(b"x")
                    time.sleep(0.1)

        thread = threading.Thread(target=drip)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(StorageError, match="cannot reach the schema registry"):
            read(orders, seglog.SchemaRegistry(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.5))
        assert time.monotonic() - begun < 30
        thread.join()


def test_a_registry_that_is_down_is_no_undecodable_record(orders):
    with pytest.raises(StorageError, match="cannot reach the schema registry"):
        read(orders, "http://127.0.0.1:9")
    registry = Registry(SUBJECTS)
    with serving(registry) as url:
        scan = seglog.scan(orders, decode={"value": "avro"}, schemas=url, on_undecodable="null")
        scan.__arrow_c_schema__()
        registry.answer = lambda path, headers: (500, {"message": "out of order"})
        with pytest.raises(StorageError, match="HTTP 500: out of order"):
            scan.to_arrow()
    assert scan.undecodable == {}


def test_a_schema_of_another_kind_is_refused(tmp_path):
    path = write_topic(tmp_path / "proto-0", [framed(7, b"")])
    with serving(Registry(SUBJECTS)) as url:
        with pytest.raises(InvalidArgumentError, match="one of PROTOBUF"):
            read(path, url)
        with pytest.raises(UndecodableRecordError, match="one of PROTOBUF"):
            read(path, url, schema='"long"')


def test_circles_of_references_end(tmp_path):
    write_schemas(tmp_path, ("a-value", 1, 1, "long", {"references": [{"name": "b", "subject": "b", "version": 1}]}),
                  ("b", 1, 2, "int", {"references": [{"name": "a", "subject": "a-value", "version": 1}]}))
    path = write_topic(tmp_path / "a-0", [framed(1, avro("long", 1))])
    assert read(path, None) == [1]


def test_a_long_chain_of_references_is_followed():
    """RecursionError, which was no error of ours."""
    class Chain(SchemaSource):
        by_id = versions = None

        def version(self, subject, version):
            more = (Reference(f"n{version + 1}", "s", version + 1),) if version < 5_000 else ()
            return StoredSchema(version, "AVRO", '"long"', more)

    found = [(name, schema.id) for name, schema in Chain().referenced(Chain().version("s", 0))]
    assert found == [(f"n{n}", n) for n in range(5_000, 0, -1)]


# --- a folder ---------------------------------------------------------------------------------------


def test_files_name_subjects_and_ids(tmp_path, orders):
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "orders-value.2.avsc").write_text(json.dumps(WHOLE))
    (folder / "README.md").write_text("no schema")
    assert read(orders, folder) == [VALUE] * 3
    assert read(orders, str(folder)) == [VALUE] * 3
    (folder / "orders-value.2.avsc").rename(folder / "orders-value.avsc")
    with pytest.raises(SchemaNotFoundError, match="no file has the schema id 2"):
        read(orders, folder)
    plain = write_topic(tmp_path / "plain-0", [avro(WHOLE, VALUE)])
    assert read(plain, folder, subject="orders-value", frame="none") == [VALUE]


def test_a_later_version_has_a_larger_id(tmp_path):
    for number in (9, 10):
        (tmp_path / f"a.b.{number}.avsc").write_text(json.dumps(WHOLE | {"doc": str(number)}))
    folder = SchemaFolder(tmp_path)
    assert [schema.id for schema in folder.versions("a.b")] == [9, 10]
    assert folder.latest("a.b").id == 10
    assert folder.by_id(9) == folder.version("a.b", 1)
    with pytest.raises(SchemaNotFoundError):
        folder.version("a.b", 3)
    (tmp_path / "bad.avsc").write_bytes(b"\xff")
    with pytest.raises(seglog.SeglogError, match="not the text of a schema"):
        SchemaFolder(tmp_path).versions("a.b")


# --- the topic --------------------------------------------------------------------------------------


def test_a_schema_that_is_registered_later_is_found(tmp_path):
    path = write_schemas(tmp_path, ("a", 1, 1, "long"))
    topic = SchemasTopic(path)
    assert topic.by_id(1).text == '"long"'
    with pytest.raises(SchemaNotFoundError, match="no schema with the id 2"):
        topic.by_id(2)
    with seglog.open(path, fsync="never") as log:
        log.append(schema_value("a", 2, 2, "int"), key=schema_key("a", 2))
    assert topic.by_id(2).text == '"int"'
    assert [schema.id for schema in topic.versions("a")] == [1, 2]
    assert pickle.loads(pickle.dumps(topic)).by_id(2).text == '"int"'


@pytest.mark.parametrize("record", [
    (b"not json", b"{}"), (b'{"keytype":"SCHEMA"}', b"{}"), (b'{"keytype":"SCHEMA"}', b"nothing"),
    (b'{"keytype":"SCHEMA"}', b"7"), (b"[" * 100_000, b"{}"),
    (b'{"keytype":"SCHEMA"}', b'{"subject":"a","version":1,"id":"x","schema":"y"}'),
    (b'{"keytype":"SCHEMA"}', b'{"subject":"a","version":1,"id":1,"schema":"y","references":[5]}'),
])
def test_a_topic_that_is_no_registrys_is_refused_with_its_offset(tmp_path, record):
    path = write_schemas(tmp_path, ("a", 1, 1, "long"))
    with seglog.open(path, fsync="never") as log:
        log.append(record[1], key=record[0])
    with pytest.raises(CorruptRecordError, match="not a record of a schema registry") as caught:
        SchemasTopic(path).by_id(1)
    assert caught.value.offset == 2


def test_what_schemas_may_name(tmp_path):
    write_schemas(tmp_path, ("a", 1, 1, "long"))
    (tmp_path / "folder").mkdir()
    assert source_of(None) is None
    assert isinstance(source_of(tmp_path), SchemasTopic)
    assert isinstance(source_of(tmp_path / "folder"), SchemaFolder)
    assert isinstance(source_of("http://registry:8081"), seglog.SchemaRegistry)
    for wrong in ("https://user:secret@", "https://registry:port"):
        with pytest.raises(InvalidArgumentError) as caught:
            source_of(wrong)
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="either"):
        seglog.SchemaRegistry("http://registry", username="u", token="t")


@pytest.mark.parametrize(("name", "text"), [
    ("orders-value.2.avsc", "{"), ("orders-value.2.avsc", '{"type": "record", "name": "R", "fields": 5}'),
    ("orders-value.2.proto", 'syntax = "proto3"; message'), ("orders-value.2.json", "7"),
])
def test_a_schema_that_cannot_be_read_is_named_by_its_file(tmp_path, orders, name, text):
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / name).write_text(text)
    kind = {".avsc": "avro", ".proto": "protobuf", ".json": "json"}[name[-5:] if name[-5] == "." else name[-6:]]
    with pytest.raises(InvalidArgumentError) as error:
        seglog.scan(orders, decode={"value": seglog.Typed(kind)}, schemas=folder).to_arrow()
    assert error.value.file == str(folder / name)


def test_a_schema_of_a_topic_or_a_registry_is_named_by_its_place(tmp_path, orders):
    write_schemas(tmp_path, ("orders-value", 1, 2, {"type": "nothing"}))
    with pytest.raises(InvalidArgumentError, match="nothing") as error:
        read(orders, None)
    assert (error.value.file, error.value.offset) == (str(tmp_path / "_schemas-0"), 1)
    with serving(Registry({"orders-value": [(2, '"nothing"', "AVRO", [])]})) as url, \
            pytest.raises(InvalidArgumentError, match="nothing") as error:
        read(orders, url)
    assert error.value.file == f"{url}/subjects/orders-value/versions/latest"


def test_a_referred_schema_that_cannot_be_read_is_the_one_that_is_named(tmp_path, orders):
    write_schemas(
        tmp_path, ("money-value", 1, 1, {"type": "record", "name": "Money", "fields": 5}),
        ("orders-value", 1, 2, ORDER, {"references": REFERENCES}),
    )
    with pytest.raises(InvalidArgumentError) as error:
        read(orders, None)
    assert error.value.offset == 1


def test_a_file_in_place_of_a_folder_of_schemas_is_called_a_file(tmp_path):
    """Red: no such directory."""
    file = tmp_path / "order.avsc"
    file.write_text("{}")
    with pytest.raises(InvalidArgumentError, match="schemas: a file, not a directory") as refused:
        source_of(file)
    assert "a folder of .avsc or .proto files" in refused.value.hint
    with pytest.raises(InvalidArgumentError, match="schemas: no such directory"):
        source_of(tmp_path / "nosuch")
