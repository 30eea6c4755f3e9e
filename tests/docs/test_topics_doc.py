"""docs/topics.md: its examples run, and print what stands below them; it names every public method and option."""
import inspect
import re
from pathlib import Path

import pytest

import seglog
from support.pages import run_examples

PAGE = Path(__file__).parents[2] / "docs/topics.md"
PUBLIC = (
    seglog.Topic, seglog.Consumer, seglog.Message, seglog.DeadMessage, seglog.TopicProducer, seglog.SubscriptionStats,
    seglog.CompactedMessage,
)
# For tests of a program.
INNER = {"fs", "clock", "chance"}
NAMES = sorted(({name for public in PUBLIC for name in dir(public) if not name.startswith("_")}
                | {name for function in (seglog.Topic, seglog.Topic.subscribe, seglog.TopicProducer.publish)
                   for name in inspect.signature(function).parameters}) - INNER - {"self"})


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(PAGE, capsys)
    assert count == 6


@pytest.mark.parametrize("name", NAMES)
def test_whatever_it_can_be_asked_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", PAGE.read_text())
