"""A power cut anywhere while topics are created, widened, written to and deleted: what was acknowledged is there,
whole, and no topic is there in part."""
import asyncio
import os

import pytest

import seglog
from seglog.endpoint import topics as topics_module
from seglog.endpoint.topics import NewTopic, Topics
from seglog.loop.durability import Durability
from seglog.state.kept_settings import read_settings
from seglog.state.partition_metadata import PartitionMetadata
from support.conversion import UnsyncedFs
from support.faultfs import RecordingFs

# `make torture` sets SEGLOG_TORTURE: the full count.
STATES = 3000 if os.environ.get("SEGLOG_TORTURE") else 130
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "1048576"}


def served(path, fs, work):
    async def whole():
        with seglog.open_dir(path, fs=fs) as log_dir:
            topics = Topics(log_dir, fs, Durability(asyncio.get_running_loop(), "batch"), {})
            try:
                await topics.finish_changes()
                return await work(topics)
            finally:
                await asyncio.get_running_loop().run_in_executor(None, topics.close)

    return asyncio.run(whole())


def lived(record):
    """A life of a few topics; each acknowledgement is marked."""
    async def work(topics):
        async def create(*wanted, are_written_to=False):
            created = await topics.create_all([NewTopic(*one) for one in wanted], are_written_to=are_written_to)
            for made in created:
                settings = next(settings for name, _, settings in wanted if name == made.name)
                record.mark(("made", made.name, (made.topic_id, made.partitions, settings)))

        async def append(topic, partition, value):
            log = await topics.opened(topic, partition)
            log.append(value, key=b"key of " + value)       # with fsync=batch it is on the disk then
            record.mark(("appended", topic, (partition, value)))

        async def delete(*names):
            for name in names:
                record.mark(("may be gone", name, None))
            assert all(await topics.delete_all(names))
            for name in names:
                record.mark(("deleted", name, None))

        await create(("a", 3, SETTINGS), ("b", 1, {}))
        await append("a", 1, b"one")
        await create(("c", 2, {}), are_written_to=True)
        await asyncio.gather(*topics._tasks)        # its logs are open, and their appends have begun
        assert not any(topics.open_log("c", partition)._begins_appends for partition in (0, 1))
        await append("c", 0, b"two")
        await append("c", 0, b"and a half")
        record.mark(("may be wider", "b", 3))
        assert await topics.widen("b", 3)
        record.mark(("wider", "b", 3))
        await delete("a", "c")
        await create(("a", 2, {}))
        await append("a", 0, b"three")
        await append("b", 2, b"four")

    served(record.root, record, work)


def expected(marks):
    """{topic: (id, partitions, settings, {partition: values}, whether it may be gone)} by what was acknowledged."""
    topics = {}
    for what, name, more in marks:
        if what == "made":
            topics[name] = [*more, {}, False, more[1]]
        elif what == "appended":
            topics[name][3].setdefault(more[0], []).append(more[1])
        elif what == "may be wider":
            topics[name][5] = more
        elif what == "wider":
            topics[name][1] = topics[name][5] = more
        elif what == "may be gone":
            topics[name][4] = True
        else:
            del topics[name]
    return topics


async def look(topics):
    """{topic: (id, partitions, settings of each, ids of each, {partition: values})} of a server after its start."""
    found = {}
    for name in topics.names():
        topic = topics.topic(name)
        paths = [topics._directory(name, partition) for partition in range(topic.partitions)]
        ids = {PartitionMetadata.read(path / "partition.metadata").topic_id.bytes for path in paths}
        settings = [read_settings(path) for path in paths]
        values = {partition: [bytes(record.value) for record in topics.log(name, partition).read()]
                  for partition in range(topic.partitions)}
        found[name] = topic.topic_id, topic.partitions, settings, ids, values
    return found


@pytest.mark.parametrize("renamed_at_once", [topics_module._RENAMED_AT_ONCE, 0])
def test_after_a_power_cut_anywhere_acknowledged_topics_are_there_and_none_in_part(
    tmp_path, monkeypatch, renamed_at_once
):
    """`renamed_at_once`: directories of deleted topics are renamed before the answer, or behind it."""
    monkeypatch.setattr(topics_module, "_RENAMED_AT_ONCE", renamed_at_once)
    monkeypatch.setattr(topics_module, "_QUIET_S", 0)
    (tmp_path / "disk").mkdir()
    record = RecordingFs(tmp_path / "disk")
    lived(record)
    seen = set()
    for state in record.crash_states(limit=STATES, seed=1, shuffled=True):
        wanted = expected(state.marks)
        with state.materialise() as disk:
            found = served(disk, UnsyncedFs(), look)
            assert served(disk, UnsyncedFs(), look) == found, state.story()
        for name, (topic_id, partitions, settings, values, may_be_gone, partitions_max) in wanted.items():
            if may_be_gone and name not in found:
                continue
            there = found[name]
            assert (there[0], there[3]) == (topic_id, {topic_id}), state.story()
            assert partitions <= there[1] <= partitions_max, state.story()
            assert there[1] in (partitions, partitions_max), state.story()
            assert there[2] == [settings] * there[1], state.story()
            if not may_be_gone:
                for partition, read in values.items():
                    assert there[4][partition] == read, state.story()
        for there in found.values():       # also of those that nobody was told of
            assert len(there[3]) == 1, state.story()
            assert all(one == there[2][0] for one in there[2]), state.story()
        seen.add(tuple(sorted((name, there[1]) for name, there in found.items())))
    # That it was cut in each of these times.
    assert {(), (("a", 3), ("b", 1)), (("a", 3), ("b", 3), ("c", 2)), (("b", 3),), (("a", 2), ("b", 3))} <= seen
