"""The last place of each key of a topic: collected in phase one of a compaction, used in phase two."""
from array import array

from seglog._kernels.batched_messages import BatchedMessages, entry_of, message_place
from seglog._kernels.key_map import KeyMap

# The memory of a map per key: 28 bytes a slot, nine tenths in use, and some for the first keys.
_KEY_BYTES, _LEAST_BYTES = 32, 1024


class LatestKeys:
    """Entries are numbered from 0 in reading order; a message's place is its entry's number and its own number in it.
    Keys whose last message deletes them are included: they are removed from what was compacted before.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._map = KeyMap(budget_bytes)
        # For each entry, how many of its messages remain, as far as is known.
        self._counts = array("i")

    def __len__(self) -> int:
        """The number of keys, including deleted ones."""
        return len(self._map)

    @property
    def size_bytes(self) -> int:
        """The memory in use."""
        return self._map.nbytes

    def has_room(self, messages: int) -> bool:
        """Whether this many messages may be noted, whatever their keys are.

        An empty map always has room, and is enlarged if necessary: otherwise a batch with more keys than the budget
        allows could never be compacted.
        """
        if messages <= self._map.max_keys - len(self._map):
            return True
        if len(self._map):
            return False
        self._map = KeyMap(messages * _KEY_BYTES + _LEAST_BYTES)
        return True

    def reserve(self, messages: int) -> None:
        """Reserve memory, beyond the budget, for the keys of this many messages. Call it before any is noted."""
        self._map = KeyMap(self._budget_bytes + messages * _KEY_BYTES)

    def stays(self, number: int) -> bool:
        """Whether anything of an entry remains, once all are noted. If not, its batch need not be opened again."""
        return number < 0 or self._counts[number] > 0

    def note_batch(self, messages: BatchedMessages, number: int, retains_null_keys: bool) -> bool:
        """Note a batch. Return whether anything of it would remain if nothing followed."""
        self._begin(number)
        return messages.note(self._map, number, self._counts, retains_null_keys) > 0

    def note_whole(self, number: int) -> None:
        """Note a batch that cannot be opened: it remains."""
        self._begin(number)
        self._counts[number] = 1

    def kept_of(self, messages: BatchedMessages, number: int, retains_null_keys: bool) -> list[int]:
        """Return which messages of a batch remain. `number` -1: it was compacted before, and shares no keys."""
        return messages.kept(self._map, number, retains_null_keys)

    def note(self, key: bytes, number: int, is_deleted: bool) -> None:
        """Note an entry that is one message, or counts as one."""
        self._begin(number)
        before = entry_of(self._map.get(key))
        self._map.put(key, message_place(number, is_deleted))
        if before >= 0:
            self._counts[before] -= 1
        if not is_deleted:
            self._counts[number] += 1

    def keeps(self, key: bytes, number: int) -> bool:
        """Whether that entry remains. `number` -1 as for a batch."""
        return self._map.get(key) == (-1 if number < 0 else message_place(number, False))

    def _begin(self, number: int) -> None:
        counts = self._counts
        counts.extend([0] * (number + 1 - len(counts)))
