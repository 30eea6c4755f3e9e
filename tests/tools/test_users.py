"""`seglog users`: who may log in to a server of a log dir."""
import stat

import pytest
from click.testing import CliRunner

import seglog
from seglog.state.users import FILE_NAME, Mechanism, read_users
from seglog.tools.cli import cli
from support.command import seglog as run
from support.command import seglog_json


def added(path, name, password, *options, status=0):
    done = CliRunner().invoke(cli, ["users", "add", str(path), name, *options], input=password)
    assert done.exit_code == status, done.output
    return done


def test_users_are_added_listed_and_removed(tmp_path):
    path = tmp_path / "data"
    added(path, "alice", "secret\n")
    added(path, "bob", "geheim\r\n", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    assert stat.S_IMODE((path / FILE_NAME).stat().st_mode) == 0o600
    assert run("users", "ls", path).stdout == "alice  SCRAM-SHA-256, SCRAM-SHA-512\nbob  SCRAM-SHA-512\n2 users\n"
    users = read_users(path)
    assert all(one.fits(mechanism, b"secret") for mechanism, one in users["alice"].items())
    assert users["bob"][Mechanism.SCRAM_SHA_512].iterations == 8192
    assert users["bob"][Mechanism.SCRAM_SHA_512].fits(Mechanism.SCRAM_SHA_512, b"geheim")
    added(path, "bob", "new", "--mechanism", "SCRAM-SHA-256")
    assert list(read_users(path)["bob"]) == [Mechanism.SCRAM_SHA_256]
    for arguments, line in (
        (["add", path, "bob"], "would change bob"), (["add", path, "carol"], "would add carol"),
        (["rm", path, "alice"], "would remove alice"), (["add", tmp_path / "nosuch", "bob"], "would add bob"),
    ):
        assert run("users", *arguments, "--dry-run", status=1).stdout == f"{line}\n"
    assert not (tmp_path / "nosuch").exists()
    assert run("users", "rm", path, "alice").stdout == "removed alice\n"
    bob, summary = seglog_json("users", "ls", path)
    assert (bob["name"], bob["mechanisms"], summary["users"]) == ("bob", ["SCRAM-SHA-256"], 1)


@pytest.mark.parametrize(("arguments", "password"), [
    (["add", "data", "alice"], ""), (["add", "data", "alice"], "\n"), (["add", "data", ""], "x"),
    (["add", "data", "a\nb"], "x"), (["add", "data", "x" * 256], "x"), (["add", "data", "a", "--iterations", "1"], "x"),
    (["add", "data", "a", "--iterations", "1000000"], "x"), (["add", "data", "a", "--mechanism", "PLAIN"], "x"),
    (["rm", "data", "alice"], ""),
])
def test_what_cannot_be_meant_is_refused(tmp_path, arguments, password):
    (tmp_path / "data").mkdir()
    command = ["users", arguments[0], str(tmp_path / "data"), *arguments[2:]]
    assert CliRunner().invoke(cli, command, input=password).exit_code == 2
    assert not (tmp_path / "data" / FILE_NAME).exists()


def test_they_are_changed_by_clients_while_a_server_runs(tmp_path):
    with seglog.serve(tmp_path / "data"):
        assert "another server uses this log dir" in added(tmp_path / "data", "alice", "secret", status=5).output
    assert not read_users(tmp_path / "data")


def test_a_directory_that_is_not_there_has_no_users(tmp_path):
    for arguments in (["ls", tmp_path / "nosuch"], ["rm", tmp_path / "nosuch", "alice"]):
        run("users", *arguments, status=3)
    assert not (tmp_path / "nosuch").exists()


def test_a_file_that_cannot_be_read_is_not_replaced(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"{}")
    added(tmp_path, "alice", "secret", status=1)
    assert (tmp_path / FILE_NAME).read_bytes() == b"{}"
