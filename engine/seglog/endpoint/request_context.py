"""Where a request came from, for its handler."""
from collections.abc import Awaitable, Callable
from typing import Any

from seglog.coordinators.pending_answer import PendingAnswer
from seglog.endpoint.peer import Peer
from seglog.endpoint.security_log import SecurityLog
from seglog.endpoint.workload import UNLIMITED, Workload
from seglog.named_tuple import NamedTuple


class RequestContext(NamedTuple):
    """What a handler gets besides the request itself.

    version         of the API, as in the request
    client_host     as Kafka shows it: "/127.0.0.1"
    host, port      where this client finds the only node
    principal       the client's name: "User:alice", or "User:ANONYMOUS" without authentication
    peer            whether the client is still there, for handlers that wait
    work            what the request costs: handlers tell it of each row of their answer
    """

    version: int
    client_id: str | None
    client_host: str
    host: str
    port: int
    principal: str = "User:ANONYMOUS"
    peer: Peer = Peer()
    security: SecurityLog = SecurityLog()
    work: Workload = UNLIMITED

    def log_deleted(self, what: str, names: object) -> None:
        self.security.deleted(self.client_host, self.principal, what, names)

    def log_configured(self, kind: str, name: str, changes: object) -> None:
        self.security.configured(self.client_host, self.principal, kind, name, changes)


# Answers a request, or returns None for no answer (Produce with acks=0). Up to its first wait it runs in a callback of
# the loop, without a current task (loop.begun). Once it no longer needs the request, it may return a PendingAnswer,
# which saves the turn of the loop that a task needs.
Handler = Callable[[Any, RequestContext], Awaitable[Any | PendingAnswer[Any]]]
