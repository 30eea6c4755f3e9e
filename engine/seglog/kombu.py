"""A directory as the broker of celery, and of all that uses kombu: `broker_url="seglog:///data/celery"`.

    import seglog.kombu             # makes the name known to kombu
    app = celery.Celery("tasks", broker="seglog:///data/celery")

Each of kombu's queues is a seglog.Queue in the directory, which all processes of the machine share (attach=True). A
message is acknowledged there when celery acknowledges it; what a process had when it died is delivered again.

Three slashes: relative to the working directory, four: absolute, as for SQLite. docs/celery.md
"""
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from queue import Empty
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.json import dumps, loads

from seglog._version import __version__
from seglog.attach.shared_queue import SharedQueue
from seglog.errors import (
    ForkedHandleError,
    InvalidArgumentError,
    LogClosedError,
    LogFailedError,
    LogLockedError,
    QueueFullError,
    StorageError,
)
from seglog.fs.files import OsFileSystem
from seglog.fs.removal import remove_tree
from seglog.logger import Logger
from seglog.queue.job import Job

logger = Logger("seglog")

# The lease of a job: celery holds messages for as long as their tasks run, and if its process dies, its jobs come back
# at once in any case.
LEASE_S = 365 * 86_400
# How long a look for messages waits for one, if there is one queue, or several.
WAIT_S, WAIT_OF_SEVERAL_S = 1.0, 0.05
# What is no message of kombu is looked at again after this time.
_NO_MESSAGE_S = 300
_NONE = None, None
# How the queues end that kombu makes for a call of `control`, with a new name each time, or for a worker.
_MAILBOX = ".pidbox"
# The options that `transport_options` passes to the queues.
_OPTIONS = {"fsync": "fsync", "visibility_timeout": "lease", "max_backlog": "max_backlog", "when_full": "when_full"}


class _Broker:
    """The queues of a directory that this process has open. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pid = os.getpid()
        self._queues: dict[str, SharedQueue] = {}
        # Of these, the ones that are removed when they are closed.
        self._mailboxes: set[str] = set()
        self._lock = threading.Lock()
        # How many connections use it.
        self.users = 0

    def queue(self, name: str, options: dict[str, Any]) -> SharedQueue:
        """The queue, which is created if there is none."""
        found = self._queues.get(name)
        if found is not None and not found.closed:
            return found
        with self._lock:
            found = self._queues.get(name)
            if found is None or found.closed:
                found = SharedQueue(self._path(name), max_attempts=None, **({"lease": LEASE_S} | options))
                self._queues[name] = found
            return found

    def add_mailbox(self, name: str) -> None:
        """Remove the queue when it is closed, or done with."""
        self._mailboxes.add(name)

    def remove_mailbox(self, name: str) -> bool:
        """Close and remove the queue, if it is a mailbox of this process."""
        with self._lock:
            if name not in self._mailboxes:
                return False
            self._mailboxes.remove(name)
            queue = self._queues.pop(name, None)
        if queue is not None:
            queue.close()
        with suppress(StorageError):    # another process uses it
            remove_tree(OsFileSystem(), self.directory, self._path(name).name)
        return True

    def has(self, name: str) -> bool:
        """Whether a queue exists."""
        return name in self._queues or self._path(name).is_dir()

    def _path(self, name: str) -> Path:
        # A name that begins with a dot is hidden, or leads out of the directory.
        path = quote(name, safe="@:+=,")
        return self.directory / (f"%2E{path[1:]}" if path.startswith(".") else path)

    def close(self) -> None:
        """Close its queues: what was taken and not acknowledged is delivered again."""
        for name in list(self._mailboxes):
            self.remove_mailbox(name)
        with self._lock:
            queues, self._queues = list(self._queues.values()), {}
        for queue in queues:
            queue.close()


_brokers: dict[Path, _Broker] = {}
_guard = threading.Lock()


def _forget_brokers() -> None:
    """In a forked child: the queues are the parent's, and the locks may be held by threads that are not there."""
    global _guard
    _guard = threading.Lock()
    _OF_PARENTS.append(dict(_brokers))
    _brokers.clear()


# Kept, so that a child does not collect them.
_OF_PARENTS: list[dict[Path, _Broker]] = []
os.register_at_fork(after_in_child=_forget_brokers)


class QoS(virtual.QoS):     # type: ignore[misc]
    """Acknowledges jobs, and gives back those that were not acknowledged. Threads may acknowledge."""

    def ack(self, delivery_tag: str) -> None:
        _, job = self.channel._jobs.pop(delivery_tag, _NONE)
        if job is not None:
            job.ack()
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        _, job = self.channel._jobs.pop(delivery_tag, _NONE)
        if job is not None:
            if requeue:
                job.nack(0, reason="rejected by its consumer")
            else:
                job.ack()
        self._quick_ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Give back what was delivered and not acknowledged: nobody else has to publish it again."""
        self._flush()
        for tag in list(self._delivered):
            queue, job = self.channel._jobs.pop(tag, _NONE)
            if queue is not None:
                # (If it was closed, or this is a forked child, there is nothing to give back.)
                with suppress(ForkedHandleError, LogClosedError, LogFailedError, StorageError):
                    queue.release([job])
        self._delivered.clear()
        return []


class KombuChannel(virtual.Channel):     # type: ignore[misc]
    """A channel: what it has taken, and not acknowledged, is in `_jobs` by delivery tag."""

    QoS = QoS

    def __init__(self, connection: "Transport", **options: Any) -> None:
        self._jobs: dict[str, tuple[SharedQueue, Job]] = {}
        super().__init__(connection, **options)

    def _queue(self, name: str) -> SharedQueue:
        transport: Transport = self.connection
        return transport.broker.queue(name, transport.queue_options)

    def _new_queue(self, queue: str, *, auto_delete: bool = False, **_: object) -> None:
        self._queue(queue)
        # (Others keep what is in them until somebody takes it, in whatever process.)
        if auto_delete and queue.endswith(_MAILBOX):
            self.connection.broker.add_mailbox(queue)

    def _delete(self, queue: str, *_: object, **__: object) -> None:
        if not self.connection.broker.remove_mailbox(queue):
            self._purge(queue)

    def _has_queue(self, queue: str, **_: object) -> bool:
        return bool(self.connection.broker.has(queue))

    def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
        self._queue(queue).put(
            dumps(message).encode(), priority=self._get_message_priority(message), at=_eta_of(message)
        )

    def _get(self, queue: str, timeout: float | None = 0) -> dict[str, Any]:
        found = self._queue(queue)
        job = found.get(timeout=timeout)
        if job is None:
            raise Empty
        try:
            message: dict[str, Any] = loads(job.value)
            properties = message["properties"]
            properties["delivery_tag"] = tag = self._next_delivery_tag()
            properties["delivery_info"]["redelivered"] = job.attempt > 1
            self.Message(message, channel=self)     # kombu makes it later, and an error there would end the consumer
        except Exception as error:      # kombu's decoders of types raise any
            logger.error("job %s of %s is no message of kombu: %r", job.id, queue, error)
            job.nack(_NO_MESSAGE_S, reason="no message of kombu")
            raise Empty from None
        self._jobs[tag] = found, job
        return message

    def _poll(self, cycle: Any, callback: Callable[..., object], timeout: float | None = None) -> object:
        try:
            return cycle.get(callback)
        except Empty:
            queues = list(dict.fromkeys(self._active_queues))
            wait_s = WAIT_S if len(queues) == 1 else WAIT_OF_SEVERAL_S
            message = self._get(queues[0], wait_s if timeout is None else min(timeout, wait_s))
            return callback(message, queues[0])

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., object], consumer_tag: str, **options: Any
    ) -> None:
        def finished(message: Any) -> object:
            self._finish(message)
            return callback(message)

        super().basic_consume(queue, no_ack, finished if no_ack else callback, consumer_tag, **options)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        message = super().basic_get(queue, no_ack, **options)
        if no_ack and message is not None:
            self._finish(message)
        return message

    def _finish(self, message: Any) -> None:
        """Acknowledge a message that nobody else will."""
        _, job = self._jobs.pop(message.delivery_tag, _NONE)
        if job is not None:
            job.ack()

    def _size(self, queue: str) -> int:
        return self._queue(queue).stats().ready

    def _purge(self, queue: str) -> int:
        return self._queue(queue).purge()


class Transport(virtual.Transport):     # type: ignore[misc]
    """kombu's transport `seglog`. transport_options: `fsync`, `max_backlog` and `when_full` of seglog.Queue, and
    `visibility_timeout`, the lease in seconds (a year)."""

    Channel = KombuChannel
    driver_type = driver_name = "seglog"
    # kombu warns where it fills in a host.
    default_connection_params = MappingProxyType({"hostname": None, "port": None})
    # Between two looks that found nothing, of which each waits for itself.
    polling_interval = 0.01
    connection_errors = (
        *virtual.Transport.connection_errors, LogClosedError, LogFailedError, LogLockedError, StorageError,
    )
    channel_errors = (*virtual.Transport.channel_errors, QueueFullError)

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        given = client.transport_options
        self.queue_options = {ours: given[theirs] for theirs, ours in _OPTIONS.items() if given.get(theirs) is not None}
        self._broker: _Broker | None = None

    @property
    def broker(self) -> _Broker:
        """The queues of the connection's directory."""
        # (A connection that a forked child got from its parent opens the queues again.)
        if self._broker is None or self._broker.pid != os.getpid():
            path = self.client.virtual_host
            if path in (None, "", "/"):
                raise InvalidArgumentError(
                    "the URL names no directory",
                    hint="seglog:///data/celery is below the working directory, seglog:////srv/celery is absolute",
                )
            directory = Path(os.path.abspath(path))
            with _guard:
                self._broker = _brokers.setdefault(directory, _Broker(directory))
                self._broker.users += 1
        return self._broker

    def establish_connection(self) -> Any:
        _ = self.broker
        return super().establish_connection()

    def close_connection(self, connection: object) -> None:
        super().close_connection(connection)
        broker, self._broker = self._broker, None
        if broker is None:
            return
        with _guard:
            broker.users -= 1
            is_last = not broker.users and _brokers.get(broker.directory) is broker
            if is_last:
                del _brokers[broker.directory]
        if is_last:
            broker.close()

    def driver_version(self) -> str:
        return __version__


def _eta_of(message: dict[str, Any]) -> datetime | None:
    """The time before which a task of celery does not run (`countdown`, `eta`): until then its message stays in the
    queue, where nobody has to hold it."""
    eta = (message.get("headers") or {}).get("eta")
    try:
        at = datetime.fromisoformat(eta) if isinstance(eta, str) else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None and at.timestamp() > 0 else None


TRANSPORT_ALIASES["seglog"] = "seglog.kombu:Transport"
