"""What a process imports to open its first log: importing is nearly all of the time that this takes."""
import json
import subprocess
import sys

import pytest

import seglog

# Each costs milliseconds, and none is needed to open a log and append to it.
LATER = {
    "array", "ast", "asyncio", "concurrent", "dataclasses", "datetime", "difflib", "hashlib", "importlib.metadata",
    "inspect", "logging", "multiprocessing", "numpy", "platform", "random", "secrets", "socket", "ssl", "subprocess",
    "tempfile", "urllib.request",
}
# Packages of which a log that was closed cleanly needs nothing before its first maintenance, and these modules.
LATER_PACKAGES = {
    "aio", "conversion", "coordinators", "delayed", "endpoint", "frames", "ledger", "loop", "spark", "stores", "topic",
    "verification", "wire",
}
LATER_MODULES = {
    "seglog._kernels.column_encode", "seglog._kernels.columns", "seglog._kernels.file_watch",
    "seglog.format.arrow_columns", "seglog.format.tagged_encoder", "seglog.log.expiry", "seglog.log.hot_backup",
    "seglog.log.open_dir", "seglog.log.own_source", "seglog.log.removal", "seglog.log.snapshot_barrier",
    "seglog.log.stats", "seglog.log.truncation", "seglog.reading.fetch", "seglog.reading.partition",
    "seglog.segment.recovery", "seglog.segment.tag_defaults", "seglog.segment.time_ranges",
    "seglog.segment.time_search", "seglog.state.checked_aborts", "seglog.state.quarantine",
    "seglog.state.reader_cursor", "seglog.upkeep.cleaner", "seglog.upkeep.cleaner_config",
    "seglog.upkeep.cleaner_thread", "seglog.upkeep.cleaning_plan", "seglog.upkeep.retention",
}


@pytest.fixture
def path(tmp_path):
    with seglog.open(tmp_path / "orders-0") as log:
        log.append(b"value")
    return tmp_path / "orders-0"


def imported(*command):
    """The modules that a command has imported at its end."""
    code = f"import sys; {'; '.join(command)}; import json; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    return set(json.loads(out.splitlines()[-1]))


@pytest.fixture
def alone():
    """What an interpreter imports by itself, with the hooks of its environment."""
    return imported("pass")


def test_the_first_open_imports_only_what_it_needs(path, alone):
    modules = imported("import seglog", f"log = seglog.open({str(path)!r})", "log.append(b'v')") - alone
    assert not modules & LATER
    assert not modules & LATER_MODULES
    packages = {name.split(".")[1] for name in modules if name.startswith("seglog.")}
    assert not packages & LATER_PACKAGES
    ours = {name for name in modules if name.startswith("seglog.") and not name.startswith("seglog._kernels")}
    assert 60 < len(ours) < 112       # 189 once; each costs a fifth of a millisecond, even if it is nearly empty


@pytest.mark.parametrize("command", [["ls"], ["dump", "--limit", "1"]])
def test_a_look_at_a_partition_imports_only_what_it_needs(path, alone, command):
    line = [command[0], str(path), *command[1:]]
    modules = imported("from seglog.tools.cli import cli", f"cli({line}, standalone_mode=False)") - alone
    # click imports datetime, inspect, and uuid, which imports platform; column statistics need array.
    assert not modules & (LATER - {"array", "ast", "dataclasses", "datetime", "inspect", "platform"})
    assert "seglog.log.log" not in modules
    assert "seglog.upkeep" not in modules
    assert not modules & {
        "seglog.reading.follower", "seglog.state.checked_aborts", "seglog.tools.small_files", "seglog.wire.messages",
        "seglog.wire.stored_records",
    }


def test_a_command_collects_garbage_when_it_has_loaded(path):
    code = (
        "import atexit, gc, sys; from seglog.tools.start import main; "
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000)); "
        f"sys.argv = ['seglog', 'ls', {str(path)!r}]; main()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "True True"


def test_a_message_that_nobody_can_see_imports_no_logging(path):
    """Nor does it print anything: that a program has no handler is no reason to write to its stderr."""
    modules = imported("from seglog.logger import Logger", "Logger('seglog.x').warning('%s', 1)")
    assert "logging" not in modules


@pytest.mark.parametrize("level", ["info", "warning", "error", "exception"])
def test_a_message_names_the_line_that_gave_it(level, caplog):
    from seglog.logger import Logger

    with caplog.at_level("INFO"):
        getattr(Logger("seglog.some.module"), level)("%s is lost", "it")
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("seglog.some.module", "it is lost")
    assert record.filename == "test_first_open.py"


def test_a_program_that_sets_no_handler_reads_no_warning():
    code = "import logging; from seglog.logger import Logger; Logger('seglog.x').warning('a warning')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")
