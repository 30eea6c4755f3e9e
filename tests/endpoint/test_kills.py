"""A server that is killed under the load of idempotent producers that wait for acks=all: what was acknowledged is there
once, and in order.
"""
import os
import random
import signal
import time

import seglog
from seglog.wire.error_codes import Errors
from support.server_load import ServerLoad, kill_under_load, serve_on_one_port
from support.wire_client import WireClient, produce_request

PRODUCERS = 4
PARTITIONS = 2


class Load(ServerLoad):
    """One producer of a partition: it sends a batch again until it is acknowledged, as every client does."""

    def run(self):
        client = None
        while not self.stopped.is_set():
            records = seglog.build_batch(
                [(b"%d" % self.number, b"%d" % (self.acknowledged + n)) for n in range(3)],
                producer_id=1000 + self.number, producer_epoch=0, base_sequence=self.acknowledged)
            try:
                client = client or WireClient(self.server)
                answer = client.ask(produce_request("orders", self.number % PARTITIONS, records), 11)
            except OSError:
                if client is not None:
                    client.__exit__()
                client = None
                time.sleep(0.005)
                continue
            error = answer.responses[0].partition_responses[0].error_code
            if error:
                self.faults.append(Errors(error).name)
                return
            self.acknowledged += 3
        if client is not None:
            client.__exit__()


def test_nothing_acknowledged_is_lost_and_nothing_is_there_twice(tmp_path, request):
    kills = 200 if os.environ.get("SEGLOG_TORTURE") else 2
    rng = random.Random(21)
    server = serve_on_one_port(
        tmp_path / "data", "--create-topic", f"orders:{PARTITIONS}", "--config", "segment.bytes=20000"
    )
    request.addfinalizer(server.__exit__)
    loads = [Load(server, number) for number in range(PRODUCERS)]
    kill_under_load(server, loads, kills, rng)
    assert server.end(signal.SIGTERM) == 0
    found = {number: [] for number in range(PRODUCERS)}
    for partition in range(PARTITIONS):
        with seglog.open_partition(tmp_path / f"data/orders-{partition}") as log:
            for record in log.read():
                found[int(record.key)].append(int(record.value))
    for load in loads:
        there = found[load.number]
        assert there == list(range(len(there)))
        assert load.acknowledged <= len(there) <= load.acknowledged + 3
