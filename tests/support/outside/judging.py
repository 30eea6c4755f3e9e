"""The loop of a judge: a task a line of JSON from stdin, the facts a line to stdout."""
import json
import os
import sys
import traceback

from support.outside.notes import Notes

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
STEP = 10       # between the numbers of two states


def is_turn(number, of, turn):
    """Whether a look that is taken in one of `of` states in `make test`, and in each at full size, is taken in this."""
    return FULL or number // STEP % of == turn


def answer_all(judge):
    """`judge(task, note, number)` gives the facts; `number` is one that no worker uses. An exception is a fact, too."""
    note = Notes()
    for count, line in enumerate(sys.stdin):
        task = json.loads(line)
        note("state", task["name"])
        try:
            facts = judge(task, note, 10**12 + count * STEP)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            facts = {"error": f"{type(error).__name__} at {where.name}: {error}"}
        print(json.dumps(facts), flush=True)
