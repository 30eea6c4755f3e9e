"""The file of a log dir's users: what it holds, and what is refused."""
import contextlib
import os
import stat

import pytest

from seglog.errors import CorruptSettingsError, InvalidArgumentError, SeglogError, UnsupportedVersionError
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFileSystem
from seglog.state import users as module
from seglog.state.users import FILE_NAME, FORMAT, VERSION, Credential, Mechanism, read_users, write_users
from support.faultfs import RecordingFs

SHA_256, SHA_512 = Mechanism
CREDENTIALS = {
    mechanism: Credential.of_password(mechanism, b"secret", bytes(16), 4096) for mechanism in Mechanism}
ENTRY = {"iterations": 4096, "salt": "00", "stored_key": "00" * 32, "server_key": "00" * 32}


def test_users_are_read_as_they_were_written_by_their_owner_only(tmp_path):
    users = {"alice": CREDENTIALS, "böb, =x": {SHA_512: CREDENTIALS[SHA_512]}}
    for _ in range(2):
        write_users(OsFileSystem(), tmp_path, users)
        assert read_users(tmp_path) == users
        assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
        (tmp_path / FILE_NAME).chmod(0o644)     # what replaces it is the owner's again
    assert os.listdir(tmp_path) == [FILE_NAME]
    assert all(one.fits(mechanism, b"secret") and not one.fits(mechanism, b"Secret")
               for mechanism, one in CREDENTIALS.items())


def test_a_file_that_others_can_read_is_told(tmp_path, caplog):
    write_users(OsFileSystem(), tmp_path, {"alice": CREDENTIALS})
    (tmp_path / FILE_NAME).chmod(0o640)
    assert read_users(tmp_path)
    assert "can be read or written by others" in caplog.text


def users_file(**entry):
    return format_json(FORMAT, VERSION, users={"alice": {"SCRAM-SHA-256": {**ENTRY, **entry}}})


@pytest.mark.parametrize(("contents", "error"), [
    (b"", CorruptSettingsError),
    (format_json(FORMAT, VERSION + 1, users={}), UnsupportedVersionError),
    (format_json("seglog-cluster-id", VERSION, users={}), CorruptSettingsError),
    (format_json(FORMAT, VERSION, users=[]), CorruptSettingsError),
    (format_json(FORMAT, VERSION, users={"alice": {}}), CorruptSettingsError),
    (format_json(FORMAT, VERSION, users={"alice": {"PLAIN": ENTRY}}), CorruptSettingsError),
    (format_json(FORMAT, VERSION, users={"": {"SCRAM-SHA-256": ENTRY}}), CorruptSettingsError),
    (format_json(FORMAT, VERSION, users={"a\0b": {"SCRAM-SHA-256": ENTRY}}), CorruptSettingsError),
    (format_json(FORMAT, VERSION, users={"x" * 256: {"SCRAM-SHA-256": ENTRY}}), CorruptSettingsError),
    (users_file(iterations=4095), CorruptSettingsError), (users_file(iterations=2**40), CorruptSettingsError),
    (users_file(iterations="4096"), CorruptSettingsError), (users_file(iterations=True), CorruptSettingsError),
    (users_file(salt=""), CorruptSettingsError), (users_file(salt="00" * 256), CorruptSettingsError),
    (users_file(salt=5), CorruptSettingsError), (users_file(stored_key="00" * 64), CorruptSettingsError),
    (users_file(server_key="xy" * 32), CorruptSettingsError),
], ids=range(18))
def test_a_file_that_holds_something_else_is_refused_by_its_name(tmp_path, contents, error):
    (tmp_path / FILE_NAME).write_bytes(contents)
    with pytest.raises(error) as caught:
        read_users(tmp_path)
    assert str(caught.value.file) == str(tmp_path / FILE_NAME)


def test_every_flipped_bit_and_every_torn_file_is_refused(tmp_path):
    write_users(OsFileSystem(), tmp_path, {"alice": {SHA_256: CREDENTIALS[SHA_256]}})
    raw = (tmp_path / FILE_NAME).read_bytes()
    read = read_users(tmp_path)
    for position in range(len(raw)):
        for torn in (raw[:position], bytes([*raw[:position], raw[position] ^ 1 << position % 8, *raw[position + 1:]])):
            (tmp_path / FILE_NAME).write_bytes(torn)
            with contextlib.suppress(SeglogError):
                assert read_users(tmp_path) == read     # white space, or the newline at the end


def test_a_link_is_not_followed(tmp_path):
    write_users(OsFileSystem(), tmp_path, {"alice": CREDENTIALS})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE_NAME).symlink_to(tmp_path / FILE_NAME)
    with pytest.raises(CorruptSettingsError, match="in a regular file"):
        read_users(tmp_path / "other")


def test_a_pipe_in_place_of_the_file_is_refused_with_what_to_do(tmp_path):
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(CorruptSettingsError, match="in a regular file") as caught:
        read_users(tmp_path)
    assert "seglog users add" in caught.value.hint


def test_more_users_than_a_log_dir_may_have_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "USERS_MAX", 2)
    users = {f"user-{n}": CREDENTIALS for n in range(3)}
    with pytest.raises(InvalidArgumentError, match="at most 2 users"):
        write_users(OsFileSystem(), tmp_path, users)
    assert not os.listdir(tmp_path)


def test_after_a_power_cut_there_are_the_old_users_or_the_new_ones(tmp_path):
    old, new = {"alice": CREDENTIALS}, {"alice": CREDENTIALS, "bob": CREDENTIALS}
    record = RecordingFs(tmp_path)
    for users in (old, new):
        write_users(record, tmp_path, users)
        record.mark(users)
    seen = []
    for state in record.crash_states(limit=200):
        with state.materialise() as disk:
            found = read_users(disk)
        assert found in [{}, old, new][len(state.marks):], state.story()
        seen.append(found)
    assert old in seen
    assert new in seen
