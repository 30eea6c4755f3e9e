"""Where a server listens: one or several addresses, each with a name, a protocol and the address that it gives to
clients.

    PLAINTEXT://127.0.0.1:9092      the name is the protocol
    INTERNAL://127.0.0.1:9092       listener.security.protocol.map says which protocol it has
    127.0.0.1:9092                  the protocol that the users and the TLS of the server make
"""
import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from seglog.endpoint.addresses import checked_listen, parse_address
from seglog.errors import InvalidArgumentError, InvalidConfigError
from seglog.fs.refusals import storage_error
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple

_LOG = Logger(__name__)

_BACKLOG = 1024
_NO_FILES_PAUSE_S = 0.1
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)


class Protocol(Enum):
    """How clients of a listener connect, by Kafka's names (SecurityProtocol)."""

    PLAINTEXT = (False, False)
    SSL = (True, False)
    SASL_PLAINTEXT = (False, True)
    SASL_SSL = (True, True)

    def __init__(self, has_tls: bool, has_sasl: bool) -> None:
        self.has_tls = has_tls
        self.has_sasl = has_sasl

    @property
    def asks_for_login(self) -> bool:
        """Whether a client that has just connected is not yet served."""
        return self.has_tls or self.has_sasl


class Listener(NamedTuple):
    """`advertised`: the address for clients, or None for the one that they connect to."""

    name: str
    protocol: Protocol
    host: str
    port: int
    advertised: tuple[str, int] | None = None


def listeners_of(
    listen: str | Sequence[str], advertise: str | Sequence[str] | None, protocols: Mapping[str, Protocol], *,
    has_users: bool, tls: ssl.SSLContext | None, insecure: bool,
) -> list[Listener]:
    """The listeners that a user asks for, checked as `checked_listen` does. `protocols`: by names that are no protocol.
    `has_users`: whether a listener without a name asks for a login. Raises InvalidArgumentError."""
    advertised = _advertised(advertise)
    by_default = next(
        one for one in Protocol if (one.has_tls, one.has_sasl) == (tls is not None, has_users))
    found: dict[str, Listener] = {}
    for text in _texts(listen, "listen"):
        name, address = _parted(text)
        protocol = by_default if name is None else _protocol(name, protocols)
        name = name or protocol.name
        if name in found:
            raise InvalidArgumentError(
                f"two listeners have the name {name}", hint="give each its own, such as INTERNAL://127.0.0.1:9093")
        if protocol.has_tls and tls is None:
            raise InvalidArgumentError(
                f"{text}: {protocol.name} needs a certificate", hint="--tls-cert; in Python, tls=")
        host, port = checked_listen(
            address, has_users=protocol.has_sasl, tls=tls if protocol.has_tls else None,
            insecure=insecure)
        found[name] = Listener(name, protocol, host, port)
    if not found:
        raise InvalidArgumentError("a server needs an address to listen on", hint="such as 127.0.0.1:9092")
    for name, (text, address_of) in advertised.items():
        one = next(iter(found)) if name is None and len(found) == 1 else name
        if one is None:
            raise InvalidArgumentError(
                f"{text!r} does not say which listener has this address for clients",
                hint=f"put its name in front, such as {next(iter(found))}://{text}")
        if one not in found:
            raise InvalidArgumentError(f"{text!r} is for the listener {one}, and the server has {', '.join(found)}")
        found[one] = found[one]._replace(advertised=address_of)
    return list(found.values())


def protocols_of(text: str) -> dict[str, Protocol]:
    """Parse listener.security.protocol.map: "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL". Raises InvalidConfigError."""
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not _NAME.fullmatch(name) or protocol not in Protocol.__members__:
            raise InvalidConfigError(
                f"listener.security.protocol.map: {pair!r} is not NAME:PROTOCOL, and the protocols are "
                f"{', '.join(Protocol.__members__)}")
        if name in found:
            raise InvalidConfigError(f"listener.security.protocol.map has {name} twice")
        found[name] = Protocol[protocol]
    return found


def _texts(given: str | Sequence[str], what: str) -> Sequence[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(
            f"{what} must be a string such as 127.0.0.1:9092, or a list of them, not {given!r:.60}")
    return texts


def _parted(text: str) -> tuple[str | None, str]:
    """The name in front of an address, in capitals as in Kafka, and the address. Raises InvalidArgumentError."""
    name, mark, address = text.rpartition("://")
    if not mark:
        return None, text
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"no listener can have the name {name!r:.100}", hint="letters, digits, _ and -")
    return name.upper(), address


def _protocol(name: str, protocols: Mapping[str, Protocol]) -> Protocol:
    if name in protocols:
        return protocols[name]
    if name in Protocol.__members__:
        return Protocol[name]
    raise InvalidArgumentError(
        f"the listener {name} has no protocol",
        hint=f"--config listener.security.protocol.map={name}:PLAINTEXT, or one of "
        f"{', '.join(list(Protocol.__members__)[1:])}")


def _advertised(given: str | Sequence[str] | None) -> dict[str | None, tuple[str, tuple[str, int]]]:
    """Addresses for clients, with what was given, by the listener's name; None if it has no name."""
    found: dict[str | None, tuple[str, tuple[str, int]]] = {}
    for text in () if given is None else _texts(given, "advertise"):
        name, address = _parted(text)
        if name in found:
            raise InvalidArgumentError(f"{text!r}: this listener has another address for clients, too")
        found[name] = text, parse_address(address)
    return found


class ListeningSocket:
    """A listener that has its address. `host`, `port`: what it is. Use it in the loop's thread."""

    def __init__(self, listener: Listener) -> None:
        """Raises StorageError if the address is not available, InvalidArgumentError if there is no such host."""
        self.listener = listener
        self._socket = _bound(listener.host, listener.port)
        self.host: str
        self.port: int
        self.host, self.port = self._socket.getsockname()[:2]
        self._resumes: asyncio.TimerHandle | None = None      # when it accepts again, after a pause

    def accept_by(self, accept: "Callable[[ListeningSocket], None]") -> None:
        """Have `accept` called in this loop whenever a connection waits."""
        self._accept = accept
        self._resume()

    def accept(self) -> tuple[socket.socket, str] | None:
        """A waiting connection and the client's host, or None if none is left or the process has no descriptors for
        it."""
        try:
            sock, peer = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):       # the client has left again
            return None
        except OSError as error:    # mostly no descriptor is free, and the listener stays readable
            _LOG.warning("could not accept a connection: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            self._resumes = loop.call_later(_NO_FILES_PAUSE_S, self._resume)
            return None
        return sock, peer[0]

    def _resume(self) -> None:
        self._resumes = None
        # Not by `sock_accept`: a task that is cancelled in it may lose a connection that has just been accepted.
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept, self)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._resumes is not None:
            self._resumes.cancel()
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise InvalidArgumentError(f"cannot resolve {host!r}: {error.strerror}") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException as error:
        with contextlib.suppress(OSError):
            sock.close()
        if isinstance(error, OSError):
            raise storage_error(error, "listen", f"{host}:{port}") from error
        raise
    return sock
