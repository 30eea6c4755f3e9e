"""Members of the consumer protocol that load a server while it is killed and started again."""
import random
import threading
import time

from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from support.server_load import ServerLoad
from support.wire_client import WireClient

GROUP, TOPIC = "readers", "orders"
PASSING = {
    Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.COORDINATOR_NOT_AVAILABLE, Errors.NOT_COORDINATOR,
    Errors.UNKNOWN_TOPIC_OR_PARTITION,
}


class Shared:
    """What the members have, all together. `committed`: offsets whose commit was answered, by partition; `sent`: the
    last one that was sent."""

    def __init__(self, partitions):
        self.lock = threading.Lock()
        self.owners = {}
        self.committed = dict.fromkeys(range(partitions), 0)
        self.sent = dict.fromkeys(range(partitions), 0)


class Refused(Exception):
    pass


class ConsumerLoad(ServerLoad):
    """One member, which commits the next offset of each partition that it has, and leaves now and then. Number 0 is a
    static one, which leaves for a while, and comes back with another id.

    It gives a partition up before it says so, and may have only what nobody else has. `acknowledged`: rounds
    of a heartbeat and commits that were answered.
    """

    def __init__(self, server, number, shared):
        super().__init__(server, number)
        self.shared = shared
        self.rng = random.Random(number)
        self.lives = 0
        self.begin()

    def begin(self):
        self.lives += 1
        self.member_id = f"member-{self.number}-{self.lives}"
        self.epoch, self.owned, self.is_leaving = 0, set(), False

    def run(self):
        while not self.stopped.is_set():
            try:
                with WireClient(self.server) as client:
                    client.ask(FindCoordinatorRequest(key=GROUP, key_type=0), 1)
                    if self.is_leaving:
                        self.leave(client)
                    is_known = False        # whether the server told it its epoch since it connected
                    while not self.stopped.is_set():
                        if is_known and self.rng.random() < 0.1:
                            self.leave(client)
                        is_known = self.beat(client, is_full=not is_known or self.epoch == 0)
                        for partition in sorted(self.owned) if is_known else ():
                            self.commit(client, partition)
                        self.acknowledged += is_known
            except OSError:
                time.sleep(0.005)
            except Refused as error:
                self.faults.append(f"{self.member_id}: {error}")
                return

    @property
    def who(self):
        return {"group_id": GROUP, "member_id": self.member_id, "instance_id": None if self.number else "static"}

    def beat(self, client, *, is_full):
        """Whether it was answered."""
        rows = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self.topic_id, partitions=sorted(self.owned))]
        more = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC]} if is_full else {}
        answer = client.ask(ConsumerGroupHeartbeatRequest(
            **self.who, member_epoch=self.epoch, topic_partitions=rows if self.epoch else [], **more), 1)
        if answer.error_code in PASSING:
            time.sleep(0.002)
            return False
        if answer.error_code == Errors.UNRELEASED_INSTANCE_ID and self.epoch == 0:
            self.leave(client)      # the answer to an earlier first heartbeat was lost
            return False
        if answer.error_code:
            raise Refused(f"epoch {self.epoch}: {Errors(answer.error_code).name}: {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.take({number for row in answer.assignment.topic_partitions for number in row.partitions})
        return True

    def take(self, assigned):
        owners = self.shared.owners
        with self.shared.lock:
            for number in self.owned - assigned:
                del owners[number]
            for number in assigned - self.owned:
                if number in owners:
                    raise Refused(f"partition {number} is {owners[number]}'s")
                owners[number] = self.member_id
        self.owned = assigned

    def leave(self, client):
        self.is_leaving = True
        self.take(set())
        epoch = -1 if self.number else -2
        request = ConsumerGroupHeartbeatRequest(**self.who, member_epoch=epoch)
        while (error := client.ask(request, 1).error_code) in PASSING:
            time.sleep(0.002)
        # Unknown: the answer to an earlier one was lost.
        if error not in (Errors.NONE, Errors.UNKNOWN_MEMBER_ID, Errors.GROUP_ID_NOT_FOUND):
            raise Refused(f"it may not leave: {Errors(error).name}")
        self.begin()

    def commit(self, client, partition):
        offset = self.shared.committed[partition] + 1
        self.shared.sent[partition] = offset
        row = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        answer = client.ask(OffsetCommitRequest(
            group_id=GROUP, member_id=self.member_id, generation_id_or_member_epoch=self.epoch,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=[row])]), 9)
        error = answer.topics[0].partitions[0].error_code
        if error and error not in PASSING:
            raise Refused(f"commit in epoch {self.epoch}: {Errors(error).name}")
        if not error:
            self.shared.committed[partition] = offset


def committed(client, partitions):
    """The group's offsets, when they are loaded."""
    F = OffsetFetchRequest
    while True:
        group, = client.ask(F(groups=[F.OffsetFetchRequestGroup(group_id=GROUP, topics=[
            F.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(partitions)))])]), 9).groups
        if group.error_code not in PASSING:
            assert not group.error_code
            return {row.partition_index: max(row.committed_offset, 0) for row in group.topics[0].partitions}
        time.sleep(0.005)
