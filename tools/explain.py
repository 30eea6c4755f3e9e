"""`seglog explain`: what an error, a finding or an exit status means, and what to do; works offline."""
from collections.abc import Iterator
from dataclasses import dataclass

import click

from seglog import errors
from seglog.config import suggestion
from seglog.errors import InvalidArgumentError, SeglogError
from seglog.verification.findings import KINDS
from seglog.verification.next_start import REPAIRABLE

from . import report
from .cli import Command
from .options import json_option

# The meanings that only the command line has; no error class states them.
_STATUSES = {
    0: ("clean", "everything was done, and no problem was found"),
    1: ("findings", "the command ran to its end and found damage, or something that a broker would change"),
    2: ("usage", "an unknown command or option, an invalid value, or an offset outside the log"),
    3: ("I/O", "the operating system refused: no space, no permission, a failed sync"),
    4: ("not a Kafka log", "the path holds no log, or a file in a newer version than this release reads"),
    5: ("locked", "another process, such as a live broker, holds the lock; reading needs no lock"),
    6: ("codec not installed", "a batch needs a codec whose library is not installed"),
    7: ("partial", "something could not be read or was left out, and the rest was done"),
    130: ("interrupted", "Ctrl-C; unfinished output was removed"),
    129: ("hung up", "SIGHUP; unfinished output was removed"),
    143: ("terminated", "SIGTERM; unfinished output was removed"),
}


_AS_NOTE = "If the next start of a broker repairs it, verify reports it as a note, and there is nothing to do."


@dataclass(frozen=True, slots=True)
class _Topic:
    """`what`: "error", "finding" or "exit status"; `exit_status` and `severity` if the topic has one."""

    code: str
    what: str
    meaning: str
    fix: str
    exit_status: int | None = None
    severity: str | None = None
    level: str | None = None


@click.command(cls=Command, only_reads=True)
@click.argument("codes", metavar="[CODE]...", nargs=-1)
@json_option
def command(codes: tuple[str, ...], as_json: bool) -> int:
    """Explain an error, a finding of `verify`, or an exit status.

    CODE is the code in brackets after an error (corrupt_record), the code of a finding (crc_mismatch), or the number
    of an exit status. Without CODE, list all of them.
    """
    topics = [*_topics()]
    if codes:
        topics = [topic for code in codes for topic in _named(code, topics)]
    if as_json:
        for topic in topics:
            report.print_json(
                "explanation", code=topic.code, what=topic.what, meaning=topic.meaning, fix=topic.fix,
                exit_status=topic.exit_status, severity=topic.severity, level=topic.level,
            )
    elif codes:
        print("\n\n".join(map(_text, topics)))
    else:
        rows = [[topic.code, _kind(topic), _first_sentence(topic.meaning)] for topic in topics]
        print(report.table(("code", "what", "meaning"), rows, left=(0, 1, 2)))
    return 0


def _topics() -> Iterator[_Topic]:
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, SeglogError) and each is not SeglogError:
            yield _Topic(each.code, "error", _plain(each.__doc__ or ""), report.as_options(each.hint),
                         each.exit_status)
    yield _Topic("usage", "error", "An unknown command or option, or a value that does not parse.", "COMMAND --help", 2)
    yield _Topic(
        "internal", "error", "A bug in seglog itself.", "run it with SEGLOG_DEBUG=1 and report the traceback", 3
    )
    for code, kind in KINDS.items():
        fix = f"{kind.fix}. {_AS_NOTE}" if code in REPAIRABLE else kind.fix
        yield _Topic(code, "finding", kind.meaning, fix, None, str(kind.severity), kind.level)
    for number, (name, meaning) in _STATUSES.items():
        yield _Topic(str(number), "exit status", f"{name}: {meaning}", "", number)


def _named(code: str, topics: list[_Topic]) -> list[_Topic]:
    """Find the topics of a code, which an error and a finding may share. Raises InvalidArgumentError if none has it."""
    wanted = code.strip().strip("[]").replace("-", "_").lower()
    found = [topic for topic in topics if topic.code == wanted]
    if not found:
        raise InvalidArgumentError(
            f"unknown code {code!r}{suggestion(wanted, [topic.code for topic in topics])}",
            hint="seglog explain lists all codes",
        )
    return found


def _text(topic: _Topic) -> str:
    head = f"{topic.code} ({topic.what}"
    if topic.severity:
        head += f", {topic.severity}, found at level {topic.level}"
    elif topic.what == "error":
        head += f", exit status {topic.exit_status}"
    lines = [report.paint(head + ")", "bold"), *report.wrapped(topic.meaning)]
    if topic.fix:
        lines += report.wrapped(f"try: {topic.fix}")
    return "\n".join(lines)


def _kind(topic: _Topic) -> str:
    return f"{topic.what}, {topic.severity}" if topic.severity else topic.what


def _plain(docstring: str) -> str:
    return " ".join(docstring.split())


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].removesuffix(".")
