"""The server's assignors: what each member of a group of the new protocol gets."""
import random

import pytest

from seglog.coordinators import assignors
from seglog.coordinators.assignors import Subscriber

TOPICS = [bytes([number]) * 16 for number in range(6)]


def members(random_, topics, count, target=None):
    return [Subscriber(f"m{number}", None, topics(random_), (target or {}).get(f"m{number}", {}))
            for number in range(count)]


def at_once(assignor):
    """The assignor with all of its steps."""
    def assign(group, partitions):
        steps = assignor(group, partitions)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
    return assign


ASSIGNORS = {name: at_once(assignor) for name, assignor in assignors.ASSIGNORS.items()}
uniform, range_ = ASSIGNORS["uniform"], ASSIGNORS["range"]


def loads(assigned):
    return [sum(map(len, topics.values())) for topics in assigned.values()]


def pairs(assigned):
    return [(topic, number) for topics in assigned.values() for topic, numbers in topics.items() for number in numbers]


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("is_same", [True, False])
def test_each_partition_goes_to_one_member_that_reads_its_topic(name, is_same):
    for seed in range(100):
        random_ = random.Random(seed)
        partitions = {topic: random_.randint(1, 9) for topic in TOPICS}
        some = random_.sample(TOPICS, random_.randint(1, 6))
        group = members(
            random_, lambda r, some=some: some if is_same else r.sample(some, r.randint(1, len(some))),
            random_.randint(1, 7))
        assigned = ASSIGNORS[name](group, partitions)
        read = {topic for member in group for topic in member.topics}
        assert sorted(pairs(assigned)) == sorted((t, n) for t in read for n in range(partitions[t]))
        for member in group:
            assert set(assigned[member.member_id]) <= set(member.topics)


def test_uniform_gives_members_that_read_the_same_numbers_that_differ_by_one_at_most():
    for seed in range(100):
        random_ = random.Random(seed)
        partitions = {topic: random_.randint(1, 9) for topic in TOPICS}
        assigned = uniform(members(random_, lambda r: TOPICS, random_.randint(1, 9)), partitions)
        assert max(loads(assigned)) - min(loads(assigned)) <= 1


def test_uniform_moves_only_what_a_new_member_gets_and_what_a_gone_one_had():
    partitions = dict.fromkeys(TOPICS, 4)
    two = uniform(members(None, lambda r: TOPICS, 2), partitions)
    three = uniform(members(None, lambda r: TOPICS, 3, two), partitions)
    assert loads(three) == [8, 8, 8]
    for name in two:
        assert set(pairs({name: three[name]})) < set(pairs({name: two[name]}))
    left = [one for one in members(None, lambda r: TOPICS, 3, three) if one.member_id != "m0"]
    again = uniform(left, partitions)
    assert loads(again) == [12, 12]
    assert all(set(pairs({name: three[name]})) < set(pairs({name: again[name]})) for name in again)


def test_uniform_evens_out_members_that_read_different_topics():
    partitions = {TOPICS[0]: 6, TOPICS[1]: 6}
    old = {"both": {topic: frozenset(range(6)) for topic in partitions}}
    assigned = uniform([
        Subscriber("both", None, [*partitions], old["both"]), Subscriber("one", None, [TOPICS[0]], {})], partitions)
    assert loads(assigned) == [6, 6]


def test_range_gives_runs_of_each_topic_and_more_to_the_first_members_static_ones_before_others():
    assigned = range_([
        Subscriber("a", None, TOPICS[:2], {}), Subscriber("z", "instance", TOPICS[:2], {})],
        {TOPICS[0]: 3, TOPICS[1]: 5})
    assert assigned == {
        "z": {TOPICS[0]: frozenset({0, 1}), TOPICS[1]: frozenset({0, 1, 2})},
        "a": {TOPICS[0]: frozenset({2}), TOPICS[1]: frozenset({3, 4})}}


def test_thousands_of_members_that_read_the_same_topics_take_no_work_for_each_pair():
    """The list of topics is the same object for all of them: a member that joins reads none of it anew."""
    class Counted(list):
        times = 0

        def __iter__(self):
            Counted.times += 1
            return super().__iter__()

    topics = Counted(number.to_bytes(16) for number in range(50))
    group = [Subscriber(f"m{number}", None, topics, {}) for number in range(1000)]
    for assignor in ASSIGNORS.values():
        Counted.times = 0
        assert sum(loads(assignor(group, dict.fromkeys(topics, 2)))) == 100
        assert Counted.times < 10
