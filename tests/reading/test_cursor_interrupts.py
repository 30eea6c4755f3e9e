"""^C anywhere in a call of a cursor: no lock stays taken, the name is free when nobody has the cursor, and what was
committed is there."""
import gc
import os

import pytest

import seglog
from support.interrupts import interrupted_at_each_opcode
from support.waiting import in_time

STEP = 1 if os.environ.get("SEGLOG_TORTURE") else 3


@pytest.fixture
def log(in_memory):
    with seglog.open(in_memory / "data" / "orders-0") as log:
        log.append_many([(None, b"%d" % n) for n in range(100)])
        yield log


@pytest.mark.parametrize("shared", [False, True])
def test_an_interrupt_at_any_instruction_of_a_commit_leaves_every_lock_free(log, shared):
    beside = log.path.with_name("others-0")
    with log.cursor("mailer", shared=shared) as cursor:
        committed = [0]

        def commit(_):
            cursor.commit(committed[-1] + 1)
            committed.append(committed[-1] + 1)

        def check(_, where):
            at = in_time(lambda: cursor.position, where=where)
            assert at in (committed[-1], committed[-1] + 1), where
            cursor.commit(at if at < 90 or shared else 0)
            committed.append(at if at < 90 else 0)
            in_time(lambda: seglog.open(beside).close(), where=where)

        if shared:      # which goes forward only
            def commit(_):
                cursor.commit(5)

            def check(_, where):
                in_time(lambda: cursor.commit(5), where=where)
                assert cursor.position == 5, where
                in_time(lambda: seglog.open(beside).close(), where=where)

        assert interrupted_at_each_opcode(lambda: None, commit, check, step=STEP) > 30


def test_an_interrupt_at_any_instruction_of_opening_and_closing_leaves_the_name_free(log):
    def use(_):
        with log.cursor("mailer") as cursor:
            next(cursor.read())

    def check(_, where):
        in_time(lambda: log.cursor("mailer").close(), where=where)

    interrupted_at_each_opcode(lambda: None, use, check, step=STEP)


def test_a_cursor_whose_close_was_interrupted_can_be_closed_again(log):
    def close(cursor):
        cursor.close()

    def check(cursor, where):
        cursor.close()
        in_time(lambda: log.cursor("mailer").close(), where=where)

    interrupted_at_each_opcode(lambda: log.cursor("mailer"), close, check, step=STEP)


def test_a_name_is_free_when_its_cursor_was_dropped(log):
    log.cursor("mailer")
    log.cursor("mailer").close()


# (A log that an interrupt left to the garbage collector says so.)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_of_whoever_opens_a_log_dir_leaves_it_free(in_memory):
    path = in_memory / "data"

    def use(_):
        with seglog.open_dir(path) as log_dir:
            log_dir.log("orders").append(b"x")

    def check(_, where):
        gc.collect()        # monitoring keeps frames in cycles
        in_time(lambda: seglog.open_dir(path).close(), where=where)

    gc.freeze()         # each collection looks at what is made from now on, not at all that other tests have left
    try:
        interrupted_at_each_opcode(lambda: None, use, check, step=STEP * 7)
    finally:
        gc.unfreeze()
