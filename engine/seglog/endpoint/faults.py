"""Faults that a test of a client asks for: an error instead of an answer, a delay, a connection that is dropped.

    server.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
    server.delay_next("Fetch", 0.5)
    server.drop_next("Produce", after=True)         # the records are written, and the client does not hear of it
"""
import threading
from dataclasses import dataclass

from seglog.endpoint.error_codes import Errors
from seglog.endpoint.messages import ApiKey
from seglog.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of one request."""

    error: Errors | None = None
    delay_s: float = 0.0
    drops_before: bool = False
    drops_after: bool = False


class PlannedFaults:
    """Faults that have not happened yet, by API, in the order of the calls. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()       # guards _planned
        self._planned: dict[int, list[Fault]] = {}

    def plan(self, api: str, fault: Fault, times: int) -> None:
        if not isinstance(times, int) or isinstance(times, bool) or times < 1:
            raise InvalidArgumentError(f"times is a number from 1 on, not {times!r}")
        key = api_key(api)
        with self._lock:
            self._planned.setdefault(key, []).extend([fault] * times)

    def clear(self) -> None:
        with self._lock:
            self._planned.clear()

    def next(self, key: int) -> Fault | None:
        """What is planned for this request; each counts once."""
        if not self._planned:       # nearly always, and no lock is needed to see it
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
    """"Produce", "ListOffsets" or "LIST_OFFSETS"."""
    wanted = str(name).replace("_", "").casefold()
    for key in ApiKey:
        if key.name.replace("_", "").casefold() == wanted:
            return key
    raise InvalidArgumentError(f"no API of Kafka's: {name!r}", hint="expected a name such as Produce, Fetch, Metadata "
        "or JoinGroup")


def error_named(name: str) -> Errors:
    """"NOT_LEADER_OR_FOLLOWER"."""
    try:
        return Errors[name]
    except KeyError:
        raise InvalidArgumentError(
            f"unknown Kafka error {name!r}", hint="expected a name such as NOT_LEADER_OR_FOLLOWER or REQUEST_TIMED_OUT"
        ) from None
