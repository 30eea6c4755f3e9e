"""Parsing of addresses as users write them, and a check of which ones other machines can reach."""
import ipaddress
import socket

from seglog.errors import InvalidArgumentError


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


def checked_listen(text: str, *, is_safe: bool) -> tuple[str, int]:
    """Parse an address to listen on. It must be a loopback address unless the server `is_safe` (TLS, users or
    --insecure). Raises InvalidArgumentError."""
    host, port = parse_address(text)
    if not is_safe and not _is_loopback(host):
        raise InvalidArgumentError(
            f"{text} can be reached from other machines, and anyone there could read and delete everything",
            hint="listen on 127.0.0.1, or use TLS or users (SASL), or pass --insecure to allow it",
        )
    return host, port


def _is_host(host: str) -> bool:
    """Whether the system can look it up: each label of a host name has 1 to 63 bytes."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except socket.gaierror as error:
        raise InvalidArgumentError(f"cannot resolve {host!r}: {error.strerror}") from error
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
