"""Keys of which a queue takes one job in a while: `put(value, key=..., unique_for=...)`.

    the job's entry has the end of its window ── durable together with the job
       └── the journal lists its key, without a sync of its own: the entry may be trimmed, the window lasts on

A journal that lists keys says up to which entry it lists them (UNIQUE_TO); opening reads the entries after that one.
"""
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from seglog.errors import CorruptJournalError, CorruptRecordError, InvalidArgumentError
from seglog.ledger.managed.journal import Change, JournalKind, JournalRecord
from seglog.ledger.position import EARLIEST, Position
from seglog.ledger.stored_entry import StoredEntry
from seglog.named_tuple import NamedTuple

# Properties of the entry: the end of its window, ms since 1970; and what it has alone, if that is not its key.
UNIQUE_UNTIL, UNIQUE_NAME = "seglog.queue.unique.until", "seglog.queue.unique.name"
_UNIQUE_UNTIL = UNIQUE_UNTIL.encode()
_CLAIM = struct.Struct(">QQQ")
# Keys of one record.
_KEYS = 1000


class Claim(NamedTuple):
    """A key is taken until a time, ms since 1970, by the job at a position."""

    until_ms: int
    ledger_id: int
    entry_id: int


class UniqueKeys:
    """The keys of one lane. Pure state; the lock of the queue guards it.

    `listed_to`: the journal has the keys of all entries up to this one; None: there never was a key.
    """

    def __init__(self) -> None:
        self.listed_to: Position | None = None
        # By `key_bytes`; each Claim packed, in a third of its memory.
        self._claims: dict[bytes, bytes] = {}
        # Keys whose jobs are being written.
        self.under_way: set[bytes] = set()
        # A put failed or was interrupted: there may be a job whose key is not here.
        self.is_unsure = False
        self._sweep_at = 1000

    def find(self, name: bytes, now_ms: int) -> Claim | None:
        """The job that has the key now."""
        packed = self._claims.get(name)
        claim = None if packed is None else Claim._make(_CLAIM.unpack(packed))
        return claim if claim is not None and claim.until_ms > now_ms else None

    def add(self, name: bytes, claim: Claim, now_ms: int) -> None:
        """Note that a job has a key."""
        self._claims[name] = _CLAIM.pack(*claim)
        if len(self._claims) > self._sweep_at:
            self.sweep(now_ms)

    def sweep(self, now_ms: int) -> None:
        """Forget keys whose windows are over."""
        # (Packed, they sort as their times do.)
        now = _CLAIM.pack(now_ms, 2**64 - 1, 2**64 - 1)
        self._claims = {name: packed for name, packed in self._claims.items() if packed > now}
        self._sweep_at = 2 * len(self._claims) + 1000

    def clear(self) -> None:
        """Forget all keys."""
        self._claims = {}

    # --- the journal and the entries ---------------------------------------------------------

    def replay(self, record: JournalRecord) -> None:
        """Apply a record of the journal."""
        if record.kind is JournalKind.UNIQUE:
            text, begin = record.text.encode(), 0
            for item in record.items:
                end = begin + item.number
                until_ms, name = _parsed(text[begin:end], record.position)
                self._claims[name] = _CLAIM.pack(until_ms, item.ledger_id, item.entry_id)
                begin = end
        elif record.kind is JournalKind.UNIQUE_TO:
            self.listed_to = Position(*record.items[0][:2]) if record.items else EARLIEST

    def changes(self) -> Iterator[Change]:
        """Yield what makes this state, for the beginning of a journal."""
        claims = iter(self._claims.items())
        while part := list(islice(claims, _KEYS)):
            yield change_of([(name, Claim._make(_CLAIM.unpack(packed))) for name, packed in part])
        if self.listed_to is not None:
            yield listed_to(self.listed_to)

    def read(self, entries: Iterable[StoredEntry]) -> None:
        """Note the keys of entries that the journal may not list."""
        for entry in entries:
            try:
                data = entry.data
                # (Most have none: do not parse them.)
                if _UNIQUE_UNTIL not in bytes(data):
                    continue
                metadata = entry.entry.metadata
                properties = {pair.key: pair.value for pair in metadata.properties}
                until_ms = int(properties.get(UNIQUE_UNTIL, "0"))
                key: str | bytes = metadata.partition_key
                if metadata.partition_key_b64_encoded:
                    key = b64decode(key)
                key = properties.get(UNIQUE_NAME, key)
            except (CorruptRecordError, ValueError):
                continue        # its reader reports it
            if 0 < until_ms < 2**63:
                self._claims[key_bytes(key)] = _CLAIM.pack(until_ms, *entry.position)


def key_bytes(key: str | bytes | None) -> bytes:
    """A key as bytes: text is the same key as its bytes in UTF-8, as for Kafka and Pulsar. Raises InvalidArgumentError.
    """
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"a key must be text that UTF-8 can encode, not {repr(key)[:80]}") from None
    if isinstance(key, bytes):
        return key
    raise InvalidArgumentError(
        f"unique_for needs a key, text or bytes, not {repr(key)[:80]}",
        hint='pass key="...": of the jobs with this key, one is put',
    )


def change_of(claims: Sequence[tuple[bytes, Claim]]) -> Change:
    """The record that lists keys: of each, `number` bytes of the text are the end of its window, and the key."""
    texts = [_text_of(name, claim.until_ms) for name, claim in claims]
    items = [
        (claim.ledger_id, claim.entry_id, -1, len(text.encode()))
        for (_, claim), text in zip(claims, texts, strict=True)
    ]
    return Change(JournalKind.UNIQUE, items, text="".join(texts))


def listed_to(position: Position) -> Change:
    """The record that says up to which entry the journal lists keys."""
    items = [] if position == EARLIEST else [(*position, -1, 0)]
    return Change(JournalKind.UNIQUE_TO, items)


def _text_of(name: bytes, until_ms: int) -> str:
    try:
        return f"{until_ms} t{name.decode()}"
    except UnicodeDecodeError:
        return f"{until_ms} b{b64encode(name).decode()}"


def _parsed(text: bytes, position: int) -> tuple[int, bytes]:
    until, space, key = text.partition(b" ")
    try:
        if not space or key[:1] not in (b"t", b"b"):
            raise ValueError
        until_ms = int(until)
        if not 0 <= until_ms < 2**63:
            raise ValueError
        return until_ms, key[1:] if key[:1] == b"t" else b64decode(key[1:], validate=True)
    except ValueError:
        raise CorruptJournalError("invalid key in a record whose checksum is right", position=position) from None
