"""After kill -9: `recover` leaves what the broker, one of 0.8.2.2 to 3.3.2, left when it started again."""
import shutil

import pytest

from seglog.format import names
from support.old_directories import OFFSET_ENTRY, Recovered, partitions


@pytest.mark.parametrize(("version", "killed"), partitions("killed"))
def test_recover_leaves_what_the_broker_itself_left(version, killed, tmp_path):
    recovered = Recovered(version, killed, tmp_path / "logs" / killed.name)
    recovered.log_is_the_same()     # byte for byte
    recovered.indexes_lead_to_the_same()
    recovered.state_is_the_same()
    recovered.nothing_was_torn()


@pytest.mark.parametrize(("version", "killed"), partitions("killed", ["0.8.2.2", "3.3.2"]))
@pytest.mark.parametrize("is_new_begun", [False, True])
def test_recover_leaves_the_same_of_a_broker_that_died_in_a_roll(version, killed, is_new_begun, tmp_path):
    """Between trimming the index of a full segment and creating the next one's .log, or the new index's zeros."""
    died = tmp_path / version / "killed" / killed.name
    shutil.copytree(killed.parents[1], tmp_path / version)
    index = sorted(died.glob("*.log"))[-1].with_suffix(names.OFFSET_INDEX_SUFFIX)
    raw = index.read_bytes()
    while raw.endswith(bytes(OFFSET_ENTRY.size)):
        raw = raw.removesuffix(bytes(OFFSET_ENTRY.size))
    index.write_bytes(b"" if is_new_begun else raw)
    recovered = Recovered(version, died, tmp_path / "logs" / died.name)
    recovered.log_is_the_same()
    recovered.indexes_lead_to_the_same()
    recovered.nothing_was_torn()
