"""A server that is killed under producers that commit records and offsets in one transaction: both count or neither."""
import os
import random
import signal

import seglog
from support.server_load import kill_under_load, serve_on_one_port
from support.transactional_load import PARTITIONS, TransactionalLoad
from support.wire_client import WireClient

PRODUCERS = 3


def test_a_transaction_counts_as_a_whole_or_not_at_all_whenever_the_server_is_killed(tmp_path, request):
    kills = 200 if os.environ.get("SEGLOG_TORTURE") else 3
    rng = random.Random(22)
    server = serve_on_one_port(
        tmp_path / "data", "--create-topic", f"orders:{PARTITIONS}",
        "--config", "offsets.topic.num.partitions=3", "--config", "transaction.state.log.num.partitions=3",
    )
    request.addfinalizer(server.__exit__)
    loads = [TransactionalLoad(server, number, gets_epochs=number % 2 == 0) for number in range(PRODUCERS)]
    kill_under_load(server, loads, kills, rng)
    with WireClient(server) as client:
        offsets = []
        for load in loads:
            load.begin(client)      # ends what it left open
            offsets.append(load.next)
    assert server.end(signal.SIGTERM) == 0
    for partition in range(PARTITIONS):
        found = {number: [] for number in range(PRODUCERS)}
        with seglog.open_partition(tmp_path / f"data/orders-{partition}") as log:
            assert log.last_stable_offset == log.log_end_offset
            for record in log.read(isolation="read_committed"):
                found[int(record.key)].append(int(record.value))
        for load, offset in zip(loads, offsets, strict=True):
            assert found[load.number] == list(range(offset))
            assert load.acknowledged <= offset <= load.acknowledged + 1
