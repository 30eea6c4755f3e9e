"""Each program of examples/ runs and does what it says; docs/examples.md shows it. spark_job.py: tests/spark."""
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import seglog
from support.internal_topics import cluster, cluster_answers, kraft, kraft_answers
from support.waiting import wait_for

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "examples"
PAGE = TOP / "docs/examples.md"
BLOCK = re.compile(r"<!-- code of (?P<name>\S+) -->\n(?P<body>(?:(?!<!--).*\n)*)<!-- end -->\n")


def run(name, *arguments, cwd, status=0):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def test_the_page_shows_every_example_as_it_is():
    page = PAGE.read_text()

    def shown(match):
        code = (EXAMPLES / match["name"]).read_text()
        return f"<!-- code of {match['name']} -->\n```python\n{code}```\n<!-- end -->\n"

    now = BLOCK.sub(shown, page)
    if os.environ.get("SEGLOG_UPDATE_DOCS"):
        PAGE.write_text(now)
    assert sorted(match["name"] for match in BLOCK.finditer(page)) == sorted(p.name for p in EXAMPLES.glob("*.py"))
    assert page == now, "run the test once with SEGLOG_UPDATE_DOCS=1"


def test_a_queue_delivers_in_due_order_and_tries_again(tmp_path):
    assert run("worker_queue.py", "jobs", cwd=tmp_path).splitlines() == [
        "now: done at attempt 1", "flaky: done at attempt 3", "later: done at attempt 1", "0 jobs left",
        "broken: given up after 4 attempts: RuntimeError: not yet",
    ]
    again = run("worker_queue.py", "jobs", cwd=tmp_path).splitlines()      # the dead job is kept
    assert again == ["0 jobs left", "broken: given up after 4 attempts: RuntimeError: not yet"]


def test_a_disk_is_converted_and_damage_is_left_alone(tmp_path):
    shutil.copytree(TOP / "tools/sample/orders-0", tmp_path / "old/orders-0")
    shutil.copytree(TOP / "tools/sample/orders-0", tmp_path / "old/orders-1")
    log = tmp_path / "old/orders-1/00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    first, second = run("convert_a_disk.py", "old", "new", cwd=tmp_path, status=1).splitlines()
    assert first.startswith("orders-0: 101 records, the same on both sides: True; 5,")
    assert first.endswith("clean")
    assert "orders-1: left alone" in second
    with seglog.open_partition(tmp_path / "new/orders-0") as partition:
        assert {batch.magic for _, table in partition.tables() for batch in table} == {2}


def test_the_disk_of_a_dead_broker_is_looked_over_and_a_copy_repaired(tmp_path):
    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    log = data / "orders-0/00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[-5] ^= 1        # in the last batch of the first segment
    log.write_bytes(raw)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    printed = run("broker_disk.py", "data", "copy", cwd=tmp_path).splitlines()
    assert printed[0] == "7 partitions, 1 errors, 0 warnings"
    assert printed[1].startswith("orders-0: a broker would lose ")
    assert "topic table: 1 partitions, compact" in printed
    # As the broker's own clients said before it died.
    for group, told in kraft_answers("4.1.1")["groups"].items():
        for where, (offset, _) in told["offsets"].items():
            assert any(line.startswith(f"group {group}: {where} at {offset}, lag ") for line in printed)
    assert printed[-1] == "left: 0 errors"
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    # Whoever reads the copy gets every record that was not damaged.
    with seglog.open_partition(tmp_path / "copy/orders-1") as ours, seglog.open_partition(data / "orders-1") as was:
        assert [record.value for record in ours] == [record.value for record in was]


def test_the_disk_of_a_dead_broker_is_filled_from_a_replica_whose_other_tail_is_named(tmp_path):
    """After an unclean election. tests/oracle/test_operators_day.py lets a real broker serve the copy."""
    dead = shutil.copytree(cluster("before", 1), tmp_path / "dead")
    log = dead / "orders-0/00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[70] ^= 1        # in the first batch
    log.write_bytes(raw)
    replica = cluster("before", 2)
    printed = run("broker_disk.py", dead, tmp_path / "copy", "--replica", replica, cwd=tmp_path).splitlines()
    assert "orders-0: a broker would lose 60 records, a quarantine 1" in printed
    assert "recovered 3 partitions: 0 bytes in quarantine" in printed
    [cut] = cluster_answers()["cuts"]["1"]["orders"]
    lost = len(cluster_answers()["read from 1"]["orders"]) - cut
    assert f"orders-0: following {replica}, it would be cut at {cut} and lose {lost} records" in printed
    with seglog.open_partition(tmp_path / "copy/orders-0") as log:
        values = [record.value.decode() for record in log]
    assert values == [value for _, _, value in cluster_answers()["read from 1"]["orders"]]


def test_the_cells_of_the_notebook_run(tmp_path):
    printed = run("polars_notebook.py", cwd=tmp_path)
    for country, orders, amount in (("de", 1669, 411763), ("fr", 1662, 409610), ("jp", 1669, 427104)):
        assert re.search(rf"{country}\W+{orders}\W+{amount}", printed)
    assert "shape: (13, 2)" in printed


@pytest.mark.skipif(importlib.util.find_spec("fastapi") is None, reason="fastapi is not installed")
def test_events_over_http_are_appended_read_and_streamed(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/events"
    # As the example says how to run it.
    [options] = re.findall(r"uvicorn event_log:app( .*?)  ", (EXAMPLES / "event_log.py").read_text())
    options = options.split()
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES, "event_log:app", "--port", str(port), *options],
        cwd=tmp_path,
        env=os.environ | {"EVENTS": str(tmp_path / "events-0")}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )

    def ask(path, body=None):
        with urllib.request.urlopen(url + path, data=body, timeout=30) as answer:
            return json.load(answer)

    def is_up():
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(is_up)
        assert ask("/ada", b"signed up") == {"offset": 0}
        assert ask("/bob", b"paid") == {"offset": 1}
        assert [(e["user"], e["event"]) for e in ask("")] == [("ada", "signed up"), ("bob", "paid")]
        assert ask("?start=2") == []        # the end
        for path in ("?start=3", "?start=-1", "/stream?start=3"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(path)
            with refused.value as answer:
                assert answer.code == 404
                assert "0" in json.load(answer)["detail"]
        with urllib.request.urlopen(f"{url}/stream?start=1", timeout=30) as stream:
            assert stream.readline() == b"id: 1\n"
            assert b'"event": "paid"' in stream.readline()
            stream.readline()
            assert ask("/ada", b"left") == {"offset": 2}
            assert stream.readline() == b"id: 2\n"
            server.terminate()      # while a client listens
            assert server.wait(20) is not None
    finally:
        server.kill()
        server.wait()
    with seglog.open_partition(tmp_path / "events-0") as partition:
        assert [record.value for record in partition.read()] == [b"signed up", b"paid", b"left"]
