"""The file of the groups' settings: what it holds, and what is refused."""
import contextlib
import stat

import pytest

from seglog.errors import CorruptSettingsError, InvalidArgumentError, SeglogError, UnsupportedVersionError
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFileSystem
from seglog.state import group_settings as module
from seglog.state.group_settings import (
    FILE_NAME,
    FORMAT,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    VERSION,
    read_group_settings,
    write_group_settings,
)
from support.faultfs import RecordingFs

FAST = {"fast": {SESSION_TIMEOUT: 45_000}}
BOTH = {**FAST, "böse \n": {HEARTBEAT_INTERVAL: 5_000, SESSION_TIMEOUT: 2**31 - 1}}


def test_settings_are_read_as_they_were_written_by_their_owner_only(tmp_path):
    assert read_group_settings(tmp_path) == {}
    for groups in (FAST, BOTH, {}):
        write_group_settings(OsFileSystem(), tmp_path, {**groups, "none": {}})
        assert read_group_settings(tmp_path) == groups
        assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


WRONG = [[], "x", {"": {SESSION_TIMEOUT: 1}}, {"x" * 1025: {SESSION_TIMEOUT: 1}}, {"g": {}}, {"g": []},
         {"g": {"consumer.more": 1}},
         *({"g": {SESSION_TIMEOUT: value}} for value in (0, -1, 2**31, 1.5, "1", True, None))]


@pytest.mark.parametrize(("contents", "error"), [
    (b"", CorruptSettingsError),
    (format_json(FORMAT, VERSION + 1, groups={}), UnsupportedVersionError),
    (format_json("seglog-acls", VERSION, groups={}), CorruptSettingsError),
    (format_json(FORMAT, VERSION), CorruptSettingsError),
    *((format_json(FORMAT, VERSION, groups=groups), CorruptSettingsError) for groups in WRONG),
], ids=range(4 + len(WRONG)))
def test_a_file_that_holds_something_else_is_refused_by_its_name(tmp_path, contents, error):
    (tmp_path / FILE_NAME).write_bytes(contents)
    with pytest.raises(error) as caught:
        read_group_settings(tmp_path)
    assert str(caught.value.file) == str(tmp_path / FILE_NAME)


def test_every_flipped_bit_and_every_torn_file_is_refused(tmp_path):
    write_group_settings(OsFileSystem(), tmp_path, BOTH)
    raw = (tmp_path / FILE_NAME).read_bytes()
    for position in range(len(raw)):
        for torn in (raw[:position], bytes([*raw[:position], raw[position] ^ 1 << position % 8, *raw[position + 1:]])):
            (tmp_path / FILE_NAME).write_bytes(torn)
            with contextlib.suppress(SeglogError):
                assert read_group_settings(tmp_path) == BOTH    # white space, or the newline at the end


def test_more_groups_than_may_have_settings_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GROUPS_MAX", 2)
    with pytest.raises(InvalidArgumentError, match="at most 2 groups"):
        write_group_settings(OsFileSystem(), tmp_path, {str(n): {SESSION_TIMEOUT: 1} for n in range(3)})
    assert not (tmp_path / FILE_NAME).exists()


def test_after_a_power_cut_there_are_the_old_settings_or_the_new_ones(tmp_path):
    record, seen = RecordingFs(tmp_path), []
    for groups in (FAST, BOTH):
        write_group_settings(record, tmp_path, groups)
        record.mark(groups)
    for state in record.crash_states(limit=200):
        with state.materialise() as disk:
            found = read_group_settings(disk)
        assert found in [{}, FAST, BOTH][len(state.marks):], state.story()
        seen.append(found)
    assert FAST in seen
    assert BOTH in seen
