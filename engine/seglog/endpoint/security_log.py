"""The security log: who logged in, what was refused, deleted and configured. They are warnings, which `seglog serve`
shows by default, except for logins that succeed.

What clients send is escaped: a name cannot forge a line, nor send escape sequences to a terminal.
"""
import time
from collections.abc import Callable

from seglog.logger import Logger

_LOG = Logger("seglog.security")
_TEXT_MAX = 200
_LINES_PER_SECOND = 20      # of each kind: a flood of bad requests must not fill the disk


def escaped(text: object) -> str:
    """Text of a client for a line of a log: in quotes, printable ASCII, not too long."""
    shown = ascii(str(text)[: _TEXT_MAX + 1])
    return shown if len(str(text)) <= _TEXT_MAX else f"{shown[:_TEXT_MAX]}...'"


class SecurityLog:
    """The lines of one server."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._second: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def logged_in(self, client_host: str, principal: str) -> None:
        self._write("logged in", "%s logged in from %s", escaped(principal), client_host, tell=_LOG.info)

    def login_failed(self, client_host: str, name: str) -> None:
        self._write("login failed", "login failed: %s from %s", escaped(name), client_host)

    def refused(self, client_host: str, why: object) -> None:
        self._write("refused", "closed the connection of %s: %s", client_host, escaped(why))

    def deleted(self, client_host: str, principal: str, what: str, names: object) -> None:
        self._write("deleted", "%s from %s deleted %s %s", escaped(principal), client_host, what, escaped(names))

    def configured(self, client_host: str, principal: str, kind: str, name: str, changes: object) -> None:
        self._write(
            "configured", "%s from %s configured %s %s: %s", escaped(principal), client_host, kind, escaped(name),
            escaped(changes))

    def marked(self, client_host: str, principal: str, marker: object, partitions: int, first: object) -> None:
        self._write(
            "markers", "%s from %s wrote transaction markers to %s partitions, such as %s: %s", escaped(principal),
            client_host, str(partitions), escaped(first), escaped(marker))

    def users_changed(self, client_host: str, principal: str, names: object) -> None:
        self._write("users", "%s from %s changed the users %s", escaped(principal), client_host, escaped(names))

    def acls_changed(self, client_host: str, principal: str, what: str, acls: object) -> None:
        self._write("ACLs", "%s from %s %s the ACLs %s", escaped(principal), client_host, what, escaped(acls))

    def denied(self, client_host: str, principal: str, operation: str, kind: str, name: object) -> None:
        self._write(
            "denied", "%s from %s may not %s %s %s", escaped(principal), client_host, operation, kind, escaped(name))

    def _write(self, kind: str, line: str, *arguments: str, tell: Callable[..., None] = _LOG.warning) -> None:
        second = int(self._now_s())
        if self._second.get(kind) != second:
            left_out = self._counts.get(kind, 0) - _LINES_PER_SECOND
            if left_out > 0:
                tell("%d more lines of the kind %r were left out", left_out, kind)
            self._second[kind], self._counts[kind] = second, 0
        self._counts[kind] += 1
        if self._counts[kind] <= _LINES_PER_SECOND:
            tell(line, *arguments)
