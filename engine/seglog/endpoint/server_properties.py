"""A broker's `server.properties`, as the settings and the listeners of a server here."""
from collections.abc import Mapping
from pathlib import Path

from seglog.endpoint.broker_keys import broker_settings
from seglog.errors import InvalidConfigError
from seglog.format.java_properties import parse_properties
from seglog.named_tuple import NamedTuple


class ServerProperties(NamedTuple):
    """`listeners` and `advertised` as `seglog.serve` takes them, without listeners None. `settings`: those known here;
    `no_effect` and `unknown` are the names of all others."""

    listeners: list[str] | None
    advertised: list[str] | None
    settings: dict[str, object]
    no_effect: list[str]
    unknown: list[str]


def read_server_properties(path: Path, *, with_listeners: bool) -> ServerProperties:
    """Read a broker's file. `with_listeners=False`: its listeners have no effect. Raises InvalidConfigError, which
    names the file, and OSError."""
    listeners = advertised = None
    try:
        given = parse_properties(path.read_bytes().decode("latin-1"))
        if with_listeners and "listeners" in given:
            listeners, advertised = _listeners(given, "listeners"), _listeners(given, "advertised.listeners")
            given = {name: value for name, value in given.items() if name not in ("listeners", "advertised.listeners")}
        taken = broker_settings(given)
    except (ValueError, InvalidConfigError) as error:
        raise InvalidConfigError(f"{error}", file=path) from error
    unknown = taken.unknown
    settings = {name: value for name, value in taken.settings.items() if name not in unknown}
    return ServerProperties(listeners, advertised, settings, taken.no_effect, unknown)


def _listeners(given: Mapping[str, str], key: str) -> list[str]:
    """A broker's listeners as --listen or --advertise takes them, without those of a controller, which is not here."""
    controllers = {name.strip().upper() for name in given.get("controller.listener.names", "").split(",")}
    found = []
    for one in filter(None, (part.strip() for part in given.get(key, "").split(","))):
        name, mark, address = one.partition("://")
        if name.upper() in controllers:
            continue
        if address.startswith(":"):     # every address; a broker tells its clients the name of its machine
            if key != "listeners":
                continue
            address = f"0.0.0.0{address}"
        found.append(f"{name}{mark}{address}")
    return found
