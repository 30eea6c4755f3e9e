"""A log dir goes from a broker to our server, which is killed under transactions, and back to the broker."""
import os
import random
import signal
import time
from base64 import b64decode

import pytest

import seglog
from support.kafka_oracle import VERSIONS
from support.server_load import kill_under_load, serve_on_one_port
from support.transactional_load import PARTITIONS, TransactionalLoad
from support.wire_client import WireClient

pytestmark = pytest.mark.oracle

PRODUCERS = 3


def committed(broker, loads):
    """{name: offset} of the loads' groups, when the broker has loaded them."""
    end = time.monotonic() + 30
    while True:
        groups = broker.groups()
        if all("orders-0" in groups.get(load.name, {"offsets": {}})["offsets"] for load in loads):
            return {load.name: groups[load.name]["offsets"]["orders-0"][0] for load in loads}
        assert time.monotonic() < end, groups
        time.sleep(0.2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_goes_on_where_a_killed_server_was(kafka_oracle, tmp_path, request, version):
    kills = 20 if os.environ.get("SEGLOG_TORTURE") else 4
    with kafka_oracle(version).serving(tmp_path) as broker:
        broker.start()
        broker.create("orders", {}, partitions=PARTITIONS)
        broker.create("others", {})
        broker.of_groups("commit-in first first others-0 1 commit")     # makes the topics of its coordinators
        broker.stop()

        server = serve_on_one_port(broker.log_dir)
        request.addfinalizer(server.__exit__)
        loads = [TransactionalLoad(server, number, gets_epochs=number % 2 == 0) for number in range(PRODUCERS)]
        kill_under_load(server, loads, kills, random.Random(23), stays_dead=True)

        broker.start()
        offsets = committed(broker, loads)
        for load in loads:
            assert load.acknowledged <= offsets[load.name] <= load.acknowledged + 1
            # The next producer of the id: what the load left open is aborted.
            broker.of_groups(f"commit-in {load.name} ended others-0 2 commit")
        for partition in range(PARTITIONS):
            found = {load.number: [] for load in loads}
            for record in broker.consume(f"orders-{partition}", "read_committed").records:
                found[int(b64decode(record["key"]))].append(int(b64decode(record["value"])))
            assert found == {load.number: list(range(offsets[load.name])) for load in loads}
        broker.stop()

        server.start()
        with WireClient(server) as client:
            for load in loads:
                load.begin(client)
                assert load.next == offsets[load.name]
                load.transaction(client)
        assert server.end(signal.SIGTERM) == 0
        for partition in range(PARTITIONS):
            found = seglog.verify(broker.log_dir / f"orders-{partition}", level="deep").findings
            assert [one for one in found if one.severity == "error"] == []
