"""Which member of a consumer group gets which partitions: the server's assignors `uniform` and `range` (KIP-848).

Both are pure: members and topics go in, and the partitions of each member come out, after as many steps as a large
group takes. Between the steps the caller may do something else.
"""
import heapq
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from seglog.named_tuple import NamedTuple

# The partitions of each topic, by its id.
Assignment = Mapping[bytes, frozenset[int]]
# A topic's id, and the number of one of its partitions.
TopicIdPartition = tuple[bytes, int]

# So often all topics are gone through to even out the members' loads. Two or three suffice but for odd subscriptions.
_PASSES_MAX = 16


class Subscriber(NamedTuple):
    """A member as an assignor sees it. `topics`: the ids of the topics that it reads, the same object for members that
    read the same; `target`: what it had so far."""

    member_id: str
    instance_id: str | None
    topics: Sequence[bytes]
    target: Assignment


# What is returned after some steps.
Steps = Generator[None, None, dict[str, Assignment]]
# Gets the members, and the number of partitions of each topic, by its id.
Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], Steps]
# A step is at most so many partitions or readers of a topic, besides one topic or member.
_STEP = 500


def uniform(members: Sequence[Subscriber], partitions: Mapping[bytes, int]) -> Steps:
    """As even as the subscriptions allow, and no partition moves without need (UniformAssignor)."""
    kept: dict[str, set[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    lists = {id(member.topics): member.topics for member in members}
    reads_of = {which: frozenset(topics) for which, topics in lists.items()}
    for member in members:
        reads = reads_of[id(member.topics)]
        mine = {
            (topic, number) for topic, numbers in member.target.items() if topic in reads
            for number in numbers if number < partitions.get(topic, 0) and (topic, number) not in taken
        }
        taken |= mine
        kept[member.member_id] = mine
        yield
    free = [(topic, number) for topic in sorted(frozenset().union(*reads_of.values()))
            for number in range(partitions.get(topic, 0)) if (topic, number) not in taken]
    yield
    if len(set(reads_of.values())) <= 1:
        yield from _fill_evenly(kept, free)
    else:
        readers = yield from _readers(members)
        yield from _fill_least(kept, free, readers)
        yield from _even_out(kept, readers)
    assigned: dict[str, Assignment] = {}
    for member_id, mine in kept.items():
        assigned[member_id] = _by_topic(mine)
        yield
    return assigned


def range_(members: Sequence[Subscriber], partitions: Mapping[bytes, int]) -> Steps:
    """Each topic in runs of partitions, in the order of the members: the first ones get one more (RangeAssignor).
    Members that read the same topics get the same numbers of each, as joins of topics need."""
    assigned: dict[str, dict[bytes, frozenset[int]]] = {member.member_id: {} for member in members}
    # Static members first, so that a restart, which changes a member's id, moves nothing.
    ordered = sorted(members, key=lambda one: (
        one.instance_id is None, one.member_id if one.instance_id is None else one.instance_id))
    readers_of = yield from _readers(ordered)
    for topic, readers in readers_of.items():
        least, more = divmod(partitions.get(topic, 0), len(readers))
        begin = 0
        for number, member_id in enumerate(readers if least else readers[:more]):
            end = begin + least + (number < more)
            assigned[member_id][topic] = frozenset(range(begin, end))
            begin = end
            if number % _STEP == _STEP - 1:
                yield
        yield
    return dict(assigned)


# The first one is the default.
ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": range_}


def _readers(members: Sequence[Subscriber]) -> Generator[None, None, Mapping[bytes, Sequence[str]]]:
    if len({id(member.topics) for member in members}) == 1:
        return dict.fromkeys(members[0].topics, tuple(member.member_id for member in members))
    readers: dict[bytes, list[str]] = {}
    for member in members:
        for topic in dict.fromkeys(member.topics):
            readers.setdefault(topic, []).append(member.member_id)
        yield
    return readers


def _fill_evenly(kept: dict[str, set[TopicIdPartition]], free: list[TopicIdPartition]) -> Iterator[None]:
    """All members read the same topics: each gets its share, and those that had most get one more if it does not come
    out even."""
    if not kept:
        return
    least, more = divmod(sum(map(len, kept.values())) + len(free), len(kept))
    quotas = {member_id: least + (number < more)
              for number, member_id in enumerate(sorted(kept, key=lambda one: -len(kept[one])))}
    for member_id, mine in kept.items():
        over = len(mine) - quotas[member_id]
        if over > 0:
            given = sorted(mine)[-over:]
            mine.difference_update(given)
            free.extend(given)
        yield
    for member_id, mine in kept.items():
        while len(mine) < quotas[member_id]:
            mine.add(free.pop())
        yield


def _fill_least(
    kept: dict[str, set[TopicIdPartition]], free: list[TopicIdPartition], readers: Mapping[bytes, Sequence[str]]
) -> Iterator[None]:
    """Give each free partition to the reader of its topic that has least."""
    topic_of_heap, heap = None, []
    for count, (topic, number) in enumerate(free):
        if topic != topic_of_heap:
            topic_of_heap, heap = topic, [(len(kept[one]), one) for one in readers.get(topic, ())]
            heapq.heapify(heap)
            yield
        elif count % _STEP == 0:
            yield
        if heap:
            _, member_id = heap[0]
            kept[member_id].add((topic, number))
            heapq.heapreplace(heap, (len(kept[member_id]), member_id))


def _even_out(kept: dict[str, set[TopicIdPartition]], readers: Mapping[bytes, Sequence[str]]) -> Iterator[None]:
    """Move partitions from readers that have more to readers of the same topic that have at least two less."""
    for _ in range(_PASSES_MAX):
        is_even = True
        held_of: dict[bytes, dict[str, list[TopicIdPartition]]] = {}
        for name, mine in kept.items():
            for one in sorted(mine):
                held_of.setdefault(one[0], {}).setdefault(name, []).append(one)
            yield
        for topic, names in readers.items():
            yield
            held = held_of.get(topic, {})
            most = [(-len(kept[name]), name) for name in held]
            least = [(len(kept[name]), name) for name in names]
            heapq.heapify(most)
            heapq.heapify(least)
            taken = 0
            while most and least:
                taken += 1
                if taken % _STEP == 0:
                    yield
                high, low = most[0][1], least[0][1]
                if -most[0][0] != len(kept[high]):
                    heapq.heapreplace(most, (-len(kept[high]), high))
                elif least[0][0] != len(kept[low]):
                    heapq.heapreplace(least, (len(kept[low]), low))
                elif len(kept[high]) - len(kept[low]) < 2:
                    break
                else:
                    where = held[high].pop()
                    kept[high].discard(where)
                    kept[low].add(where)
                    is_even = False
                    if not held[high]:
                        heapq.heappop(most)
                    if low not in held:
                        held[low] = []
                        heapq.heappush(most, (-len(kept[low]), low))
                    held[low].append(where)
        if is_even:
            return


def _by_topic(mine: set[TopicIdPartition]) -> Assignment:
    found: dict[bytes, list[int]] = {}
    for topic, number in mine:
        found.setdefault(topic, []).append(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}
