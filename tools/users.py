"""`seglog users ls | add | rm`: who may log in to a server of a log dir by SCRAM."""
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from seglog.endpoint.local_server import lock_server
from seglog.errors import SeglogError
from seglog.fs.aside import make_directories
from seglog.fs.files import OsFileSystem
from seglog.state.users import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    Credential,
    Mechanism,
    StoredUsers,
    checked_user_name,
    read_users,
    write_users,
)

from . import report
from .cli import Command, CommandGroup
from .options import PATH, SOURCE, dry_run_option, json_option

_NAMES = {mechanism.sasl_name: mechanism for mechanism in Mechanism}

directory_argument = click.argument("directory", metavar="DIR", type=PATH)


@click.group(name="users", cls=CommandGroup)
def command() -> None:
    """List, add or remove the users of the log dir DIR, who log in by SCRAM-SHA-256 or SCRAM-SHA-512.

    A server asks for them at listeners of the protocol SASL_PLAINTEXT or SASL_SSL. Status 5 while one runs: there,
    clients change users (kafka-configs --entity-type users).
    """


@command.command(cls=Command, only_reads=True)
@click.argument("directory", metavar="DIR", type=SOURCE)
@json_option
def ls(directory: Path, as_json: bool) -> int:
    """List the users with their mechanisms."""
    users = read_users(directory)
    for name in sorted(users):
        mechanisms = [mechanism.sasl_name for mechanism in users[name]]
        if as_json:
            report.print_json("user", name=name, mechanisms=mechanisms)
        else:
            print(f"{name}  {', '.join(mechanisms)}")
    if as_json:
        report.print_json("summary", users=len(users))
    else:
        print(report.count_of(len(users), "user"))
    return 0


@command.command(cls=Command)
@directory_argument
@click.argument("name")
@click.option("--mechanism", "mechanisms", type=click.Choice(list(_NAMES)), multiple=True, default=list(_NAMES),
              show_default=True, help="A mechanism by which the user may log in. May be repeated.")
@click.option("--iterations", type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS_MIN,
              show_default=True, help="Rounds of hashing: more of them make stolen passwords harder to guess.")
@dry_run_option
@json_option
def add(
    directory: Path, name: str, mechanisms: Sequence[str], iterations: int, dry_run: bool, as_json: bool
) -> int:
    """Add the user NAME, or give it another password, which is asked for, or read as a line from standard input.

    DIR is created if it does not exist.
    """
    _check_name(name)
    if dry_run:
        is_new = not directory.exists() or name not in read_users(directory)
        _say("would add" if is_new else "would change", name, as_json, dry_run=True)
        return 1
    password = _password(name)
    made = {_NAMES[text]: Credential.of_password(_NAMES[text], password, iterations=iterations) for text in mechanisms}
    make_directories(OsFileSystem(), directory)
    _change(directory, lambda users: {**users, name: made})
    _say("added", name, as_json)
    return 0


@command.command(cls=Command)
@directory_argument
@click.argument("name")
@dry_run_option
@json_option
def rm(directory: Path, name: str, dry_run: bool, as_json: bool) -> int:
    """Remove the user NAME."""
    _check_name(name)
    SOURCE.check(directory)

    def without(users: StoredUsers) -> StoredUsers:
        if name not in users:
            raise click.UsageError(f"there is no user {name!r}")
        return {other: credentials for other, credentials in users.items() if other != name}

    if dry_run:
        without(read_users(directory))
    else:
        _change(directory, without)
    _say("would remove" if dry_run else "removed", name, as_json, dry_run=dry_run)
    return int(dry_run)


def _change(directory: Path, change: Callable[[StoredUsers], StoredUsers]) -> None:
    fs = OsFileSystem()
    with lock_server(fs, directory):
        write_users(fs, directory, change(read_users(directory)))


def _check_name(name: str) -> None:
    try:
        checked_user_name(name)
    except SeglogError as error:
        raise click.UsageError(f"{error.what}: {error.hint}") from error


def _password(name: str) -> bytes:
    if sys.stdin.isatty():
        text = click.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:       # of a program or a file: one line
        text = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not text:
        raise click.UsageError("a user needs a password, from the terminal or as a line on standard input")
    return str(text).encode()


def _say(what: str, name: str, as_json: bool, *, dry_run: bool = False) -> None:
    if as_json:
        report.print_json("user", **report.dry_run_fields(dry_run, dry_run, apply=False), name=name, change=what)
    else:
        print(f"{what} {name}")
