"""Where a request came from, for whoever answers it."""
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple


class RequestContext(NamedTuple):
    """What a handler is told beside the request itself.

    version         of the API, as the client asked
    client_host     as Kafka shows it: "/127.0.0.1"
    host, port      where this client finds the only node
    principal       who it is: "User:alice", or "User:ANONYMOUS" where nobody asks
    """

    version: int
    client_id: str | None
    client_host: str
    host: str
    port: int
    principal: str = "User:ANONYMOUS"


# What answers a request; None: nothing goes back (Produce with acks=0).
Handler = Callable[[Any, RequestContext], Awaitable[Any]]
