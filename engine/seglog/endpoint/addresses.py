"""Parsing of addresses as users write them, and a check of which ones other machines can reach."""
import ipaddress
import socket
import ssl

from seglog.errors import InvalidArgumentError
from seglog.logger import Logger

_LOG = Logger(__name__)


def parse_address(text: str) -> tuple[str, int]:
    """Parse "127.0.0.1:9092", "[::1]:9092" or "localhost:0" into host and port. Raises InvalidArgumentError."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"an address must be a string such as 127.0.0.1:9092, not {type(text).__name__}")
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and _is_host(host) and port.isdecimal() and int(port) < 1 << 16):
        raise InvalidArgumentError(
            f"invalid address {text!r}",
            hint="expected an address such as 127.0.0.1:9092 or [::1]:9092; port 0 means any free port",
        )
    return host, int(port)


def checked_listen(
    text: str, *, has_users: bool, tls: ssl.SSLContext | None, insecure: bool
) -> tuple[str, int]:
    """Parse an address to listen on. Beyond loopback, clients must be authenticated, as users or by certificates that
    `tls` requires, and encrypted, unless `insecure`. Raises InvalidArgumentError."""
    host, port = parse_address(text)
    lacking = _lacking(has_users, tls)
    if not lacking or is_loopback(host):
        return host, port
    danger = "read along, passwords too" if lacking == ["TLS"] else "read, write and delete everything"
    if insecure:
        _LOG.warning(
            "insecure: %s can be reached from other machines, and without %s anyone there can %s", text,
            " and ".join(lacking), danger)
    else:
        raise InvalidArgumentError(
            f"{text} can be reached from other machines, and without {' and '.join(lacking)} anyone there could "
            f"{danger}",
            hint="listen on 127.0.0.1; or use TLS together with users (SASL) or with client certificates that are "
            "required; or pass --insecure: then nothing protects the data from that network",
        )
    return host, port


def _lacking(has_users: bool, tls: ssl.SSLContext | None) -> list[str]:
    """What a server would need beyond loopback."""
    lacking = []
    if not has_users and (tls is None or tls.verify_mode is not ssl.CERT_REQUIRED):
        lacking.append("authentication")
    if tls is None:
        lacking.append("TLS")
    return lacking


def _is_host(host: str) -> bool:
    """Whether the system can look it up: each label of a host name has 1 to 63 bytes."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def checked_page(
    text: str, *, has_users: bool, tls: ssl.SSLContext | None, insecure: bool
) -> tuple[str, int]:
    """The same for the web page. It asks for passwords only where nobody can read along, even if `insecure`."""
    host, port = checked_listen(text, has_users=has_users, tls=tls, insecure=insecure)
    if has_users and tls is None and not is_loopback(host):
        raise InvalidArgumentError(
            f"the page at {text} would ask for passwords that anyone could read on their way",
            hint="use TLS, or serve the page on 127.0.0.1",
        )
    return host, port


def is_loopback(host: str) -> bool:
    """Whether no other machine can reach an address of this host name. Raises InvalidArgumentError."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except socket.gaierror as error:
        raise InvalidArgumentError(f"cannot resolve {host!r}: {error.strerror}") from error
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
