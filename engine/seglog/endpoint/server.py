"""A server in an event loop: it listens, serves its connections, and stops.

    accept ── Connection ── Requests ── a handler ── the logs of a LogDir
"""
import asyncio
import functools
import os
import resource
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from seglog.clock import SystemClock
from seglog.config import MAX_INT, Fsync
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.group_offsets import TopicPartition
from seglog.coordinators.group_settings import GroupSettings
from seglog.coordinators.groups import GroupCoordinator
from seglog.coordinators.transactions import TransactionCoordinator
from seglog.endpoint.acl_admin import AclAdmin
from seglog.endpoint.authentication import ANONYMOUS, Authentication
from seglog.endpoint.authorization import Authorization
from seglog.endpoint.authorizer import Authorizer, super_users_of
from seglog.endpoint.byte_streams import ByteStream, PlainStream, TlsStream
from seglog.endpoint.cluster import ClusterFacts
from seglog.endpoint.cluster_admin import ClusterAdmin
from seglog.endpoint.configs import Configs
from seglog.endpoint.connection import Connection
from seglog.endpoint.consumer_groups import ConsumerGroups
from seglog.endpoint.fetch import Fetch
from seglog.endpoint.frame_reader import RequestMemory
from seglog.endpoint.group_administration import GroupAdministration
from seglog.endpoint.group_commits import GroupCommits
from seglog.endpoint.group_membership import GroupMembership
from seglog.endpoint.listeners import Listener, ListeningSocket, Protocol
from seglog.endpoint.offsets import Offsets
from seglog.endpoint.page import Page
from seglog.endpoint.peer import Peer, leave_closed
from seglog.endpoint.produce import Produce
from seglog.endpoint.request_context import Handler
from seglog.endpoint.requests import Requests
from seglog.endpoint.server_metrics import ServerCounters
from seglog.endpoint.settings import ServerConfig
from seglog.endpoint.topic_admin import TopicAdmin
from seglog.endpoint.topics import NewTopic, Topics
from seglog.endpoint.transaction_requests import TransactionRequests
from seglog.endpoint.user_admin import UserAdmin
from seglog.endpoint.users import Users
from seglog.endpoint.workload import HeavyWork
from seglog.errors import InvalidArgumentError, SeglogError
from seglog.fs.files import FileSystem
from seglog.log.open_dir import LogDir
from seglog.logger import Logger
from seglog.loop.durability import Durability
from seglog.loop.long_polls import LongPolls
from seglog.state.acls import CLUSTER_NAME, Operation, ResourceType
from seglog.state.acls import FILE_NAME as ACLS_FILE
from seglog.state.cluster_id import cluster_id
from seglog.upkeep.cleaner_config import CleanerConfig
from seglog.wire.internal_topics import TRANSACTIONS_TOPIC
from seglog.wire.messages import ApiKey

_LOG = Logger(__name__)

# One at a time: a batch may take 64 MiB uncompressed, and as much again as messages.
_CONVERTERS = 1
_IDLE_LOOK_S = 1.0
# The coordinator ends transactions: a log that times out transactions by itself could abort one being committed.
_NEVER_BY_ITSELF = {"transaction.max.timeout.ms": 2**31 - 1}
# Large answers that are made or wait for their clients take no more than this together.
_ANSWERS_BYTES_MAX = 64 << 20
_OTHER_FILES = 32       # the listeners, the loop, locks, files that are read in between


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How clients reach a server, and which ones may.

    listeners       where it listens; port 0: any free one
    users           passwords by name, for SASL, beside the users that are stored with the log dir
    tls             plain connections if None
    cleaner         that of the log dir, to be told
    log_config      for settings of logs that a topic does not have itself
    topics          by name the number of partitions, None for num.partitions, and the settings; created at the start
                    unless they exist
    http            where to serve the web page and the metrics; not served if None
    """

    listeners: Sequence[Listener] = (Listener("PLAINTEXT", Protocol.PLAINTEXT, "127.0.0.1", 0),)
    config: ServerConfig = field(default_factory=ServerConfig)
    coordinators: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    log_config: Mapping[str, object] = field(default_factory=dict)
    users: Mapping[str, str] | None = None
    tls: ssl.SSLContext | None = None
    topics: Mapping[str, tuple[int | None, Mapping[str, object]]] = field(default_factory=dict)
    http: tuple[str, int] | None = None


class Server:
    """Serves an open LogDir, in the loop that `start` is called in. It does not close the LogDir."""

    def __init__(self, log_dir: LogDir, fs: FileSystem, fsync: Fsync, options: ServerOptions) -> None:
        self._log_dir = log_dir
        self._fs = fs
        self._fsync = fsync
        self._options = options
        self.traffic = ServerCounters()
        self._tasks: dict[asyncio.Task[None], Connection | None] = {}
        # Those of clients that are not authenticated yet, and since when, the oldest first.
        self._logging_in: dict[asyncio.Task[None], float] = {}
        self._connections_max = min(options.config.max_connections, _connections_room())
        self._logging_in_max = max(1, min(options.config.max_connections_logging_in, self._connections_max // 4))
        self._services: list[asyncio.Task[None]] = []
        self.listening: list[ListeningSocket] = []
        self.page: Page | None = None

    async def start(self) -> None:
        """Start listening. Raises StorageError if the address is not available, and what creating the topics raises."""
        loop = asyncio.get_running_loop()
        options = self._options
        self._users = await loop.run_in_executor(None, Users, options.users, self._fs, self._log_dir.path)
        _check_users(options.listeners, self._users)
        self._authorizer: Authorizer | None = None
        if options.config.authorizer_class_name:
            self._authorizer = await loop.run_in_executor(None, functools.partial(
                Authorizer, self._fs, self._log_dir.path, super_users_of(options.config.super_users),
                allow_without_acl=options.config.allow_everyone_if_no_acl_found))
            _check_access(self._authorizer)
        elif options.config.super_users or os.path.lexists(self._log_dir.path / ACLS_FILE):
            _LOG.warning("there are super users or ACLs, and no authorizer: every client may do everything")
        self._durability = Durability(loop, self._fsync)
        self.topics = Topics(
            self._log_dir, self._fs, self._durability, {**options.log_config, **_NEVER_BY_ITSELF},
            options.config.max_topic_partitions, options.config.max_partitions)
        clock, settings = SystemClock(), options.coordinators
        group_settings = await loop.run_in_executor(None, GroupSettings, settings, self._fs, self._log_dir.path)
        self.groups = GroupCoordinator(
            self.topics, settings, clock, node_id=options.config.node_id, settings=group_settings)
        self.transactions = TransactionCoordinator(
            self.topics, self.groups, settings, clock, self._log_dir.path, self._fs
        )
        self._polls = LongPolls(loop)
        self._converters = ThreadPoolExecutor(_CONVERTERS, "seglog-convert")
        self._memory = RequestMemory(options.config.queued_max_request_bytes)
        self._answers = RequestMemory(_ANSWERS_BYTES_MAX)
        self._heavy = HeavyWork(self._memory)
        known_as = await loop.run_in_executor(None, cluster_id, self._fs, self._log_dir.path)
        self._produce = Produce(
            self.topics, self._durability, self.transactions.verify, options.config.max_partition_producers,
            options.config.max_producers, self.transactions.join)
        handlers: tuple[Mapping[ApiKey, Handler], ...] = (
            self._produce.HANDLERS,
            Fetch(
                self.topics, self._polls, self._converters, options.config.fetch_max_bytes,
                options.config.connections_max_idle_ms,
            ).HANDLERS,
            Offsets(self.topics).HANDLERS,
            ClusterFacts(self.topics, options.config, known_as, str(self._log_dir.path)).HANDLERS,
            TopicAdmin(self.topics, options.config, self._deleted).HANDLERS,
            ClusterAdmin(self.topics, options.config.node_id, str(self._log_dir.path)).HANDLERS,
            Configs(
                self.topics, options.config, options.coordinators, options.cleaner, options.log_config, self._fsync,
                group_settings,
            ).HANDLERS,
            GroupMembership(self.groups).HANDLERS,
            GroupCommits(self.groups, self.topics).HANDLERS,
            GroupAdministration(self.groups).HANDLERS,
            ConsumerGroups(self.groups, self.topics, self._authorizer).HANDLERS,
            TransactionRequests(self.transactions, self._produce.take_place).HANDLERS,
            UserAdmin(self._users).HANDLERS,
            AclAdmin(self._authorizer).HANDLERS,
        )
        if self._authorizer is not None:
            guarded = Authorization(
                self._authorizer, self.topics, creates_topics=options.config.auto_create_topics_enable).guarded
            handlers = tuple(guarded(each) for each in handlers)
        self.requests = Requests(
            *handlers, heavy=self._heavy, answers=self._answers, cluster_id=known_as, node_id=options.config.node_id)
        self.traffic.requests, self.traffic.lacking = self.requests.counts, self.requests.lacking
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        loop, options = asyncio.get_running_loop(), self._options
        deleted = await self.topics.finish_changes()
        for made in await self.topics.create_all(self._missing_topics()):
            if isinstance(made, Exception):
                raise made
        for listener in options.listeners:
            self.listening.append(ListeningSocket(listener))
        if options.http is not None:
            first = self.listening[0]
            page = Page(self.topics, self.traffic, self.groups.overview, lambda: f"{first.host}:{first.port}",
                users=self._users if options.users is not None or _asks_for_users(options.listeners) else None,
                tls=options.tls, security=self.requests.security, may_see=self._may_see,
                names=[options.http[0], *(one.advertised[0] for one in options.listeners if one.advertised)])
            await page.start(*options.http)
            self.page = page
        for one in self.listening:
            one.accept_by(self._accept)
        self._services = [
            loop.create_task(self._close_idle()),
            loop.create_task(self._load(deleted)),
            loop.create_task(self.topics.open_all()),
            loop.create_task(self._remove_deleted()),
            loop.create_task(self._produce.count_producers()),
        ]

    def _missing_topics(self) -> list[NewTopic]:
        missing = []
        for name, (partitions, settings) in self._options.topics.items():
            there = self.topics.topic(name)
            if there is None:
                missing.append(NewTopic(
                    name, self._options.config.num_partitions if partitions is None else partitions, settings))
            elif partitions not in (None, there.partitions):
                _LOG.warning(
                    "topic %r exists already, with %d partition%s instead of %s, and stays as it is: a client can add "
                    "some (kafka-topics --alter --partitions)", name, there.partitions,
                    "" if there.partitions == 1 else "s", partitions)
        return missing

    def _may_see(self, principal: str, host: str) -> bool:
        """Whether the page, which shows all topics and groups, is for this user."""
        return self._authorizer is None or self._authorizer.allows(
            principal, host, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)

    async def _remove_deleted(self) -> None:
        """Remove directories that a crash left of deleted partitions, as a broker does after its start."""
        for remove in self._log_dir._removals_left():
            try:
                await asyncio.get_running_loop().run_in_executor(self._converters, remove)
            except SeglogError as error:
                _LOG.warning("a deleted partition is left: %s", error)

    async def _load(self, deleted: Sequence[TopicPartition]) -> None:
        """Load the coordinators. Until then their clients are told to retry, as by a broker. `deleted`: partitions that
        were deleted at this start, whose offsets groups have yet to forget."""
        for what, start in (("groups", self.groups.start), ("transactions", self.transactions.start)):
            try:
                await start()
            except Exception as error:
                _LOG.error("%s are not available: %s", what, error, exc_info=not isinstance(error, SeglogError))
        if deleted and self.groups.unready is None:
            await self._deleted(deleted)

    async def stop(self) -> None:
        """Stop listening, close every connection, and wait until pending writes to files are done."""
        self._stop_listening()
        for task in [*self._services, *self._tasks]:
            task.cancel()
        await asyncio.gather(*self._services, *self._tasks, return_exceptions=True)
        if self.page is not None:
            await self.page.stop()
        await self.transactions.stop()
        await self.groups.stop()
        self._polls.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.topics.close)
        self._converters.shutdown(cancel_futures=True)
        self._heavy.close()

    async def _deleted(self, partitions: Sequence[TopicPartition]) -> None:
        await self.groups.partitions_deleted(partitions)
        if any(topic == TRANSACTIONS_TOPIC for topic, _ in partitions):
            self.transactions.topic_deleted()

    @property
    def requests_bytes(self) -> int:
        """The memory of requests that are being read or handled, in bytes."""
        return self._memory.used_bytes

    # --- connections -----------------------------------------------------------------------------

    def _stop_listening(self) -> None:
        for one in self.listening:
            one.close()

    def _accept(self, listening: ListeningSocket) -> None:
        """Accept a connection: one waits, most likely."""
        accepted = listening.accept()
        if accepted is None:
            return
        sock, client_host = accepted
        if len(self._tasks) >= self._connections_max:
            sock.close()
            return
        self.traffic.accepted += 1
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        stream = PlainStream(sock, loop)
        task = loop.create_task(self._serve(listening.listener, sock, stream, f"/{client_host}"))
        self._tasks[task] = None
        if listening.listener.protocol.asks_for_login:
            self._logging_in[task] = time.monotonic()
            if len(self._logging_in) > self._logging_in_max:
                # The oldest, not the newest: idle connections must not keep anybody out.
                oldest = next(iter(self._logging_in))
                del self._logging_in[oldest]
                oldest.cancel()
        self.traffic.connections = len(self._tasks)
        # This closes the stream, and not the task, which may be cancelled before its first step.
        task.add_done_callback(functools.partial(self._ended, stream))

    def _ended(self, stream: PlainStream, task: "asyncio.Task[None]") -> None:
        stream.close()
        self._tasks.pop(task, None)
        self._logging_in.pop(task, None)
        self.traffic.connections = len(self._tasks)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a connection failed", exc_info=error)

    async def _serve(self, listener: Listener, sock: socket.socket, plain: PlainStream, client_host: str) -> None:
        options, protocol = self._options, listener.protocol
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        task = asyncio.current_task()
        assert task is not None
        stream: ByteStream = plain
        principal = ANONYMOUS
        if protocol.has_tls:
            assert options.tls is not None
            stream = tls = TlsStream(plain, options.tls)
            try:
                await tls.shake_hands()
            except OSError as error:        # ssl.SSLError is one
                self.requests.security.refused(client_host, error)
                return
            if (subject := tls.subject()) is not None:
                principal = f"User:{subject}"
            if not protocol.has_sasl:
                self._logging_in.pop(task, None)
                if subject is not None:
                    self.requests.security.logged_in(client_host, principal)
        here = sock.getsockname()[:2]
        connection = Connection(
            stream, self.requests, options.config, self._memory, self._converters, self.traffic,
            Authentication(self._users if protocol.has_sasl else None, principal), client_host,
            listener.advertised or (here[0], here[1]),
            Peer(sock.fileno()), lambda: self._logging_in.pop(task, None),
        )
        self._tasks[task] = connection
        await connection.run()

    async def _close_idle(self) -> None:
        max_s = self._options.config.connections_max_idle_ms / 1000
        login_max_s = self._options.config.connections_login_timeout_ms / 1000
        while True:
            await asyncio.sleep(min(_IDLE_LOOK_S, max_s, login_max_s))
            now = time.monotonic()
            leave_closed(connection.peer for connection in self._tasks.values() if connection is not None)
            for task, since in self._logging_in.copy().items():
                if now - since > login_max_s:
                    del self._logging_in[task]
                    task.cancel()
            for task, connection in self._tasks.copy().items():
                if connection is not None and (
                    connection.idle_s(now) > max_s or (self._answers.is_short and connection.is_stuck(now))
                ):
                    task.cancel()


def _asks_for_users(listeners: Sequence[Listener]) -> bool:
    return any(one.protocol.has_sasl for one in listeners)


def _check_users(listeners: Sequence[Listener], users: Users) -> None:
    """Raises InvalidArgumentError if nobody could log in."""
    if users or not all(one.protocol.has_sasl for one in listeners):
        if users.stored and not _asks_for_users(listeners):
            _LOG.warning("the log dir has users, and no listener asks for them: name one SASL_PLAINTEXT or SASL_SSL")
        return
    raise InvalidArgumentError(
        "every listener asks for a login, and there are no users",
        hint="seglog users add, --sasl-users, or in Python users=; or another listener, over which a client makes some")


def _check_access(authorizer: Authorizer) -> None:
    """Raises InvalidArgumentError if nobody may do anything."""
    if not authorizer.is_open_to_somebody():
        raise InvalidArgumentError(
            "with an authorizer and without any ACL nobody may do anything, not even create one",
            hint="name an administrator: the setting super.users, for example User:alice")


def _connections_room() -> int:
    """How many connections may be open, so that enough descriptors are left for logs: they use the other half."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_INT if soft == resource.RLIM_INFINITY else max(1, soft // 2 - _OTHER_FILES)
