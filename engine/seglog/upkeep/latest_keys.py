"""Where each key of a topic came last: what phase one of a compaction finds out and phase two asks."""
from array import array

from seglog._kernels.batched_messages import BatchedMessages, entry_of, message_place
from seglog._kernels.key_map import KeyMap

# Of a map, for each key that it holds at most: 28 bytes a slot, nine tenths in use, and some for the first ones.
_KEY_BYTES, _LEAST_BYTES = 32, 1024


class LatestKeys:
    """Entries are numbered from 0 in the order in which they are read; a message's place is its entry's number and
    its own number in that. A key whose last message deletes it is known, too: it goes from what was compacted before.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._map = KeyMap(budget_bytes)
        # Of each entry, how many of its messages stay as far as is known.
        self._counts = array("i")

    def __len__(self) -> int:
        """Keys, deleted ones included."""
        return len(self._map)

    @property
    def size_bytes(self) -> int:
        """The memory that is taken."""
        return self._map.nbytes

    def has_room(self, messages: int) -> bool:
        """Whether so many messages may be noted, whatever their keys are.

        An empty map always has room, and is made larger where it must be: else a batch of more keys than the budget
        holds could never be compacted.
        """
        if messages <= self._map.max_keys - len(self._map):
            return True
        if len(self._map):
            return False
        self._map = KeyMap(messages * _KEY_BYTES + _LEAST_BYTES)
        return True

    def reserve(self, messages: int) -> None:
        """Before any is noted: memory for the keys of so many messages beside the budget."""
        self._map = KeyMap(self._budget_bytes + messages * _KEY_BYTES)

    def stays(self, number: int) -> bool:
        """Whether anything of an entry does, once all are noted. Else a batch need not be opened for it again."""
        return number < 0 or self._counts[number] > 0

    def note_batch(self, messages: BatchedMessages, number: int, retains_null_keys: bool) -> bool:
        """Of a batch; whether anything of it would stay if nothing followed."""
        self._begin(number)
        return messages.note(self._map, number, self._counts, retains_null_keys) > 0

    def note_whole(self, number: int) -> None:
        """Of a batch that cannot be opened: it stays."""
        self._begin(number)
        self._counts[number] = 1

    def kept_of(self, messages: BatchedMessages, number: int, retains_null_keys: bool) -> list[int]:
        """Which messages of a batch stay. `number` -1: it was compacted before, and its keys are those of no other."""
        return messages.kept(self._map, number, retains_null_keys)

    def note(self, key: bytes, number: int, is_deleted: bool) -> None:
        """Of an entry that is one message, or is taken for one."""
        self._begin(number)
        before = entry_of(self._map.get(key))
        self._map.put(key, message_place(number, is_deleted))
        if before >= 0:
            self._counts[before] -= 1
        if not is_deleted:
            self._counts[number] += 1

    def keeps(self, key: bytes, number: int) -> bool:
        """Whether that entry stays. `number` -1 as for a batch."""
        return self._map.get(key) == (-1 if number < 0 else message_place(number, False))

    def _begin(self, number: int) -> None:
        counts = self._counts
        counts.extend([0] * (number + 1 - len(counts)))
