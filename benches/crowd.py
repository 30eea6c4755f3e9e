"""Many clients at once, beside a real Kafka: the memory and the processor time of the server.

    python -m benches.crowd [--java] [--topics 1000] [--groups 200] [--seconds 30]

Half of the groups speak the classic protocol, half of them KIP-848. Each has five members, and each member two
connections, as Kafka's own consumer has: one for the group (a heartbeat every three seconds, a commit every five), and
one that waits for records, for half a second at a time. Twenty producers send 50 batches a second together. Every
client does the same with both servers.

Only Linux gives the processor time of another process precisely enough.
"""
import argparse
import asyncio
import itertools
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from benches.serving import KAFKA, ServerProcess, kafka, ours
from seglog import build_batch
from seglog.wire import codec
from seglog.wire import messages as m
from seglog.wire.structs import KafkaMessage

MEMBERS = 5             # of a group
PRODUCERS = 20
BATCHES_PER_S = 50.0
HEARTBEAT_S, COMMIT_S, FETCH_WAIT_MS = 3.0, 5.0, 500
TOPICS_AT_ONCE = 100
RECORDS = [(b"key %d" % n, b"x" * 100) for n in range(10)]


class Figures(NamedTuple):
    """What a server took. `idle_*`: with its topics alone."""

    name: str
    connections: int
    create_s: float
    idle_mib: float
    mib: float
    cpu_share: float        # of a core
    requests_per_s: float


class Client:
    """A connection. Requests are answered in the order in which they were sent."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._numbers = itertools.count()

    async def open(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def ask(self, request: KafkaMessage, version: int) -> Any:
        header = codec.new_header(request, version, next(self._numbers), "crowd")
        frame = await self.ask_raw(codec.encode_request(header, request))
        return codec.decode_response(header, frame)

    async def ask_raw(self, frame: bytes) -> bytes:
        """The answer to an encoded request, as it comes."""
        self._writer.write(frame)
        size, = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


class Crowd:
    """All clients of one server."""

    def __init__(self, server: ServerProcess, topics: int, groups: int) -> None:
        host, _, port = server.bootstrap_servers.rpartition(":")
        self._address = host, int(port)
        self._topics = [f"topic-{n}" for n in range(topics)]
        self._groups = groups
        self._clients: list[Client] = []
        self.requests = 0
        self._ids: dict[str, bytes] = {}

    async def connect(self) -> Client:
        client = await Client(self._address).open()
        self._clients.append(client)
        return client

    @property
    def connections(self) -> int:
        return len(self._clients)

    async def create(self) -> float:
        """The topics, of two partitions each. Returns the seconds."""
        client = await self.connect()
        of, begun_s = m.CreateTopicsRequest, time.perf_counter()
        for first in range(0, len(self._topics), TOPICS_AT_ONCE):
            answer = await client.ask(of(timeout_ms=60_000, topics=[
                of.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
                for name in self._topics[first : first + TOPICS_AT_ONCE]]), 7)
            assert not any(row.error_code for row in answer.topics), answer
        took_s = time.perf_counter() - begun_s
        while len(self._ids) < len(self._topics):
            answer = await client.ask(m.MetadataRequest(topics=None), 12)
            self._ids = {row.name: row.topic_id for row in answer.topics if row.name in self._topics}
        return took_s

    async def begin(self) -> list["asyncio.Task[None]"]:
        """Let all clients begin; returns when every member of every group has its partitions."""
        first = await self.connect()
        for key in ("crowd-0", "crowd-1"):
            while (await first.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=[key]), 4)).coordinators[
                    0].error_code:
                await asyncio.sleep(0.1)
        joined = []
        for group in range(self._groups):
            join = self._join_classic if group % 2 else self._join_consumer
            joined += await asyncio.gather(*(join(f"crowd-{group}", member) for member in range(MEMBERS)))
        tasks = []
        for beat, commit in joined:
            tasks.append(self._every(HEARTBEAT_S, beat))
            tasks.append(self._every(COMMIT_S, commit))
        for number in range(self._groups * MEMBERS):
            tasks.append(self._fetch(self._topics[number % len(self._topics)]))
        for number in range(min(PRODUCERS, len(self._topics))):
            tasks.append(self._produce(self._topics[number]))
        return [asyncio.ensure_future(task) for task in tasks]

    async def _every(self, seconds: float, call: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(seconds * (id(call) % 997) / 997)       # not all of them at once
        while True:
            await call()
            self.requests += 1
            await asyncio.sleep(seconds)

    def _committing(
        self, client: Client, group: str, epoch: Callable[[], int], member: str
    ) -> Callable[[], Awaitable[object]]:
        of, offsets = m.OffsetCommitRequest, itertools.count()

        async def commit() -> None:
            answer = await client.ask(of(
                group_id=group, generation_id_or_member_epoch=epoch(), member_id=member, topics=[
                    of.OffsetCommitRequestTopic(name=self._topics[0], partitions=[
                        of.OffsetCommitRequestPartition(partition_index=0, committed_offset=next(offsets))])]), 9)
            assert answer.topics[0].partitions[0].error_code in (0, 27, 113), answer     # its epoch has just changed

        return commit

    async def _join_classic(self, group: str, number: int) -> Any:
        """A member of the classic protocol, of one generation: its coordinator connection does one thing at a time."""
        client, turn = await self.connect(), asyncio.Lock()
        J, S = m.JoinGroupRequest, m.SyncGroupRequest
        how: dict[str, Any] = {
            "group_id": group, "session_timeout_ms": 45_000, "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer", "protocols": [J.JoinGroupRequestProtocol(name="range", metadata=b"crowd")]}
        member = (await client.ask(J(**how), 7)).member_id
        generation = 0

        async def rejoin() -> None:
            nonlocal generation
            while True:
                joined = await client.ask(J(**how, member_id=member), 7)
                assert not joined.error_code, joined
                generation = joined.generation_id
                assignments = [S.SyncGroupRequestAssignment(member_id=one.member_id, assignment=b"x")
                               for one in joined.members] if joined.leader == member else []
                synced = await client.ask(S(
                    group_id=group, generation_id=generation, member_id=member, protocol_type="consumer",
                    protocol_name="range", assignments=assignments), 5)
                if not synced.error_code:
                    return

        await rejoin()

        async def beat() -> None:
            async with turn:
                answer = await client.ask(
                    m.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member), 4)
                if answer.error_code:
                    await rejoin()

        commit = self._committing(client, group, lambda: generation, member)

        async def commit_in_turn() -> None:
            async with turn:
                await commit()

        return beat, commit_in_turn

    async def _join_consumer(self, group: str, number: int) -> Any:
        client, turn = await self.connect(), asyncio.Lock()
        H, member, epoch = m.ConsumerGroupHeartbeatRequest, f"{group}-{number}", 0
        first = int(group.rpartition("-")[2]) * MEMBERS
        topics = [self._topics[(first + n) % len(self._topics)] for n in range(MEMBERS)]
        owned: list[Any] = []

        async def say() -> None:
            nonlocal epoch, owned
            told: dict[str, Any] = {} if epoch else {
                "rebalance_timeout_ms": 60_000, "subscribed_topic_names": topics}
            while True:
                answer = await client.ask(
                    H(group_id=group, member_id=member, member_epoch=epoch, topic_partitions=owned, **told), 1)
                if answer.error_code not in (14, 15, 16):       # the coordinator is not ready yet
                    break
                await asyncio.sleep(0.1)
            assert not answer.error_code, answer
            epoch = answer.member_epoch
            if answer.assignment is not None:
                owned = [H.TopicPartitions(topic_id=row.topic_id, partitions=row.partitions)
                         for row in answer.assignment.topic_partitions]

        await say()

        async def beat() -> None:
            async with turn:
                await say()

        commit = self._committing(client, group, lambda: epoch, member)

        async def commit_in_turn() -> None:
            async with turn:
                await commit()

        return beat, commit_in_turn

    async def _fetch(self, topic: str) -> None:
        """Wait for records that come."""
        client = await self.connect()
        of, offsets = m.FetchRequest, [0, 0]
        while True:
            request = of(
                max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[of.FetchTopic(
                    topic_id=self._ids[topic], partitions=[of.FetchPartition(
                        partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
                        for number, offset in enumerate(offsets)])])
            answer = await client.ask(request, 13)
            for row in answer.responses[0].partitions if answer.responses else ():
                assert not row.error_code, row
                offsets[row.partition_index] = max(row.high_watermark, 0)
            self.requests += 1

    async def _produce(self, topic: str) -> None:
        client, of = await self.connect(), m.ProduceRequest
        request = of(acks=-1, timeout_ms=30_000, topic_data=[of.TopicProduceData(name=topic, partition_data=[
            of.PartitionProduceData(index=0, records=build_batch(RECORDS))])])
        while True:
            answer = await client.ask(request, 9)
            assert not answer.responses[0].partition_responses[0].error_code, answer
            self.requests += 1
            await asyncio.sleep(PRODUCERS / BATCHES_PER_S)

    def close(self) -> None:
        for client in self._clients:
            client.close()


async def measured(name: str, server: ServerProcess, topics: int, groups: int, seconds: float) -> Figures:
    """Load one server, and look at it once the load is steady."""
    crowd = Crowd(server, topics, groups)
    create_s = await crowd.create()
    await asyncio.sleep(min(seconds, 5))
    idle_mib = server.anonymous_mib()
    tasks = await crowd.begin()
    await asyncio.sleep(seconds / 2)        # the first heartbeats move partitions
    cpu_s, requests, begun_s = server.cpu_s(), crowd.requests, time.perf_counter()
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - begun_s
    figures = Figures(
        name, crowd.connections, create_s, idle_mib, server.anonymous_mib(), (server.cpu_s() - cpu_s) / took_s,
        (crowd.requests - requests) / took_s)
    failed = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    crowd.close()
    for task in failed:
        task.result()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--java", action="store_true", help="beside a real Kafka: needs Java 17 and Maven")
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    print("| server | connections | topics made, s | with topics, MiB | under load, MiB | CPU, cores | requests/s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        started = {"seglog": ours(Path(directory) / "ours", "interval")}
        if given.java:
            started[f"Kafka {KAFKA}"] = kafka(Path(directory) / "kafka")
        for name, start in started.items():     # one after the other: they would share the cores
            with start as server:
                found = asyncio.run(measured(name, server, given.topics, given.groups, given.seconds))
            print(f"| {found.name} | {found.connections:,} | {found.create_s:.2f} | {found.idle_mib:.0f} | "
                  f"{found.mib:.0f} | {found.cpu_share:.2f} | {found.requests_per_s:.0f} |", flush=True)


if __name__ == "__main__":
    main()
