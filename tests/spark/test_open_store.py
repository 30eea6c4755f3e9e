"""Which store a path or URL names, with which options."""
import pytest

from seglog.errors import InvalidArgumentError
from seglog.fs.files import OsFileSystem
from seglog.spark.manifest import TopicsManifest, is_prefix
from seglog.stores.hdfs_store import HdfsStore
from seglog.stores.object_store import ObjectStore
from seglog.stores.open_store import is_local, open_store
from seglog.stores.store import LocalStore


def opened(url, **options):
    return open_store(url, options, OsFileSystem())


@pytest.mark.parametrize(("url", "kind", "path"), [
    ("/data/kafka/", LocalStore, "/data/kafka"),
    ("/data/a:b", LocalStore, "/data/a:b"),
    ("file:///data/kafka%20old", LocalStore, "/data/kafka old"),
    ("s3://lake/data/kafka/", ObjectStore, "s3://lake/data/kafka"),
    ("webhdfs://namenode:50070/data/", HdfsStore, "webhdfs://namenode:50070/data"),
    ("webhdfs://namenode/data", HdfsStore, "webhdfs://namenode:9870/data"),
    ("swebhdfs://namenode/data", HdfsStore, "swebhdfs://namenode:9871/data"),
    # The port of hdfs:// is that of another protocol.
    ("hdfs://namenode:8020/data", HdfsStore, "webhdfs://namenode:9870/data"),
])
def test_a_url_names_its_store_and_a_place_in_it(url, kind, path):
    store, found = opened(url)
    assert type(store) is kind
    assert found == path
    assert is_local(url) == (kind is LocalStore)


def test_the_port_of_hdfs_may_be_another():
    assert opened("hdfs://namenode:8020/data", http_port="50070")[1] == "webhdfs://namenode:50070/data"


@pytest.mark.parametrize(("url", "words"), [
    ("ftp://host/data", "no store for ftp"), ("s3://lake", "no bucket, or nothing in it"),
    ("s3:///data", "no bucket, or nothing in it"), ("s3://lake/data?region=x", "may not contain"),
    ("webhdfs:///data", "no namenode"), ("webhdfs://namenode:web/data", "invalid port"),
])
def test_what_cannot_be_meant_is_refused_with_what_can(url, words):
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        opened(url)
    assert caught.value.hint
    assert caught.value.file == url


def test_an_option_that_no_store_has_is_refused():
    with pytest.raises(InvalidArgumentError, match="endpoint_overide") as caught:
        opened("/data/kafka", endpoint_overide="minio:9000")
    assert "endpoint_override" in caught.value.hint
    with pytest.raises(InvalidArgumentError, match="http_port must be a number"):
        opened("hdfs://namenode/data", http_port="web")
    # One of the other store of the same command is passed over.
    opened("webhdfs://namenode/data", endpoint_override="minio:9000")


def test_options_that_do_not_go_together_are_told():
    store, path = opened("s3://lake/data", anonymous="true", access_key="me", secret_key="and-mine")
    with pytest.raises(InvalidArgumentError, match="cannot be combined") as caught:
        store.check(path)
    assert "and-mine" not in str(caught.value)


def test_a_version_gets_a_prefix_that_none_has_or_had():
    manifest = TopicsManifest(3, {"orders-0": "v2-00000000", "orders-1": "v10-11111111"})
    prefixes = {manifest.next_prefix(["v11-22222222", "orders-7"]) for _ in range(20)}
    assert len(prefixes) == 20
    assert all(is_prefix(prefix) and prefix.startswith("v12-") for prefix in prefixes)
    assert TopicsManifest().next_prefix([]).startswith("v1-")


def test_a_manifest_says_what_counts_from_now_on():
    manifest = TopicsManifest(3, {"orders-0": "v1-00000000", "orders-1": "v1-00000000"})
    after = manifest.replaced({"orders-1": None, "orders-2": "v2-11111111"})
    assert (after.serial, after.partitions) == (4, {"orders-0": "v1-00000000", "orders-2": "v2-11111111"})
    assert TopicsManifest.parse(after.to_bytes(), "manifest") == after
