"""`seglog.open(path, attach=True)`: the first process that opens a log so owns it, the others append through it.

    owner       Log ── LogDesk ── DeskServer ── socket
    attached    SentAppender ── OwnProducer ── Client ── socket         what it appends
                Follower ── the files                              what it reads

How the owner changes is in attach.shared_handle. An attached process encodes its batches itself, and numbers them as a
Kafka producer does (attach.sent_batches), so that none is appended twice when the owner dies.
"""
import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeVar, cast, get_args

from seglog._kernels.batch_encode import EncodedBatch
from seglog._kernels.quick_lock import QuickLock
from seglog._kernels.shield import start_thread, work_in_background
from seglog.attach.channel import FRAME_BYTES, FRAME_JOBS, VALUES_BYTES_MAX, Header
from seglog.attach.client import Client
from seglog.attach.errors_sent import error_received
from seglog.attach.log_desk import LogDesk
from seglog.attach.sent_batches import OwnProducer, producer_of, span_of
from seglog.attach.server import DeskServer
from seglog.attach.shared_handle import Owner, SharedHandle
from seglog.clock import Clock, checked_clock
from seglog.config import Fsync, LogConfig
from seglog.errors import (
    CorruptRecordError,
    ForkedHandleError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTimestampError,
    LogClosedError,
    LogLockedError,
    ProtocolError,
    RecordTooLargeError,
    SeglogError,
    SharedLogError,
    UnsupportedForMessageFormatError,
)
from seglog.format.batch import BatchEncoder
from seglog.format.batch_layout import CONTROL_BIT, LOW_ATTRIBUTES_POS, MAGIC_POS, TRANSACTIONAL_BIT
from seglog.fs.lock import PARTITION_LOCK
from seglog.log.append import AppendResult, LogAppender, PendingAppend
from seglog.log.log import Log
from seglog.log.stats import LogStats
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import checked_config, checked_offset, checked_path, misplaced_error
from seglog.reading.follower import Follower
from seglog.reading.following import FollowedLog
from seglog.reading.format_counters import FormatCounters
from seglog.reading.notices import checked_callback
from seglog.reading.open_readers import SHARED_LOGS
from seglog.reading.reader import LogReader
from seglog.reading.settings import LogSettings, as_text, given_settings
from seglog.reading.times import Time, to_timestamp_ms
from seglog.threads.sync_thread import Callback

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record

logger = Logger("seglog")

# A broker's loader looks at files only.
SOCKET = ".seglog.sock"
# How long `close` waits for the owner to sync what was appended with wait=False.
_GRACE_S = 2.0
# Errors after which nothing was written, if there was one batch.
_REFUSALS = (
    CorruptRecordError, InvalidRecordError, InvalidTimestampError, InvalidArgumentError, RecordTooLargeError,
)

Method = TypeVar("Method", bound=Callable[..., Any])
Appended = TypeVar("Appended")


class SentAppend(PendingAppend[Any]):
    """What an append of an attached process returns with wait=False: `number` counts those of this process."""

    __slots__ = ()


def _of_reader(method: Method) -> Method:
    """A method of LogReader that whatever reads the log just now does."""
    name = method.__name__

    @functools.wraps(method)
    def ask(self: "SharedLog", *args: Any, **options: Any) -> Any:
        return getattr(self._reader(), name)(*args, **options)

    return cast(Method, ask)


def _refused(method: Method) -> Method:
    """A method of Log that is not for a log that is shared."""
    name = method.__name__

    @functools.wraps(method)
    def refuse(self: "SharedLog", *args: Any, **options: Any) -> NoReturn:
        raise SharedLogError(f"{name}() is not for a log that was opened with attach=True", file=self.path)

    return cast(Method, refuse)


class SharedLog(SharedHandle[Log], Log):
    """A Log for several processes: made by seglog.open(path, attach=True), with its arguments and methods. Which of
    them are refused, does not depend on which process owns it."""

    noun = "log"
    socket_name = SOCKET

    def __init__(
        self, path: str | os.PathLike[str], open_log: Callable[[], Log], *,
        config: Mapping[str, object] | LogConfig | None, fsync: Fsync, leader_epoch: int, clock: Clock | None,
    ) -> None:
        """`open_log`: opens it for this process. Raises what that raises, and LogLockedError if the process that has
        the log does not share it."""
        SharedHandle.__init__(self)
        LogReader.__init__(self)
        self.path = Path(os.path.abspath(checked_path(path)))
        checked_config(config, fsync, leader_epoch)
        self._open_log = open_log
        self._options = options_sent(config, fsync, leader_epoch)
        self._clock = checked_clock(clock)
        self._now_ms = self._clock.now_ms
        self._follower: Follower | None = None
        # What says which log it is, also when that is closed.
        self._described: Log | Follower
        self._greeting: Header = {}
        # Made again by each owner that this process attaches to.
        self._sender: SentAppender | None = None
        self._numbers = itertools.count(1)
        # Guards the two below; `_known_end`: an offset that the next append does not come before.
        self._lock = QuickLock()
        self._own_producers: list[OwnProducer] = []
        self._waiting: list[Callback] = []
        self._is_flushing = False
        self._known_end = 0
        self._is_unsynced = False       # something was appended with wait=False
        try:
            self._share()
            SHARED_LOGS.opened(self)
        except BaseException:
            self._give_up()
            raise

    def __repr__(self) -> str:
        what = "closed" if self._is_closed else "owner" if self.is_owner else "attached"
        return f"<Log {self.path.name}: {what}>"

    # --- as the owner, and attached ---------------------------------------------------------------

    def _open_owned(self, gone: str | None) -> Owner[Log]:
        log = self._open_log()
        try:
            if log._tail.is_old_format or log._dialect.is_tagged:
                raise UnsupportedForMessageFormatError(
                    "its batches have no producers, so several processes cannot share it: only format v2 has them",
                    file=self.path, hint="open it in one process, or convert it to v2",
                )
            desk = LogDesk(log, self._holder, self._options)
            owner = Owner(log, desk, DeskServer(self.path, SOCKET, desk))
            self._described = log
            return owner
        except BaseException:
            log.close()
            raise

    def _explain(self, error: LogLockedError) -> None:
        if error.file is not None and os.path.basename(error.file) == PARTITION_LOCK:
            super()._explain(error)

    def _compare(self, client: Client) -> None:
        """Read by the settings of the owner from now on. Warn of options that differ from the owner's: they have no
        effect, until this process is the owner."""
        greeting = client.greeting
        config, end = greeting.get("config"), greeting.get("end")
        if not isinstance(config, dict) or type(end) is not int or type(greeting.get("leader_epoch")) is not int:
            raise ProtocolError("not the answer of a process that has a log")
        names = {key.name for key in LogConfig.keys.values()}
        try:
            known = LogConfig.of({name: value for name, value in config.items() if name in names})
        except InvalidArgumentError:
            raise ProtocolError("the owner has settings that are not valid here") from None
        fsync = client.options.get("fsync")
        if fsync not in get_args(Fsync):
            raise ProtocolError("the owner has an fsync that is none")
        follower = self._follower
        if follower is None:
            follower = Follower(self.path, config=known)
            follower._now_ms = self._now_ms
        follower._syncs_cursors = fsync != "never"
        self._follower, self._greeting, self._described = follower, greeting, follower
        self._known_end = max(self._known_end, end)
        self._sender = SentAppender(self, known)
        differing = [
            f"{name} is {self._options.get(name)!r} here and {repr(client.options.get(name))[:80]} there"
            for name in {**self._options, **client.options} if self._options.get(name) != client.options.get(name)
        ]
        if differing:
            logger.warning(
                "%s: another process owns the log, and its options count: %s. Pass the same ones in all processes: "
                "any of them may own it next", self.path, ", ".join(differing),
            )

    def _reader(self) -> "Log | Follower":
        """What reads the log: the log itself, if this process owns it. Never waits."""
        role = self._role
        if isinstance(role, Owner):
            log: Log = role.opened
            return log
        follower = self._follower
        if self._pid != os.getpid():
            raise ForkedHandleError(f"the log belongs to process {self._pid}, which forked this one", file=self.path)
        if follower is None or self._is_closed:
            raise LogClosedError("the log was closed", file=self.path)
        return follower

    def _asked(self, call: str, **arguments: object) -> Header:
        return self._ask({"call": call, **arguments})[0]

    def _number(self, call: str, name: str, **arguments: object) -> int:
        number = self._asked(call, **arguments).get(name)
        if type(number) is not int:
            raise ProtocolError(f"the answer lacks {name}")
        return number

    # --- what it is ------------------------------------------------------------------------------

    @property
    def topic(self) -> str:     # type: ignore[override]
        """The topic in the directory's name."""
        return self._described.topic

    @property
    def partition(self) -> int:     # type: ignore[override]
        """The partition in the directory's name."""
        return self._described.partition

    @property
    def config(self) -> LogConfig:      # type: ignore[override]
        """The owner's configuration, as of when this process attached."""
        return self._described.config

    @property
    def fsync(self) -> Fsync:       # type: ignore[override]
        """The owner's."""
        role = self._role
        return cast(Fsync, role.opened.fsync if isinstance(role, Owner) else self._greeting["options"]["fsync"])

    @property
    def settings(self) -> LogSettings:      # type: ignore[override]
        """The settings that the owner was given, and those that are kept with the log."""
        role = self._role
        if isinstance(role, Owner):
            found: LogSettings = role.opened.settings
            return found
        given = {
            name.removeprefix("config."): text for name, text in self._greeting["options"].items()
            if name.startswith("config.")
        }
        return LogSettings(self.path, given, checked_config(given, "never", 0))

    @property
    def recovery(self) -> Any:      # type: ignore[override]
        """What opening lost and repaired, in the process that owns it. Raises SharedLogError in another one."""
        role = self._role
        if not isinstance(role, Owner):
            raise SharedLogError("another process opened the log, and knows what that repaired", file=self.path)
        return role.opened.recovery

    @property
    def format_counters(self) -> FormatCounters:
        """Those of this process."""
        return self._reader().format_counters

    @format_counters.setter
    def format_counters(self, counters: FormatCounters) -> None:
        """The reader has its own."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that a reader may see."""
        return self._reader().log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last offset that readers see."""
        return self._reader().log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is still open; the log end offset if none is."""
        return self._reader().last_stable_offset

    @property
    def durable_offset(self) -> int:
        """One past the last offset that is known to be on the disk."""
        reader = self._reader()
        if isinstance(reader, Log):
            return reader.durable_offset
        reader._look()
        ends = reader._ends
        return reader.log_start_offset if ends is None else ends.durable[1]

    @property
    def recovery_point(self) -> int:
        """As Log.recovery_point; the owner is asked."""
        return self._number("look", "recovery_point")

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of new batches."""
        role = self._role
        return role.opened.leader_epoch if isinstance(role, Owner) else int(self._greeting["leader_epoch"])

    @property
    def leader_epochs(self) -> Any:
        """As Log.leader_epochs; None if nothing is known."""
        return self._reader().leader_epochs

    @property
    def cleaner_offset(self) -> int | None:
        """As Log.cleaner_offset; the owner is asked."""
        offset = self._asked("look").get("cleaner_offset")
        return offset if type(offset) is int else None

    @property
    def producers(self) -> Any:
        """As Log.producers."""
        return self._reader().producers

    @property
    def segments(self) -> Any:
        """The current segments, in the order of their base offsets."""
        return self._reader().segments

    # --- reading ---------------------------------------------------------------------------------
    # Each call is one of the log itself, or of a follower of its files.

    read = _of_reader(Log.read)
    cursor = _of_reader(Log.cursor)
    tail = _of_reader(Log.tail)
    batches = _of_reader(Log.batches)
    columns = _of_reader(Log.columns)
    tables = _of_reader(Log.tables)
    fetch = _of_reader(Log.fetch)
    follow = _of_reader(Log.follow)
    find_offset = _of_reader(Log.find_offset)
    offset_for_time = _of_reader(Log.offset_for_time)
    aborted_transactions = _of_reader(Log.aborted_transactions)
    end_offset_for = _of_reader(Log.end_offset_for)
    __getitem__ = _of_reader(Log.__getitem__)
    _records_in_files = _of_reader(Log._records_in_files)
    _follow_tables = _of_reader(Log._follow_tables)
    _current = _of_reader(Log._current)

    @property
    def _source(self) -> FollowedLog:
        return self._reader()._source

    # --- appending -------------------------------------------------------------------------------

    def append(     # type: ignore[override]
        self, value: "Buffer | None", *misplaced: Never, key: "Buffer | str | None" = None,
        headers: "Headers | None" = (), timestamp: "Time | None" = None, wait: bool = True,
    ) -> int | PendingAppend[int]:
        """As Log.append."""
        if misplaced:
            raise misplaced_error(1 + len(misplaced))
        log = self._owned()
        if log is not None:
            return self._told(log, log._appender.append(value, key, headers, timestamp, wait))
        return self._sending().append(value, key, headers, timestamp, wait)

    def append_many(    # type: ignore[override]
        self, records: "Iterable[Record]", *, atomic: bool = True, wait: bool = True
    ) -> int | PendingAppend[int]:
        """As Log.append_many."""
        log = self._owned()
        if log is not None:
            return self._told(log, log._appender.append_many(records, atomic, wait))
        return self._sending().append_many(records, atomic, wait)

    def append_columns(     # type: ignore[override]
        self, columns: object = None, *, timestamps: object = None, keys: object = None, values: object = None,
        headers: object = None, wait: bool = True,
    ) -> int | PendingAppend[int]:
        """As Log.append_columns."""
        log = self._owned()
        named = {"timestamp": timestamps, "key": keys, "value": values, "headers": headers}
        if log is not None:
            return self._told(log, log._appender.append_columns(columns, named, wait))
        return self._sending().append_columns(columns, named, wait)

    def append_batch(   # type: ignore[override]
        self, raw: "Buffer", *, assign_offsets: bool = True, leader_epoch: int | None = None,
        from_coordinator: bool = False, wait: bool = True,
    ) -> AppendResult | PendingAppend[AppendResult]:
        """As Log.append_batch, for batches of v2 that get their offsets here and belong to no transaction. A batch
        with a producer id of its own keeps that, and is not written twice because of it."""
        if not assign_offsets or leader_epoch is not None or from_coordinator:
            raise SharedLogError(
                "a replica's or a coordinator's batches are not for a log that was opened with attach=True",
                file=self.path,
            )
        try:
            batch = bytes(memoryview(raw).cast("B"))
        except TypeError as error:
            raise InvalidArgumentError(
                f"a batch must be bytes-like and contiguous, not {type(raw).__name__}",
                hint="seglog.build_batch makes one from records",
            ) from error
        log = self._owned()
        check = self._sending().check_batch if log is None else log.check_batch
        bits = CONTROL_BIT | TRANSACTIONAL_BIT
        is_old = len(batch) > MAGIC_POS and batch[MAGIC_POS] in (0, 1)
        if is_old or (len(batch) > LOW_ATTRIBUTES_POS and batch[LOW_ATTRIBUTES_POS] & bits):
            check(batch)
            what = f"batches of format v{batch[MAGIC_POS]}" if is_old else "transactions"
            raise SharedLogError(f"{what} are not for a log that was opened with attach=True", file=self.path)
        if log is not None:
            return self._told(log, log._appender.append_batch(batch, True, None, wait))
        # (As an owner would find out, before the batch is given a number.)
        check(batch)
        if producer_of(batch)[0] < 0:
            [result] = self._send([batch], wait)
        else:
            results: list[AppendResult] = []
            self._ask_to_append([batch], wait, results)
            [result] = results
        return result if wait else SentAppend(result, next(self._numbers))

    def _told(self, log: Log, appended: Appended) -> Appended:
        """What this process appended as the owner. What it opened while it was attached, a cursor for example, still
        reads the files, and sees that from now on."""
        if self._follower is not None:
            tail = log._tail
            tail.live.publish(tail.shown, tail.last_stable_offset)
        return appended

    def _sending(self) -> "SentAppender":
        sender = self._sender
        if sender is None:
            raise LogClosedError("the log was closed", file=self.path)
        return sender

    def _send(
        self, batches: "Sequence[Buffer]", wait: bool, found: "list[AppendResult] | None" = None
    ) -> list[AppendResult]:
        """Have the owner append batches, with numbers by which a later owner finds them. `found`: the results are added
        to it; if it raises one of _REFUSALS, the batches that have none are not in the log."""
        if found is None:
            found = []
        for piece in _in_frames(batches):
            count = sum(span_of(batch) for batch in piece)
            producer = self._taken_producer(count)
            results: list[AppendResult] = []
            try:
                self._ask_to_append(producer.stamped(piece), wait, results)
            except _REFUSALS:
                if len(piece) == 1:
                    self._own_producers.append(producer)
                raise
            finally:
                found += (AppendResult(first, last) for first, last, _ in results)
            producer.went(count)
            self._own_producers.append(producer)
        return found

    def _taken_producer(self, count: int) -> OwnProducer:
        try:
            producer = self._own_producers.pop()
        except IndexError:
            return OwnProducer()
        return producer if producer.has_room_for(count) else OwnProducer()

    def _ask_to_append(self, values: list[bytes], wait: bool, results: list[AppendResult]) -> None:
        """Add a result for each to `results`; if it raises, those that an earlier owner wrote may be there."""
        if not wait:
            self._is_unsynced = True
        answer, _ = self._ask({"call": "append", "since": self._known_end, "wait": wait}, values)
        try:
            told = [AppendResult(first, last, is_duplicate) for first, last, is_duplicate in answer["results"]]
            refused = answer.get("refused")
            if (not 0 < len(told) < len(values) if refused is not None else len(told) != len(values)) or not all(
                type(one.first_offset) is int and type(one.last_offset) is int and type(one.is_duplicate) is bool
                for one in told
            ):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise ProtocolError("the answer to an append must have offsets for each batch") from None
        results += told
        with self._lock:
            self._known_end = max(self._known_end, told[-1].last_offset + 1)
        if refused is not None:
            raise error_received(refused)

    def _append_all(self, calls: "Sequence[Callable[[LogAppender], Any] | Whole]") -> list[Any]:
        """For an event loop: append for several tasks, which share frames and a sync. Each call appends with
        wait=False. Returns what each would return with wait=True, or the error that it would raise."""
        answers: list[Any] = []
        for are_whole, some in itertools.groupby(calls, lambda call: isinstance(call, Whole)):
            together: list[Any] = list(some)
            answers += [_answer_of(one.call) for one in together] if are_whole else self._append_gathered(together)
        return answers

    def _append_gathered(self, calls: "Sequence[Callable[[LogAppender], Any]]") -> list[Any]:
        log = self._owned()
        if log is not None:
            return self._told(log, _appended_here(log, calls))
        sending = self._sending()
        gathering = _Gathering(self, sending.config)
        answers: list[Any] = []
        for call in calls:
            try:
                call(gathering)
                answers.append(len(gathering.batches))
            except Exception as error:
                answers.append(error)
        batches = gathering.batches
        results: list[AppendResult] = []
        try:
            if batches:
                self._send(batches, True, results)
        except _REFUSALS:
            # One of them. Each of those that were not written alone, so that the others are.
            return self._append_rest(calls, answers, batches, len(results), results)
        except Exception as error:
            # (What frames before that one wrote, is known.)
            return [
                answer if isinstance(answer, Exception) else
                results[answer - 1].last_offset if answer <= len(results) else error for answer in answers
            ]
        return [
            answer if isinstance(answer, Exception) else results[answer - 1].last_offset for answer in answers
        ]

    def _append_rest(
        self, calls: "Sequence[Callable[[LogAppender], Any]]", ends: list[Any], batches: "Sequence[Buffer]",
        done: int, results: list[AppendResult],
    ) -> list[Any]:
        """The answers to calls of whose batches the first `done` were written. `ends`: where the batches of each call
        end, or its error."""
        answers: list[Any] = []
        begin = 0
        for call, end in zip(calls, ends, strict=True):
            if isinstance(end, Exception):
                answers.append(end)
                continue
            if end <= done:
                answers.append(results[end - 1].last_offset)
            elif begin >= done:
                answers.append(_answer_of(functools.partial(self._appended_alone, call)))
            else:
                rest = functools.partial(self._send, batches[done:end], True)
                answer = _answer_of(rest)
                answers.append(answer if isinstance(answer, Exception) else answer[-1].last_offset)
            begin = end
        return answers

    def _appended_alone(self, call: "Callable[[LogAppender], Any]") -> Any:
        log = self._owned()
        if log is not None:
            [answer] = _appended_here(log, [call])
            return answer
        gathering = _Gathering(self, self._sending().config)
        call(gathering)
        return self._send(gathering.batches, True)[-1].last_offset

    def flush(self) -> None:
        """As Log.flush."""
        self._asked("flush")
        self._is_unsynced = False

    def when_durable(self, token: PendingAppend[Any], callback: Callback) -> None:
        """As Log.when_durable; a thread calls back for all that wait at the same time."""
        if not isinstance(token, SentAppend):
            log = self._owned()
            if log is None:
                raise InvalidArgumentError(
                    f"{token!r} is not a token of this log", file=self.path,
                    hint="use one that an append with wait=False returned; it is valid until the log is closed",
                )
            log.when_durable(token, callback)
            return
        checked_callback(callback)
        with self._lock:
            self._waiting.append(callback)
            begins, self._is_flushing = not self._is_flushing, True
        if begins:
            start_thread(self._call_back, ())

    def _call_back(self) -> None:
        work_in_background()
        while True:
            with self._lock:
                callbacks, self._waiting = self._waiting, []
                if not callbacks:
                    self._is_flushing = False
                    return
            error: BaseException | None = None
            try:
                self.flush()
            except SeglogError as failed:
                error = failed
            for callback in callbacks:
                try:
                    callback(error)
                except BaseException:
                    logger.exception("a callback of when_durable raised")

    # --- what one process can do for all ---------------------------------------------------------

    def roll(self) -> int:
        """As Log.roll."""
        return self._number("roll", "offset")

    def delete_records(self, before: int) -> int:
        """As Log.delete_records."""
        return self._number("delete_records", "offset", before=checked_offset(before))

    def snapshot(self, dst: str | os.PathLike[str]) -> int:
        """As Log.snapshot: the owner makes it."""
        path = os.path.abspath(checked_path(dst))
        return self._number("snapshot", "offset", path=path, was_absent=not os.path.lexists(path))

    def stats(self) -> LogStats:
        """As Log.stats: those of the owner."""
        try:
            return LogStats(**self._asked("stats")["stats"])
        except (KeyError, TypeError):
            raise ProtocolError("the answer with the numbers of a log lacks some") from None

    truncate_to = _refused(Log.truncate_to)
    replace_segments = _refused(Log.replace_segments)
    configure = _refused(Log.configure)
    delete_old_segments = _refused(Log.delete_old_segments)
    producer = _refused(Log.producer)
    end_transaction = _refused(Log.end_transaction)
    check_batch = _refused(Log.check_batch)
    append_checked = _refused(Log.append_checked)
    on_published = _refused(Log.on_published)

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """As Log.close: if this process owns it, another one that is attached takes over. Calls that wait for the owner
        raise LogClosedError. What this process appended with wait=False is made durable, unless the owner is stopped.
        """
        if self._is_unsynced and not self._is_closed and not self.is_owner and self._pid == os.getpid():
            with contextlib.suppress(SeglogError, TimeoutError):     # the next owner recovers it
                self._ask({"call": "flush"}, None, time.monotonic() + _GRACE_S)
        super().close()

    def _close_role(self) -> None:
        SHARED_LOGS.closed(self)
        super()._close_role()
        follower = self._follower
        if follower is not None and self._pid == os.getpid():
            follower.close()


class _SentTail:
    """What a LogAppender needs of the end of a log, for batches that another process writes there."""

    linger = None
    flush_messages = 0
    # No record is appended by the kernel that writes to the files.
    is_plain = False
    # Batches are placed by the owner.
    next_offset = leader_epoch = 0

    def __init__(self, config: LogConfig, now_ms: Callable[[], int]) -> None:
        self.config = config
        self.now_ms = now_ms
        self.encoder = BatchEncoder(config, 0, to_timestamp_ms)

    def check(self) -> None:
        """The owner does."""

    def append_plain(self, *_: object) -> int:
        """Nothing: see is_plain."""
        return -1


class SentAppender(LogAppender):
    """Encodes and checks as a log's own appender does, by the owner's settings, and sends the batches to it."""

    def __init__(self, shared: SharedLog, config: LogConfig) -> None:
        super().__init__(cast(Any, _SentTail(config, shared._now_ms)), FormatCounters())
        self.config = config
        self._shared = shared

    def _append_made(
        self, encoder: BatchEncoder, batches: Sequence[EncodedBatch], now_ms: int, atomic: bool, wait: bool | None
    ) -> int | PendingAppend[int] | None:
        shared = self._shared
        last = shared._send(batches, wait is True)[-1].last_offset
        return last if wait else SentAppend(last, next(shared._numbers))


class Whole(NamedTuple):
    """A call in SharedLog._append_all that is not gathered with others, but keeps its place among them."""

    call: Callable[[], Any]


class _Gathering(SentAppender):
    """Keeps the batches of several calls, to be sent together."""

    def __init__(self, shared: SharedLog, config: LogConfig) -> None:
        super().__init__(shared, config)
        self.batches: list[EncodedBatch] = []

    def _append_made(
        self, encoder: BatchEncoder, batches: Sequence[EncodedBatch], now_ms: int, atomic: bool, wait: bool | None
    ) -> int | PendingAppend[int] | None:
        self.batches += batches
        return SentAppend(-1, 0)


def _answer_of(call: Callable[[], Any]) -> Any:
    """What it returns, or the error that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def _appended_here(log: Log, calls: "Sequence[Callable[[LogAppender], Any]]") -> list[Any]:
    """As SharedLog._append_all, where the process owns the log."""
    answers: list[Any] = []
    last: PendingAppend[Any] | None = None
    for call in calls:
        try:
            last = call(log._appender)
            answers.append(last.result)
        except Exception as error:
            answers.append(error)
    if last is not None:
        try:
            log._tail.acknowledge(last.number)
        except Exception as error:
            return [answer if isinstance(answer, Exception) else error for answer in answers]
    return answers


def _in_frames(batches: "Sequence[Buffer]") -> Iterator[list[memoryview]]:
    """As many of them at a time as go into a frame."""
    piece: list[memoryview] = []
    size_bytes = 0
    for batch in batches:
        view = memoryview(batch)
        if view.nbytes > VALUES_BYTES_MAX:
            raise RecordTooLargeError(f"a batch of {view.nbytes} bytes is too large to be sent to the owner of the log")
        if piece and (size_bytes + view.nbytes > FRAME_BYTES or len(piece) == FRAME_JOBS):
            yield piece
            piece, size_bytes = [], 0
        piece.append(view)
        size_bytes += view.nbytes
    yield piece


def options_sent(
    config: Mapping[str, object] | LogConfig | None, fsync: Fsync, leader_epoch: int
) -> dict[str, object]:
    """The options of a log as they are sent and compared: a setting by its name behind "config.", as text."""
    values = dict(checked_config(config, fsync, leader_epoch).items())
    given = given_settings(config)
    return {
        "fsync": fsync, "leader_epoch": leader_epoch,
        **{f"config.{name}": as_text(values.get(name, value)) for name, value in given.items()},
    }
