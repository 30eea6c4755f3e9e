"""A queue's directory, and a clock that stands still."""
import pytest

from seglog.clock import ManualClock
from support.queue_model import NOW


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def path(in_memory):
    return in_memory / "jobs"
