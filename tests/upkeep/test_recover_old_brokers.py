"""After kill -9: `recover` leaves what the broker, one of 0.8.2.2 to 3.3.2, left when it started again."""
import pytest

from support.old_directories import Recovered, partitions

KILLED = partitions("killed")


@pytest.fixture(params=[p.values for p in KILLED], ids=[p.id for p in KILLED])
def recovered(request, tmp_path):
    version, killed = request.param
    return Recovered(version, killed, tmp_path / "logs" / killed.name)


def test_the_log_is_the_same_byte_for_byte(recovered):
    recovered.log_is_the_same()


def test_indexes_lead_to_the_same_batches(recovered):
    recovered.indexes_lead_to_the_same()


def test_producers_transactions_and_epochs_are_the_same(recovered):
    recovered.state_is_the_same()


def test_nothing_was_torn_and_nothing_is_lost(recovered):
    recovered.nothing_was_torn()
