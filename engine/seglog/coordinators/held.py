"""How much memory the groups and transactions of clients hold. It is counted as they change, since counting everything
again would block the loop."""
import sys


class Held:
    """Counters of a coordinator, in bytes. Each group and transaction adds what it gets, and takes off what it drops.

    members         seglog.group.members.max.bytes
    offsets         seglog.group.offsets.max.bytes
    transactions    seglog.transactions.max.bytes
    """

    __slots__ = ("members", "offsets", "transactions")

    def __init__(self) -> None:
        self.members = self.offsets = self.transactions = 0


def text_bytes(text: str | None) -> int:
    """What a text takes: up to four bytes a character, if one of them is an emoji."""
    return 0 if text is None else sys.getsizeof(text)
