import sys
from collections.abc import Iterator

import pytest

from support.outside.cuts import PowerCuts
from support.outside.fork_server import ForkServer


@pytest.fixture(scope="session")
def recorder(tmp_path_factory) -> Iterator[ForkServer]:
    """Starts processes that are recorded."""
    if sys.platform != "linux":
        pytest.skip("the recorder needs LD_PRELOAD and /proc, as Linux has them")
    with ForkServer(tmp_path_factory.mktemp("recorder")) as server:
        yield server


@pytest.fixture(scope="session")
def whole_runs():
    """Recordings in which nothing failed, by what they are of: each is made once."""
    return {}


@pytest.fixture
def record(in_memory, recorder, whole_runs):
    """`record(record_log, kind, seed, fsync, ...)`: a case, made now or before."""
    def recorded(make, *arguments, **options):
        if options.get("faults"):
            return make(in_memory, recorder, *arguments, **options)
        key = make, arguments, tuple(sorted(options.items()))
        if key not in whole_runs:
            whole_runs[key] = make(in_memory, recorder, *arguments, **options)
        return whole_runs[key]

    return recorded


@pytest.fixture
def power_cuts(in_memory, recorder, tmp_path) -> PowerCuts:
    """Judges states in memory; what violates is kept in the test's directory."""
    keep = tmp_path / "violations"
    keep.mkdir()
    scratch = in_memory / "scratch"
    scratch.mkdir()
    return PowerCuts(scratch, recorder, keep)


JUDGED = {"states": 0, "recordings": 0}     # of the whole run


def pytest_terminal_summary(terminalreporter):
    if JUDGED["states"]:
        terminalreporter.write_line(f"{JUDGED['states']} states of {JUDGED['recordings']} recordings were judged")


@pytest.fixture
def holds(power_cuts):
    """Call it at the end of a test: nothing violated."""
    def check(least_states):
        verdicts = power_cuts.verdicts
        JUDGED["states"] += verdicts.states
        JUDGED["recordings"] += verdicts.recordings
        assert not verdicts.violations, f"{verdicts}\nkept in {power_cuts.keep}; see tests/outside/README.md"
        assert verdicts.states >= least_states, verdicts

    return check
