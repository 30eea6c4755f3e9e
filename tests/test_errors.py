"""What an error of seglog shows where nobody catches it: a traceback, in a shell or a log file."""
import copy
import pickle
import subprocess
import sys
import traceback

import pytest

import seglog
from seglog import errors

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SeglogError)]


def shown(error):
    return "".join(traceback.format_exception(error)).splitlines()


def test_a_traceback_ends_with_what_to_do(tmp_path):
    """As Python itself prints it."""
    code = f"import seglog; seglog.open_partition({str(tmp_path / 'none-0')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    with pytest.raises(errors.SeglogError) as caught:
        seglog.open_partition(tmp_path / "none-0")
    assert done.stderr.splitlines()[-2:] == [
        f"seglog.errors.{type(caught.value).__name__}: {caught.value}", f"try: {caught.value.hint}",
    ]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_shows_its_hint_once_and_what_was_added(kind):
    error = kind("it broke", hint="mend it")
    error.add_note("in the third round")
    for one in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert shown(one)[-3:] == [f"seglog.errors.{kind.__name__}: it broke", "try: mend it", "in the third round"]
    assert str(error) == "it broke"


def test_an_error_without_a_hint_of_its_own_shows_that_of_its_class():
    assert shown(errors.CorruptIndexError("it broke"))[-1] == f"try: {errors.CorruptIndexError.hint}"


def test_a_hint_that_is_set_later_is_shown():
    error = errors.StorageError("it broke")
    error.hint = "mend it"
    assert shown(error)[-1] == "try: mend it"


def test_a_note_may_be_put_in_place_of_others():
    error = errors.StorageError("it broke")
    error.__notes__ = ["another"]
    assert shown(error)[-1] == "another"
