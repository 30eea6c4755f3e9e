"""`seglog queue`: the jobs of a seglog.Queue, and what the subscriptions of a seglog.Topic have."""
import os
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from seglog.attach.shared_queue import SharedQueue, open_beside
from seglog.errors import CorruptRecordError, LogLockedError, NotALogError, SeglogError
from seglog.ledger.managed.journal import FILE_NAME as JOURNAL
from seglog.ledger.managed.manifest import FILE_NAME as MANIFEST
from seglog.ledger.managed.manifest import Manifest
from seglog.queue.backlog import WhenFull
from seglog.queue.job import DeadJob, Job
from seglog.queue.options import duration_ns
from seglog.queue.queue import HIGHEST, LOWEST, TOPIC, OwnedQueue, QueueStats, not_a_queue
from seglog.queue.topic import Topic

from . import report, terminal
from .cli import Command, CommandGroup
from .end_by_signal import EndBySignal
from .options import PATH, SOURCE, DurationType, NumberType, TimeType, dry_run_option, json_option, limit_option

if TYPE_CHECKING:
    from seglog.queue.consumer import Consumer, SubscriptionStats

# So many jobs are put, or taken and acknowledged, with one sync.
AT_ONCE = 100
# Pulsar's maxMessageSize, by default.
LARGEST_BYTES = 5 << 20
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATES = ("ready", "delayed", "waiting", "in_flight", "dead")
NO_SUBSCRIPTION = "(none)"
PAUSED_TEXT = "paused: no job is taken until `seglog queue resume`"

path_argument = click.argument("path", metavar="DIR", type=SOURCE)
subscription_option = click.option("--subscription", metavar="NAME", help="The subscription, if DIR is a topic.")
raw_option = click.option(
    "--raw", is_flag=True, help="Print only the values, byte for byte, each followed by a newline."
)


# What other programs call them.
MEANT = {
    **dict.fromkeys(("add", "push", "send", "enqueue", "publish"), "put"),
    **dict.fromkeys(("get", "pop", "receive", "consume", "dequeue"), "take"),
    **dict.fromkeys(("size", "count", "length", "status", "info"), "stats"),
    **dict.fromkeys(("clear", "empty"), "purge"),
    "dead": "peek --dead", "retry": "requeue", "list": "ls",
}


@click.group(name="queue", cls=CommandGroup, meant=MEANT)
def command() -> None:
    """Put, take, count and look at the jobs of a queue (seglog.Queue).

    While programs share the queue (attach=True), these commands go through the one that owns it; while one has it for
    itself, they end with status 5. create, put, take, requeue, purge, pause and resume act at once. Of a topic
    (seglog.Topic), ls, stats, peek and requeue show its subscriptions.
    """


# --- looking -----------------------------------------------------------------------------


@command.command(cls=Command, only_reads=True)
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=SOURCE)
@json_option
def ls(paths: Sequence[Path], as_json: bool) -> int:
    """List queues: jobs that are ready, delayed, waiting for a retry, in flight, dead; the age of the oldest.

    DIR is a queue, or a directory of queues. Of a topic (seglog.Topic) each subscription is listed. Of several, those
    that cannot be opened are reported on stderr, with status 7.
    """
    found = [queue for path in paths for queue in _queues_at(path)]
    rows: list[list[str]] = []
    unread = 0
    has_topic = False
    for path in found:
        try:
            counted, is_topic = _counted(path)
        except (SeglogError, OSError) as error:
            if len(found) == 1:
                raise
            unread += 1
            context = click.get_current_context()
            report.show_error(report.as_seglog_error(error), context.command_path, as_json=as_json)
            continue
        has_topic |= is_topic
        for name, stats in counted.items():
            if as_json:
                _print_counts(path, name, stats)
            rows.append([
                str(path), name or "", *(report.number(getattr(stats, state)) for state in STATES), _age_of(stats),
                "yes" if isinstance(stats, QueueStats) and stats.is_paused else "",
            ])
        if is_topic and not counted:
            rows.append([str(path), NO_SUBSCRIPTION, *[""] * (len(STATES) + 2)])
    if as_json:
        report.print_json("summary", ok=not unread, queues=len(found) - unread, unread=unread)
    elif rows:
        columns = ("queue", "subscription", *map(_words_of, STATES), "oldest", "paused")
        if not has_topic:
            columns, rows = (columns[0], *columns[2:]), [[row[0], *row[2:]] for row in rows]
        print(report.table(columns, rows))
    return report.PARTIAL if unread else 0


@command.command(cls=Command, only_reads=True)
@path_argument
@json_option
def stats(path: Path, as_json: bool) -> None:
    """Count the jobs: ready, delayed, waiting, in flight, dead, and the backlog: all but the dead.

    Delayed jobs, and those that wait for a retry, count as ready once they are due. Jobs are in flight only while
    programs share the queue. Says so if the queue is paused. Of a topic (seglog.Topic) it counts the messages of each
    subscription.
    """
    counted, is_topic = _counted(path)
    if as_json:
        for name, found in counted.items():
            _print_counts(path, name, found)
        return
    if is_topic:
        print(f"a topic with {report.count_of(len(counted), 'subscription')}")
        columns = ("subscription", *map(_words_of, STATES), "backlog", "oldest")
        if counted:
            print(report.table(columns, [
                [str(name), *(report.number(getattr(found, state)) for state in (*STATES, "backlog")), _age_of(found)]
                for name, found in counted.items()
            ]))
        return
    [found] = counted.values()
    for state in (*STATES, "backlog"):
        print(f"{_words_of(state):16}{getattr(found, state):>14,}")
    print(f"{'oldest':16}{_age_of(found):>14}")
    if isinstance(found, QueueStats) and found.is_paused:
        print(PAUSED_TEXT)


def _counted(path: Path) -> "tuple[Mapping[str | None, QueueStats | SubscriptionStats], bool]":
    """The counts of a queue, under None, or of each subscription of a topic; and whether it is one."""
    if not _is_topic(path):
        with _opened(path) as jobs:
            return {None: jobs.stats()}, False
    with Topic(path, create=False) as topic:
        return dict(topic.stats().items()), True


def _print_counts(path: Path, subscription: str | None, stats: "QueueStats | SubscriptionStats") -> None:
    counts = {name: getattr(stats, name) for name in (*STATES, "backlog")}
    if isinstance(stats, QueueStats):
        report.print_json("queue", path=path, **counts, oldest_age_s=stats.oldest_age_s, paused=stats.is_paused)
    else:
        report.print_json(
            "subscription", path=path, subscription=subscription, **counts, oldest_age_s=stats.oldest_age_s
        )


def _words_of(state: str) -> str:
    return state.replace("_", " ")


def _age_of(stats: "QueueStats | SubscriptionStats") -> str:
    return "-" if stats.oldest_age_s is None else report.duration(1000 * stats.oldest_age_s)


@command.command(cls=Command, only_reads=True)
@path_argument
@subscription_option
@click.option("--dead", is_flag=True, help="The dead jobs, with the reason of their last failure.")
@limit_option("the first jobs.", default=10)
@raw_option
@json_option
def peek(path: Path, subscription: str | None, dead: bool, limit: int, raw: bool, as_json: bool) -> int:
    """Show the first jobs, due or not, without taking them. `attempt` is how often a job was delivered so far."""
    _check_form(raw, as_json)
    with _opened_of(path, subscription) as jobs:
        found: Sequence[Job] = []
        if limit:
            found = jobs.dead.peek(limit) if dead else jobs.peek(limit)
        damaged = sum(not _show(job, raw, as_json, is_cut=True) for job in found)
    return report.PARTIAL if damaged else 0


# --- changing ----------------------------------------------------------------------------


@command.command(cls=Command)
@click.argument("path", metavar="DIR", type=PATH)
@dry_run_option
@json_option
def create(path: Path, dry_run: bool, as_json: bool) -> int:
    """Create an empty queue. DIR must not exist, or be empty; a queue that is there is left as it is."""
    is_new = _is_new(path)
    if not is_new:
        _check_queue(path)
    elif not dry_run:
        OwnedQueue(path).close()
    if as_json:
        report.print_json(
            "create", **report.dry_run_fields(dry_run, is_new, apply=False), path=path,
            created=is_new and not dry_run,
        )
    elif not is_new:
        print("it is a queue already")
    else:
        print("it would be created: nothing was changed" if dry_run else "created")
    return int(dry_run and is_new)


@command.command(cls=Command)
@click.argument("path", metavar="DIR", type=PATH)
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@click.option("--lines", is_flag=True, help="Put each line of standard input as a job.")
@click.option("--key", metavar="KEY", help="A key: the jobs get it.")
@click.option("--property", "pairs", metavar="NAME=VALUE", multiple=True, help="A property of the jobs. May be "
              "repeated.")
@click.option("--delay", metavar="SECONDS", type=DurationType(),
              help="Deliver the jobs after this many seconds, not before; or after 10m, 2h, 1d.")
@click.option("--at", "at_ms", type=TimeType(),
              help="Deliver the jobs at this time, not before: ISO 8601, ms since 1970, or +10m.")
@click.option("--priority", type=NumberType(), metavar="N", default=0, show_default=True,
              help=f"From {LOWEST} to {HIGHEST}; jobs of a higher one are delivered first.")
@click.option("--unique-for", metavar="SECONDS", type=DurationType(),
              help="Put one job with this --key in so many seconds, or in 10m, 2h, 1d; otherwise print the id of the "
                   "first.")
@dry_run_option
@json_option
def put(
    path: Path, values: Sequence[str], lines: bool, key: str | None, pairs: Sequence[str], delay: float | None,
    at_ms: int | None, priority: int, unique_for: float | None, dry_run: bool, as_json: bool,
) -> int:
    """Put each VALUE as a job, and print its id. Without VALUE, all of standard input is one job.

    The queue is created if DIR does not exist, or is empty. When an id is printed, its job is on the disk. Several
    are put up to 100 or 1 MiB at a time; after a crash, such a part is there as a whole or not at all.
    """
    # All is checked before a directory is created.
    if lines and values:
        raise click.UsageError("pass VALUE or --lines, not both")
    if delay is not None and at_ms is not None:
        raise click.UsageError("pass --delay or --at, not both")
    if delay is not None:
        duration_ns("--delay", delay)
    if unique_for is not None:
        duration_ns("--unique-for", unique_for)
        if key is None or lines or len(values) > 1:
            raise click.UsageError("--unique-for is for one job, with a --key")
    if not LOWEST <= priority <= HIGHEST:
        raise click.UsageError(f"--priority must be from {LOWEST} to {HIGHEST}, not {priority}")
    at, properties = _time_of(at_ms), _properties_of(pairs)
    is_new = _is_new(path)
    if not is_new:
        _check_queue(path)
    given = iter(_values_of(values, lines))
    number = 0
    job_key = None if key is None else _text_or_bytes(key)
    if dry_run:
        number = sum(1 for _ in given)
        if unique_for is not None and not is_new:
            with _opened(path) as jobs:
                number -= jobs._has_key(job_key)
    else:
        with OwnedQueue(path) if is_new else open_beside(path, create=False) as jobs:
            while chunk := list(islice(given, AT_ONCE)):
                rest: dict[str, Any] = {
                    "delay": delay, "at": at, "properties": properties, "priority": priority, "unique_for": unique_for,
                }
                if len(chunk) == 1:
                    ids = [jobs.put(chunk[0], key=job_key, **rest)]
                else:
                    ids = jobs.put_many([(job_key, value) for value in chunk], **rest)
                number += len(ids)
                for id_ in ids:
                    if as_json:
                        report.print_json("put", id=id_)
                    else:
                        print(id_)
    if as_json:
        report.print_json("summary", **report.dry_run_fields(dry_run, number > 0, apply=False), jobs=number)
    elif dry_run:
        print(f"{report.count_of(number, 'job')} to put: nothing was changed")
    return int(dry_run and number > 0)


@command.command(cls=Command)
@click.argument("path", metavar="DIR", type=PATH)
@click.option("--max-attempts", type=NumberType(1), metavar="N", default=10, show_default=True,
              help="A job that failed so often is dead.")
@click.option("--retry-delay", metavar="SECONDS", type=DurationType(), default=1.0, show_default=True,
              help="How long a job waits that failed: twice as long each time.")
@click.option("--max-retry-delay", metavar="SECONDS", type=DurationType(), default=300.0, show_default=True,
              help="How long it waits at most.")
@click.option("--max-backlog", type=NumberType(1), metavar="N", help="How many jobs the queue holds.")
@click.option("--when-full", type=click.Choice(get_args(WhenFull)), default="block", show_default=True,
              help="What a put does then.")
@click.option("--dead-letters", metavar="DIR", type=PATH, help="Another queue, which gets the dead jobs.")
@json_option
def serve(
    path: Path, max_attempts: int, retry_delay: float, max_retry_delay: float, max_backlog: int | None,
    when_full: WhenFull, dead_letters: Path | None, as_json: bool,
) -> int:
    """Own the queue for programs that open it with attach=True, and do nothing else.

    So none of them waits for another that is busy. It prints a line once they can attach, and runs until ^C or
    SIGTERM; then one of them takes over. The options are those of seglog.Queue; the queue is created if DIR does not
    exist, or is empty. Status 5 if a program has it open already.
    """
    if dead_letters is not None and os.path.abspath(dead_letters) == os.path.abspath(path):
        raise click.UsageError("--dead-letters must be another queue than DIR")
    with EndBySignal() as end:
        is_new = {one: _is_new(one) for one in (path, dead_letters) if one is not None}
        for one, one_is_new in is_new.items():
            if not one_is_new:
                _check_queue(one)
        with end.during_start(), ExitStack() as opened:
            letters = None
            if dead_letters is not None:
                letters = opened.enter_context(SharedQueue(dead_letters, create=is_new[dead_letters]))
            jobs = opened.enter_context(SharedQueue(
                path, max_attempts=max_attempts, retry_delay=retry_delay, max_retry_delay=max_retry_delay,
                max_backlog=max_backlog, when_full=when_full, dead_letters=letters, create=is_new[path],
            ))
            end.has_started()
            if not jobs.is_owner:
                raise LogLockedError(
                    "another program has the queue open", file=path,
                    hint="start `seglog queue serve` before all others",
                )
            if as_json:
                report.print_json("serving", path=path, created=is_new[path])
            else:
                print(f"serving {report.printable(str(path))}")
            sys.stdout.flush()      # a pipe would buffer it until the end
            end.wait()
    return 0


@command.command(cls=Command)
@path_argument
@click.option("--count", type=NumberType(1), metavar="N", default=1, show_default=True, help="Take up to N jobs.")
@click.option("--timeout", metavar="SECONDS", type=DurationType(), default=0.0, show_default=True,
              help="Wait this long for each job that is not in the queue yet.")
@raw_option
@dry_run_option
@json_option
def take(
    path: Path, count: int, timeout: float, raw: bool, dry_run: bool, as_json: bool
) -> int:
    """Take the jobs that are due, print them, and then acknowledge them: they are not delivered again.

    Status 1 if there is none, or the queue is paused. A job that was printed is delivered again if this ends before
    it is acknowledged. A job that cannot be read is reported on stderr and refused, with status 7: it comes back later.
    """
    _check_form(raw, as_json)
    duration_ns("--timeout", timeout)
    left, damaged = count, 0
    with _opened(path) as jobs:
        if dry_run:
            found = jobs.stats()
            gets_some = found.ready > 0 and not found.is_paused
            if as_json:
                report.print_json(
                    "summary", **report.dry_run_fields(True, gets_some, apply=False), ready=found.ready,
                    paused=found.is_paused,
                )
            else:
                print(f"{report.count_of(found.ready, 'job')} ready: nothing was changed")
                if found.is_paused:
                    print(PAUSED_TEXT)
            return int(gets_some)
        if jobs.is_paused:
            print(PAUSED_TEXT, file=sys.stderr)
            return 1
        while left and (taken := jobs.get_many(min(left, AT_ONCE), timeout)):
            left -= len(taken)
            shown = [job for job in taken if _show(job, raw, as_json)]
            sys.stdout.flush()      # first: a job that nobody saw is not acknowledged
            jobs.ack(shown)
            for job in taken:
                if not job.is_settled:
                    damaged += 1
                    job.nack(reason="seglog queue take could not read it")
    if damaged:
        return report.PARTIAL
    return 1 if left == count else 0


@command.command(cls=Command)
@path_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@subscription_option
@dry_run_option
@json_option
def requeue(path: Path, ids: Sequence[str], subscription: str | None, dry_run: bool, as_json: bool) -> int:
    """Put dead jobs back, all or those whose ID is given: their attempts start again at 1.

    Status 1 if one of these is not dead. Write -- before an ID that begins with a minus.
    """
    with _opened_of(path, subscription) as jobs:
        dead = {job.id: job for job in jobs.dead}
        chosen = [dead[id_] for id_ in dict.fromkeys(ids or dead) if id_ in dead]
        number = len(chosen) if dry_run else jobs.dead.requeue(chosen)
    missing = [id_ for id_ in ids if id_ not in dead]
    if as_json:
        report.print_json(
            "requeue", **report.dry_run_fields(dry_run, number > 0, apply=False), jobs=number, not_dead=missing
        )
    else:
        for id_ in missing:
            print(report.printable(f"{id_}  not dead"))
        done = "to put back: nothing was changed" if dry_run else "put back"
        print(f"{report.count_of(number, 'dead job')} {done}")
    return 1 if missing or (dry_run and number) else 0


@command.command(cls=Command)
@path_argument
@click.option("--dead", is_flag=True, help="The dead jobs, and no others.")
@dry_run_option
@json_option
def purge(path: Path, dead: bool, dry_run: bool, as_json: bool) -> int:
    """Remove all jobs but the dead, or the dead with --dead. They are never delivered."""
    with _opened(path) as jobs:
        number = len(jobs.dead) if dead else jobs.stats().backlog
        if not dry_run:
            if dead:
                jobs.dead.purge()
            else:
                jobs.purge()
    if as_json:
        report.print_json("purge", **report.dry_run_fields(dry_run, number > 0, apply=False), jobs=number, dead=dead)
    else:
        noun = report.count_of(number, "dead job" if dead else "job")
        print(f"{noun} " + ("to remove: nothing was changed" if dry_run else "removed"))
    return int(dry_run and number > 0)


@command.command(cls=Command)
@path_argument
@dry_run_option
@json_option
def pause(path: Path, dry_run: bool, as_json: bool) -> int:
    """Hand out no jobs until `resume`. They can put, acknowledge and refuse jobs as before."""
    return _set_paused(path, True, dry_run, as_json)


@command.command(cls=Command)
@path_argument
@dry_run_option
@json_option
def resume(path: Path, dry_run: bool, as_json: bool) -> int:
    """Let programs take jobs again after `pause`."""
    return _set_paused(path, False, dry_run, as_json)


def _set_paused(path: Path, is_paused: bool, dry_run: bool, as_json: bool) -> int:
    with _opened(path) as jobs:
        was_paused = jobs.is_paused
        if not dry_run:
            jobs.pause() if is_paused else jobs.resume()
    is_needed = was_paused is not is_paused
    word = "paused" if is_paused else "resumed"
    if as_json:
        report.print_json(
            "pause" if is_paused else "resume", **report.dry_run_fields(dry_run, is_needed, apply=False),
            was_paused=was_paused,
        )
    elif not is_needed:
        print("it was paused already" if is_paused else "it was not paused")
    else:
        print(f"it would be {word}: nothing was changed" if dry_run else word)
    return int(dry_run and is_needed)


# --- queues ------------------------------------------------------------------------------


def _queues_at(path: Path) -> list[Path]:
    """The path itself, or the queues in it."""
    if (path / JOURNAL).exists():
        return [path]
    found = sorted(inner for inner in path.iterdir() if (inner / JOURNAL).exists())
    if not found:
        raise NotALogError(f"no queue is here: neither it nor a directory in it has a {JOURNAL}", file=path,
                           hint="pass the directory of a seglog.Queue, or the one above it")
    return found


def _is_topic(path: Path) -> bool:
    return (path / MANIFEST).exists() and TOPIC in Manifest.read(path).properties


def _check_queue(path: Path) -> None:
    """A managed ledger that is no queue would become one: refuse it."""
    if _is_topic(path):
        raise NotALogError(
            "not a queue, but a topic", file=path,
            hint="`seglog queue stats` counts what its subscriptions have; programs publish and take messages with "
            "seglog.Topic",
        )
    if not (path / JOURNAL).exists():
        raise not_a_queue(path)


def _is_new(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True


@contextmanager
def _opened(path: Path) -> Iterator[OwnedQueue]:
    _check_queue(path)
    # The limit of attempts is that of the program: these commands give no job up.
    with open_beside(path, create=False, max_attempts=None) as jobs:
        yield jobs


@contextmanager
def _opened_of(path: Path, subscription: str | None) -> "Iterator[OwnedQueue | Consumer]":
    """A queue, or a subscription of a topic."""
    if not _is_topic(path):
        if subscription is not None:
            raise click.UsageError("--subscription is for a topic, and DIR is none")
        with _opened(path) as jobs:
            yield jobs
        return
    with Topic(path, create=False) as topic:
        names = topic.subscriptions
        if subscription not in names:
            known = ", ".join(names) or "none"
            raise click.UsageError(f"DIR is a topic: pass --subscription, one of those it has: {known}")
        with topic.subscribe(str(subscription), kind="shared", max_attempts=None) as consumer:
            yield consumer


# --- jobs --------------------------------------------------------------------------------


def _values_of(values: Sequence[str], lines: bool) -> Iterator[bytes]:
    if values:
        return map(os.fsencode, values)
    if sys.stdin is None:
        raise click.UsageError("standard input is closed: pass VALUE")
    stdin = sys.stdin.buffer
    # One byte more than a job may have: the queue then refuses it, and no more of it is read.
    if lines:
        return (line.removesuffix(b"\n") for line in iter(partial(stdin.readline, LARGEST_BYTES + 2), b""))
    return iter([stdin.read(LARGEST_BYTES + 1)])


def _text_or_bytes(text: str) -> str | bytes:
    """The text as typed: bytes that are no UTF-8 come from the shell as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text


def _properties_of(pairs: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or isinstance(_text_or_bytes(pair), bytes):
            raise click.UsageError(f"--property {pair!r} is not NAME=VALUE, text in UTF-8")
        found[name] = value
    return found


def _time_of(at_ms: int | None) -> datetime | None:
    if at_ms is None:
        return None
    try:
        found = EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        found = None
    if found is None or at_ms < 0:
        raise click.UsageError(f"--at must be from 1970 to 9999, not {at_ms} ms")
    return found


def _check_form(raw: bool, as_json: bool) -> None:
    if raw and as_json:
        raise click.UsageError("pass --raw or --json, not both")


def _show(job: Job, raw: bool, as_json: bool, *, is_cut: bool = False) -> bool:
    """Print a job. False: it cannot be read, which stderr tells."""
    try:
        fields = _job_fields(job)
    except CorruptRecordError as error:
        report.show_error(error, click.get_current_context().command_path, as_json=as_json)
        return False
    key, value = fields["key"], fields["value"]
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(value + b"\n")
        return True
    if as_json:
        encoded = {name: b64encode(one).decode() for name, one in (("key", key), ("value", value)) if one is not None}
        report.print_json("job", **fields | encoded)
        return True
    parts = [job.id, f"due {report.moment(fields['due_at_ms'])}", f"attempt {job.attempt}"]
    if key is not None:
        parts.append(f"key {_text_of(key)}")
    if isinstance(job, DeadJob):
        parts.append(f"dead: {job.reason}")
    line = report.printable("  ".join([*parts, _text_of(value)]))
    columns = terminal.width() if is_cut else None
    print(line if columns is None else terminal.cut(line, columns))
    return True


def _job_fields(job: Job) -> dict[str, Any]:
    """The fields of a job, `key` and `value` in bytes. Raises CorruptRecordError."""
    fields: dict[str, Any] = {
        "id": job.id, "attempt": job.attempt, "enqueued_at_ms": _ms_of(job.enqueued_at),
        "due_at_ms": _ms_of(job.due_at), "properties": job.properties,
        "key": job.key.encode() if isinstance(job.key, str) else job.key, "value": job.value,
    }
    if isinstance(job, DeadJob):
        fields |= {"died_at_ms": _ms_of(job.died_at), "reason": job.reason}
    return fields


def _ms_of(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


def _text_of(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
