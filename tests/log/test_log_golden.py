"""Every directory that real Kafka wrote opens here as a log, and goes on."""
import pytest

from seglog.format import names
from support.conversion import rows
from support.golden import golden_cases, unpack
from support.golden_logs import GoingOn

CORRUPT = sorted((unpack("kafka") / "corrupt").iterdir())


def log_bytes(directory):
    return {path.name: path.read_bytes() for path in names.log_files(directory)}


def goes_on(writer, before):
    """Append, close, open again: `before` are the records that were there, and stay."""
    with writer.open() as log:
        assert log.log_end_offset >= len(before)
        end = log.log_end_offset
        writer.go_on(log)
        assert log.log_end_offset > end
        appended = [record.offset for record in log.read(start=end)]
        assert appended == list(range(end, log.log_end_offset))
    after = rows(writer.directory)
    assert after[: len(before)] == before
    assert [row["offset"] for row in after[len(before) :]] == appended
    with writer.open() as log:
        assert log.recovery.lost == log.recovery.repairs == ()
        assert [record.offset for record in log.read(start=end)] == appended


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case.name)
def test_a_golden_directory_goes_on_and_keeps_every_byte(case, tmp_path, clean):
    writer = GoingOn(case, tmp_path, clean=clean)
    before, raw = rows(writer.directory), log_bytes(writer.directory)
    with writer.open() as log:
        assert log.recovery.lost == ()
    goes_on(writer, before)
    after = log_bytes(writer.directory)
    assert all(after[name].startswith(content) for name, content in raw.items())


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
@pytest.mark.parametrize("case", CORRUPT, ids=lambda case: case.name)
def test_a_damaged_directory_goes_on_behind_what_is_left_of_it(case, tmp_path, mode):
    writer = GoingOn(case, tmp_path, **{"seglog.recovery.mode": mode})
    with writer.open():
        pass
    goes_on(writer, rows(writer.directory))
