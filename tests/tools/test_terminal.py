"""What a terminal gets: its width, its letters, colour; templates, text, completion and manual pages."""
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest

import seglog as engine
from seglog.tools import cli, dump, terminal
from support.command import seglog, seglog_json
from support.internal_topics import kraft

SAMPLE = Path(__file__).parents[2] / "tools/sample/orders-0"


def in_a_terminal(*arguments, columns=80, **variables):
    """What `seglog ARGUMENTS` writes to a terminal of so many columns, stdout and stderr alike."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "seglog.tools", *map(str, arguments)], stdin=its, stdout=its, stderr=its,
        env=env | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | variables,
    )
    os.close(its)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:     # how Linux ends a terminal
        pass
    finally:
        os.close(ours)
    assert process.wait(60) is not None
    return text.decode().replace("\r\n", "\n")


def without_colour(text):
    return re.sub("\x1b\\[[0-9;]*m", "", text)


@pytest.fixture
def orders(tmp_path):
    """Offset 0: text; 1: JSON, a header; 2: null; 3: bytes that are no text."""
    with engine.open(tmp_path / "orders-3") as log:
        log.append("grün …".encode(), key=b"k0", timestamp=1_700_000_000_000)
        log.append(b'{"id": 1,\n "big": 12345678901234567890}', key=b"k1", timestamp=1_700_000_000_001,
                   headers=[("trace", b"t1"), ("none", None)])
        log.append(None, key=b"k2", timestamp=1_700_000_000_002)
        log.append(b"\xff\x00\x1b[31m", timestamp=1_700_000_000_003)
    return tmp_path / "orders-3"


# --- templates ---------------------------------------------------------------------------


def dumped(*arguments, status=0):
    return seglog("dump", *arguments, status=status).stdout_bytes


def test_a_template_writes_what_kcat_writes(orders):
    assert dumped(orders, "--format", r"%t[%p] %o %T %k/%K %s/%S %h 100%%\n", "--to-offset", 3) == (
        "orders[3] 0 1700000000000 k0/2 grün …/9  100%\n"
        'orders[3] 1 1700000000001 k1/2 {"id": 1,\n "big": 12345678901234567890}/39 trace=t1,none=NULL 100%\n'
        "orders[3] 2 1700000000002 k2/2 /-1  100%\n"
    ).encode()
    assert dumped(orders, "--format", "%R%s", "--from-offset", 2) == b"\xff\xff\xff\xff\0\0\0\7\xff\0\x1b[31m"
    assert dumped(orders, "--format", r"%k\x3b\t\\\0", "--limit", 1) == b"k0;\t\\\0"


def test_raw_is_the_bytes_of_the_values(orders, tmp_path):
    assert dumped(orders, "--format", "raw", "--key", "k0", "--key", "k2") == "grün …".encode()
    assert dumped(orders, "--format", "raw", "--tail", 1, "-o", tmp_path / "value") == b""
    assert (tmp_path / "value").read_bytes() == b"\xff\x00\x1b[31m"


def test_a_template_leaves_out_control_records(golden_kafka):
    case = golden_kafka / "cases/txn-v2-k411/txn-v2-k411-0"
    offsets = [int(n) for n in dumped(case, "--format", r"%o\n").split()]
    assert offsets == [line["offset"] for line in seglog_json("dump", case) if not line["control"]]


@pytest.mark.parametrize("format_", ["%o %x", "%", "cvs"])
def test_what_is_no_format_is_a_wrong_use(orders, format_):
    assert "--format" in seglog("dump", orders, "--format", format_, status=2).stderr


def test_a_template_and_other_shapes_do_not_go_together(orders):
    for options in (["--json"], ["--batches"], ["--columns", "key"], ["--max-value-bytes", 3]):
        seglog("dump", orders, "--format", "%o", *options, status=2)


def test_a_template_is_refused_for_files_that_hold_no_records(orders, tmp_path):
    index = orders / "00000000000000000000.index"
    given = orders, index, "--format", "%o", "-o", tmp_path / "out"
    assert "00000000000000000000.index contains none" in seglog("dump", *given, status=2).stderr
    assert not (tmp_path / "out").exists()


def test_format_refuses_each_option_that_it_cannot_use(orders):
    given = {
        "what": ["--control"], "start": ["--from-offset", 1], "stop": ["--to-offset", 3], "since": ["--since", 0],
        "until": ["--until", 2_000_000_000_000], "keys": ["--key", "k1"], "pattern": ["--grep", "."],
        "headers": ["--header", "trace"], "max_bytes": ["--max-bytes", 100], "limit": ["--limit", 1],
        "tail": ["--tail", 1], "follows": ["--follow"], "max_value_bytes": ["--max-value-bytes", 0],
        "columns": ["--columns", "offset"], "decode": ["--decode", "base64"], "on_corrupt": ["--on-corrupt", "skip"],
        "settings": ["--config", "segment.bytes=1000000"], "as_json": ["--json"],
        "schemas": ["--schemas", orders], "on_undecodable": ["--on-undecodable", "null"],
        "store_options": ["--store-option", "region=eu"], "topics": ["--topic", "*"],
        "isolation": ["--isolation", "read_committed"],
    }
    known = {option.name for option in dump.command.params if option.expose_value}
    assert known == {"paths", "format_", "output", *given}      # a new option needs its line here and in dump.py
    refused = {
        "jsonl": {"what", "keys", "pattern", "headers", "max_bytes", "limit", "tail", "follows", "max_value_bytes",
                  "settings", "as_json", "schemas"},     # the last one needs --decode avro
        r"%o\n": {"what", "max_value_bytes", "columns", "as_json", "schemas", "on_undecodable"},
    }
    for format_, names in refused.items():
        for name, options in given.items():
            if name in names:
                seglog("dump", orders, "--format", format_, *options, status=2)
            elif name != "follows":     # which does not end
                assert dumped(orders, "--format", format_, *options), (format_, name)


# --- text instead of bytes ---------------------------------------------------------------


def test_keys_and_values_as_text_in_json(orders):
    first = seglog_json("dump", orders, "--decode", "utf8", "--to-offset", 2)
    assert [(line["key"], line["value"]) for line in first] == [
        ("k0", "grün …"), ("k1", '{"id": 1,\n "big": 12345678901234567890}')]
    assert first[1]["headers"] == [["trace", "t1"], ["none", None]]
    parsed = seglog_json("dump", orders, "--decode", "json", "--from-offset", 1, "--to-offset", 3)
    assert [(line["key"], line["value"]) for line in parsed] == [
        ("k1", {"id": 1, "big": 12345678901234567890}), ("k2", None)]


def test_decoded_text_in_tables_and_templates(orders):
    assert dumped(orders, "--decode", "json", "--format", r"%k=%s\n", "--limit", 1, "--from-offset", 1) == (
        b'k1={"id":1,"big":12345678901234567890}\n')
    assert seglog("dump", orders, "--decode", "base64", "--tail", 1).stdout.endswith("/wAbWzMxbQ==\n")
    assert 'k1"    {"id":1,' in seglog("dump", orders, "--decode", "json", "--limit", 1, "--from-offset", 1).stdout


def test_a_decoded_value_is_given_by_its_size_above_max_value_bytes_also_if_that_is_0(orders):
    for most in (0, 1):
        for decode in ("auto", "utf8", "json"):
            text = seglog("dump", orders, "--decode", decode, "--max-value-bytes", most, "--limit", 2).stdout
            assert "39 bytes, sha256 " in text, (most, decode)
            assert "12345678901234567890" not in text, (most, decode)


@pytest.mark.parametrize(("decode", "what"), [("json", "value at offset 0 is not JSON"),
                                              ("utf8", "value at offset 3 is not UTF-8: invalid start byte at byte 0")])
def test_what_is_not_such_text_is_named(orders, decode, what):
    assert what in seglog("dump", orders, "--decode", decode, status=2).stderr
    assert what in seglog("dump", orders, "--decode", decode, "--json", status=2).stderr
    assert what in seglog("dump", orders, "--decode", decode, "--format", "%s", status=2).stderr


def test_json_has_no_infinity(tmp_path):
    with engine.open(tmp_path / "n-0") as log:
        log.append(b"[NaN]")
    assert "NaN is not a JSON number" in seglog("dump", tmp_path / "n-0", "--decode", "json", status=2).stderr


# --- a window outside of the log ---------------------------------------------------------


@pytest.mark.parametrize("options", [["--from-offset", 4], ["--from-offset", 99], ["--from-offset", 99, "--json"]])
def test_a_window_behind_the_log_is_out_of_range_as_for_seek(orders, options):
    seek = seglog("seek", orders, "--offset", options[1], status=2).stderr.splitlines()
    dump = seglog("dump", orders, *options, status=2).stderr.splitlines()
    assert dump == seek
    assert "valid are 0…3" in dump[0]


def test_a_window_before_the_log_is_out_of_range(golden_kafka):
    later = SAMPLE / "00000000000000000099.log"
    assert "what lies before offset 99 is out of range: valid are 99…100" in (
        seglog("dump", later, "--to-offset", 99, status=2).stderr)
    assert seglog("dump", later, "--to-offset", 100).stdout


def test_an_empty_log_may_be_dumped_from_its_start(tmp_path):
    engine.open(tmp_path / "e-0").close()
    assert seglog("dump", tmp_path / "e-0", "--from-offset", 0).stdout == ""
    assert "the log is empty and begins at 0" in seglog("dump", tmp_path / "e-0", "--from-offset", 1, status=2).stderr


def test_a_window_that_some_partitions_of_a_log_dir_lack_is_no_error(orders):
    shutil.copytree(SAMPLE, orders.parent / "orders-0")
    assert "100" in seglog("dump", orders.parent, "--from-offset", 100).stdout


# --- width, letters, colour --------------------------------------------------------------


def test_a_terminal_gets_lines_of_its_width_and_all_with_full(orders):
    with engine.open(orders) as log:
        log.append(("漢" * 60).encode(), key=b"k4")
        log.append(b"x" * 100, key=b"k5")
    for arguments in (("dump", orders), ("dump", "--batches", orders), ("ls", orders), ("ls", orders.parent)):
        for columns in (100, 50):
            lines = without_colour(in_a_terminal(*arguments, columns=columns)).splitlines()
            assert max(map(terminal.width_of, lines)) <= columns, (arguments, lines)
    lines = without_colour(in_a_terminal("dump", orders)).splitlines()
    assert lines[-1].endswith("xxx…")
    assert lines[-2].endswith("漢…")
    assert "x" * 100 in in_a_terminal("dump", "--full", orders)
    assert "x" * 100 in seglog("dump", orders).stdout


@pytest.mark.parametrize("variables", [{}, {"COLUMNS": "0"}, {"COLUMNS": "-1"}, {"COLUMNS": "wide"}], ids=str)
def test_columns_that_are_no_width_leave_it_to_the_terminal(orders, variables):
    assert in_a_terminal("dump", orders, columns=60, **variables) == in_a_terminal("dump", orders, columns=60)


@pytest.mark.parametrize(("columns", "widest"), [(60, 58), (70, 68), (200, 78), (20, 50)])
def test_help_fits_the_terminal_as_that_of_click(columns, widest):
    lines = in_a_terminal("dump", "--help", columns=columns).splitlines()
    assert widest - 3 <= max(map(len, lines)) <= widest
    assert lines == in_a_terminal("dump", "--help", COLUMNS=str(columns)).splitlines()


def test_a_table_loses_nothing_while_words_can_be_broken_apart(orders):
    whole, narrow = (without_colour(in_a_terminal("ls", orders, columns=columns)).split() for columns in (200, 100))
    assert {word for word in whole if not word.startswith("--")} <= {*narrow}


def test_rows_are_told_apart_in_80_columns():
    """Red: two rows named `__transacti…`, sizes broken as "4.0 / KiB", and columns of nothing but `-`."""
    lines = without_colour(in_a_terminal("ls", kraft("4.1.1"))).splitlines()
    assert [line.split()[0] for line in lines if "transaction" in line] == [f"__transaction_state-{n}" for n in (0, 1)]
    assert max(map(len, lines)) <= 80
    assert not any(line.strip() in ("B", "KiB") for line in lines)
    assert "bytes, v2" in lines[0]
    assert not {"v0", "v1", "tail"} & {*lines[0].split()}


def test_batches_and_snapshots_are_whole_in_80_columns(tmp_path):
    """Red: `timestamp …` ended each batch, and the id of a snapshot, which one has to copy, was cut."""
    data = kraft("4.1.1")
    lines = without_colour(in_a_terminal("dump", "--batches", data / "orders-0")).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].endswith("max timestamp")
    assert "2023-11-14 22:13:39" in lines[2]
    seglog("backup", "create", data, tmp_path / "store")
    snapshot = seglog_json("backup", "ls", tmp_path / "store")[0]["snapshot"]
    listed = without_colour(in_a_terminal("backup", "ls", tmp_path / "store"))
    assert snapshot in listed
    assert "queues" not in listed
    assert "all files" in seglog("du", data).stdout.splitlines()[0]


def test_the_manual_says_when_stdout_has_ascii_only(orders):
    given = {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}
    left = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    seen = [subprocess.run([sys.executable, "-m", "seglog.tools", "dump", str(orders)], capture_output=True,
                           timeout=60, env=left | variables, check=True).stdout for variables in given]
    assert [text.isascii() for text in seen] == [False, True, True]


def test_where_stdout_has_ascii_only_so_has_the_text(orders):
    for arguments in (("dump", orders), ("verify", orders), ("stats", orders), ("seek", orders, "--offset", 1)):
        done = subprocess.run(
            [sys.executable, "-m", "seglog.tools", *map(str, arguments)], capture_output=True, timeout=60,
            env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=False,
        )
        assert done.stdout.isascii()
        assert b"\\u2026" not in done.stdout or arguments[0] == "dump"      # the value's own is escaped, not ours
    assert b'"gr\\xfcn \\u2026"' in subprocess.run(
        [sys.executable, "-m", "seglog.tools", "dump", str(orders)], capture_output=True, timeout=60,
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=True,
    ).stdout


def test_values_do_not_command_a_terminal(orders):
    assert "\x1b[31m" not in in_a_terminal("dump", orders, "--format", "%s")
    assert "\\x1b[31m" in in_a_terminal("dump", orders, "--format", "%s")


def test_names_of_headers_do_not_command_a_terminal(orders):
    with engine.open(orders) as log:
        log.append(b"x", headers=[("\x1b[31m", b"h")])
    assert "\\x1b[31m=h" in in_a_terminal("dump", orders, "--format", "%h", "--tail", 1)


def test_a_file_gets_the_bytes_as_they_are_also_from_a_terminal(orders, tmp_path):
    assert in_a_terminal("dump", orders, "--format", "raw", "--tail", 1, "-o", tmp_path / "value") == ""
    assert (tmp_path / "value").read_bytes() == b"\xff\x00\x1b[31m"


@pytest.mark.parametrize(("options", "variables", "coloured"), [
    ([], {}, False), ([], {"FORCE_COLOR": "1"}, True), ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    (["--color", "always"], {"NO_COLOR": "1"}, True), (["--color", "never"], {"FORCE_COLOR": "1"}, False),
], ids=str)
def test_colour_in_a_pipe(orders, monkeypatch, options, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in seglog("ls", orders, *options).stdout) == coloured
    assert ("\x1b[" in seglog(*options, "ls", orders).stdout) == coloured      # also before the command


def test_colour_in_a_terminal(orders):
    assert "\x1b[1m" in in_a_terminal("ls", orders)
    assert "\x1b[1m" not in in_a_terminal("ls", orders, NO_COLOR="1")
    assert "\x1b[1m" not in in_a_terminal("ls", orders, "--color", "never")


# --- how much is said --------------------------------------------------------------------


def test_quiet_leaves_out_remarks_and_verbose_adds_what_was_used(orders):
    log = orders / "00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[70] ^= 1
    log.write_bytes(raw)
    said = seglog("dump", "--on-corrupt", "skip", orders, status=7)
    quiet = seglog("dump", "--on-corrupt", "skip", "-q", orders, status=7)
    assert "skipped" in said.stderr
    assert (quiet.stdout, quiet.stderr) == (said.stdout, "")
    assert re.fullmatch(r"took .*, .* of CPU; at most .* of memory\n", seglog("ls", "-v", SAMPLE).stderr)
    assert seglog("ls", SAMPLE).stderr == ""        # forgotten by the next command of a process


def test_verbose_shows_what_the_engine_logs(tmp_path):
    with engine.open(tmp_path / "o-0") as log:
        log.append(b"x")
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    log_file = tmp_path / "o-0/00000000000000000000.log"
    log_file.write_bytes(log_file.read_bytes()[:-1])
    shutil.copytree(tmp_path / "o-0", tmp_path / "p-0")
    said = seglog("recover", "--mode", "truncate", "-v", tmp_path / "o-0", status=None).stderr
    plain = seglog("recover", "--mode", "truncate", tmp_path / "p-0", status=None).stderr
    assert len(said.splitlines()) > len(plain.splitlines())
    assert "of CPU" in said


# --- start-up ----------------------------------------------------------------------------


def loaded_by(code):
    names = "import sys; before = set(sys.modules)\n" + code + "\nprint(*(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True).stdout.split())


def test_importing_seglog_loads_nothing_but_seglog():
    assert loaded_by("import seglog") == {"seglog", "seglog._public", "seglog._version"}


def test_a_dump_loads_no_tables():
    names = loaded_by("import seglog.tools.dump")
    assert "seglog.frames.scan" not in names


def test_the_version_needs_no_command_line():
    names = loaded_by("sys.argv = ['seglog', '--version']; from seglog.tools.start import main; main()")
    assert "click" not in names
    assert "seglog.errors" not in names


# --- completion and manual pages ---------------------------------------------------------


def completed(words, shell="bash"):
    *_, last = words.split(" ")
    env = {"bash": {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
           "zsh": {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
           "fish": {"COMP_WORDS": words, "COMP_CWORD": last}}[shell]
    done = subprocess.run(
        [sys.executable, "-m", "seglog.tools"], capture_output=True, text=True, check=True,
        env=os.environ | env | {"_SEGLOG_COMPLETE": f"{shell}_complete"},
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_options_and_choices(shell):
    assert "verify" in completed("seglog ve", shell)
    assert "parquet" in completed("seglog dump --format p", shell)
    if shell == "bash":     # the same code of click for all three
        assert "rebuild" in completed("seglog index ", shell)
        assert "--from-offset" in completed("seglog dump --fr", shell)
        assert "file" in completed("seglog dump ./", shell)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_taken_by_that_shell(shell):
    script = seglog("completion", shell).stdout
    assert "_SEGLOG_COMPLETE" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", "/dev/stdin"], input=script, text=True, check=True, capture_output=True)


def test_the_names_of_commands_are_completed_without_loading_them():
    code = ("import os; os.environ.update(_SEGLOG_COMPLETE='bash_complete', COMP_WORDS='seglog d', COMP_CWORD='1')\n"
            "from seglog.tools.cli import main\n"
            "try: main()\nexcept SystemExit: pass")
    assert "seglog.tools.dump" not in loaded_by(code)


def test_every_command_has_a_manual_page(tmp_path):
    seglog("man", "--into", tmp_path / "man/man1")
    pages = {path.name for path in (tmp_path / "man/man1").iterdir()}
    assert {"seglog.1", *(f"seglog-{name}.1" for name in cli.COMMANDS), "seglog-index-rebuild.1"} <= pages
    for name in pages:
        text = (tmp_path / "man/man1" / name).read_text()
        words = name.removesuffix(".1").split("-")[1:]
        assert text.startswith(f'.TH "{name.removesuffix(".1").upper()}" "1"')
        if words == ["dump"]:
            command = cli.cli.get_command(click.Context(cli.cli), "dump")
            assert all(option.opts[-1].replace("-", "\\-") in text for option in command.params[1:]
                       if not option.hidden)
    if shutil.which("groff"):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", *sorted(map(str, (tmp_path / "man/man1").iterdir()))],
            capture_output=True, text=True, check=True,
        )
        assert done.stderr == ""
    assert "no such command" in seglog("man", "frobnicate", status=2).stderr


def test_json_lines_stay_whole_in_a_terminal(orders):
    for line in in_a_terminal("dump", "--json", orders, columns=40).splitlines():
        assert "offset" in json.loads(line)
