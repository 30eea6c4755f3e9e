"""What of the files beside a log lies before an end: when a log is backed up that grows, and when it is restored to an
earlier time."""
from pathlib import Path

from seglog.errors import CorruptCheckpointError, CorruptIndexError
from seglog.format import names
from seglog.segment.transaction_index import ENTRY_SIZE, TransactionIndex
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.reader_cursor import ReaderCursor, is_cursor_file


def content_until(raw: bytes, path: Path, end: int) -> bytes:
    """The bytes of a file without what lies behind the end of its log. Damaged files stay as they are."""
    if path.name == names.LEADER_EPOCH_CHECKPOINT:
        return _epochs_until(raw, path, end)
    if is_cursor_file(path.name):
        return _cursor_until(raw, path, end)
    parsed = names.parse_file_name(path.name)
    if parsed is not None and parsed.suffix == names.TRANSACTION_INDEX_SUFFIX:
        return _aborts_until(raw, path, end)
    return raw


def is_until(name: str, end: int) -> bool:
    """Whether a file of this name, not a .log, belongs to a log that ends there."""
    parsed = names.parse_file_name(name)
    if parsed is None:
        return True
    return parsed.offset <= end if parsed.suffix == names.SNAPSHOT_SUFFIX else parsed.offset < end or parsed.offset == 0


def _cursor_until(raw: bytes, path: Path, end: int) -> bytes:
    try:
        found = ReaderCursor.parse(raw, path)
    except CorruptCheckpointError:
        return raw
    return raw if found.offset <= end else found._replace(offset=end).to_bytes()


def _epochs_until(raw: bytes, path: Path, end: int) -> bytes:
    """One may begin at the end."""
    try:
        epochs = LeaderEpochs.parse(raw, file=path)
    except CorruptCheckpointError:
        return raw
    kept = epochs.truncate_from_end(end + 1)
    return raw if kept is epochs else kept.to_bytes()


def _aborts_until(raw: bytes, path: Path, end: int) -> bytes:
    """Transactions whose markers are before the end."""
    try:
        found = TransactionIndex(raw, path=path)
    except CorruptIndexError:
        return raw
    count = len(found)
    while count and found[count - 1].last_offset >= end:
        count -= 1
    return raw[: count * ENTRY_SIZE]
