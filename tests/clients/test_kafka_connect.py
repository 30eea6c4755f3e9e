"""Kafka Connect standalone over our server: a file goes into a topic and out of it into another file, over two runs.

Its source and its sink keep their positions in a file of its own and in a group of ours.
"""
import subprocess
import time
from contextlib import contextmanager

import pytest

import seglog
from support import kafka_oracle
from support.waiting import wait_for

pytestmark = pytest.mark.clients

PATIENCE_S = 240        # its start takes a minute on a busy machine
CONVERTER = "org.apache.kafka.connect.storage.StringConverter"


@pytest.fixture
def connect(tmp_path):
    """`with connect(server):` runs it with both connectors."""
    reason = kafka_oracle.lacking()
    if reason:
        pytest.skip(reason)
    kafka_oracle.fetch_tools("4.1.1")

    def written(file_name, **settings):
        path = tmp_path / file_name
        path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items()))
        return path

    @contextmanager
    def run(server):
        worker = written(
            "worker.properties", bootstrap_servers=server.bootstrap_servers, key_converter=CONVERTER,
            value_converter=CONVERTER, offset_storage_file_filename=tmp_path / "positions",
            offset_flush_interval_ms=200, listeners="http://127.0.0.1:0", plugin_discovery="service_load")
        source = written(
            "source.properties", name="reads", connector_class="FileStreamSource", tasks_max=1,
            file=tmp_path / "from", topic="lines")
        sink = written(
            "sink.properties", name="writes", connector_class="FileStreamSink", tasks_max=1, file=tmp_path / "to",
            topics="lines")
        with (tmp_path / "messages").open("a") as messages:
            process = subprocess.Popen(
                [kafka_oracle.SCRIPTS / "tool.sh", "4.1.1", "org.apache.kafka.connect.cli.ConnectStandalone", worker,
                 source, sink], stdout=messages, stderr=messages)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    return run


def test_lines_of_a_file_go_through_a_topic_into_another_file(connect, tmp_path):
    lines = [f"line {number}" for number in range(3000)]
    (tmp_path / "from").write_text("".join(f"{line}\n" for line in lines[:1000]))

    def arrived(count):
        return (tmp_path / "to").exists() and len((tmp_path / "to").read_text().splitlines()) >= count

    with seglog.serve(tmp_path / "data", fsync="interval", topics={"lines": 1}) as server:
        with connect(server):
            wait_for(lambda: arrived(1000), seconds=PATIENCE_S)
            with (tmp_path / "from").open("a") as file:
                file.write("".join(f"{line}\n" for line in lines[1000:2000]))
            wait_for(lambda: arrived(2000), seconds=PATIENCE_S)
            time.sleep(1)       # so that the source has kept its position
        with (tmp_path / "from").open("a") as file:
            file.write("".join(f"{line}\n" for line in lines[2000:]))
        with connect(server):
            wait_for(lambda: arrived(3000), seconds=PATIENCE_S)
        assert [bytes(record.value).decode() for record in server.log("lines").read()] == lines
    assert (tmp_path / "to").read_text().splitlines() == lines
