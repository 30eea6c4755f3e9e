"""`seglog` on the command line: the group, and what every command has in common.

A command is one file beside this one, loaded when it is called: `seglog --version` and `seglog --help` import only
the engine's error classes. A command returns its exit status; any exception it raises is shown as three lines on
stderr (report.py) and becomes an exit status. docs/cli.md is the user's page.
"""
import errno
import gc
import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from inspect import cleandoc
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from seglog._version import __version__
from seglog.errors import InvalidArgumentError, SeglogError, StorageError

from . import report, terminal

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# The groups of `seglog --help`: a command's name -> its line there. The lines are kept here, so that help loads no
# command. The module of that name holds the command as `command`.
GROUPS = {
    "Look": {
        "ls": "List partitions or segments: bytes, offsets, times, formats.",
        "dump": "Print records, batches, index entries, checkpoints.",
        "seek": "Find the batch and the record at an offset or a time.",
        "du": "Show which topics, days, formats or codecs fill a disk, and what could be freed.",
        "topics": "List a cluster's topics: ids, replicas, settings, and what of them is on this disk.",
        "groups": "List the groups of consumers on a disk: members, committed offsets, lag.",
        "stats": "Show batch sizes, codecs, timestamps, indexes, producers, and which Kafka wrote it.",
        "report": "Draw a log dir, a partition, a managed ledger or a queue as an HTML page.",
    },
    "Check and repair": {
        "verify": "Check a log against its checksums, its indexes and itself.",
        "diff": "Compare two copies of a partition, or two log dirs, record by record.",
        "recover": "List what a damaged log would lose, or recover it.",
        "index": "Rebuild the index files from the log, or add statistics.",
        "tidy": "List what crashes, repairs and deletions have left in a log dir, or remove it.",
    },
    "Change": {
        "convert": "Rewrite partitions in another record format, with a proof, or plan an upgrade.",
        "compact": "Keep only the last record of each key, or show what would be removed.",
        "prune": "Delete old segments by the rules of retention, or list them.",
        "erase": "Remove the records of some keys from partitions, with a proof.",
    },
    "Move and serve": {
        "mirror": "Append the batches of one partition to another, unchanged.",
        "export": "Write topics into a Parquet, Delta or Iceberg table; a later run adds what is new.",
        "backup": "Back up logs and queues while they are in use: create, ls, check, forget, prune.",
        "restore": "Restore partitions and queues from a backup.",
        "serve": "Let Kafka clients produce to and consume from a log dir.",
        "users": "List, add or remove the users of a log dir that is served, for SCRAM.",
        "cursors": "List the cursors of a log, or move one to another offset.",
    },
    "Queue": {
        "queue": "Put, take, count and look at the jobs of a queue (seglog.Queue).",
    },
    "Pulsar": {
        "ledger": "Managed ledgers and Pulsar entries: list, dump, verify, seek, recover, compact.",
        "delayed": "Show or change the index of delayed messages of a managed ledger.",
    },
    "Spark": {
        "spark": "Convert whole topics with Apache Spark.",
    },
    "Help": {
        "explain": "Explain an error, a finding or an exit status, and say what to do.",
        "config": "List the configuration keys: units, defaults, limits, meaning.",
        "doctor": "Show which Python, Java, PySpark and pyarrow are installed, and what to change.",
        "demo": "Try ls, verify, seek and convert on a small partition that a real broker wrote.",
    },
}
# Commands that help does not list: docs/cli.md shows how to set them up once.
HIDDEN = {
    "completion": "Print the completion script for bash, zsh or fish.",
    "man": "Print the manual pages.",
}
COMMANDS = {name: line for group in (*GROUPS.values(), HIDDEN) for name, line in group.items()}

# What other tools call it, or what one would guess: near in meaning, not in letters (`repair` looks like `report`).
_MEANT = {
    "cat": "dump", "show": "dump", "print": "dump", "read": "dump", "tail": "dump", "head": "dump", "consume": "dump",
    "grep": "dump", "list": "ls", "dir": "ls", "look": "ls", "info": "stats", "count": "stats", "size": "du",
    "find": "seek", "search": "seek", "check": "verify", "fsck": "verify", "scrub": "verify", "validate": "verify",
    "repair": "recover", "fix": "recover", "salvage": "recover", "compare": "diff", "offsets": "groups",
    "lag": "groups", "describe": "topics", "upgrade": "convert", "migrate": "convert", "retain": "prune",
    "clean": "tidy", "copy": "mirror", "sync": "mirror", "parquet": "export", "server": "serve", "start": "serve",
    "run": "serve", "broker": "serve", "jobs": "queue", "settings": "config", "version": "--version",
}

# The same for options: the first of these that the command has.
_MEANT_OPTIONS = {
    "--compression": ["--codec"], "--compress": ["--codec"], "--recompress": ["--codec"],
    "--format": ["--to"], "--magic": ["--to"], "--target-format": ["--to"],
    "--from-time": ["--since"], "--start-time": ["--since"], "--after": ["--since"],
    "--to-time": ["--until"], "--end-time": ["--until"], "--before": ["--until"],
    "--start": ["--from-offset"], "--offset": ["--from-offset"], "--start-offset": ["--from-offset"],
    "--end": ["--to-offset"], "--end-offset": ["--to-offset"],
    "--max-messages": ["--limit"], "--count": ["--limit"], "--lines": ["--tail", "--limit"],
    "--yes": ["--apply"], "--force": ["--apply"], "--execute": ["--apply"],
    "--output": ["--out", "--into"], "--target": ["--out", "--into"],
    "--port": ["--listen"], "--host": ["--listen"], "--bind": ["--listen"],
    "--retention-ms": ["--config"], "--retention-bytes": ["--config"], "--set": ["--config"],
}

_NAME_WIDTH = max(map(len, COMMANDS))       # so that all groups have the same columns

# Modules whose names differ from their commands: report.py holds the printing that all commands share.
_MODULES = {"report": "picture"}

EPILOG = (
    "Exit status: 0 clean, 1 findings, 2 usage, 3 I/O, 4 not a Kafka log, 5 locked, 6 codec not installed, "
    "7 partial, 130 interrupted, 129 and 143 ended by a signal."
)


class SourcePath(click.Path):
    """A path that a command reads. If it is missing, every command says so in the same words, with status 3."""

    def __init__(self, *, in_backup: bool = False) -> None:
        """`in_backup`: the command also reads partitions in a backup; one at a URL stays text."""
        self._in_backup = in_backup
        # click's own checks would report an error of the system as a usage error.
        super().__init__(path_type=Path, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self._in_backup and isinstance(value, str) and "://" in value and "#" in value:
            from seglog.backups.snapshot_store import path_in_backup  # half as long as a command takes to start

            if path_in_backup(value) is not None:
                return value        # a Path would make one slash of two
        return super().convert(value, param, ctx)

    def check(self, path: Path | str, before: Sequence[Path | str] = ()) -> None:
        """Raise the system's error if the path is missing or cannot be reached, or say how to get at it in a backup, or
        in the log dir `before` it: `seglog dump LOGDIR TOPIC` is what many type first."""
        try:
            os.stat(path)
        except FileNotFoundError:
            from seglog.backups.snapshot_store import path_in_backup  # half as long as a command takes to start

            found = path_in_backup(path)
            if found is None:
                _refuse_topic_of(path, before)
                raise
            # Two slashes of a URL are one in a Path.
            store = re.sub(r"^(\w+):/(?=[^/])", r"\1://", found.store)
            if self._in_backup:
                return
            partition = f" --partition {found.path}" if found.path else ""
            raise InvalidArgumentError(
                "this command does not read what is in a backup", file=path,
                hint=f"`seglog restore {store} DIR --snapshot {found.snapshot}{partition}` makes a directory of "
                "it; `seglog export` and seglog.scan read it where it is",
            ) from None


class Command(click.Command):
    """A command whose callback returns its exit status (None is 0) and may raise anything."""

    def __init__(self, *args: Any, only_reads: bool = False, **attributes: Any) -> None:
        """`only_reads`: the command changes nothing, so it accepts --dry-run as a word without effect."""
        super().__init__(*args, **attributes)
        if only_reads:
            self.params.append(click.Option(["--dry-run"], is_flag=True, expose_value=False, hidden=True))
        self.params += terminal.display_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what was typed: a dry run ends with the command that acts (report.applying)."""
        ctx.meta[report.TYPED] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            near = _option_like(e.option_name, [name for one in self.get_params(ctx) for name in one.opts])
            hint = f": did you mean {near}?" if near else ""
            raise click.UsageError(f"no such option {e.option_name}{hint}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then those that every command has."""
        # (click also returns a record for each argument, which has no help.)
        lines = [
            (parameter.get_help_record(ctx), parameter.expose_value)
            for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)
        ]
        for title, own in (("Options", True), ("Display", False)):
            if rows := [line for line, is_own in lines if line is not None and is_own == own]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the whole first sentence, for the list of a group: click would cut it."""
        return _first_sentence(self.help)

    def invoke(self, ctx: click.Context) -> NoReturn:
        if not gc.isenabled():      # the program has loaded: start.py
            gc.freeze()
            gc.enable()
        as_json = bool(ctx.params.get("as_json"))
        if terminal.wishes.verbose:
            ctx.with_resource(report.verbosely())
        try:
            self._check_sources(ctx)
            status = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit):
            raise
        except KeyboardInterrupt as e:
            status = report.show_interrupt(e)
        except BrokenPipeError:
            ctx.close()     # the signal would leave temporary directories behind
            _die_of_sigpipe()
        except Exception as e:
            if os.environ.get("SEGLOG_DEBUG"):
                raise
            status = report.show_error(report.as_seglog_error(e), ctx.command_path, as_json=as_json)
            _drop_what_stdout_refuses()
        ctx.exit(status or 0)

    def _check_sources(self, ctx: click.Context) -> None:
        for parameter in self.params:
            if isinstance(parameter.type, SourcePath):
                given = ctx.params[str(parameter.name)]
                paths = given if isinstance(given, tuple) else (given,)
                for number, path in enumerate(paths):
                    parameter.type.check(path, paths[:number])


def _refuse_topic_of(name: Path | str, log_dirs: Iterable[Path | str]) -> None:
    """Raise StorageError if one of `log_dirs` has a topic or partition `name`, and say where."""
    from seglog.fs.refusals import hint_of_topic  # only a wrong path needs it

    for log_dir in log_dirs:
        path = os.path.join(log_dir, name)
        hint = f"pass {path}" if os.path.exists(path) else hint_of_topic(path)
        if hint is not None:
            raise StorageError("no such file or directory", file=name, hint=hint, errno=errno.ENOENT)


def _first_sentence(text: str | None) -> str:
    words = " ".join(cleandoc(text or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])|(?<=\.)$", words, maxsplit=1)[0]


def _with_nearest(
    error: click.UsageError, ctx: click.Context, given: str, commands: Iterable[str], above: str = "",
    otherwise: Sequence[str] = (),
) -> click.UsageError:
    """click's own message, and the nearest name, for typing errors such as `seglog verfy`. `above`: the words before
    the name; `otherwise`: the name if none is near."""
    import difflib

    near = difflib.get_close_matches(given, commands, 1) or otherwise
    if not near:
        return error
    return click.UsageError(f"{error.message.rstrip('.')}: did you mean '{above}{near[0]}'?", ctx)


# Below this likeness of two names one is no typing error for the other: `--topic` is 0.62 like `--metrics`.
_LIKE = 0.75


def _option_like(given: str, options: Sequence[str]) -> str | None:
    """The option that was meant: by its meaning, else by its letters, if it is near."""
    import difflib

    for name in _MEANT_OPTIONS.get(given, ()):
        if name in options:
            return name
    # Without dashes, which all have.
    named = {option.lstrip("-"): option for option in options if option.startswith("--")}
    bare = given.lstrip("-")
    near = difflib.get_close_matches(bare, named, 1, _LIKE)
    # A part of its words, such as --limit for --limit-records.
    near = near or [name for name in named if len(name) > 2 and set(name.split("-")) < set(bare.split("-"))]
    return named[near[0]] if near else None


class CommandGroup(click.Group):
    """A group of commands below a command: `seglog index`."""

    command_class = Command

    def __init__(self, *args: Any, meant: Mapping[str, str] | None = None, **named: Any) -> None:
        """`meant`: commands, by what else somebody may call them."""
        super().__init__(*args, **named)
        self._meant = meant or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            if meant := self._meant.get(args[0]):
                raise _with_nearest(e, ctx, args[0], (), f"{ctx.info_name} ", [meant]) from None
            # `seglog backup LOGDIR STORE`, `seglog cursors data/orders-0`
            first = [name for name in ("create", "ls") if name in self.commands]
            otherwise = first[:1] if os.path.exists(args[0]) else []
            raise _with_nearest(e, ctx, args[0], self.commands, f"{ctx.info_name} ", otherwise) from None

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the whole first sentence, as for a command."""
        return _first_sentence(self.help)


def _drop_what_stdout_refuses() -> None:
    """Discard buffered output that cannot be written: at exit, Python would try again, and exit with status 120."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class LazyGroup(click.Group):
    """A group that knows its commands by name, and imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = import_module(f".{_MODULES.get(name, name)}", __package__).command
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        from click.shell_completion import CompletionItem

        # As in click, but from the names only: completion should not load every command.
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items() if name not in HIDDEN and name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            if meant := _MEANT.get(args[0]):
                raise _with_nearest(e, ctx, args[0], (), otherwise=[meant]) from None
            raise _with_nearest(e, ctx, args[0], COMMANDS) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{_NAME_WIDTH}}", line) for name, line in commands.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        terminal.wishes.forget()
        given = list(sys.argv[1:] if args is None else args)
        if given[:1] == ["help"]:       # `seglog help dump`, as in git
            given = [*given[1:], "--help"]
        extra.setdefault("terminal_width", terminal.help_width())
        if not standalone_mode:
            return super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as e:     # `seglog`, `seglog index`
            sys.stderr.write(f"{e.format_message()}\n")
            status = e.exit_code
        except click.UsageError as e:
            path = e.ctx.command_path if e.ctx else "seglog"
            words = " ".join(e.format_message().split())      # click separates choices by tabs and newlines
            error = SeglogError(words.rstrip("."), hint=f"{path} --help")
            error.code, error.exit_status = "usage", 2
            status = report.show_error(error, path, as_json="--json" in given)
        except (click.Abort, KeyboardInterrupt) as e:       # click turns an interrupt into Abort
            status = report.show_interrupt(e.__cause__ or e)
        except Exception as e:      # a command that cannot be loaded: a broken installation
            if os.environ.get("SEGLOG_DEBUG"):
                raise
            status = report.show_error(report.as_seglog_error(e), "seglog", as_json="--json" in given)
        sys.exit(status if isinstance(status, int) else 0)


def _die_of_sigpipe() -> NoReturn:
    """End as `cat` does when its reader has gone: killed by the signal, without a message.

    Python ignores SIGPIPE and raises instead, but the shell should see the signal.
    """
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())      # discards what is still buffered
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    raise AssertionError("unreachable")


def _end_in_order(number: int, _: object) -> NoReturn:
    # A second signal must not interrupt the cleanup; SIGKILL still does.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise report.Terminated(number)


_ENDING = (signal.SIGTERM, signal.SIGHUP)


def _catch_signals() -> None:
    """Let SIGTERM and SIGHUP end a command like ^C: by an exception, so that unfinished output is removed.

    A signal that the parent process ignores (nohup) stays ignored.
    """
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end_in_order)


@click.group(
    cls=LazyGroup, params=[*terminal.display_options()], epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", prog_name="seglog", message="%(prog)s %(version)s")
def cli() -> None:
    """Look at, check, repair, convert, back up and serve logs and queues: seglog's own, and a Kafka broker's.

    PATH is a partition directory (orders-0), one of its .log files, or the log dir above them.
    A command that chooses what goes (recover, prune, compact, erase, ...) is a dry run unless you pass --apply. One to
    which you name it, or a new target, acts at once. Every command that changes a log accepts --dry-run.
    """


def main() -> None:
    """Run the console script."""
    if sys.stderr is None:      # closed by the shell (2>&-)
        sys.stderr = StringIO()
    if sys.stdout is None:
        sys.stdout = StringIO()
        sys.exit(report.show_error(StorageError("standard output is closed"), "seglog", as_json=False))
    for stream in (sys.stdout, sys.stderr):
        terminal.set_up(stream)
    _catch_signals()
    cli(prog_name="seglog")
