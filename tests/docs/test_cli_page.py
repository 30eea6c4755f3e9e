"""Pages that show commands: their examples are what the commands print, their option tables what they take.

    SEGLOG_UPDATE_DOCS=1 python -m pytest tests/docs     # writes them anew
"""
import math
import os
import re
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from seglog.attach.shared_queue import Queue
from seglog.clock import ManualClock
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.worker import InlineWorker
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.tools.cli import COMMANDS, GROUPS, HIDDEN, cli
from seglog.tools.terminal import display_options
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.command import golden_lines
from support.golden import golden_cases
from support.internal_topics import kraft
from support.keyed_topic import keyed_batch
from support.pages import check_part
from support.topics import batch, delayed

TOP = Path(__file__).parents[2]
OVERVIEW = TOP / "docs/cli.md"
PAGES = sorted((TOP / "docs/commands").glob("*.md"))
README = TOP / "README.md"
TUTORIAL = TOP / "docs/tutorial.md"
SAMPLE = TOP / "tools/sample/orders-0"
BLOCK = re.compile(r"<!-- (?P<what>seglog|options of) (?P<words>.*) -->\n(?P<body>(?:(?!<!--).*\n)*)<!-- end -->\n")
CUT = "cut-0"       # the sample with a torn .timeindex
HURT = "hurt-0"     # the sample with a flipped bit in the middle


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


def make_delayed_topic(path):
    """A managed ledger with ten messages that are due in the year 2100, in four ledgers."""
    clock = ManualClock(1_700_000_000_000)
    config = {"managedLedgerMaxEntriesPerLedger": 3, "defaultRetentionTimeInMinutes": -1}
    buckets = DelayedDeliveryConfig(ledger_step=0, min_index_count=4)
    with ManagedLedger(path, config=config, clock=clock) as topic:
        topic.add_entries(delayed(n, 4_102_444_800_000 + 60_000 * n) for n in range(10))
        with DelayedDelivery(topic, buckets, clock=clock, new_worker=InlineWorker) as delivery:
            delivery.dispatcher(topic.open_cursor("billing", "earliest")).read()


def example(arguments, workplace):
    """The command and what it prints; each begins with the sample as it was shipped."""
    shutil.rmtree(workplace / "topics", ignore_errors=True)
    if "topics/orders" in arguments:
        make_delayed_topic(workplace / "topics/orders")
    shutil.rmtree(workplace / "kafka-logs", ignore_errors=True)
    shutil.rmtree(workplace / "new-logs", ignore_errors=True)
    shutil.copytree(SAMPLE, workplace / "kafka-logs/orders-0")
    if f"kafka-logs/{CUT}" in arguments:
        shutil.copytree(SAMPLE, workplace / "kafka-logs" / CUT)
        index = workplace / "kafka-logs" / CUT / "00000000000000000000.timeindex"
        index.write_bytes(index.read_bytes()[:-1])
    if f"kafka-logs/{HURT}" in arguments:
        shutil.copytree(SAMPLE, workplace / "kafka-logs" / HURT)
        log = workplace / "kafka-logs" / HURT / "00000000000000000000.log"
        raw = bytearray(log.read_bytes())
        raw[len(raw) // 2] ^= 1
        log.write_bytes(raw)
    if any(argument.startswith("broker") for argument in arguments):     # of a KRaft broker that was killed
        shutil.rmtree(workplace / "broker", ignore_errors=True)
        shutil.copytree(kraft("4.1.1"), workplace / "broker")
    if arguments[0] == "queue":
        make_queue(workplace / "jobs")
    if arguments[0] == "ledger":
        make_topic(workplace / "orders")
        make_prices(workplace / "prices", is_compacted=arguments[1] == "convert")
    (workplace / "new-logs").mkdir()
    here = os.getcwd()
    os.chdir(workplace)
    try:
        out = CliRunner().invoke(cli, arguments).stdout
    finally:
        os.chdir(here)
    out = out.replace(f"{workplace}/", "")
    return "```\n" + f"$ seglog {shlex.join(arguments)}\n{out}" + "```\n"


def make_topic(path):
    """Five entries, three a ledger, two messages each; one subscription."""
    shutil.rmtree(path, ignore_errors=True)
    config = {"managedLedgerMaxEntriesPerLedger": 3, "brokerEntryMetadataInterceptors": "timestamp,index"}
    clock = ManualClock(1_700_000_000_000)
    with ManagedLedger(path, config=config, clock=clock) as topic:
        for n in range(5):
            topic.add_entry(batch(n, 2, 1_700_000_000_000 + n * 50))
            clock.advance(100)
        topic.open_cursor("billing", "earliest").mark_delete(Position(0, 1))


def make_prices(path, is_compacted):
    """Five batches of four messages with keys."""
    shutil.rmtree(path, ignore_errors=True)
    with ManagedLedger(path, clock=ManualClock(1_700_000_000_000)) as topic:
        for n in range(5):
            topic.add_entry(keyed_batch(n, [(f"key-{(n + m) % 6}", b"%d" % (n * m)) for m in range(4)]))
        if is_compacted:
            PulsarTopicCompactionService(topic).compact()


def make_queue(path):
    """A queue of three jobs, one of them due in the year 2100, and a dead one."""
    shutil.rmtree(path, ignore_errors=True)
    with Queue(path, max_attempts=1, clock=ManualClock(1_700_000_000_000)) as jobs:
        jobs.put(b"to nobody", key=b"u0")
        jobs.get(timeout=0).nack(reason="LookupError: no address")
        jobs.put(b"welcome u1", key=b"u1")
        jobs.put(b"remind u1", key=b"u1", at=datetime(2100, 1, 1, tzinfo=UTC))
        jobs.put(b"reset password", priority=5)


def command_of(words):
    command = cli
    for word in words:
        command = command.get_command(click.Context(command), word)
    return command


# What every command takes stands on the page once.
DISPLAY = {option.name for option in display_options()}


def options(words):
    lines = ["| option | what it does |", "|---|---|"]
    for parameter in command_of(words).params:
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.name not in DISPLAY:
            name = ", ".join(parameter.opts)
            if not parameter.is_flag:
                name += f" {parameter.make_metavar(click.Context(cli))}".replace("|", " or ")
            lines.append(f"| `{name}` | {parameter.help} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("file", [*PAGES, README, TUTORIAL], ids=lambda file: file.name)
def test_a_page_shows_what_the_commands_print_and_take(file, workplace, monkeypatch):
    monkeypatch.setattr("seglog.tools.verify._WORTH_TIMING_S", math.inf)        # on a busy machine, a second passes
    page = file.read_text()
    assert BLOCK.search(page)

    def made(match):
        words = shlex.split(match["words"])
        body = example(words, workplace) if match["what"] == "seglog" else options(words)
        return f"<!-- {match['what']} {match['words']} -->\n{body}<!-- end -->\n"

    now = BLOCK.sub(made, page)
    if os.environ.get("SEGLOG_UPDATE_DOCS"):
        file.write_text(now)
        page = now
    assert page == now, "run the test once with SEGLOG_UPDATE_DOCS=1"


# What these print is another thing on another machine, or at another time (how old the oldest job is).
NO_EXAMPLE = (
    ["cursors", "ls"], ["demo"], ["doctor"], ["serve"], ["report"], ["completion"], ["man"], ["spark", "convert"],
    ["spark", "fetch"], ["spark", "sink"], ["restore"], ["queue", "ls"], ["queue", "stats"], ["queue", "serve"],
    ["users", "ls"],
    ["users", "add"], ["users", "rm"], *(["backup", name] for name in ("create", "ls", "check", "forget", "prune")),
)


def leaves():
    """Every command that can be called, as words."""
    groups = [[name] for name in COMMANDS]
    while groups:
        words = groups.pop(0)
        command = command_of(words)
        if isinstance(command, click.Group):
            groups += ([*words, inner] for inner in command.list_commands(click.Context(command)))
        else:
            yield words


def page_of(command):
    return (TOP / f"docs/commands/{command}.md").read_text()


def test_every_command_has_a_page_an_example_and_its_options():
    for words in leaves():
        page = page_of(words[0])
        assert page.startswith(f"# seglog {words[0]}\n")
        assert f"<!-- seglog {shlex.join(words)}" in page or words in NO_EXAMPLE
        assert f"<!-- options of {shlex.join(words)} -->" in page, words


def test_every_page_belongs_to_a_command():
    assert {page.stem for page in PAGES} == set(COMMANDS)


def test_the_overview_lists_the_commands_as_help_does():
    lines = ["| | command | what it does |", "|---|---|---|"]
    for group, commands in {**GROUPS, "Set up": HIDDEN}.items():
        for n, (name, line) in enumerate(commands.items()):
            lines.append(f"| {'' if n else group} | [`{name}`](commands/{name}.md) | {line} |")
    begin = "<!-- made from tools/cli.py by tests/docs/test_cli_page.py -->\n"
    check_part(OVERVIEW, begin, "\n".join(lines) + "\n", "<!-- end of commands -->\n")


def test_what_every_command_takes_stands_in_the_overview():
    page = OVERVIEW.read_text()
    for option in display_options():
        assert f"`{', '.join(option.opts)}" in page, option.opts


def test_every_field_of_records_and_batches_is_on_the_page_of_dump():
    page = page_of("dump")
    for case in golden_cases():
        for name in ("expected", "batches"):
            for field in {field for line in golden_lines(case, name) for field in line}:
                assert f"`{field}`" in page, field
