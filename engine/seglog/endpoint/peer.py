"""The other side of a connection, as handlers see it that wait: whether it is still there.

A request is handled without reading from its connection, so nobody would notice that a client has gone while its fetch
waits. The server asks the system once a second about the connections that are watched.
"""
import contextlib
import select
from collections.abc import Callable, Iterable, Iterator

# Linux only; elsewhere an abandoned connection is noticed when the wait is over.
_CLOSED = getattr(select, "POLLRDHUP", 0)


class Peer:
    """Use it in the loop's thread. is_gone: it has closed its side of the connection."""

    def __init__(self, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        self.is_gone = False
        self._calls: list[Callable[[], None]] = []

    @property
    def is_watched(self) -> bool:
        return bool(self._calls)

    @contextlib.contextmanager
    def watched(self, gone: Callable[[], None]) -> Iterator[None]:
        """Within the context, `gone` is called once if the client leaves."""
        self._calls.append(gone)
        try:
            yield
        finally:
            self._calls.remove(gone)

    def leave(self) -> None:
        """Note that the client has left."""
        self.is_gone = True
        for call in list(self._calls):
            call()


def leave_closed(peers: Iterable[Peer]) -> None:
    """Tell those of the watched peers that have closed their side of the connection."""
    watched = {peer.descriptor: peer for peer in peers if peer.is_watched and not peer.is_gone}
    if not watched or not _CLOSED or not hasattr(select, "poll"):
        return
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, _CLOSED)
    for descriptor, _ in poll.poll(0):
        watched[descriptor].leave()
