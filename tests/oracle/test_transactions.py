"""Transactional logs that were written here: the real consumer is given what our read of committed data gives."""
import pytest

import seglog
from support.conversion import kept, row_of
from support.kafka_oracle import VERSIONS
from support.transaction_program import TransactionProgram

pytestmark = pytest.mark.oracle

LOGS = 24


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Directories of closed logs, many of them with transactions that nobody ended."""
    directories = []
    for seed in range(LOGS):
        directory = tmp_path_factory.mktemp("logs") / f"txn{seed}-0"
        program = TransactionProgram(1000 + seed, directory)
        program.run(80, without=("delete", "reopen"))
        program.check()
        program.log.close()
        directories.append(directory)
    return directories


def given(partition, isolation):
    return [kept(row_of(record)) for record in partition.read(isolation=isolation)]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_consumer_is_given_what_we_read(kafka_oracle, written, tmp_path, version, clean):
    boot = kafka_oracle(version).boot(written, tmp_path / "work", clean=clean)
    aborted = 0
    for directory in written:
        with seglog.open_partition(directory) as partition:
            for isolation, found in (("read_committed", boot.committed), ("read_uncommitted", boot.records)):
                consumed = [kept(record) | {"control": False} for record in found[directory.name]]
                assert consumed == given(partition, isolation), (directory.name, isolation)
            aborted += len(partition.aborted_transactions(0, partition.log_end_offset))
        assert boot.partitions[directory.name]["log_bytes_unchanged"]
    assert aborted > LOGS


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_finds_our_ends_producers_and_aborted_transactions(kafka_oracle, written, version):
    oracle = kafka_oracle(version)
    lookups = oracle.lookups(written)
    for directory in written:
        with seglog.open_partition(directory) as partition:
            answers = lookups[directory]
            assert answers["log_end_offset"] == partition.log_end_offset
            assert answers["last_stable_offset"] == partition.last_stable_offset, directory.name
