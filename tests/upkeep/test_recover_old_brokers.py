"""After kill -9: `recover` leaves what the broker, one of 0.8.2.2 to 3.3.2, left when it started again."""
import pytest

from support.old_directories import Recovered, partitions


@pytest.mark.parametrize(("version", "killed"), partitions("killed"))
def test_recover_leaves_what_the_broker_itself_left(version, killed, tmp_path):
    recovered = Recovered(version, killed, tmp_path / "logs" / killed.name)
    recovered.log_is_the_same()     # byte for byte
    recovered.indexes_lead_to_the_same()
    recovered.state_is_the_same()
    recovered.nothing_was_torn()
