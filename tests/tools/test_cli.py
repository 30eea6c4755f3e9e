"""What every command has in common: loading, help, errors in three lines, exit statuses."""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict

import click
import pytest
from click.testing import CliRunner

from seglog import errors
from seglog.tools import cli, report
from support.command import seglog

HEAVY = (
    "numpy", "pyarrow", "pyspark", "google.protobuf", "lz4", "cramjam", "isal", "backports.zstd", "compression.zstd",
    "shutil", "traceback",      # they load every compression library (Python 3.14), and dataclasses with colours
)


def run_python(code, **extra_env):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, **extra_env}
    )


def imported_by(*arguments):
    """The modules that a fresh interpreter has loaded when the command is done."""
    code = (
        "import sys\n"
        "from seglog.tools.cli import cli\n"
        f"try: cli({list(arguments)!r})\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.split())


def an_erring_command(error):
    """A command beside the real ones, that raises."""

    @click.command(cls=cli.Command)
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json):
        raise error

    return command


def three_lines(result):
    what, where, hint = result.stderr.splitlines()
    assert what.startswith("error: ")
    assert where.startswith("  at: ")
    assert hint.startswith("  try: ")
    assert "Traceback" not in result.stderr
    return what, where, hint


@pytest.mark.parametrize("arguments", [("--version",), ("--help",)], ids=str)
def test_version_and_help_import_nothing_heavy(arguments):
    began = time.monotonic()
    out, modules = imported_by(*arguments)
    print(f"seglog {arguments[0]}: {time.monotonic() - began:.2f} s with the interpreter's start")
    assert out.startswith(("seglog ", "Usage: "))
    assert not [name for name in HEAVY if name in modules]
    # Nor a command, nor the engine below it.
    assert not [name for name in modules if name.startswith(("seglog.tools.dump", "seglog._kernels.", "seglog.log."))]


def test_help_names_every_command_and_exit_status():
    text = CliRunner().invoke(cli.cli, ["--help"]).output
    assert all((f"  {name} " in text) == (name not in cli.HIDDEN) for name in cli.COMMANDS)
    titles = [line.removesuffix(":") for line in text.splitlines() if re.fullmatch(r"[A-Z].*:", line)]
    assert titles == ["Options", *cli.GROUPS]
    flat = " ".join(text.split())
    for words in ("0 clean", "1 findings", "2 usage", "3 I/O", "4 not a Kafka log", "5 locked", "6 codec not installed",
                  "7 partial", "130 interrupted"):
        assert words in flat


@pytest.mark.parametrize(("words", "same_as"), [(["help"], ["--help"]), (["help", "dump"], ["dump", "--help"]),
                                                (["help", "index", "rebuild"], ["index", "rebuild", "--help"]),
                                                (["-V"], ["--version"])])
def test_help_and_version_as_other_programs_have_them(words, same_as):
    asked, usual = CliRunner().invoke(cli.cli, words), CliRunner().invoke(cli.cli, same_as)
    assert (asked.exit_code, asked.output) == (0, usual.output)


def test_a_slip_in_a_commands_name_is_guessed():
    result = CliRunner().invoke(cli.cli, ["verfy"])
    assert result.exit_code == 2
    assert "did you mean 'verify'" in three_lines(result)[0]


def test_a_missing_option_is_told_in_one_plain_line(tmp_path):
    result = CliRunner().invoke(cli.cli, ["recover", str(tmp_path)])
    assert three_lines(result)[0].endswith("--mode truncate; without --apply, either is a dry run [usage]")


def test_every_error_class_ends_in_three_lines_and_its_own_status():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.SeglogError)]
    for error_class in classes:
        error = error_class("found 7, expected 2", file="/data/orders-0/0.log", position=210, offset=4)
        result = CliRunner().invoke(an_erring_command(error), [])
        what, where, hint = three_lines(result)
        assert result.exit_code == error_class.exit_status
        assert what == f"error: found 7, expected 2 [{error_class.code}]"
        assert where == "  at: /data/orders-0/0.log, byte 210, offset 4"
        assert hint == f"  try: {report.as_options(error_class.hint)}"
        assert not re.search("on_corrupt|on_undecodable|decode=", hint), "an argument of Python"


def test_with_json_an_error_is_a_line_on_stdout_too():
    error = errors.CorruptRecordError("bad", file="f", position=1)
    result = CliRunner().invoke(an_erring_command(error), ["--json"])
    three_lines(result)
    assert json.loads(result.stdout) == {
        "type": "error", "schema": 1, "code": "corrupt_record", "what": "bad", "file": "f", "position": 1,
        "offset": None, "exit_status": 1,
        "fix": "run `seglog verify` on the directory; `--on-corrupt skip` of `seglog dump` and `export` reads past it",
    }


def test_an_error_of_the_system_is_status_3():
    result = CliRunner().invoke(an_erring_command(PermissionError(13, "Permission denied", "/data/x")), [])
    assert result.exit_code == 3
    assert three_lines(result)[:2] == ("error: permission denied [storage]", "  at: /data/x")


def test_the_unexpected_shows_no_traceback_but_where_to_get_it():
    result = CliRunner().invoke(an_erring_command(ZeroDivisionError("division by zero")), [])
    assert result.exit_code == 3
    what, _, hint = three_lines(result)
    assert "unexpected ZeroDivisionError: division by zero" in what
    assert "[internal]" in what
    assert "SEGLOG_DEBUG=1" in hint


def test_seglog_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("SEGLOG_DEBUG", "1")
    result = CliRunner().invoke(an_erring_command(ZeroDivisionError("division by zero")), [])
    assert isinstance(result.exception, ZeroDivisionError)


def test_an_interrupt_is_status_130():
    result = CliRunner().invoke(an_erring_command(KeyboardInterrupt()), [])
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


class Terminal:
    """A stderr that claims to be one."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_progress_waits_a_second_and_wipes_its_line(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(report.sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    with report.Progress("verify") as progress:
        now[0] = 0.9
        progress(10 << 20, 40 << 20)
        assert terminal.text == ""
        now[0] = 2.0
        progress(20 << 20, 40 << 20)
        bar = f"[{'█' * 10}{' ' * 10}]"
        assert terminal.text == f"\r{bar} 50.0%  20.0 MiB of 40.0 MiB  10.0 MiB/s  2.0 s left  verify"
    assert terminal.text.endswith("\r")


def test_work_of_several_parts_is_one_bar(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(report.sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    with report.Progress("verifying", total_bytes=40 << 20) as progress:
        first = progress.part("verifying a-0", 30 << 20)
        now[0] = 2.0
        first(1, 3)         # in a unit of its own
        assert "25.0%  10.0 MiB of 40.0 MiB  5.0 MiB/s  6.0 s left  verifying a-0" in terminal.text
        second = progress.part("verifying a-1", 10 << 20)
        now[0] = 4.0
        second(0, 5)
        assert "75.0%  30.0 MiB of 40.0 MiB  7.5 MiB/s  1.3 s left  verifying a-1" in terminal.text
    assert "\n" not in terminal.text
    monkeypatch.setattr(report.sys, "stderr", terminal := Terminal())
    terminal.encoding = "ascii"
    with report.Progress("verify") as progress:
        now[0] = 9.0
        progress(1, 2)
    assert terminal.text.isascii()


def test_progress_is_silent_where_stderr_is_no_terminal_or_the_user_said_so(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    with report.Progress("verify") as progress:
        now[0] = 5.0
        progress(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(report.sys, "stderr", terminal := Terminal())
    with report.Progress("verify", enabled=False) as progress:
        now[0] = 15.0
        progress(1, 2)
    assert terminal.text == ""


def test_colour_only_on_a_terminal_and_not_against_no_color(monkeypatch):
    monkeypatch.setattr(report.sys, "stderr", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert report.paint("error:", "red", err=True) == "\x1b[31merror:\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert report.paint("error:", "red", err=True) == "error:"


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (7086696038, "6.6 GiB"),
     (1 << 50, "1024.0 TiB")],
)
def test_sizes(bytes_, text):
    assert report.size(bytes_) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-1, "-"), (-5, "-5"), (0, "1970-01-01 00:00:00.000Z"), (1700000000123, "2023-11-14 22:13:20.123Z"),
     (1 << 62, f"{1 << 62} ms")],
)
def test_moments(ms, text):
    assert report.moment(ms) == text


# --- every command -----------------------------------------------------------------------


def leaves():
    for name in cli.COMMANDS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        if isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.list_commands(click.Context(command)))
        else:
            yield (name,)


def test_every_command_explains_itself():
    for words in [*leaves(), ("index",)]:
        result = CliRunner().invoke(cli.cli, [*words, "--help"])
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage: ")
        assert len(result.stdout.splitlines()) > 5
        assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_cuts_no_line_and_lists_no_argument_as_an_option():
    for words in (["index"], ["ledger"], ["delayed"], ["delayed", "policies"], ["spark"], ["cursors"], ["queue"]):
        assert "..." not in CliRunner().invoke(cli.cli, [*words, "--help"]).output.split("Commands:")[-1], words
    for words in leaves():
        text = CliRunner().invoke(cli.cli, [*words, "--help"]).output
        options = re.split("Options:|Commands:", text + "Options:")[1]
        listed = [line for line in options.splitlines() if re.match(r"  \S", line)]
        assert all(line.startswith("  -") for line in listed), (words, listed)


def options():
    """Each option of each command, those of all commands and hidden ones left out: (words, option)."""
    def below(words, command):
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                yield from below((*words, name), command.get_command(click.Context(command), name))
        else:
            yield from ((words, p) for p in command.params if isinstance(p, click.Option) and not p.hidden)

    yield from below((), cli.cli)


def type_of(option):
    """What a value must be. Some options may be repeated; a choice is of the command's own words."""
    return "flag" if option.is_flag else type(option.type).__name__


def test_an_option_has_one_type_and_one_meaning_in_all_commands():
    """Its meaning is the beginning of its help, up to the first colon or full stop; then comes what is special."""
    meanings = defaultdict(lambda: defaultdict(list))
    for words, option in options():
        if words[0] in cli.HIDDEN:
            continue
        said = re.split(r"[.:,] ", f"{option.help} ")[0].rstrip(".")
        for name in option.opts:
            meanings[name][type_of(option), option.metavar, bool(option.secondary_opts), said].append(" ".join(words))
    # dump also takes a template there; export writes tables only.
    assert len(meanings.pop("--format")) == 2
    differing = {name: {**found} for name, found in meanings.items() if len(found) > 1}
    assert not differing
    assert len(meanings) > 100


# What prints other text than reports: a page, scripts for a shell, manual pages.
WITHOUT_JSON = {("report",), ("completion",), ("man",)}


def test_every_command_has_json_but_those_that_print_what_other_programs_read():
    with_it = {words for words, option in options() if option.opts == ["--json"]}
    assert {words for words, _ in options()} - with_it == WITHOUT_JSON


# What each command is given, with "{}" for the partition directory.
ARGUMENTS = {
    ("ls",): ["{}"], ("dump",): ["{}"], ("verify",): ["{}"], ("seek",): ["{}", "--offset", "3"], ("convert",): ["{}"],
    ("erase",): ["{}", "--key", "none"], ("index", "rebuild"): ["{}"],
    ("index", "stats"): ["{}"], ("stats",): ["{}"],
    ("recover",): ["{}", "--mode", "quarantine"], ("prune",): ["{}", "--dry-run"],
    ("compact",): ["{}", "--dry-run"], ("cursors", "ls"): ["{}"],
    ("mirror",): ["{}", "{}/../mirrored/orders-0"], ("diff",): ["{}", "{}"],
    ("du",): ["{}"], ("export",): ["{}", "--into", "{}/../lake"],
}
# What they say depends on what is installed: tests/spark, tests/tools/test_doctor.py.
OF_THE_MACHINE = {("demo",), ("doctor",), ("spark", "convert"), ("spark", "sink")}
# What takes a managed ledger: tests/tools/test_ledger.py.
OF_LEDGERS = {("ledger", name) for name in ("ls", "dump", "verify", "seek", "recover", "compact", "convert")}
# What takes a managed ledger, too: tests/tools/test_delayed.py.
OF_TOPICS = {("delayed", name) for name in (
    "buckets", "dump", "verify", "count", "messages", "cancel", "policies", "reset"
)}
# What takes a log that has a named reader: tests/tools/test_cursors.py.
OF_CURSORS = {("cursors", "reset")}
# What takes a queue: tests/tools/test_queue.py.
OF_QUEUES = {("queue", name) for name in (
    "ls", "stats", "peek", "create", "put", "take", "requeue", "purge", "pause", "resume"
)}
CREATE_QUEUES = {("queue", "create"), ("queue", "put")}
# What takes the log dir of a broker: tests/tools/test_groups.py, test_topics.py, test_tidy.py.
OF_BROKERS = {("groups",), ("topics",), ("tidy",)}
# What takes codes and keys: tests/tools/test_explain.py.
OF_WORDS = {("explain",), ("config",)}
# What writes a page, and no lines: tests/tools/test_report_page.py.
OF_PAGES = {("report",)}
# What prints scripts and pages: tests/tools/test_terminal.py.
OF_SHELLS = {("completion",), ("man",)}
# What takes a store of backups: tests/tools/test_backup.py.
OF_BACKUPS = {("restore",), *(("backup", name) for name in ("create", "ls", "check", "forget", "prune"))}
# What runs until it is ended: tests/endpoint, tests/tools/test_queue.py.
OF_SERVERS = {("serve",), ("queue", "serve"), ("users", "ls"), ("users", "add"), ("users", "rm")}
# What shows here that there is something to do: status 1.
DRY_RUNS = {("convert",), ("index", "rebuild")}
# These do not take a partition directory, a log dir and a .log alike.
OF_ONE = {("convert",), ("erase",), ("recover",), ("prune",), ("compact",), ("mirror",), ("diff",),
          ("export",)}


def test_json_of_every_command_is_lines_with_type_and_schema(golden_kafka, tmp_path):
    sample = golden_kafka / "cases/mixed-formats-k391/mixed-formats-k391-0"
    elsewhere = (
        OF_LEDGERS | OF_TOPICS | OF_QUEUES | OF_BROKERS | OF_CURSORS | OF_WORDS | OF_PAGES | OF_SERVERS | OF_SHELLS
        | OF_BACKUPS
    )
    assert {*leaves()} == {*ARGUMENTS} | OF_THE_MACHINE | elsewhere
    for words, arguments in ARGUMENTS.items():
        copy = shutil.copytree(sample, tmp_path / "-".join(words) / "orders-0")
        result = CliRunner().invoke(cli.cli, [*words, *(a.format(copy) for a in arguments), "--json"])
        assert result.exit_code == (words in DRY_RUNS), (words, result.output)
        assert result.stderr == ""
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert lines
        for line in lines:
            if words != ("dump",):      # whose lines are the record's fields alone
                assert [*line][:2] == ["type", "schema"]
                assert line["schema"] == 1


# What writes another file than a log, or runs: these have no dry run.
WITHOUT_DRY_RUN = {("report",), ("export",), ("demo",), ("serve",), ("queue", "serve"), ("man",)}


def test_every_command_accepts_dry_run_but_what_makes_a_page_or_runs():
    def has_it(words):
        command = cli.cli
        for word in words:
            command = command.get_command(None, word)
        inner = [command] if not hasattr(command, "commands") else command.commands.values()
        return all(any("--dry-run" in p.opts + p.secondary_opts for p in each.params) for each in inner)

    assert {words for words in leaves() if not has_it(words)} == WITHOUT_DRY_RUN


@pytest.mark.parametrize("words", [w for w in ARGUMENTS if w not in WITHOUT_DRY_RUN], ids="-".join)
def test_no_dry_run_changes_anything(golden_kafka, tmp_path, words):
    sample = golden_kafka / "cases/mixed-formats-k391/mixed-formats-k391-0"
    copy = shutil.copytree(sample, tmp_path / "logs/orders-0")
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    result = CliRunner().invoke(cli.cli, [*words, *(a.format(copy) for a in ARGUMENTS[words]), "--dry-run"])
    assert result.exit_code in (0, 1), result.output
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before


# What acts, and is given here what it acts on.
ACTING = [(*words, *arguments) for words, arguments in ARGUMENTS.items() if words in {
    ("convert",), ("erase",), ("index", "rebuild"), ("index", "stats"), ("recover",), ("compact",), ("mirror",),
}] + [
    ("convert", "{}", "--to", "0", "--codec", "none"), ("convert", "{}", "--in-place", "--repack", "16k"),
    ("convert", "{}/..", "--in-place", "--repack", "16k"), ("erase", "{}", "--key", "k-1"),
    ("recover", "{}/..", "--mode", "quarantine"), ("prune", "{}", "--config", "cleanup.policy=delete"),
    ("prune", "{}", "--config", "retention.bytes=1", "--config", "cleanup.policy=delete"),
    ("compact", "{}", "--drop-keyless"), ("tidy", "{}/.."), ("cursors", "reset", "{}", "me", "--earliest"),
    ("backup", "create", "{}", "{}/../../store"), ("queue", "create", "{}/../../jobs"),
    ("queue", "put", "{}/../../jobs", "a"), ("users", "add", "{}/..", "alice"),
]


@pytest.mark.parametrize("typed", ACTING, ids=lambda typed: " ".join(typed).replace("{}", "DIR"))
def test_the_json_of_every_dry_run_says_what_does_it_and_its_status_whether_there_is_something(
    golden_kafka, tmp_path, typed
):
    sample = golden_kafka / "cases/mixed-formats-k391/mixed-formats-k391-0"
    copy = shutil.copytree(sample, tmp_path / "logs/orders-0")
    result = CliRunner().invoke(cli.cli, [*(a.format(copy) for a in typed), "--dry-run", "--json"])
    assert result.exit_code in (0, 1), result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["dry_run"] is True
    if result.exit_code == 0:
        assert told["apply"] is None
    else:
        assert told["apply"].startswith(f"seglog {typed[0]} ")
        assert "--dry-run" not in told["apply"]
        assert "--json" not in told["apply"]


@pytest.mark.parametrize("words", [w for w in ARGUMENTS if w not in OF_ONE], ids="-".join)
def test_a_log_dir_and_a_single_log_will_do_for_every_command(golden_kafka, tmp_path, words):
    sample = golden_kafka / "cases/mixed-formats-k391/mixed-formats-k391-0"
    copy = shutil.copytree(sample, tmp_path / "orders-0")
    for path in (copy, tmp_path, copy / "00000000000000000000.log"):
        result = CliRunner().invoke(cli.cli, [*words, *(a.format(path) for a in ARGUMENTS[words])])
        assert result.exit_code == (words in DRY_RUNS), (words, path, result.output)
        assert result.stdout


@pytest.mark.parametrize("words", ARGUMENTS, ids="-".join)
def test_what_is_no_log_is_status_4_for_every_command(tmp_path, words):
    (tmp_path / "empty-0").mkdir()
    result = CliRunner().invoke(cli.cli, [*words, *(a.format(tmp_path / "empty-0") for a in ARGUMENTS[words])])
    assert result.exit_code == 4, (words, result.output)
    three_lines(result)


# Those of the other commands that read a path.
OF_A_PATH = {
    **{("ledger", name): ["{}"] for name in ("ls", "dump", "verify", "recover", "compact")},
    ("ledger", "seek"): ["{}", "--index", "3"], ("ledger", "convert"): ["{}", "--form", "old"],
    **{("delayed", name): ["{}"] for name in ("buckets", "dump", "verify", "count", "messages")},
    ("delayed", "reset"): ["{}"], ("delayed", "cancel"): ["{}", "0:1"],
    ("delayed", "policies", "get"): ["{}"], ("delayed", "policies", "set"): ["{}", "a=b"],
    ("cursors", "reset"): ["{}", "a-name", "--earliest"], ("report",): ["{}"],
    **{words: ["{}"] for words in sorted(OF_QUEUES - CREATE_QUEUES)},
    ("spark", "convert"): ["file://{}", "{}-converted"],
}
assert {words[:2] for words in OF_A_PATH} == (
    OF_LEDGERS | OF_TOPICS | OF_CURSORS | OF_PAGES | OF_QUEUES - CREATE_QUEUES | {("spark", "convert")}
)


@pytest.mark.parametrize("words", [*ARGUMENTS, *OF_A_PATH], ids="-".join)
def test_a_missing_path_is_told_in_the_same_words_by_every_command(tmp_path, words):
    arguments = [a.format(tmp_path / "none-0") for a in (ARGUMENTS | OF_A_PATH)[words]]
    result = CliRunner().invoke(cli.cli, [*words, *arguments])
    what, where, hint = three_lines(result)
    assert (what, hint) == ("error: no such file or directory [storage]", "  try: check the path")
    assert where == f"  at: {arguments[0].removeprefix('file://')}"
    assert result.exit_code == 3
    assert result.stdout == ""
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "hint"), [
    ("orders", "a topic has a directory for each partition, such as {log_dir}/orders-0"),
    ("orders-0", "pass {log_dir}/orders-0"),
    ("nothing", "check the path"),
])
def test_a_topic_after_its_log_dir_is_found_there(tmp_path, name, hint):
    (tmp_path / "orders-0").mkdir()
    result = CliRunner().invoke(cli.cli, ["dump", str(tmp_path), name])
    assert three_lines(result)[2] == f"  try: {hint.format(log_dir=tmp_path)}"
    assert result.exit_code == 3


def test_a_codec_that_is_not_installed_is_status_6_and_headers_need_none(golden_kafka):
    path = str(golden_kafka / "cases/v2-snappy-ct-k391/v2-snappy-ct-k391-0")
    code = "import sys; sys.modules['cramjam'] = None; from seglog.tools.cli import main; main()"
    for arguments, status in ((["dump"], 6), (["dump", "--batches"], 0), (["verify"], 0), (["ls"], 0)):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, path], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == status, done.stderr
        assert ("[missing_codec]" in done.stderr) == (status == 6)


def test_an_interrupt_of_a_real_process_is_status_130(golden_kafka):
    """^C while it writes to a pipe that nobody reads: it cannot have ended before."""
    path = golden_kafka / "cases/big-v2-none-k411/big-v2-none-k411-0"
    command = [sys.executable, "-m", "seglog.tools", "dump", *[str(path)] * 20]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130


@pytest.mark.parametrize("words", [[], ["index"]], ids=["seglog", "index"])
def test_a_group_without_a_command_shows_its_help_and_is_a_wrong_use(words):
    result = CliRunner().invoke(cli.cli, words)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")
    assert "\n  rebuild " in result.stderr or "\n  verify " in result.stderr


@pytest.mark.parametrize("option", ["--since", "--until"])
@pytest.mark.parametrize("time", ["99999999999999999999", "-9999999999999999999w", "9" * 5000])
def test_a_time_that_no_timestamp_holds_is_a_wrong_use(golden_kafka, option, time):
    path = golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0"
    result = CliRunner().invoke(cli.cli, ["dump", option, time, str(path)])
    assert result.exit_code == 2
    three_lines(result)


def test_names_from_a_disk_do_not_command_the_terminal(golden_kafka, tmp_path):
    source = golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0"
    path = tmp_path / "log" / "evil\x1b[31m-0"
    shutil.copytree(source, path)
    (path / "\x1b]0;title\x07").touch()
    checkpoint = path.parent / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n1\n\x1b[2J 0 5\n")
    commands = [
        *(["ls"], ["verify"], ["stats"], ["verify", "--indexes"], ["seek", "--offset", "1"]),
        *(["dump", "--max-bytes", "1"], ["convert"], ["dump", str(checkpoint)], ["dump", f"{path}/none"]),
    ]
    for words in commands:
        target = [] if len(words) == 2 and words[0] == "dump" else [str(path)]
        result = CliRunner().invoke(cli.cli, [*words, *target])
        assert "\\x1b" in result.output, words
        assert not {"\x1b", "\x07"} & set(result.output), words


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_path_that_may_not_be_read_is_the_systems_refusal(tmp_path):
    (tmp_path / "orders-0").mkdir(mode=0)
    result = CliRunner().invoke(cli.cli, ["ls", str(tmp_path / "orders-0")])
    assert result.exit_code == 3
    three_lines(result)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"], ["dump", "--json"]], ids=" ".join)
def test_a_full_or_closed_standard_output_is_status_3(golden_kafka, arguments):
    path = golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0"
    for redirection in (">/dev/full", ">&-"):
        command = shlex.join([sys.executable, "-m", "seglog.tools", *arguments, str(path)])
        done = subprocess.run(
            f"{command} {redirection}", shell=True, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
        )
        assert done.returncode == 3
        assert len(done.stderr.splitlines()) == 3, done.stderr


def test_an_interrupt_while_the_program_loads_ends_it_by_the_signal():
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'seglog.tools.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from seglog.tools.start import main; main()\n"
    )
    done = run_python(code)
    assert done.returncode == -signal.SIGINT
    assert not done.stderr


@pytest.mark.parametrize(("arguments", "words"), [
    (("dump", "--limit", "abc"), "'abc' is not a whole number"),
    (("dump", "--from-offset", "-1"), "-1 is too small: expected 0 or more"),
    (("verify", "--witness-every", "0"), "0 is too small: expected 1 or more"),
    (("convert", "--proof-every", "1.5"), "'1.5' is not a whole number"),
    (("seek", "--offset", "x"), "'x' is not a whole number"),
    (("mirror", "--from-offset", "x", "DST-0"), "'x' is not a whole number"),
    (("spark", "convert", "--max-concurrent", "0", "DST"), "0 is too small: expected 1 or more"),
])
def test_what_is_no_number_is_said_in_our_words(tmp_path, arguments, words):
    command, *options = arguments
    at = [options.pop(0)] if command == "spark" else []
    result = CliRunner().invoke(cli.cli, [command, *at, str(tmp_path), *options])
    assert (result.exit_code, three_lines(result)[0].partition(": ")[2].partition(": ")[2]) == (2, f"{words} [usage]")


@pytest.mark.parametrize(("arguments", "words"), [
    (["convert", "x", "y", "--compression", "zstd"], "no such option --compression: did you mean --codec?"),
    (["dump", "x", "--from-time", "-2h"], "no such option --from-time: did you mean --since?"),
    (["dump", "x", "--from-ofset", "3"], "no such option --from-ofset: did you mean --from-offset?"),
    (["prune", "x", "--yes"], "no such option --yes: did you mean --apply?"),
    (["restore", "x", "y", "--only-topic", "z"], "no such option --only-topic: did you mean --topic?"),
    (["verify", "x", "--sort", "z"], "no such option --sort"),
    (["du", "x", "--topic", "z"], "no such option --topic"),
])
def test_a_wrong_option_leads_to_the_one_that_was_meant_or_to_none(arguments, words):
    """Red: `--compression` led to `--no-progress`, `--topic` to `--metrics`."""
    assert seglog(*arguments, status=2).stderr.splitlines()[0] == f"error: {words} [usage]"


@pytest.mark.parametrize(("arguments", "words"), [
    (["mirror", "data", "copy-0"], "pass one of them, such as {data}/orders-0"),
    (["recover", "data", "--mode", "truncate", "--partition", "bills-0"], "`seglog ls` lists what is here"),
])
def test_the_hint_of_a_log_dir_in_place_of_a_partition_names_one(tmp_path, monkeypatch, arguments, words):
    """Red: pass the log dir above it."""
    (tmp_path / "data/orders-0").mkdir(parents=True)
    (tmp_path / "data/orders-0" / f"{0:020}.log").touch()
    monkeypatch.chdir(tmp_path)
    assert words.format(data="data") in seglog(*arguments, status=4).stderr


def test_a_path_in_place_of_a_command_below_a_group_leads_to_one(tmp_path):
    assert "did you mean 'cursors ls'?" in seglog("cursors", tmp_path, status=2).stderr
