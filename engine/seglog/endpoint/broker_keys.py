"""A broker's settings by their names, as in its `server.properties`: what they are called here, and which have no
effect.

A broker has a default for each setting of a topic, mostly under another name (ServerTopicConfigSynonyms). The table in
docs/config.md is made from this file.
"""
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from seglog.config import OTHER_TOPIC_SETTINGS, LogConfig, suggestion
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.endpoint.settings import ServerConfig
from seglog.errors import InvalidConfigError
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import key_name
from seglog.upkeep.cleaner_config import CleanerConfig

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000

# A key here, and a broker's keys for it with the factor between the units. Of several, the first that is given counts.
SYNONYMS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.downconversion.enable": (("log.message.downconversion.enable", 1),),
    "message.format.version": (("log.message.format.version", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.difference.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "node.id": (("broker.id", 1),),
    "preallocate": (("log.preallocate", 1),),
    "remote.copy.lag.bytes": (("log.remote.copy.lag.bytes", 1),),
    "remote.copy.lag.ms": (("log.remote.copy.lag.ms", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1), ("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS)),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
}


class NoEffect(NamedTuple):
    """Keys of a broker that are accepted and do nothing, as patterns, and why."""

    why: str
    patterns: tuple[str, ...]


NO_EFFECT = (
    NoEffect("the log dir is the argument", ("log.dir", "log.dirs", "metadata.log.dir")),
    NoEffect("options say what addresses, TLS and users are: `--listen`, `--advertise`, `--tls-cert`, `--sasl-users`", (
        "listeners", "advertised.listeners", "listener.name.*", "ssl.*", "sasl.*",
        "early.start.listeners", "security.providers", "connections.max.reauth.ms", "delegation.token.*",
        "password.encoder.*", "principal.builder.class",
    )),
    NoEffect("there is one node, which replicates nothing", (
        "default.replication.factor", "offsets.topic.replication.factor", "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr", "offsets.commit.required.acks", "offsets.commit.timeout.ms", "replica.*",
        "replication.quota.*", "num.replica.*", "inter.broker.*", "security.inter.broker.protocol", "broker.rack",
        "auto.leader.rebalance.enable", "leader.imbalance.*", "controlled.shutdown.*", "alter.log.dirs.*",
        "eligible.leader.replicas.enable", "unclean.leader.election.interval.ms", "reserved.broker.max.id",
        "broker.id.generation.enable",
    )),
    NoEffect("there is no controller and no ZooKeeper", (
        "process.roles", "controller.*", "control.plane.listener.name", "zookeeper.*", "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms", "initial.broker.registration.timeout.ms", "metadata.*", "internal.metadata.*",
        "server.max.startup.time.ms", "unstable.*",
    )),
    NoEffect("there is no tiered storage", ("remote.*", "follower.fetch.last.tiered.offset.enable")),
    NoEffect("a group with members does not change its protocol", ("group.consumer.migration.policy",)),
    NoEffect("a target is computed at once", (
        "group.consumer.assignment.interval.ms", "group.consumer.*.assignment.interval.ms",
        "group.consumer.assignor.offload.enable", "group.consumer.regex.refresh.interval.ms", "group.coordinator.*",
    )),
    NoEffect("there are no share groups, and no groups of Kafka Streams", (
        "group.share.*", "group.streams.*", "share.*", "errors.deadletterqueue.*",
        "transaction.two.phase.commit.enable",
    )),
    NoEffect("there are no quotas, and no fetch sessions", (
        "quota.window.*", "client.quota.callback.class", "max.connection.creation.rate",
        "max.connections.per.ip*", "max.incremental.fetch.session.cache.slots", "max.request.partition.size.limit",
    )),
    NoEffect("the server has other threads, buffers and rounds", (
        "num.io.threads", "num.network.threads", "background.threads", "queued.max.requests", "socket.*.buffer.bytes",
        "socket.listen.backlog.size", "socket.connection.setup.*", "request.timeout.ms", "*.purge.interval.requests",
        "log.cleaner.threads", "log.cleaner.io.buffer.size", "log.flush.*checkpoint.interval.ms",
        "log.initial.task.delay.ms", "log.dir.failure.timeout.ms", "cordoned.log.dirs", "offsets.load.buffer.size",
        "offsets.topic.compression.codec", "transaction.state.log.load.buffer.size",
        "transaction.partition.verification.enable", "add.partitions.to.txn.retry.*",
        "producer.id.expiration.check.interval.ms",
    )),
    NoEffect("metrics are at `--http`", (
        "metric.reporters", "metrics.*", "kafka.metrics.*", "auto.include.jmx.reporter", "telemetry.max.bytes",
    )),
    NoEffect("the properties have no providers of values", ("config.providers", "config.providers.*")),
)

# The server would not do what these keys say, and their author relies on it.
REFUSED = ("create.topic.policy.class.name", "alter.config.policy.class.name")

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_AUTHORIZERS = (STANDARD_AUTHORIZER, "kafka.security.authorizer.AclAuthorizer")

_USED = frozenset(
    key.name for config in (LogConfig, CleanerConfig, ServerConfig, CoordinatorConfig) for key in config.keys.values())


class BrokerSettings(NamedTuple):
    """Settings by the names that they have here, and the names of those that have no effect."""

    settings: dict[str, object]
    no_effect: list[str]

    def check_known(self) -> None:
        """Raise InvalidConfigError if neither this server nor a broker knows one of the names."""
        for name in self.unknown:
            synonyms = (synonym for pairs in SYNONYMS.values() for synonym, _ in pairs)
            raise InvalidConfigError(f"no such key: {name}{suggestion(name, [*_USED, *synonyms])}")

    @property
    def unknown(self) -> list[str]:
        """Names that neither this server nor a broker knows."""
        return sorted(name for name in self.settings if name not in _USED and name not in OTHER_TOPIC_SETTINGS)


def broker_settings(given: Mapping[str, object]) -> BrokerSettings:
    """Take a broker's settings by their names there. A key that is given by its own name counts before its synonyms.
    Raises InvalidConfigError for values, and for keys that promise what this server does not do."""
    by_name: dict[str, object] = {}
    for spelling, value in given.items():
        name = key_name(spelling)
        if name in by_name:
            raise InvalidConfigError(f"{name} is given twice")
        by_name[name] = value
    for name in REFUSED:
        if by_name.pop(name, None):
            raise InvalidConfigError(
                f"{name}: this server has no policies",
                hint="leave it out if that is what you want")
    authorizer = str(by_name.get("authorizer.class.name") or "").strip()
    if authorizer and authorizer not in _AUTHORIZERS:
        raise InvalidConfigError(
            f"authorizer.class.name: this server has Kafka's rules for ACLs, and not those of {authorizer}",
            hint=f"{STANDARD_AUTHORIZER}, which --authorizer stands for")
    for name, synonyms in SYNONYMS.items():
        for synonym, factor in synonyms:
            if synonym in by_name:
                value = by_name.pop(synonym)
                if name not in by_name and not (synonym == "broker.id" and str(value).strip() == "-1"):
                    by_name[name] = value if factor == 1 else _times(synonym, value, factor)
    no_effect = [name for name in by_name if has_no_effect(name)]
    for name in no_effect:
        del by_name[name]
    return BrokerSettings(by_name, sorted(no_effect))


def has_no_effect(name: str) -> bool:
    """Whether a key of a broker is accepted and does nothing."""
    return name not in _USED and name not in OTHER_TOPIC_SETTINGS and any(
        fnmatchcase(name, pattern) for group in NO_EFFECT for pattern in group.patterns)


def table() -> Iterator[tuple[str, str]]:
    """(a broker's keys, what they are here) for docs/config.md."""
    for name, synonyms in SYNONYMS.items():
        for synonym, factor in synonyms:
            yield f"`{synonym}`", f"`{name}`" if factor == 1 else f"`{name}`, times {factor}"
    for group in NO_EFFECT:
        yield ", ".join(f"`{pattern}`" for pattern in group.patterns), f"no effect: {group.why}"
    for name in REFUSED:
        yield f"`{name}`", "refused: nobody would do what it says"


def _times(name: str, value: object, factor: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise InvalidConfigError(f"{name} must be a number, not {value!r}") from None
    return number * factor if number >= 0 else -1
