"""A queue's directory where a command expects a log dir: its records are entries of Pulsar, with other keys inside."""
import pytest

import seglog
from seglog.errors import NotALogError
from support.command import seglog as command_line


@pytest.fixture
def jobs(tmp_path):
    with seglog.Queue(tmp_path / "jobs") as queue:
        queue.put(b"remind", key=b"u1")
    return tmp_path / "jobs"


@pytest.mark.parametrize("inside", ["", "ledger-0"])
@pytest.mark.parametrize("command", [["erase", "--key", "u1"], ["convert", "--plan"]], ids=["erase", "convert"])
def test_what_would_rewrite_it_refuses_it_and_says_what_it_is(jobs, command, inside):
    """`erase` found no record with the key and ended as if the key were not there."""
    ended = command_line(command[0], jobs / inside, *command[1:], status=NotALogError.exit_status)
    assert ("found a ledger" if inside else "found a managed ledger or a queue") in ended.stderr
    assert "see seglog queue" in ended.stderr


def test_the_call_refuses_it_as_well(jobs, tmp_path):
    with pytest.raises(NotALogError, match="found a ledger"):
        seglog.convert(jobs / "ledger-0", tmp_path / "new/ledger-0")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["ls", "dump", "stats", "verify"])
def test_what_only_reads_shows_the_files_and_says_where_the_jobs_are_shown(jobs, command):
    said = command_line(command, jobs).stderr
    assert said == f"{jobs} holds entries of Pulsar: see seglog queue for a queue, seglog ledger for others\n"
