"""A log to back up, in the log dir `data`, and the place of its backups."""
import pytest

import seglog
from seglog.clock import ManualClock
from support.backed_log import CONFIG, NOW, fill


@pytest.fixture
def data(in_memory):
    return in_memory / "data"


@pytest.fixture
def store(in_memory):
    return in_memory / "store"


@pytest.fixture
def log(data):
    with seglog.open(data / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as opened:
        fill(opened)
        yield opened
