"""Faults that a test of a client plans: an error instead of an answer, a delay, a dropped connection.

    server.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
    server.delay_next("Fetch", 0.5)
    server.drop_next("Produce", after=True)         # the records are written, but the client gets no answer
"""
import threading
from dataclasses import dataclass

from seglog.errors import InvalidArgumentError
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiKey


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one request."""

    error: Errors | None = None
    delay_s: float = 0.0
    drops_before: bool = False
    drops_after: bool = False


class PlannedFaults:
    """Faults that have not happened yet, by API, in the order of the calls. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()       # guards _planned
        self._planned: dict[int, list[Fault]] = {}

    @property
    def are_planned(self) -> bool:
        """Whether there is one, of any API."""
        return bool(self._planned)

    def plan(self, api: str, fault: Fault, times: int) -> None:
        if not isinstance(times, int) or isinstance(times, bool) or times < 1:
            raise InvalidArgumentError(f"times must be a positive integer, not {times!r}")
        key = api_key(api)
        with self._lock:
            self._planned.setdefault(key, []).extend([fault] * times)

    def clear(self) -> None:
        with self._lock:
            self._planned.clear()

    def next(self, key: int) -> Fault | None:
        """Take the fault that is planned for this request; None if there is none."""
        if not self._planned:       # nearly always: checked without the lock
            return None
        with self._lock:
            planned = self._planned.get(key)
            if not planned:
                return None
            fault = planned.pop(0)
            if not planned:
                del self._planned[key]
            return fault


def api_key(name: str) -> ApiKey:
    """The API of a name such as "Produce", "ListOffsets" or "LIST_OFFSETS". Raises InvalidArgumentError."""
    wanted = str(name).replace("_", "").casefold()
    for key in ApiKey:
        if key.name.replace("_", "").casefold() == wanted:
            return key
    raise InvalidArgumentError(
        f"unknown Kafka API {name!r}", hint="expected a name such as Produce, Fetch, Metadata or JoinGroup")


def error_named(name: str) -> Errors:
    """The error of a name such as "NOT_LEADER_OR_FOLLOWER". Raises InvalidArgumentError."""
    try:
        return Errors[name]
    except KeyError:
        raise InvalidArgumentError(
            f"unknown Kafka error {name!r}", hint="expected a name such as NOT_LEADER_OR_FOLLOWER or REQUEST_TIMED_OUT"
        ) from None
