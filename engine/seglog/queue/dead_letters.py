"""Another queue that gets a queue's dead jobs.

    dead ── put there, durably ── acknowledged here

A crash in between puts nothing there twice: the letter's name, of the path here and the job's id, is unique there
(seglog.queue.unique), also when the letter is finished.
"""
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from seglog._kernels.quick_lock import QuickLock
from seglog.errors import (
    CorruptRecordError,
    EncryptedPayloadError,
    InvalidArgumentError,
    MissingCodecError,
    RecordTooLargeError,
    SeglogError,
    UnsupportedCompressionTypeError,
)
from seglog.logger import Logger
from seglog.queue.job import DeadJob
from seglog.queue.metrics import QueueCounts
from seglog.queue.unique import UNIQUE_NAME

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog.topic.leases import Message

logger = Logger("seglog")

# Properties of a letter. The first two are those of Pulsar's clients (RetryMessageUtil); a letter that dies again keeps
# them.
ORIGIN_TOPIC, ORIGIN_ID = "REAL_TOPIC", "ORIGIN_MESSAGE_ID"
ATTEMPTS, REASON = "seglog.queue.dead.attempts", "seglog.queue.dead.reason"
# How long after it was put a letter is not put again.
LETTER_UNIQUE_FOR = timedelta(days=7)
# Letters that are made at once.
_LETTERS = 100
# What is wrong with one job, not with the queue that should get it.
_NOT_SENT = (
    CorruptRecordError, EncryptedPayloadError, InvalidArgumentError, MissingCodecError, RecordTooLargeError,
    UnsupportedCompressionTypeError,
)


class LetterTarget(Protocol):
    """What this module needs of the queue that gets them: a Queue."""

    path: Path

    def put(
        self, value: "Buffer", *, key: str | bytes | None, properties: Mapping[str, str] | None,
        unique_for: timedelta | float | None, timeout: timedelta | float | None,
    ) -> str: ...

    def flush(self) -> None: ...


class LetterSource(Protocol):
    """What it needs of where jobs die: a Lane."""

    _lock: QuickLock
    _counts: QueueCounts

    def check(self) -> None: ...

    def dead_jobs(self, *, but: "Collection[Message]") -> Iterator[DeadJob]: ...

    def finish_dead(self, messages: "Iterable[Message]", *, wait: bool) -> int: ...


class DeadLetters:
    """Puts the dead jobs of a queue's lanes into `target`. Those for which that fails stay, and are tried again when
    the next job dies, and by the next opening."""

    def __init__(self, target: LetterTarget, path: Path) -> None:
        self._target = target
        self._path = path
        # Held while letters are put; before the lock of either queue.
        self._sending = QuickLock()
        # Those with new dead jobs.
        self._lanes: dict[LetterSource, None] = {}
        # Jobs that cannot be put there: too large, or damaged.
        self._refused: set[tuple[LetterSource, Message]] = set()

    def note(self, lane: LetterSource) -> None:
        """A lane has dead jobs. With the lock of the queue."""
        self._lanes[lane] = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to send."""
        return bool(self._lanes)

    def send(self) -> None:
        """Put the letters that are due. Without the lock. An error is logged: the jobs are still dead here."""
        with self._sending:
            for lane in list(self._lanes):
                self._lanes.pop(lane, None)
                try:
                    self._send_from(lane)
                except SeglogError as error:
                    logger.error("%s: dead jobs stay there, not in %s: %s", self._path, self._target.path, error)
                except BaseException:
                    self.note(lane)
                    raise

    def _send_from(self, lane: LetterSource) -> None:
        refused = self._refused
        while True:
            with lane._lock:
                lane.check()
                but = {at for of_lane, at in refused if of_lane is lane}
                jobs = list(islice(lane.dead_jobs(but=but), _LETTERS))
            if not jobs:
                return
            sent: list[Message] = []
            try:
                for job in jobs:
                    try:
                        self._put(job)
                    except _NOT_SENT as error:
                        refused.add((lane, job._at))
                        logger.error("%s: dead job %s stays there: %s", self._path, job.id, error)
                    else:
                        sent.append(job._at)
            finally:
                if sent:
                    # (They may have another `fsync` there.)
                    self._target.flush()
                    lane.finish_dead(sent, wait=False)
                    lane._counts.dead_letters.add(len(sent))

    def _put(self, job: DeadJob) -> None:
        properties = job.properties
        properties.setdefault(ORIGIN_TOPIC, str(self._path))
        properties.setdefault(ORIGIN_ID, job.id)
        reason = job.reason.encode("utf-8", "replace").decode()
        properties |= {ATTEMPTS: str(job.attempt), REASON: reason, UNIQUE_NAME: f"{self._path} {job.id}"}
        self._target.put(job.value, key=job.key, properties=properties, unique_for=LETTER_UNIQUE_FOR, timeout=0)
