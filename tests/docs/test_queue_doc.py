"""docs/queue.md: its examples run, and print what stands below them; it names every public method and option."""
import inspect
import re
from pathlib import Path

import pytest

import seglog
from seglog.queue.dead import DeadJobs
from support.pages import run_examples

PAGE = Path(__file__).parents[2] / "docs/queue.md"


class OtherQueue:
    """What the page calls of persistqueue.SQLiteAckQueue, which is not installed for the tests."""

    def __init__(self, items):
        self.items = items

    @property
    def size(self):
        return len(self.items)

    def get(self, block):
        assert not block
        return self.items[0]

    def ack(self, item):
        self.items.remove(item)


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, names = run_examples(PAGE, capsys)
    assert count == 12
    with seglog.Queue("moved") as jobs:
        names["move"](OtherQueue([{"to": "u1"}, {"to": "u2"}]), jobs)
        assert [job.value for job in jobs.peek(3)] == [b'{"to": "u1"}', b'{"to": "u2"}']


# For tests of a program.
INNER = {"fs", "clock", "chance"}
NAMES = sorted(({
    name for public in (seglog.Queue, seglog.Job, seglog.DeadJob, DeadJobs) for name in dir(public)
    if not name.startswith("_")
} | set(inspect.signature(seglog.Queue).parameters))
  - INNER)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_it_can_be_asked_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", PAGE.read_text())
