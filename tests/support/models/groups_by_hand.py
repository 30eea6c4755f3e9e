"""A group whose clock, log and members are moved by hand."""
from seglog.clock import ManualClock
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.group import Group
from seglog.coordinators.rebalancing import JoinRequest, Rebalancing
from seglog.coordinators.timer import Timer
from seglog.wire.error_codes import Errors

SESSION_MS, REBALANCE_MS = 10_000, 60_000


class Written:
    """A store that keeps what it was asked to write. `holds`: until it is let go."""

    def __init__(self):
        self.generations = []
        self.holds = False
        self._held = []

    def store_group(self, group, assignments, done):
        self.generations.append((group.generation, dict(assignments)))
        self._held.append(done)
        if not self.holds:
            self.let_go()

    def let_go(self, error=Errors.NONE):
        held, self._held = self._held, []
        for done in held:
            done(error)


class GroupByHand:
    """`join`, `sync` give a list that the answer is put into."""

    def __init__(self, **config):
        self.clock = ManualClock(1_000_000)
        self.timer = Timer(self.clock)
        self.store = Written()
        settings = {"group.initial.rebalance.delay.ms": 0} | {k.replace("_", "."): v for k, v in config.items()}
        self.rebalancing = Rebalancing(self.store, self.timer, CoordinatorConfig.of(settings), self.clock)
        self.group = Group("g")

    def pass_ms(self, ms):
        """Let time pass, in steps in which every timer may do what it has to."""
        while ms > 0:
            step = min(ms, 500)
            self.clock.advance(step)
            self.timer.run_due()
            ms -= step

    def join(self, member_id="", *, instance=None, protocols=("range",), known=False, skip=False, metadata=b"m",
             session_ms=SESSION_MS, protocol_type="consumer"):
        answers = []
        self.rebalancing.join(self.group, member_id, JoinRequest(
            instance, "c", "/127.0.0.1", REBALANCE_MS, session_ms, protocol_type,
            tuple((name, metadata) for name in protocols), known, skip,
        ), answers.append)
        self.timer.run_due()
        return answers

    def sync(self, member_id, generation, assignments=None, *, instance=None):
        answers = []
        self.rebalancing.sync(
            self.group, member_id, instance, generation, "consumer", "range", assignments or {}, answers.append
        )
        return answers

    def heartbeat(self, member_id, generation, instance=None):
        return self.rebalancing.heartbeat(self.group, member_id, instance, generation)

    def stable(self, count, **how):
        """The ids of `count` members of a stable group, the leader first."""
        ids = [self.join(**how)[0].member_id]
        while len(ids) < count:
            new = self.join(**how)
            again = [self.join(member_id) for member_id in ids]
            assert all(a for a in [new, *again])
            ids.append(new[0].member_id)
        generation = self.group.generation
        followers = [self.sync(member_id, generation) for member_id in ids[1:]]
        leader = self.sync(ids[0], generation, {member_id: member_id.encode() for member_id in ids})
        assert [a[0].error for a in [leader, *followers]] == [Errors.NONE] * count
        return ids
