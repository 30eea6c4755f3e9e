"""docs/compared.md: every command of ours that it names takes the options that it is given."""
import re
import shlex
from pathlib import Path

import click
import pytest

from seglog.tools.cli import cli

PAGE = (Path(__file__).parents[2] / "docs/compared.md").read_text()
COMMANDS = sorted({found for found in re.findall(r"`seglog ([^`]+)`", PAGE) if not found.startswith(("demo", "serve"))})


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_the_page_is_one(words):
    given = shlex.split(words)
    command, context = cli, click.Context(cli)
    if given[0] == "help":
        given = [*given[1:], "--help"]
    while isinstance(command, click.Group):
        command = command.get_command(context, given.pop(0))
        assert command is not None
        context = click.Context(command, parent=context)
    named = {name for parameter in command.get_params(context) for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in given if word.startswith("-")} <= named


def test_there_is_something_to_check():
    assert len(COMMANDS) > 20
