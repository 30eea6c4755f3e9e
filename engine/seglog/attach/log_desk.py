"""What other processes ask of a log that this one has open.

    server, or the owner itself ── answer(holder, header, values) ── LogDesk ── Log
"""
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from seglog._kernels.batch_survey import first_with_producer
from seglog.attach.channel import Header
from seglog.attach.errors_sent import error_sent
from seglog.attach.sent_batches import producer_of
from seglog.errors import ProtocolError, SeglogError
from seglog.format.batch_layout import CONTROL_BIT, LOW_ATTRIBUTES_POS, MAGIC_POS, TRANSACTIONAL_BIT, V2_HEADER_SIZE
from seglog.log.append import AppendResult
from seglog.log.log import Log
from seglog.reading.partition import Partition

Answer = tuple[Header, list[bytes]]

_BATCHES_MAX = 1000


class LogDesk:
    """Thread-safe. `answer` is the one way in; what it gets is not trusted."""

    def __init__(self, log: Log, owner: str, options: Mapping[str, object]) -> None:
        """`owner`: the id of this process. `options`: the log's, to be compared (shared_log.options_sent)."""
        self.log = log
        self.owner = owner
        self.options = options
        self._calls: dict[str, Callable[[Header, list[bytes]], Answer]] = {
            "append": self._append, "flush": self._flush, "roll": self._roll, "delete_records": self._delete_records,
            "snapshot": self._snapshot, "stats": self._stats, "look": self._look,
        }

    def greeting(self) -> Header:
        """As AnyDesk; `config`: the settings that differ from the defaults, which encode and decode batches; `end`: an
        offset that later appends do not come before."""
        log = self.log
        return {
            "owner": self.owner, "options": self.options, "end": log._tail.next_offset,
            "config": {name: _sent(value) for name, value in log.config.items()}, "leader_epoch": log.leader_epoch,
        }

    def answer(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        """Do what a frame asks for. Raises ProtocolError for one that no seglog sends, and what the log raises."""
        name = header.get("call")
        call = self._calls.get(name) if isinstance(name, str) else None
        if call is None:
            raise ProtocolError(f"an unknown call: {repr(name)[:80]}")
        return call(header, values)

    # A log has nothing that belongs to a process.

    def adopt(self, holder: str, held: object) -> None:
        """As AnyDesk."""

    def drop(self, holder: str) -> None:
        """As AnyDesk."""

    def release_unsent(self, holder: str, header: Header) -> None:
        """As AnyDesk."""

    def end_unheard(self, holder: str, ids: Sequence[str]) -> None:
        """As AnyDesk."""

    # --- calls -------------------------------------------------------------------------------

    def _append(self, header: Header, values: list[bytes]) -> Answer:
        """Append encoded batches, in this order: all are checked before the first one is written. `refused` in the
        answer: the error of those that have no result, where an earlier owner wrote the others."""
        since = header.get("since")
        if not 1 <= len(values) <= _BATCHES_MAX or type(since) is not int or not 0 <= since < 2**62:
            raise ProtocolError("an append must have batches, and an offset that they come after")
        for value in values:
            if len(value) < V2_HEADER_SIZE or value[MAGIC_POS] != 2 or producer_of(value)[0] < 0:
                raise ProtocolError("a batch must be one of v2, with a producer")
            if value[LOW_ATTRIBUTES_POS] & (CONTROL_BIT | TRANSACTIONAL_BIT):
                raise ProtocolError("a batch must not be of a transaction")
        log, tail = self.log, self.log._tail
        done = self._found(values, since) if header.get("is_again") is True else []
        refused: dict[str, Any] = {}
        try:
            checked = [log.check_batch(value) for value in values[len(done) :]]
        except SeglogError as error:
            if not done:
                raise
            checked, refused = [], {"refused": error_sent(error)}
        number = tail.number
        for batch in checked:
            written = log.append_checked(batch, wait=False)
            done.append(written.result)
            number = written.number
        tail.acknowledge(number, header.get("wait") is not False)
        # Before the answer: the process that asked reads the files, and sees its records from now on.
        tail.live.publish(tail.shown, tail.last_stable_offset)
        results = [[result.first_offset, result.last_offset, result.is_duplicate] for result in done]
        return {"results": results, **refused}, []

    def _found(self, values: list[bytes], since: int) -> list[AppendResult]:
        """The batches that are in the log already, because an owner died, or closed the log, before it answered."""
        log = self.log
        wanted = {producer_of(value): number for number, value in enumerate(values)}
        if not any(producer_id in log._tail.producers for producer_id, *_ in wanted):
            return []
        log.flush()     # so that all of them can be read
        found: dict[int, AppendResult] = {}
        for _, table in log.tables(max(min(since, log.log_end_offset), log.log_start_offset)):
            slot = first_with_producer(table)
            while slot >= 0:
                batch = table[slot]
                number = wanted.get((batch.producer_id, batch.producer_epoch, batch.base_sequence))
                if number is not None and not batch.is_control:
                    found[number] = AppendResult(batch.base_offset, batch.last_offset)
                slot = first_with_producer(table, slot + 1)
        # (They were written in this order.)
        return [found[number] for number in takewhile(found.__contains__, range(len(values)))]

    def _flush(self, header: Header, values: list[bytes]) -> Answer:
        self.log.flush()
        return {}, []

    def _roll(self, header: Header, values: list[bytes]) -> Answer:
        return {"offset": self.log.roll()}, []

    def _delete_records(self, header: Header, values: list[bytes]) -> Answer:
        before = header.get("before")
        if type(before) is not int:
            raise ProtocolError("an offset must be an int")
        return {"offset": self.log.delete_records(before)}, []

    def _snapshot(self, header: Header, values: list[bytes]) -> Answer:
        path = header.get("path")
        if not isinstance(path, str) or not path.startswith("/"):
            raise ProtocolError("a path must be whole")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise ProtocolError("a path must be text") from None
        if header.get("is_again") is True and header.get("was_absent") is True and os.path.isdir(path):
            # The owner before this one made it, as a whole, and died before it could tell.
            with Partition(path) as made:
                return {"offset": made.log_end_offset}, []
        return {"offset": self.log.snapshot(Path(path))}, []

    def _stats(self, header: Header, values: list[bytes]) -> Answer:
        return {"stats": dataclasses.asdict(self.log.stats())}, []

    def _look(self, header: Header, values: list[bytes]) -> Answer:
        log = self.log
        return {
            "durable_offset": log.durable_offset, "recovery_point": log.recovery_point,
            "leader_epoch": log.leader_epoch, "cleaner_offset": log.cleaner_offset,
        }, []


def _sent(value: Any) -> Any:
    """A setting's value for a frame: those that JSON lacks are sent as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
