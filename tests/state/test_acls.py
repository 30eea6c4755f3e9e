"""The file of a log dir's ACLs: what it holds, and what is refused."""
import contextlib
import os
import stat

import pytest

from seglog.errors import CorruptSettingsError, InvalidArgumentError, SeglogError, UnsupportedVersionError
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFileSystem
from seglog.state import acls as module
from seglog.state.acls import (
    FILE_NAME,
    FORMAT,
    VERSION,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    read_acls,
    write_acls,
)
from support.faultfs import RecordingFs

READ = Acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
ALTER = Acl(
    ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, "User:böb, =x", "::1", Operation.ALTER, Permission.DENY)
ENTRY = {"resource_type": "TOPIC", "resource_name": "x", "pattern_type": "PREFIXED", "principal": "User:x", "host": "*",
         "operation": "READ", "permission": "ALLOW"}


def test_acls_are_read_as_they_were_written_by_their_owner_only(tmp_path):
    every = {READ._replace(resource_type=kind, pattern_type=pattern, operation=operation, permission=permission)
             for kind in ResourceType if kind is not ResourceType.CLUSTER for pattern in PatternType
             for operation in Operation for permission in Permission}
    for acls in ({READ, ALTER}, every, set()):
        write_acls(OsFileSystem(), tmp_path, acls)
        assert read_acls(tmp_path) == acls
        assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
        (tmp_path / FILE_NAME).chmod(0o644)     # what replaces it is the owner's again
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_a_log_dir_without_the_file_has_no_acls(tmp_path):
    assert read_acls(tmp_path) == frozenset()


def test_a_file_that_others_can_read_is_told(tmp_path, caplog):
    write_acls(OsFileSystem(), tmp_path, {READ})
    (tmp_path / FILE_NAME).chmod(0o640)
    assert read_acls(tmp_path) == {READ}
    assert "can be read or written by others" in caplog.text


def acls_file(**entry):
    return format_json(FORMAT, VERSION, acls=[{**ENTRY, **entry}])


@pytest.mark.parametrize(("contents", "error"), [
    (b"", CorruptSettingsError),
    (format_json(FORMAT, VERSION + 1, acls=[]), UnsupportedVersionError),
    (format_json("seglog-users", VERSION, acls=[]), CorruptSettingsError),
    (format_json(FORMAT, VERSION, acls={}), CorruptSettingsError),
    (format_json(FORMAT, VERSION, acls=["x"]), CorruptSettingsError),
    (format_json(FORMAT, VERSION, acls=[{**ENTRY, "more": 1}]), CorruptSettingsError),
    (format_json(FORMAT, VERSION, acls=[{}]), CorruptSettingsError),
    *((acls_file(**{name: value}), CorruptSettingsError) for name, value in (
        ("resource_type", "ANY"), ("resource_type", 2), ("resource_type", []), ("pattern_type", "MATCH"),
        ("operation", "ANY"), ("permission", "ANY"), ("resource_name", ""), ("resource_name", 5),
        ("resource_name", "x" * 1025), ("principal", "alice"), ("principal", None), ("host", ""), ("host", {}))),
    (acls_file(resource_type="CLUSTER"), CorruptSettingsError),
], ids=range(21))
def test_a_file_that_holds_something_else_is_refused_by_its_name(tmp_path, contents, error):
    (tmp_path / FILE_NAME).write_bytes(contents)
    with pytest.raises(error) as caught:
        read_acls(tmp_path)
    assert str(caught.value.file) == str(tmp_path / FILE_NAME)


def test_every_flipped_bit_and_every_torn_file_is_refused(tmp_path):
    write_acls(OsFileSystem(), tmp_path, {READ})
    raw = (tmp_path / FILE_NAME).read_bytes()
    for position in range(len(raw)):
        for torn in (raw[:position], bytes([*raw[:position], raw[position] ^ 1 << position % 8, *raw[position + 1:]])):
            (tmp_path / FILE_NAME).write_bytes(torn)
            with contextlib.suppress(SeglogError):
                assert read_acls(tmp_path) == {READ}    # white space, or the newline at the end


def test_a_link_is_not_followed(tmp_path):
    write_acls(OsFileSystem(), tmp_path, {READ})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE_NAME).symlink_to(tmp_path / FILE_NAME)
    with pytest.raises(CorruptSettingsError, match="in a regular file"):
        read_acls(tmp_path / "other")


def test_more_acls_than_a_log_dir_may_have_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ACLS_MAX", 2)
    acls = {READ._replace(host=f"10.0.0.{n}") for n in range(3)}
    with pytest.raises(InvalidArgumentError, match="at most 2 ACLs"):
        write_acls(OsFileSystem(), tmp_path, acls)
    assert not os.listdir(tmp_path)


def test_after_a_power_cut_there_are_the_old_acls_or_the_new_ones(tmp_path):
    record, seen = RecordingFs(tmp_path), []
    for acls in ({READ}, {READ, ALTER}):
        write_acls(record, tmp_path, acls)
        record.mark(acls)
    for state in record.crash_states(limit=200):
        with state.materialise() as disk:
            found = read_acls(disk)
        assert found in [set(), {READ}, {READ, ALTER}][len(state.marks):], state.story()
        seen.append(found)
    assert {READ} in seen
    assert {READ, ALTER} in seen
