"""A log dir is one cluster for its clients, and stays it."""
import re
import shutil

import pytest

import seglog
from seglog.format.checked_json import format_json
from seglog.state.cluster_id import FILE_NAME, FORMAT, VERSION, new_cluster_id
from seglog.wire import messages as m
from support.wire_client import WireClient


def served_id(log_dir):
    with seglog.serve(log_dir) as server, WireClient(server) as client:
        by_metadata = client.ask(m.MetadataRequest(topics=[]), 12).cluster_id
        assert client.ask(m.DescribeClusterRequest(), 1).cluster_id == by_metadata
        return by_metadata


def test_each_log_dir_has_an_id_and_keeps_it(in_memory):
    ids = {name: served_id(in_memory / name) for name in ("one", "two")}
    assert ids == {name: served_id(in_memory / name) for name in ids}
    assert len(set(ids.values())) == 2
    assert all(re.fullmatch(r"[\w-]{22}", made) for made in ids.values())
    shutil.copytree(in_memory / "one", in_memory / "moved")
    assert served_id(in_memory / "moved") == ids["one"]


def test_no_id_begins_with_a_dash():
    assert not any(new_cluster_id().startswith("-") for _ in range(2000))


@pytest.mark.parametrize(("line", "found"), [
    ("cluster.id=5L6g3nShT-eMCtK--X86sw", "5L6g3nShT-eMCtK--X86sw"), ("cluster.id : my\\u002dcluster", "my-cluster"),
])
def test_the_id_of_a_broker_is_kept(in_memory, line, found):
    own = served_id(in_memory)
    (in_memory / "meta.properties").write_text(f"#\n#Tue Nov 24 12:00:00 UTC 2026\nnode.id=1\nversion=1\n{line}\n")
    assert served_id(in_memory) == found
    (in_memory / "meta.properties").unlink()
    assert served_id(in_memory) == own


@pytest.mark.parametrize("broken", [
    "cluster.id=", "cluster.id=\\u12", "cluster.id=a\\tb", f"cluster.id={'x' * 101}", "x",
])
def test_a_broken_file_of_a_broker_is_not_read(in_memory, broken):
    own = served_id(in_memory)
    (in_memory / "meta.properties").write_text(broken)
    assert served_id(in_memory) == own


@pytest.mark.parametrize("contents", [
    b"", format_json(FORMAT, VERSION + 1, cluster_id="x" * 22), format_json(FORMAT, VERSION, cluster_id=7),
    format_json(FORMAT, VERSION, cluster_id=""), format_json(FORMAT, VERSION, cluster_id="x" * 22)[:-3] + b"\n",
], ids=["empty", "newer", "a number", "no text", "damaged"])
def test_a_file_that_cannot_be_read_is_left_and_said(in_memory, contents, caplog):
    (in_memory / FILE_NAME).write_bytes(contents)
    assert served_id(in_memory) != served_id(in_memory)
    assert (in_memory / FILE_NAME).read_bytes() == contents
    assert "another cluster id" in caplog.text
