"""`seglog serve`: let Kafka clients use a log dir."""
import difflib
import gc
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import click
from click.core import ParameterSource

from seglog.config import Fsync
from seglog.errors import InvalidArgumentError
from seglog.format import names
from seglog.opening import serve

from . import report
from .cli import Command
from .end_by_signal import EndBySignal
from .options import PATH, ConfigType, json_option

_OF_A_LOG_DIR = (names.META_PROPERTIES, names.SERVER_LOCK)
# From this likeness of two names on, one may be a typing error for the other.
_LIKE = 0.75

_Wanted = tuple[int | None, Mapping[str, object]]


class TopicType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """`orders:3`, a topic of three partitions; `orders`, one of num.partitions; and `orders:3:key=value,...`."""

    name = "topic[:partitions[:key=value,...]]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, _Wanted]:
        if isinstance(value, tuple):
            return value
        name, colon, rest = str(value).partition(":")
        partitions, _, settings = rest.partition(":")
        if not name or "=" in name or (colon and not (partitions.isdecimal() and 1 <= int(partitions) <= 10_000)):
            self.fail(f"{value!r} is not topic:partitions, such as orders:3", param, ctx)
        given: dict[str, object] = {}
        last = ""
        for part in settings.split(",") if settings else ():
            key, equals, text = part.partition("=")
            if equals:
                last, given[key] = key, text
            elif last:      # the value is a list, as of cleanup.policy=compact,delete
                given[last] = f"{given[last]},{part}"
            else:
                self.fail(f"{part!r} is not key=value, as in orders:3:cleanup.policy=compact", param, ctx)
        return name, (int(partitions) if colon else None, given)


@click.command(cls=Command)
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--listen", metavar="[NAME://]HOST:PORT", multiple=True, default=["127.0.0.1:9092"], show_default=True,
              help="Where to listen; port 0 is any free one. May be repeated with names: PLAINTEXT, SSL, "
              "SASL_PLAINTEXT, SASL_SSL, or one that `--config listener.security.protocol.map` has.")
@click.option("--advertise", metavar="[NAME://]HOST:PORT", multiple=True,
              help="The address to give to clients, if it differs from the one that they connect to. May be repeated, "
              "for each listener by its name.")
@click.option("--create-topic", "topics", type=TopicType(), multiple=True,
              help="Create this topic if it does not exist: with this number of partitions, or that of "
              "`--config num.partitions`, and its own settings. May be repeated.")
@click.option("--fsync", type=click.Choice(get_args(Fsync)), default="batch", show_default=True,
              help="When appends are synced to the disk; acks=all is answered accordingly.")
@click.option(
    "--config", "settings", type=ConfigType(), multiple=True,
    help="A setting: of the broker, of its logs or of the cleaner, by Kafka's name, such as retention.ms "
    "or offsets.topic.num.partitions. A topic's own setting takes precedence. May be repeated. Kafka's defaults "
    "otherwise.",
)
@click.option(
    "--properties", type=PATH,
    help="A broker's server.properties: its settings are taken over, and those without effect or unknown are named; "
    "its listeners, too, unless --listen is given. --config takes precedence.",
)
@click.option("--tls-cert", type=PATH, help="Encrypt connections: a file with the certificate chain.")
@click.option("--tls-key", type=PATH, help="The file with the private key, if it is not in --tls-cert.")
@click.option("--tls-client-ca", type=PATH,
              help="Accept only clients with a certificate of these authorities: a file with their certificates.")
@click.option("--sasl-users", type=PATH,
              help="Require a password (SASL PLAIN or SCRAM): a file with lines `name:password`. Users that are "
              "stored with the log dir: see `seglog users`.")
@click.option("--authorizer", is_flag=True,
              help="Let clients do only what Kafka's ACLs allow them; `--config super.users=User:NAME` may do "
              "everything.")
@click.option("--http", metavar="HOST:PORT",
              help="Serve a web page with topics, groups and lag at this address, and metrics for Prometheus at "
              "/metrics.")
@click.option("--insecure", is_flag=True,
              help="Allow an address that other machines can reach without TLS, or without passwords and client "
              "certificates: anyone who reaches it can read, write and delete everything, or read passwords and "
              "records.")
@json_option
def command(
    directory: Path, listen: Sequence[str], advertise: Sequence[str], topics: Sequence[tuple[str, _Wanted]],
    fsync: Fsync, settings: Sequence[tuple[str, str]], properties: Path | None, tls_cert: Path | None,
    tls_key: Path | None, tls_client_ca: Path | None, sasl_users: Path | None, authorizer: bool, http: str | None,
    insecure: bool, as_json: bool,
) -> int:
    """Let Kafka clients produce to and consume from the log dir DIR, which is created if it does not exist.

    It is a single node for tests, laptops and the edge, not a cluster. It prints its address when it listens. It runs
    until ^C or SIGTERM, and then closes every log.
    """
    with EndBySignal() as end:
        click.get_current_context().with_resource(report.warnings_shown())
        is_new = not directory.exists()
        is_told = click.get_current_context().get_parameter_source("listen") is ParameterSource.COMMANDLINE
        server = serve(
            directory, listen=listen if is_told or properties is None else None, topics=dict(topics),
            config=dict(settings), properties=properties, fsync=fsync, advertise=advertise,
            users=None if sasl_users is None else _users(sasl_users), tls=_tls(tls_cert, tls_key, tls_client_ca),
            http=http, insecure=insecure, authorizer=authorizer,
        )
        with end.during_start(), server:
            end.has_started()
            if as_json:
                report.print_json(
                    "listening", bootstrap_servers=server.bootstrap_servers, listeners=server.listeners,
                    directory=str(directory), created=is_new, http=server.http_address)
                sys.stdout.flush()      # a pipe would buffer it until the server ends
            else:
                if is_new:      # a mistyped name would be an empty server, and nobody would know why
                    click.echo(f"created {server.path}, a new, empty log dir{_beside(Path(server.path))}")
                listeners = server.listeners
                for name, address in listeners.items():
                    click.echo(f"listening on {address}" + (f" ({name})" if len(listeners) > 1 else ""))
                if server.http_address:
                    click.echo(f"web page at http://{server.http_address}/, metrics at /metrics")
            # The objects of the start stay: the collector need not look at them again and again, 25 ms each time.
            gc.freeze()
            end.wait()
    return 0


def _beside(created: Path) -> str:
    """The log dir beside a new one that may have been meant."""
    near = difflib.get_close_matches(created.name, os.listdir(created.parent), 2, _LIKE)
    meant = next((path for name in near if (path := created.with_name(name)) != created and _is_log_dir(path)), None)
    return "" if meant is None else f"; did you mean {meant}?"


def _is_log_dir(path: Path) -> bool:
    try:
        return any(name in _OF_A_LOG_DIR or names.parse_partition_dir(name) is not None for name in os.listdir(path))
    except OSError:
        return False


def _users(path: Path) -> dict[str, str]:
    users = {}
    for number, raw in enumerate(path.read_bytes().splitlines(), 1):
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"line {number} is not UTF-8", file=path) from error
        if line.strip() and not line.startswith("#"):
            name, colon, password = line.partition(":")
            if not (colon and name and password):
                raise InvalidArgumentError(f"line {number} is not name:password", file=path)
            users[name] = password
    if not users:
        raise InvalidArgumentError("no line of the form name:password", file=path)
    return users


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        for option, path in (("--tls-key", key), ("--tls-client-ca", client_ca)):
            if path is not None:
                raise InvalidArgumentError(f"{option} without --tls-cert")
        return None
    for path in (certificate, key, client_ca):
        if path is not None:
            path.open("rb").close()     # OpenSSL does not name the file that it cannot read
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise InvalidArgumentError(
            "not a certificate with its key, in PEM", file=certificate,
            hint="if the key is in a separate file, pass it with --tls-key",
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise InvalidArgumentError("not certificates in PEM", file=client_ca) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
