"""What groups and transactions hold is counted as it changes: the same as if everything were counted again."""
import random

from seglog.coordinators.group import Group
from seglog.coordinators.group_offsets import CommittedOffset
from seglog.coordinators.held import Held
from support.groups_by_hand import SESSION_MS, GroupByHand


def counted(offsets):
    commits = [*offsets._pending.values(), *(one.commit for one in offsets._committed.values()), *(
        one.commit for table in offsets._transactional.values() for one in table.values())]
    return sum(commit.size_bytes for commit in commits)


def some(rnd):
    return {("t", rnd.randrange(6)): CommittedOffset(rnd.randrange(9), metadata="m" * rnd.randrange(50))
            for _ in range(rnd.randrange(4))}


def test_the_offsets_of_a_group_are_counted_whatever_happens_to_them():
    rnd = random.Random(1)
    for _ in range(60):
        held, begun = Held(), []
        offsets = Group("g", held).offsets
        for number in range(80):
            producer, commits, where = rnd.randrange(3), some(rnd), ("t", rnd.randrange(6))
            match rnd.randrange(9):
                case 0:
                    offsets.begin(commits)
                    begun.append((None, commits))
                case 1:
                    offsets.begin_transactional(producer, commits)
                    begun.append((producer, commits))
                case 2 | 3 if begun:
                    of, commits = begun.pop(rnd.randrange(len(begun)))
                    log_offset = rnd.choice([None, number])
                    if of is None:
                        offsets.finish(commits, log_offset)
                    else:
                        offsets.finish_transactional(of, commits, log_offset)
                case 4:
                    offsets.end_transaction(producer, commit=rnd.random() < 0.5)
                case 5:
                    offsets.load(where, CommittedOffset(1, metadata="x"), number, rnd.choice([None, producer]))
                case 6:
                    offsets.forget(where, rnd.choice([None, producer]))
                case 7:
                    gone = {("t", rnd.randrange(6)) for _ in range(rnd.randrange(8))}
                    assert set(offsets.remove(gone)) <= gone
                    assert offsets.among(gone) == []
                case 8 if rnd.random() < 0.2:
                    offsets.remove_all()
                    assert offsets.is_empty
            assert held.offsets == counted(offsets)
        offsets.remove_all()
        assert held.offsets == 0


def test_the_members_of_a_group_are_counted_until_they_are_gone():
    by_hand = GroupByHand()
    group, held = by_hand.group, by_hand.group._held
    members = by_hand.stable(3)

    def is_counted():
        return held.members == sum(member.size_bytes for member in group.members.values())

    assert is_counted()
    assert held.members > 3 * 1024
    by_hand.join(members[0], metadata=b"x" * 5000)
    assert is_counted()
    by_hand.join(known=True)
    assert not is_counted()         # an id was given out
    by_hand.pass_ms(10 * SESSION_MS)
    assert not group.members
    assert held.members == 0
