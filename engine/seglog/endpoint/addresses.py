"""Addresses as people write them, and which of them other machines can reach."""
import ipaddress
import socket

from seglog.errors import InvalidArgumentError


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:9092", "[::1]:9092" or "localhost:0". Raises InvalidArgumentError."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"an address is text such as 127.0.0.1:9092, not {type(text).__name__}")
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and _is_host(host) and port.isdecimal() and int(port) < 1 << 16):
        raise InvalidArgumentError(f"no address: {text!r}", hint="expected an address such as 127.0.0.1:9092 or "
            "[::1]:9092; port 0 means any free port")
    return host, int(port)


def checked_listen(text: str, *, is_safe: bool) -> tuple[str, int]:
    """The same, for a server that must not be open to other machines unless it `is_safe`. Raises
    InvalidArgumentError."""
    host, port = parse_address(text)
    if not is_safe and not _is_loopback(host):
        raise InvalidArgumentError(
            f"{text} can be reached from other machines, and anybody there could read and delete everything",
            hint="listen on 127.0.0.1, or use TLS or users (SASL), or pass --insecure to allow it",
        )
    return host, port


def _is_host(host: str) -> bool:
    """Whether the system can be asked for it: a label of a name has 1 to 63 bytes."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except socket.gaierror as error:
        raise InvalidArgumentError(f"no address: {host!r}: {error.strerror}") from error
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
