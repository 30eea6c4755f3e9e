"""Any program over a managed ledger and its cursors does what a model of lists and sets does."""
import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from support.surroundings import place_in_memory
from support.topic_program import TopicProgram

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
PROGRAMS = 1000 if os.environ.get("SEGLOG_TORTURE") else 50

NAMES = st.sampled_from(["one", "two"])
NUMBERS = st.integers(0, 40)
STEPS = st.one_of(
    st.tuples(
        st.just("add"),
        st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3000)), min_size=1, max_size=6).map(
            lambda entries: ([count for count, _ in entries], [time for _, time in entries])
        ),
    ).map(lambda step: (step[0], *step[1])),
    st.tuples(st.just("switch"), st.sampled_from(["", "timestamp", "index", "timestamp,index"])),
    st.tuples(st.just("pass_time"), st.integers(-500, 500)),
    st.tuples(st.sampled_from(["roll", "reopen", "rest"])),
    st.tuples(st.just("subscribe"), NAMES, st.sampled_from(["earliest", "latest"])),
    st.tuples(st.just("unsubscribe"), NAMES),
    st.tuples(st.just("acknowledge"), NAMES, st.lists(NUMBERS, min_size=1, max_size=6)),
    st.tuples(st.just("acknowledge_part"), NAMES, NUMBERS, st.sets(st.integers(0, 4), max_size=5)),
    st.tuples(st.just("mark_delete"), NAMES, NUMBERS),
    st.tuples(st.just("seek"), NAMES, NUMBERS),
)


@given(st.lists(STEPS, max_size=25))
@settings(max_examples=PROGRAMS)
def test_a_program_does_what_the_model_does(steps):
    with tempfile.TemporaryDirectory(dir=place_in_memory()) as temporary:
        program = TopicProgram(Path(temporary, "orders"))
        try:
            for name, *arguments in steps:
                getattr(program, name)(*arguments)
            program.check()
            program.reopen()
            program.check()
        finally:
            program.topic.close()
