"""The functions that open logs: `seglog.open`, `seglog.open_dir` and `seglog.serve`.

They are above `log/` and `upkeep/`, and pass the retention rule and the cleaner to each log: `log/` does not import
the code that examines or rewrites logs.
"""
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from seglog.clock import Clock
from seglog.config import Fsync, LogConfig, Settings
from seglog.errors import InvalidArgumentError, InvalidConfigError
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.late_import import late
from seglog.log.log import Log
from seglog.logger import Logger
from seglog.reading.arguments import check_mapping, checked_config, checked_path
from seglog.reading.cluster_settings import settings_beside

if TYPE_CHECKING:
    import ssl

    from seglog.endpoint.local_server import LocalServer
    from seglog.log.expiry import LogAge, Verdict
    from seglog.log.open_dir import LogDir
    from seglog.upkeep.cleaner_config import CleanerConfig
    from seglog.upkeep.cleaner_thread import LogCleaner

_LOG = Logger(__name__)


def open(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    fsync: Fsync = "batch",
    leader_epoch: int = 0,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    create: bool = True,
    attach: bool = False,
) -> Log:
    """Open a partition directory such as `data/orders-0` to append to it, and create it if it does not exist.

    `config`: Kafka's keys (docs/config.md). `fsync`: when appended records are on the disk. "batch": when the append
    returns (concurrent appends share a sync); "interval": after flush.ms or flush.messages; "never": when the system
    writes them, a segment is full, or flush() or close() is called. `leader_epoch`: the epoch of appended batches; a
    log that has a later epoch continues with that. `clock`, `fs`: for tests. `create=False` refuses if the directory
    does not exist. `attach=True`: several processes share the log if each of them passes it. The first one owns it, the
    others append through that one; if it ends, another takes over (docs/processes.md).

    Raises what `Log` raises; with `attach=True` also UnsupportedForMessageFormatError for a log below format v2.
    """
    opening = partial(
        Log, path, config=config, fsync=fsync, leader_epoch=leader_epoch, clock=clock, fs=fs, create=create,
        retention=_expired, maintainer_of=_cleaner_of_its_own, told=settings_beside,
    )
    if not attach:
        return opening()
    late("seglog.attach.shared_log")
    from seglog.attach.shared_log import SharedLog

    return SharedLog(path, opening, config=config, fsync=fsync, leader_epoch=leader_epoch, clock=clock)


def _expired(log: "LogAge", config: LogConfig, now_ms: int) -> "Verdict":
    late("seglog.upkeep.retention")
    from seglog.upkeep.retention import expired  # a process that only opens a log and appends never needs it

    return expired(log, config, now_ms)


def _cleaner_of_its_own(config: LogConfig) -> "LogCleaner | None":
    if not (config.has_retention or config.is_compacted):
        return None
    late("seglog.upkeep.cleaner_thread")
    from seglog.upkeep.cleaner_thread import LogCleaner

    return LogCleaner()


def open_dir(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    fsync: Fsync = "batch",
    leader_epoch: int = 0,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    cleaner: "Mapping[str, object] | CleanerConfig | None" = None,
) -> "LogDir":
    """Open a log dir such as `data`, which holds `orders-0` and others, and create it if it does not exist.

    `log_dir.log(topic, partition)` opens or creates one of its logs. The arguments are those of `seglog.open`, for
    every log. `cleaner`: keys for all logs together, such as seglog.retention.total.bytes (docs/config.md); one thread,
    `log_dir.cleaner`, cleans the logs that are open. Raises what `LogDir` raises.
    """
    late("seglog.log.open_dir")
    from seglog.log.open_dir import LogDir
    late("seglog.upkeep.cleaner_config")
    from seglog.upkeep.cleaner_config import CleanerConfig
    late("seglog.upkeep.cleaner_thread")
    from seglog.upkeep.cleaner_thread import LogCleaner

    if not isinstance(cleaner, CleanerConfig):
        check_mapping(cleaner)
        cleaner = CleanerConfig.of(cleaner or {})
    return LogDir(
        path, config=config, fsync=fsync, leader_epoch=leader_epoch, clock=clock, fs=fs,
        retention=_expired, maintainer=LogCleaner(cleaner, stays=True),
    )


def serve(
    path: str | os.PathLike[str],
    *,
    listen: str | Sequence[str] | None = None,
    topics: "Mapping[str, int | tuple[int | None, Mapping[str, object]] | None] | None" = None,
    config: Mapping[str, object] | None = None,
    properties: str | os.PathLike[str] | None = None,
    fsync: Fsync = "batch",
    users: Mapping[str, str] | None = None,
    tls: "ssl.SSLContext | None" = None,
    advertise: str | Sequence[str] | None = None,
    http: str | None = None,
    insecure: bool = False,
    authorizer: bool = False,
) -> "LocalServer":
    """Serve a log dir to Kafka clients, and create it if it does not exist: one node, for tests, laptops and the edge.

        with seglog.serve("data", topics={"orders": 3}) as server:
            producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap_servers})

    `with` runs the server in a thread, `async with` in the running event loop. `listen`: address and port, 0 for any
    free port; several as a list, each with its own name, such as SASL_SSL://0.0.0.0:9093 (docs/serving.md); by default
    any free port of 127.0.0.1. `topics`: what to create, with the number of partitions (None: num.partitions), or a
    pair of it and the topic's settings. `config`: Kafka's keys for the broker, its logs and the cleaner, by a broker's
    or a topic's names (docs/config.md). `properties`: the path of a broker's server.properties, whose settings `config`
    overrides, and whose listeners count unless `listen` is given (without any of its own, 127.0.0.1:9092); settings
    that are unknown or have no effect here are logged. `fsync`: as for `seglog.open`; acks=all is answered accordingly.
    `users`: a mapping of names to passwords, for SASL PLAIN and SCRAM, beside the users that are stored with the log
    dir. `advertise`: the address to tell clients, if it is not the one that they connected to; for several listeners a
    list, such as SASL_SSL://kafka.example:9093. `http`: the address and port of the page and the metrics. `authorizer`:
    clients may only do what Kafka's ACLs allow them, and the setting super.users, such as "User:alice".

    Raises InvalidConfigError for a setting that cannot be; InvalidArgumentError for an address beyond this machine,
    unless there is `tls` and either `users` or client certificates that `tls` requires, or `insecure`; `with` raises
    what `LogDir` raises, and StorageError if the server cannot listen on the address.
    """
    late("seglog.coordinators.coordinator_config")
    from seglog.coordinators.coordinator_config import CoordinatorConfig
    late("seglog.endpoint.addresses")
    from seglog.endpoint.addresses import checked_page
    late("seglog.endpoint.broker_keys")
    from seglog.endpoint.broker_keys import STANDARD_AUTHORIZER, broker_settings
    late("seglog.endpoint.listeners")
    from seglog.endpoint.listeners import listeners_of, protocols_of
    late("seglog.endpoint.local_server")
    from seglog.endpoint.local_server import LocalServer
    late("seglog.endpoint.server")
    from seglog.endpoint.server import ServerOptions
    late("seglog.endpoint.settings")
    from seglog.endpoint.settings import ServerConfig
    late("seglog.upkeep.cleaner_config")
    from seglog.upkeep.cleaner_config import CleanerConfig

    check_mapping(config)
    taken = broker_settings(config or {})
    taken.check_known()
    settings = taken.settings
    if taken.no_effect:
        _LOG.warning("settings that have no effect here: %s", ", ".join(taken.no_effect))
    if properties is not None:
        late("seglog.endpoint.server_properties")
        from seglog.endpoint.server_properties import read_server_properties

        of_file = read_server_properties(checked_path(properties), with_listeners=listen is None)
        for what, found in (("no effect here", of_file.no_effect), ("unknown, and left out", of_file.unknown)):
            if found:
                _LOG.warning("%s: %s: %s", os.fspath(properties), what, ", ".join(found))
        settings = {**of_file.settings, **settings}
        if listen is None:
            listen = "127.0.0.1:9092" if of_file.listeners is None else of_file.listeners
            advertise = advertise or of_file.advertised
    if authorizer:
        settings["authorizer.class.name"] = STANDARD_AUTHORIZER
    server, coordinators, cleaner, log = _sorted_out(settings, ServerConfig, CoordinatorConfig, CleanerConfig)
    checked_config(log, fsync, 0)
    _check_access(users, tls)
    if topics is not None and not isinstance(topics, Mapping):
        raise InvalidArgumentError(
            f"topics must be a mapping of names to numbers of partitions, not {type(topics).__name__}",
            hint='for example topics={"orders": 3}')
    server_config = ServerConfig.of(server)
    protocols = protocols_of(server_config.listener_security_protocol_map)
    listeners = listeners_of(
        "127.0.0.1:0" if listen is None else listen, advertise, protocols, has_users=users is not None, tls=tls,
        insecure=insecure)
    has_users = users is not None or any(one.protocol.has_sasl for one in listeners)
    options = ServerOptions(
        listeners=listeners, users=users, tls=tls, config=server_config,
        coordinators=CoordinatorConfig.of(coordinators), cleaner=CleanerConfig.of(cleaner), log_config=log,
        topics={name: _of_topic(name, wanted) for name, wanted in (topics or {}).items()},
        http=None if http is None else checked_page(http, has_users=has_users, tls=tls, insecure=insecure),
    )
    # Each log gets the settings of logs when it is opened: a topic's own settings take precedence.
    return LocalServer(lambda: open_dir(path, fsync=fsync, cleaner=options.cleaner), OsFileSystem(), fsync, options)


def _of_topic(name: str, wanted: object) -> tuple[int | None, Mapping[str, object]]:
    """The partitions and the settings of a topic. Its creation checks what is in them."""
    pair = wanted if isinstance(wanted, tuple) else (wanted, {})
    if len(pair) != 2 or not isinstance(pair[1], Mapping):
        raise InvalidArgumentError(
            f"topic {name!r} must have a number of partitions, or a pair of it and settings, not {wanted!r:.100}",
            hint='for example topics={"orders": 3, "prices": (3, {"cleanup.policy": "compact"})}')
    return pair


def _check_access(users: object, tls: object) -> None:
    if tls is not None:
        late("ssl")
        import ssl

        if not isinstance(tls, ssl.SSLContext):
            raise InvalidArgumentError(f"tls must be an ssl.SSLContext, not {type(tls).__name__}")
    if users is not None and not (isinstance(users, Mapping) and all(
        isinstance(text, str) for pair in users.items() for text in pair
    )):
        raise InvalidArgumentError("users must be a mapping of names to passwords, all of them text")
    without = [name for name, password in (users or {}).items() if not (name and password)]
    if without:
        raise InvalidArgumentError(f"a user needs a name and a password, and {without[0]!r} lacks one")


def _sorted_out(
    settings: Mapping[str, object], *subjects: type[Settings]
) -> tuple[dict[str, object], ...]:
    """The settings of each subject, then all other settings, by their names with dots."""
    check_mapping(settings)
    sorted_out: tuple[dict[str, object], ...] = tuple({} for _ in range(len(subjects) + 1))
    names = [{key.name for key in subject.keys.values()} for subject in subjects]
    for spelling, value in settings.items():
        name = spelling.strip().replace("_", ".") if isinstance(spelling, str) else spelling
        place = next((n for n, known in enumerate(names) if name in known), len(subjects))
        if name in sorted_out[place]:
            raise InvalidConfigError(f"{name} is given twice")
        sorted_out[place][name] = value
    return sorted_out
