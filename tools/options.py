"""Arguments and options that several commands share."""
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from seglog.config import duration_ms, parse_bytes
from seglog.errors import InvalidArgumentError
from seglog.frames.typed.kinds import KINDS
from seglog.ledger.position import Position

from .cli import SourcePath

# Of --decode, beside the kinds with a schema.
TEXTS = ("auto", "utf8", "json", "base64", "kafka", "raw")
F = TypeVar("F", bound=Callable[..., Any])


class TimeType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """A point in time, in milliseconds: see seglog.reading.times. `words`: names for Kafka's special values."""

    name = "time"

    def __init__(self, words: dict[str, int] | None = None) -> None:
        self._words = words or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and value.lower() in self._words:
            return self._words[value.lower()]
        from seglog.reading.times import to_time_bound_ms  # not above: doctor has no kernels where they are broken

        try:
            return to_time_bound_ms(value)
        except InvalidArgumentError as e:
            self.fail(f"{e.what}: {e.hint}", param, ctx)


class DurationType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """A number of seconds, or `10m`: see seglog.reading.times."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str) and (found_ms := duration_ms(value)) is not None:
            return found_ms / 1000
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number of seconds nor such as 10m, 2h, 1d", param, ctx)


class SizeType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """A number of bytes: `4096`, `16k`, `1.5MiB`. Units are powers of 1024."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            n = parse_bytes(value)
            if not 0 <= n < 1 << 63:
                raise ValueError("out of range")
        except ValueError as e:
            self.fail(f"{value!r}: {e}", param, ctx)
        return n


class NumberType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """A whole number, `at_least` so large. (click's own says "is not a valid integer range" of a word.)"""

    name = "integer"

    def __init__(self, at_least: int | None = None) -> None:
        self._at_least = at_least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            n = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if self._at_least is not None and n < self._at_least:
            self.fail(f"{n} is too small: expected {self._at_least} or more", param, ctx)
        return n


class PositionType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """`3:17`, entry 17 of ledger 3. `bare`: also accept `17`, for a plain file or a single ledger, as ledger 0."""

    name = "position"

    def __init__(self, *, bare: bool = False) -> None:
        self._bare = bare

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        if isinstance(value, Position):
            return value
        ledger_id, colon, entry_id = str(value).rpartition(":")
        if not (colon or self._bare) or not (ledger_id or "0").isdecimal() or not entry_id.isdecimal():
            self.fail(f"{value!r} is not a position, such as 3:17", param, ctx)
        return Position(int(ledger_id or 0), int(entry_id))


class ConfigType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """`key=value`, with Kafka's names of topic settings."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, setting = str(value).partition("=")
        if not equals or not key.strip():
            self.fail(f"{value!r} is not key=value, such as index.interval.bytes=4096", param, ctx)
        return key.strip(), setting.strip()


class DecodeType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """A kind of text, or of typed columns; or one for each column: {"key": "utf8", "value": "avro"}."""

    name = "decode"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | dict[str, str]:
        if isinstance(value, dict) or value in TEXTS:
            return value    # type: ignore[no-any-return]
        if value in KINDS:
            return {"key": value, "value": value}
        chosen = dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair)
        kinds = ("utf8", "json", *KINDS)
        if len(chosen) != value.count(",") + 1 or not set(chosen) <= {"key", "value"} or not set(
            chosen.values()
        ) <= set(kinds):
            self.fail(
                f"{value!r} is neither one of {', '.join((*TEXTS, *KINDS))} nor some of these for key and value, such "
                f"as key=utf8,value=avro", param, ctx,
            )
        return chosen

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in (*TEXTS, *KINDS) if name.startswith(incomplete)]


def options_of(command: click.Command, *names: str) -> Callable[[F], F]:
    """Take over these options of another command."""
    found = {parameter.name: parameter for parameter in command.params}

    def add(function: F) -> F:
        parameters = function.__dict__.setdefault("__click_params__", [])
        parameters.extend(found[name] for name in reversed(names))
        return function

    return add


# A path that a command reads: it must exist.
SOURCE = SourcePath()
# And which may name partitions in a backup: text, if that is at a URL.
SOURCE_OR_BACKUP = SourcePath(in_backup=True)
# Any other path. click's own check of permissions would report an error of the system as a usage error.
PATH = click.Path(path_type=Path, readable=False)


def paths_argument(function: F) -> F:
    return click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=SOURCE)(function)


def readable_paths_argument(function: F) -> F:
    """`paths`, and `store_options` for those in a backup at a URL."""
    return click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=SOURCE_OR_BACKUP)(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON lines instead of text.")(function)


def progress_option(function: F) -> F:
    return click.option("--no-progress", is_flag=True, help="No progress line, even on a terminal.")(function)


def config_option(function: F) -> F:
    return click.option(
        "--config", "settings", type=ConfigType(), multiple=True,
        help="A setting: one of the topic that the directory does not contain, such as segment.bytes or "
        "index.interval.bytes. May be repeated. Kafka's defaults otherwise.",
    )(function)


def _collected(ctx: click.Context, param: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and file.suffix != ".prom":
        raise click.BadParameter(f"{str(file)!r} does not end in .prom: the collector would never read it", ctx, param)
    return file


def metrics_option(function: F) -> F:
    return click.option(
        "--metrics", "metrics_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        callback=_collected,
        help="Also write figures to FILE (replaced in one step), for the textfile collector of Prometheus's node "
        "exporter: its name must end in .prom.",
    )(function)


def apply_option(help_text: str) -> Callable[[F], F]:
    """`--apply`, and `--dry-run` for its opposite, which is the default. None if neither was given."""
    return click.option("--apply/--dry-run", "applies", default=None, help=help_text)


def dry_run_option(function: F) -> F:
    """For a command that acts at once."""
    return click.option("--dry-run", is_flag=True, help="Change nothing: only show what would be done.")(function)


def limit_option(what: str, default: int | None = None) -> Callable[[F], F]:
    """`--limit N`: at most so many of `what`, separately for each PATH or partition of a log dir; 0 shows none."""
    return click.option(
        "--limit", type=NumberType(0), metavar="N", default=default, show_default=default is not None,
        help=f"At most N: {what}",
    )


store_option = click.option(
    "--store-option", "store_options", metavar="KEY=VALUE", type=ConfigType(), multiple=True,
    help="An option for the store of a URL, such as endpoint_override=HOST:PORT or user=NAME. May be repeated. "
    "Visible in process lists: pass secrets in the environment.",
)


topic_option = click.option(
    "--topic", "topics", metavar="GLOB", multiple=True,
    help="Only topics that match. May be repeated. For a log dir.",
)


def isolation_option(default: str, more: str = "") -> Callable[[F], F]:
    """`more`: what is special."""
    return click.option(
        "--isolation", type=click.Choice(["read_committed", "read_uncommitted"]), default=default, show_default=True,
        help=f"read_uncommitted: also records of aborted and unfinished transactions. {more}".strip(),
    )


def on_corrupt_option(function: F) -> F:
    return click.option(
        "--on-corrupt", type=click.Choice(["raise", "skip"]), default="raise", show_default=True,
        help="At a damaged batch: stop, or skip it, report what is lost and exit with status 7.",
    )(function)


schemas_option = click.option(
    "--schemas", metavar="URL|DIR", help="Where the schemas for avro and protobuf are: a registry's URL, a folder of "
    ".avsc or .proto files, or the directory _schemas-0. By default _schemas-0 beside the topic.",
)
on_undecodable_option = click.option(
    "--on-undecodable", type=click.Choice(["fail", "null", "raw"]), default="fail",
    help="A value that does not match its schema: fail, null, or raw for its bytes in the field _undecodable. "
    "Text that is not UTF-8: fail or null.",
)
