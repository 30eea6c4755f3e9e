"""Faults that a test of a client plans: an error instead of an answer, a delay, a dropped connection.

    server.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
    server.delay_next("Fetch", 0.5)
    server.drop_next("Produce", after=True)         # the records are written, but the client gets no answer
"""
import difflib
import threading
from collections.abc import Iterable
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


class PlannedFault:
    """A fault that a test has planned: what `fail_next`, `delay_next` and `drop_next` of a server return."""

    def __init__(self, api: ApiKey, fault: Fault, times: int, client_id: str | None) -> None:
        self._api = api
        self._fault = fault
        self._times = times
        self._client_id = client_id
        self._happened = 0

    @property
    def happened(self) -> int:
        """How many requests it has met so far."""
        return self._happened

    def __repr__(self) -> str:
        return f"<PlannedFault of {self._api.name}: happened {self._happened} of {self._times} times>"


class PlannedFaults:
    """Faults that have not happened yet, by API, in the order of the calls. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()       # guards _planned
        self._planned: dict[int, list[PlannedFault]] = {}

    def plan(self, api: str, fault: Fault, times: int, client_id: str | None) -> PlannedFault:
        """Plan it for the next `times` requests of an API; with `client_id`, of this client. Raises
        InvalidArgumentError."""
        if not isinstance(times, int) or isinstance(times, bool) or times < 1:
            raise InvalidArgumentError(
                f"times must be a positive integer, not {times!r}", hint="clear_faults() cancels what is planned")
        if client_id is not None and not isinstance(client_id, str):
            raise InvalidArgumentError(
                f"client_id must be text, not {type(client_id).__name__}",
                hint="the client.id in the configuration of the client that is meant")
        key = api_key(api)
        planned = PlannedFault(key, fault, times, client_id)
        with self._lock:
            self._planned.setdefault(key, []).append(planned)
        return planned

    def clear(self) -> None:
        with self._lock:
            self._planned.clear()

    def next(self, key: int, client_id: str | None) -> Fault | None:
        """Take the fault that is planned for this request of this client; None if there is none."""
        if not self._planned:       # nearly always: checked without the lock
            return None
        with self._lock:
            of_api = self._planned.get(key, [])
            for planned in of_api:
                if planned._client_id in (None, client_id):
                    planned._happened += 1
                    if planned._happened == planned._times:
                        of_api.remove(planned)
                        if not of_api:
                            del self._planned[key]
                    return planned._fault
            return None


# Names that APIs had, or have in librdkafka.
_OTHER_APIS = {"groupcoordinator": ApiKey.FIND_COORDINATOR, "offset": ApiKey.LIST_OFFSETS}


def api_key(name: str) -> ApiKey:
    """The API of a name such as "Produce", "ListOffsets" or "LIST_OFFSETS". Raises InvalidArgumentError."""
    known = {_folded(key.name): key for key in ApiKey}
    found = known.get(_folded(str(name)))
    if found is not None:
        return found
    known |= _OTHER_APIS
    meant = _meant(name, {folded: key.name.title().replace("_", "") for folded, key in known.items()})
    raise InvalidArgumentError(
        f"unknown Kafka API {name!r}", hint=meant or "expected a name such as Produce, Fetch, Metadata or JoinGroup")


# Names that librdkafka, and Kafka before 2.6, have for errors.
_OTHER_NAMES = {
    "INVALID_MSG": Errors.CORRUPT_MESSAGE,
    "INVALID_MSG_SIZE": Errors.INVALID_FETCH_SIZE,
    "MSG_SIZE_TOO_LARGE": Errors.MESSAGE_TOO_LARGE,
    "NOT_LEADER_FOR_PARTITION": Errors.NOT_LEADER_OR_FOLLOWER,
    "STALE_CTRL_EPOCH": Errors.STALE_CONTROLLER_EPOCH,
    "TOPIC_EXCEPTION": Errors.INVALID_TOPIC_EXCEPTION,
    "UNKNOWN": Errors.UNKNOWN_SERVER_ERROR,
    "UNKNOWN_TOPIC_OR_PART": Errors.UNKNOWN_TOPIC_OR_PARTITION,
}


def error_named(name: str | int) -> Errors:
    """The error of a name such as "NOT_LEADER_OR_FOLLOWER", or of its code, as the constants of clients are. Raises
    InvalidArgumentError."""
    is_code = isinstance(name, int) and not isinstance(name, bool)
    found = next((one for one in Errors if name == (one.value if is_code else one.name)), None)
    if found is Errors.NONE:
        raise InvalidArgumentError(
            "NONE is no error", hint="to let a request through, plan nothing; clear_faults() cancels what is planned")
    if found is not None:
        return found
    known = {_folded(one.name): one.name for one in Errors if one}
    known |= {_folded(other): error.name for other, error in _OTHER_NAMES.items()}
    raise InvalidArgumentError(
        f"unknown Kafka error {name!r}",
        hint=_meant(name, known) or "expected a name such as NOT_LEADER_OR_FOLLOWER or REQUEST_TIMED_OUT")


def _folded(name: str) -> str:
    return name.replace("_", "").casefold().removesuffix("exception")


def _meant(name: object, known: dict[str, str]) -> str | None:
    """"did you mean ...?", or None if no known name, by its folded spelling, is like this one."""
    folded = _folded(str(name))
    near = difflib.get_close_matches(folded, known, n=3, cutoff=0.75)
    found = [known[folded]] if folded in known else _names(known, [*near, *(one for one in known if folded in one)])
    return f"did you mean {' or '.join(found[:3])}?" if folded and found else None


def _names(known: dict[str, str], folded: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(known[one] for one in folded))
