"""Kafka's own kafka-transactions.sh finds a transaction that hangs, and aborts it."""
import re
import subprocess

import pytest

import seglog
from support.kafka_oracle import SCRIPTS, fetch_tools

pytestmark = pytest.mark.oracle

OLD_MS = 1_700_000_000_000


@pytest.mark.parametrize("version", ["3.9.1", "4.1.1"])
def test_kafka_transactions_finds_what_hangs_and_aborts_it(kafka_oracle, in_memory, version):
    kafka_oracle(version)
    fetch_tools(version)

    def told(*arguments):
        done = subprocess.run(
            [SCRIPTS / "tool.sh", version, "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server",
             server.bootstrap_servers, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    with seglog.serve(in_memory / "data", topics={"orders": 1}) as server:
        log = server.log("orders", 0)
        log.append_batch(seglog.build_batch(
            [(b"k", b"hangs", (), OLD_MS)], producer_id=7, producer_epoch=3, base_sequence=0, transactional=True))
        log.append(b"behind it")
        found = told("find-hanging", "--broker-id", 1, "--max-transaction-timeout", 1)
        assert re.search(r"^orders\s+0\s+7\s+3\s+-1\s+0\s", found, re.MULTILINE), found
        told("abort", "--topic", "orders", "--partition", 0, "--start-offset", 0)
        assert "orders" not in told("find-hanging", "--broker-id", 1, "--max-transaction-timeout", 1)
        assert log.last_stable_offset == log.log_end_offset == 3
        assert told("abort", "--topic", "orders", "--partition", 0, "--producer-id", 7, "--producer-epoch", 3,
                    "--coordinator-epoch", 0) is not None
