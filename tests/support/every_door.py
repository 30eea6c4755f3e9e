"""A program that uses every public name of seglog, for type checkers: `make mypy` checks it, and nobody runs it.

Users check their programs with mypy --strict or pyright, which read our annotations and stubs. `assert_type` tells what
they must see; `use` takes what only has to be known. (For pyright, see CONTRIBUTING.md.)
"""
# pyright: strict
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import pytest

import seglog
import seglog.aio
import seglog.errors
import seglog.metrics
import seglog.polars
import seglog.pulsar
import seglog.spark
import seglog.testing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use(*values: object) -> None:
    """Take values of known types."""


# --- seglog: logs ------------------------------------------------------------------------


def append(path: Path) -> None:
    with seglog.open(path, config={"segment.bytes": 1 << 20}, fsync="interval", leader_epoch=3, create=True) as log:
        assert_type(log, seglog.Log)
        assert_type(log.append(b"value", key="key", headers=[("h", b"1")], timestamp=dt.datetime.now(dt.UTC)), int)
        assert_type(log.append(None, key=b"key", wait=True), int)
        pending = log.append(b"value", wait=False)
        assert_type(pending, seglog.PendingAppend[int])
        assert_type(pending.result, int)
        use(pending.number)
        log.when_durable(pending, lambda error: use(error))
        assert_type(log.append_many([(b"key", b"value"), ("key", None, (), 5)], atomic=False), int)
        assert_type(log.append_many([(None, b"value")], wait=False), seglog.PendingAppend[int])
        assert_type(log.append_columns(keys=[b"k"], values=[b"v"], timestamps=[1], headers=None), int)
        assert_type(log.append_columns({"value": [b"v"]}, wait=False), seglog.PendingAppend[int])
        raw = seglog.build_batch([(b"key", b"value")], codec="zstd", base_offset=5, producer_id=7, base_sequence=0)
        done = log.append_batch(raw, assign_offsets=False, leader_epoch=3)
        assert_type(done, seglog.AppendResult)
        use(done.first_offset, done.last_offset, done.is_duplicate)
        assert_type(log.append_batch(raw, wait=False), seglog.PendingAppend[seglog.AppendResult])
        checked = log.check_batch(memoryview(raw))
        assert_type(log.append_checked(checked), seglog.AppendResult)
        assert_type(log.append_checked(checked, wait=False).result, seglog.AppendResult)
        assert_type(log.end_transaction(7, 0, commit=True), int)
        assert_type(log.end_transaction(7, 0, commit=False, wait=False), seglog.PendingAppend[int])
        producer = log.producer(7)
        assert_type(producer, seglog.Producer)
        producer.begin()
        use(producer.append(b"value", key="key"), producer.append_many([("key", b"value")]), producer.in_transaction)
        assert_type(producer.commit(), int | None)
        assert_type(producer.abort(), int | None)
        assert_type(producer.epoch + producer.producer_id, int)


def look_after(log: seglog.Log, path: Path) -> None:
    log.configure({"retention.ms": 1000})
    log.flush()
    assert_type(log.roll() + log.delete_records(5) + log.truncate_to(4) + log.snapshot(path), int)
    assert_type(log.delete_old_segments().linked_bytes, int)
    listening = log.on_published(lambda end: use(end))
    listening.cancel()
    log.replace_segments([0], [path])
    stats = log.stats()
    assert_type(stats, seglog.LogStats)
    assert_type(stats.failure, str | None)
    assert_type(stats.uncleanable, str | None)
    assert_type(stats.topic, str)
    use(
        stats.partition + stats.log_start_offset + stats.log_end_offset + stats.last_stable_offset
        + stats.durable_offset + stats.recovery_point + stats.leader_epoch + stats.segments + stats.log_bytes
        + stats.index_bytes + stats.producers + stats.lingering_records + stats.appends + stats.appended_bytes
        + stats.listeners + stats.syncs + stats.sync_seconds)
    assert_type(log.path, Path)
    assert_type(log.closed, bool)
    assert_type(log.config.segment_bytes, int)
    use(log.durable_offset + log.high_watermark + log.leader_epoch + log.recovery_point)
    assert_type(log.cleaner_offset, int | None)
    log.close()


def read(log: seglog.Log | seglog.Partition | seglog.Follower) -> None:
    records = log.read(0, 9, isolation="read_committed", on_out_of_range="earliest", on_corrupt="skip", control=True)
    for record in records:
        assert_type(record, seglog.Record)
        assert_type(record.key, bytes | None)
        assert_type(record.value, bytes | None)
        assert_type(record.key_view, memoryview | None)
        assert_type(record.value_view, memoryview | None)
        assert_type(record.headers, tuple[tuple[str, bytes | None], ...])
        use(record.offset + record.timestamp + record.timestamp_type + record.sequence + record.size_bytes)
    for lost in records.lost:
        assert_type(lost, seglog.LostRange)
        use(lost.position + lost.size_bytes + lost.first_offset + lost.last_offset, lost.file + lost.reason)
    use(log.read(since="-2h", until=dt.datetime.now(dt.UTC), max_magic=1), log.get(5).offset)
    read_batches(log)
    for chunk in log.columns(chunk_bytes=1 << 20):
        assert_type(chunk, seglog.Columns)
        assert_type(chunk.offset[0], int)
        use(len(chunk), chunk.nbytes, chunk.timestamp[0], chunk.key[0], chunk.value[0])
        use(chunk.header_start[0], chunk.header_key, chunk.header_value, chunk.numpy(), chunk.to_arrow())
    for segment, table in log.tables(check_crc=False, on_lost=lambda lost: use(lost.reason)):
        use(segment, table)
    found = log.offset_for_time("2024-01-01T00:00:00Z")
    assert_type(found, seglog.TimestampOffset | None)
    if found is not None:
        assert_type(found.leader_epoch, int | None)
        use(found.timestamp + found.offset)
    assert_type(log.aborted_transactions(0, 9), list[tuple[int, int]])
    use(log.log_start_offset + log.log_end_offset + log.last_stable_offset)
    use(log.leader_epochs, [entry.producer_id for entry in log.producers], log.end_offset_for(3))
    place = log.find_offset(5)
    if place is not None:
        use(place[0].base_offset, place[1].position)
    fetched = log.fetch(5, 1 << 20, magic=1, min_one=False, isolation="read_committed")
    use(len(fetched), fetched.view())


def read_batches(log: seglog.Log | seglog.Partition | seglog.Follower) -> None:
    batches = log.batches(0, 9, on_corrupt="skip")
    assert_type(batches.lost, tuple[seglog.LostRange, ...])
    for batch in batches:
        assert_type(batch, seglog.RecordBatch)
        assert_type(batch.raw(), memoryview)
        assert_type(batch.raw(copy=True), bytes)
        assert_type(batch.delete_horizon_ms, int | None)
        use(batch.is_control, batch.is_transactional, batch.bounds_time, batch.crc_is_valid(), batch.payload())
        use(batch.find_bad_message(), batch.survey_wrapper(), [record.offset for record in batch])
        use(
            batch.attributes + batch.base_offset + batch.base_sequence + batch.base_timestamp + batch.codec
            + batch.count + batch.crc + batch.largest_timestamp + batch.last_offset + batch.last_offset_delta
            + batch.last_sequence + batch.leader_epoch + batch.magic + batch.max_timestamp + batch.position
            + batch.producer_epoch + batch.producer_id + batch.size_bytes + batch.timestamp_type)


def follow(log: seglog.Log, path: Path) -> None:
    for record in log.follow("start", timeout=1.5):
        assert_type(record, seglog.Record)
    with seglog.follow(path, durable=True) as follower, seglog.open_partition(path) as partition:
        assert_type(follower, seglog.Follower)
        assert_type(partition, seglog.Partition)
        follower.refresh()
        partition.refresh()
        use(follower.follow(5, isolation="read_committed"), follower.cursor("reader"), partition.cursor("reader"))
        follower.close()
        partition.close()
    with log.cursor("billing", shared=True) as cursor:
        assert_type(cursor, seglog.LogCursor)
        for record in cursor.read(isolation="read_committed", on_out_of_range="latest"):
            cursor.commit(record)
            cursor.commit(record.offset)
        assert_type(cursor.lag + cursor.position, int)
        assert_type(cursor.path, Path)
        use(cursor.name, cursor.is_shared)
        cursor.close()


def segments(log: seglog.Log) -> None:
    for segment in log.segments:
        assert_type(segment, seglog.Segment)
        assert_type(segment.path, Path)
        assert_type(segment.get(5), seglog.Record | None)
        assert_type(segment.find_timestamp(5), seglog.TimestampOffset | None)
        use(segment.base_offset + segment.end_position + segment.next_offset + segment.size_bytes)
        use(segment.batches(0, check_crc=False), segment.tables(), segment.find_offset(5), segment.position_near(5))
        use(segment.largest_timestamp, segment.offset_index, segment.time_index, segment.transaction_index)


def directories(path: Path) -> None:
    with seglog.open_dir(path, config={"retention.ms": 1}, cleaner={"log.cleaner.threads": 1}) as logs:
        assert_type(logs, seglog.LogDir)
        assert_type(logs.log("orders", 3, create=False), seglog.Log)
        assert_type(logs.partitions(), list[tuple[str, int]])
        logs.delete("orders", 3)
        logs.close()


# --- seglog: check, repair, convert, copy ------------------------------------------------


def repair(path: Path, log: seglog.Log) -> None:
    report = seglog.verify(path, level="deep", progress=lambda done, size: use(done + size), witness_every=10)
    assert_type(report, seglog.Report)
    assert_type(report.log_start_offset, int | None)
    assert_type(report.log_end_offset, int | None)
    use(report.ok, report.path + report.level, report.to_dict())
    use(report.segments + report.witnessed + report.size_bytes + report.batches + report.records)
    for finding in report.findings:
        assert_type(finding, seglog.Finding)
        assert_type(finding.position, int | None)
        use(finding.code + finding.file + finding.found + finding.expected + finding.advice)
        use(finding.fix + finding.meaning, finding.is_repaired, report.count(finding.severity), finding.to_dict())
        use(finding.offset, finding.last_offset, finding.size_bytes)
    recovery = seglog.recover(path, mode="truncate", apply=True, backup=path, sources=[path])
    assert_type(recovery, seglog.Recovery)
    assert_type(recovery.target, Path | None)
    assert_type(recovery.lost, tuple[seglog.LostRange, ...])
    use(recovery.source, recovery.mode, recovery.backups, recovery.repairs, recovery.filled, recovery.unfilled)
    use(recovery.log_start_offset + recovery.log_end_offset + recovery.segments + recovery.lost_bytes)
    mirrored = seglog.mirror(log, [log], from_offset=5, preserve_offsets=True, close_gaps=False)
    assert_type(mirrored, seglog.Mirrored)
    use(
        mirrored.next_offset + mirrored.batches + mirrored.size_bytes + mirrored.opened_batches
        + mirrored.rebuilt_batches + mirrored.left_out_batches + mirrored.keyless_batches + mirrored.keyed_batches
        + mirrored.missing_offsets)


def convert(src: Path, dst: Path) -> None:
    result = seglog.convert(src, dst, to=2, codec="zstd", repack_bytes=1 << 20, aborted="drop", proof="independent")
    plan = seglog.plan_conversion(src, dst, to="2", allow_lossy=seglog.plan_conversion(src, to="2").losses.kinds)
    result = plan.run()
    use(result.size_bytes + result.proven_again, result.target, result.warnings, result.notes)
    result = seglog.erase(src, ["key", b"key"], backup=dst)
    plan = seglog.plan_erasure(src, iter(["key"]))


def back_up(src: Path, store: Path) -> None:
    run = seglog.backup(src, store, compression="zstd", reread=True, dry_run=True)
    assert_type(run, seglog.BackupRun)
    use(run.read_bytes + run.stored_objects + run.stored_bytes + run.unchanged, run.is_new, run.damaged)
    snapshot = run.snapshot
    assert_type(snapshot, seglog.Snapshot)
    use(snapshot.id + snapshot.source + snapshot.host, snapshot.is_log_dir, snapshot.left_out)
    use(snapshot.began_at_ms + snapshot.ended_at_ms + snapshot.stored_bytes + snapshot.size_bytes)
    use(snapshot.partitions, snapshot.files, seglog.Snapshot.parse(snapshot.to_bytes(), "file"))
    restored = seglog.restore(store, src, snapshot="latest", until="-1h", rename={"orders": "old-orders"})
    assert_type(restored, seglog.RestoreRun)
    use(restored.snapshot, restored.partitions, restored.found_whole)
    backups = seglog.BackupStore("s3://bucket/path", options={"region": "eu-central-1"})
    assert_type(backups.create(src), seglog.BackupRun)
    assert_type(backups.restore(src, until_offset=5), seglog.RestoreRun)
    assert_type(backups.snapshots(), list[seglog.Snapshot])
    assert_type(backups.snapshot("latest"), seglog.Snapshot)
    use(backups.check(read_data=True), backups.prune(dry_run=True))
    use(backups.forget(keep_last=3, keep_daily=7, keep_weekly=4))
    backups.follow(src, every_s=60, on_run=lambda run: use(run.is_new), on_error=lambda error: use(error.hint))


# --- seglog: tables ----------------------------------------------------------------------


def tables(path: Path) -> None:
    registry = seglog.SchemaRegistry("https://registry", username="u", password="p", timeout=5)
    use(registry.url, registry.by_id(5), registry.latest("orders-value"), registry.versions("orders-value"))
    stored = registry.version("orders-value", 3)
    use([name for name, _ in registry.referenced(stored)])
    typed = seglog.Typed("avro", subject="orders-value", reader="union", frame="confluent")
    use(typed.kind, typed.schema, typed.message, typed.frame, typed.reader, typed.subject)
    topic = seglog.scan([path], since="-2h", decode={"value": typed, "key": "utf8"}, schemas=registry, threads=2)
    assert_type(topic, seglog.TopicScan)
    assert_type(topic.select(["offset"]), seglog.TopicScan)
    assert_type(topic.columns, tuple[str, ...])
    assert_type(topic.lost, tuple[seglog.LostRange, ...])
    use(topic.to_arrow(), topic.to_reader(), topic.to_polars(), topic.to_pandas(), topic.to_numpy(), topic.dataset())
    use([len(batch) for batch in topic.batches()], topic.parts(), topic.undecodable)
    for written in seglog.write_table(topic, path / "table", format="delta", partition_by=["topic"]):
        use(written)
    use(seglog.polars.scan_topic(path, columns=["offset"]), seglog.polars.scan_topic(topic))


# --- seglog: servers and queues ----------------------------------------------------------


def serve(path: Path, tls: ssl.SSLContext) -> None:
    with seglog.serve(path, listen=["127.0.0.1:0"], topics={"orders": 3}, users={"u": "p"}, tls=tls) as server:
        assert_type(server, seglog.LocalServer)
        assert_type(server.bootstrap_servers, str)
        assert_type(server.listeners, dict[str, str])
        assert_type(server.http_address, str | None)
        assert_type(server.log("orders", 1), seglog.Log | None)
        use(server.host, server.port, server.path, server.requests_bytes)
        server.create_topic("payments", 3, {"retention.ms": 1000})
        server.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
        server.delay_next("Fetch", 0.5)
        server.drop_next("Metadata", after=True)
        server.clear_faults()
        server.close()


def queue(path: Path) -> None:
    with seglog.Queue(path, lease=30, max_attempts=3, when_full="refuse", retry_delay=dt.timedelta(seconds=2)) as queue:
        assert_type(queue, seglog.Queue)
        assert_type(queue.put(b"job", key="k", delay=dt.timedelta(1), properties={"a": "b"}, priority=3), str)
        assert_type(queue.put_many([b"job", ("key", b"job")], at=dt.datetime.now(dt.UTC)), list[str])
        job = queue.get(timeout=5, lease=60)
        assert_type(job, seglog.Job | None)
        if job is not None:
            assert_type(job.value, bytes)
            assert_type(job.key, str | bytes | None)
            use(job.id, job.attempt, job.due_at, job.enqueued_at, job.properties, job.is_settled)
            job.extend(5)
            job.nack(delay=5, reason="not now")
            job.ack(wait=False)
        jobs = queue.get_many(10, 0)
        assert_type(jobs, list[seglog.Job])
        queue.ack(jobs, wait=False)
        queue.release(jobs)
        use([job.value for job in queue.peek(3)], queue.closed)
        for dead in queue.dead:
            assert_type(dead, seglog.DeadJob)
            assert_type(dead.requeue(), bool)
            use(dead.reason, dead.died_at)
        use(len(queue.dead), queue.dead.peek(3), queue.dead.requeue(), queue.dead.purge(), queue.purge())
        stats = queue.stats()
        assert_type(stats, seglog.QueueStats)
        assert_type(stats.oldest_age_s, float | None)
        use(stats.ready + stats.delayed + stats.waiting + stats.in_flight + stats.dead + stats.backlog)
        queue.flush()
        queue.close()


def topic(path: Path) -> None:
    with seglog.Topic(path, fsync="interval", config={"maxMessageSize": 1000}) as topic:
        assert_type(topic, seglog.Topic)
        assert_type(topic.publish(b"value", key="k", delay=5, properties={"a": "b"}), str)
        assert_type(topic.publish_many([b"value", (b"key", b"value")], at="+1m"), list[str])
        with topic.producer("p") as producer:
            assert_type(producer, seglog.TopicProducer)
            assert_type(producer.publish(b"value", sequence_id=3), str | None)
            use(producer.name, producer.last_sequence_id + 1, producer.closed)
        consumer = topic.subscribe("s", kind="key_shared", start=dt.datetime.now(dt.UTC), lease=5, max_attempts=None)
        assert_type(consumer, seglog.Consumer)
        message = consumer.get(timeout=5)
        assert_type(message, seglog.Message | None)
        if message is not None:
            assert_type(message.position, seglog.pulsar.Position)
            assert_type(message.index, int | None)
            message.ack_cumulative(wait=False)
            consumer.seek(message)
        messages = consumer.get_many(10, 0)
        assert_type(messages, list[seglog.Message])
        consumer.ack(messages, wait=False)
        consumer.release(messages)
        use(consumer.kind, consumer.name, consumer.is_active, consumer.closed, consumer.peek(3), consumer.dead)
        stats = consumer.stats()
        assert_type(stats, seglog.SubscriptionStats)
        use(stats.ready + stats.held_back + stats.consumers + stats.backlog, stats.is_at_limit, seglog.DeadMessage)
        consumer.unsubscribe()
        topic.compact()
        for compacted in topic.read_compacted(start=3):
            assert_type(compacted, seglog.CompactedMessage)
            use(compacted.position, compacted.key, compacted.value)
        use(topic.subscriptions, topic.closed, topic.path)
        assert_type(topic.stats(), dict[str, seglog.SubscriptionStats])
        topic.flush()


# --- seglog.aio --------------------------------------------------------------------------


async def append_in_a_loop(path: Path) -> None:
    async with seglog.aio.open(path, config={"segment.bytes": 1 << 20}, fsync="batch") as log:
        assert_type(log, seglog.aio.AsyncLog)
        assert_type(await log.append(b"value", key="key", headers=[("h", b"1")], timestamp=5), int)
        assert_type(await log.append_many([("key", b"value")], atomic=False), int)
        assert_type(await log.append_columns(values=[b"value"]), int)
        assert_type(await log.append_batch(b"raw", assign_offsets=False), seglog.AppendResult)
        assert_type(await log.end_transaction(7, 0, commit=True), int)
        assert_type(await log.durable(log.blocking.append(b"value", wait=False)), None)
        await log.flush()
        await log.configure({"retention.ms": 1000})
        use(await log.roll(), await log.delete_records(5), await log.truncate_to(4), await log.snapshot(path))
        use((await log.delete_old_segments()).linked_bytes, await log.stats())
        use(log.durable_offset + log.high_watermark + log.last_stable_offset + log.leader_epoch, log.closed)
        async with log.producer(7) as producer:
            assert_type(producer, seglog.aio.AsyncProducer)
            await producer.begin()
            use(await producer.append(b"value"), await producer.append_many([("key", b"value")]))
            use(await producer.commit(), await producer.abort())
            use(producer.epoch + producer.producer_id, producer.in_transaction)
        await read_in_a_loop(log)
        await log.close()
    opened = await seglog.aio.open(path)
    assert_type(opened, seglog.aio.AsyncLog)
    async with seglog.aio.follow(path, durable=True) as follower:
        assert_type(follower, seglog.aio.AsyncFollower)
        await read_in_a_loop(follower)
    async with seglog.aio.open_partition(path) as partition:
        assert_type(partition, seglog.aio.AsyncPartition)
        use([record.value async for record in partition.read()], partition.blocking.segments)
        use(await partition.get(5), await partition.offset_for_time(5))
        use(partition.log_start_offset + partition.log_end_offset)
        async with partition.cursor("reader") as cursor:
            assert_type(cursor, seglog.aio.AsyncCursor)
        await partition.close()


async def read_in_a_loop(log: seglog.aio.AsyncLog | seglog.aio.AsyncFollower) -> None:
    records = log.read(0, 9, on_corrupt="skip")
    assert_type(records, seglog.aio.AsyncRecords)
    async for record in records:
        assert_type(record, seglog.Record)
    assert_type(records.lost, tuple[seglog.LostRange, ...])
    await records.aclose()
    async for record in log.follow("start", timeout=5):
        assert_type(record, seglog.Record)
    assert_type(await log.get(5), seglog.Record)
    assert_type(await log.offset_for_time("-1h"), seglog.TimestampOffset | None)
    async with log.cursor("reader", shared=True) as cursor:
        assert_type(cursor, seglog.aio.AsyncCursor)
        async for record in cursor.read(isolation="read_committed"):
            await cursor.commit(record)
        use(await cursor.lag() + await cursor.position(), cursor.name, cursor.path, cursor.is_shared)
        await cursor.close()
    use(log.log_start_offset + log.log_end_offset)


async def queue_in_a_loop(path: Path) -> AsyncIterator[bytes]:
    async with seglog.aio.Queue(path, lease=30) as queue:
        assert_type(await queue.put(b"job", key="k", delay=5), str)
        assert_type(await queue.put_many([b"job"], priority=3), list[str])
        job = await queue.get(5)
        if job is not None:
            assert_type(job, seglog.aio.AsyncJob)
            await job.extend(5)
            await job.nack(delay=5, reason="not now")
            await job.ack()
            yield job.value
            await queue.ack([job])
        assert_type(queue.dead, seglog.aio.AsyncDeadJobs)
        assert_type(await queue.dead.peek(3), list[seglog.aio.AsyncDeadJob])
        assert_type(await queue.get_many(5, timeout=0), list[seglog.aio.AsyncJob])
        use(await queue.stats(), queue.blocking, queue.blocking.dead)
        await queue.close()


async def topic_in_a_loop(path: Path) -> AsyncIterator[bytes]:
    async with seglog.aio.Topic(path, fsync="interval") as topic:
        assert_type(await topic.publish(b"value", key="k", delay=5), str)
        assert_type(await topic.publish_many([b"value", (b"key", b"value")]), list[str])
        async with topic.producer("p") as producer:
            assert_type(producer, seglog.aio.AsyncTopicProducer)
            assert_type(await producer.publish(b"value", sequence_id=3), str | None)
            assert_type(await producer.last_sequence_id(), int)
        async with topic.subscribe("s", kind="shared", start="earliest") as consumer:
            assert_type(consumer, seglog.aio.AsyncConsumer)
            message = await consumer.get(timeout=5)
            if message is not None:
                assert_type(message, seglog.aio.AsyncMessage)
                use(message.position, message.index)
                await message.ack_cumulative()
                await consumer.seek(message)
                yield message.value
            assert_type(await consumer.get_many(5, timeout=0), list[seglog.aio.AsyncMessage])
            for dead in await consumer.dead.peek(3):
                use(dead.reason, isinstance(dead, seglog.aio.AsyncDeadMessage))
            use(await consumer.stats(), await consumer.is_active(), consumer.name, consumer.kind)
            await consumer.unsubscribe()
        assert_type(await topic.stats(), dict[str, seglog.SubscriptionStats])
        use(await topic.subscriptions(), topic.blocking, topic.closed)
        await topic.compact()
        async for compacted in topic.read_compacted():
            assert_type(compacted, seglog.CompactedMessage)


# --- seglog.pulsar -----------------------------------------------------------------------


def ledgers(path: Path) -> None:
    with seglog.pulsar.Ledger.create(path, 5, properties={"a": "b"}, fsync="interval") as ledger:
        assert_type(ledger, seglog.pulsar.Ledger)
        assert_type(ledger.add(b"entry", 5) + ledger.add_many([b"entry"]), int)
        use(ledger.read(0), ledger.read_first(3), ledger.read_range(0, 1), ledger.read_ranges([(0, 1)]))
        use(ledger.record(0).value, ledger.end, ledger.properties, ledger.is_sealed)
        use(ledger.last_entry_id + ledger.entry_count + ledger.length_bytes)
        ledger.flush()
        ledger.seal({"a": "b"})
        ledger.close()
    assert_type(seglog.pulsar.Ledger.open(path, read_only=True), seglog.pulsar.Ledger)
    metadata = seglog.pulsar.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    single = seglog.pulsar.SingleMessageMetadata(payload_size=1)
    assert_type(seglog.pulsar.build_entry(metadata, b"payload", checksum=False), bytes)
    assert_type(
        seglog.pulsar.build_batch_entry(metadata, [(single, b"payload")], seglog.pulsar.PayloadCodec.ZSTD), bytes)


def managed_ledgers(path: Path) -> None:
    with seglog.pulsar.ManagedLedger(path, config={"managedLedgerMaxEntriesPerLedger": 5}) as topic:
        assert_type(topic, seglog.pulsar.ManagedLedger)
        position = topic.add_entry(b"entry", 1)
        assert_type(position, seglog.pulsar.Position)
        use(position.ledger_id + position.entry_id, topic.add_entries([b"entry", (b"entry", 3)]))
        assert_type(topic.first_position, seglog.pulsar.Position | None)
        assert_type(topic.last_position, seglog.pulsar.Position | None)
        entry = topic.read(position)
        use(entry.value, entry.data, [each.position for each in topic.read_entries(position, 3)])
        use(topic.next_valid(position), topic.previous_valid(position), topic.is_valid(position))
        use(topic.position_at_time(5), topic.position_at_index(5), topic.entries_between(position, position))
        use(topic.find_newest_matching(lambda entry: entry.timestamp > 5), topic.trim(), topic.ledgers)
        use(topic.entry_count + topic.last_index + topic.size_bytes, topic.closed, topic.config, topic.properties)
        topic.update_properties({"a": None})
        topic.roll()
        topic.flush()
        cursor = topic.open_cursor("billing", "earliest", {"a": "b"})
        assert_type(cursor, seglog.pulsar.ManagedCursor)
        assert_type(topic.cursors, dict[str, seglog.pulsar.ManagedCursor])
        use_cursor(cursor, position)
        delay(topic, cursor, position)
        compact(topic)
        topic.delete_cursor("billing")
        topic.close()


def use_cursor(cursor: seglog.pulsar.ManagedCursor, position: seglog.pulsar.Position) -> None:
    for entry in cursor.read(10, 1 << 20):
        assert_type(entry.position, seglog.pulsar.Position)
        cursor.acknowledge(entry.position, [0, 1], batch_size=3)
    cursor.acknowledge_many([position])
    cursor.mark_delete(position, {"a": None})
    use(cursor.acknowledged_batch_indexes(position), cursor.is_acknowledged(position), cursor.has_more())
    use(cursor.mark_delete_position, cursor.read_position, cursor.properties, cursor.closed, cursor.name)
    use(cursor.skip(3) + cursor.expire(), cursor.is_oldest_message_expired())
    cursor.clear_backlog()
    use(cursor.find_newest_matching(lambda entry: entry.timestamp > 5))
    cursor.seek(position)
    cursor.seek_by_index(5)
    cursor.seek_by_time(5)
    cursor.rewind()
    cursor.update_properties({"a": "b"})
    cursor.flush()
    cursor.close()


def delay(
    topic: seglog.pulsar.ManagedLedger, cursor: seglog.pulsar.ManagedCursor, position: seglog.pulsar.Position
) -> None:
    with seglog.pulsar.DelayedDelivery(topic, {"delayedDeliveryTickTimeMillis": 500}) as delivery:
        assert_type(delivery.publish(b"value", delay=dt.timedelta(hours=1), key="k"), seglog.pulsar.Position)
        use(delivery.publish_batch([("k", b"value")], deliver_at_ms=5), delivery.add_entry(b"entry"))
        delivery.set_policies({"active": True})
        delivery.reconfigure({})
        use(delivery.policies)
        dispatcher = delivery.dispatcher(cursor)
        assert_type(dispatcher, seglog.pulsar.Dispatcher)
        use([entry.position for entry in dispatcher.read(10, timeout=1)], dispatcher.next_due_ms())
        dispatcher.redeliver([position])
        dispatcher.rewind()
        use(dispatcher.cancel(position), dispatcher.cursor)
        dispatcher.close()
        tracker = delivery.tracker(cursor)
        use(tracker.number_of_delayed_messages, tracker.next_delivery_time(), tracker.has_message_available())
        delivery.close()
    memory = seglog.pulsar.InMemoryDelayedDeliveryTracker()
    assert_type(memory.add_message(1, 2, 3), bool)
    assert_type(memory.get_scheduled_messages(5), list[tuple[int, int]])
    use(memory.list(0, 9), memory.histogram([0, 9]), memory.count(0, 9), memory.memory_usage)
    use(memory.cancel(1, 2), memory.reschedule(1, 2, 3), memory.deliver_now(1, 2), memory.contains_message(1, 2))
    use(seglog.pulsar.BucketDelayedDeliveryTracker.buckets)


def compact(topic: seglog.pulsar.ManagedLedger) -> None:
    service = seglog.pulsar.PulsarTopicCompactionService(topic)
    use(service.plan(), service.compact(), service.get_last_compacted_position(), service.convert("batched"))
    last = service.get_last_message_position()
    assert_type(last, seglog.pulsar.MessagePosition)
    use(last.ledger_id + last.entry_id + last.batch_index + last.publish_time, last.position)
    general: seglog.pulsar.TopicCompactionService = service
    reader = seglog.pulsar.read_compacted(topic, general, seglog.pulsar.MessagePosition.EARLIEST)
    use(reader.has_message_available(), reader.get_last_message_position())
    while message := reader.read_next():
        use(message.value)
    service.close()


# --- seglog.spark ------------------------------------------------------------------------


def spark(session: "SparkSession", src: Path, dst: Path) -> None:
    seglog.spark.register(session, check=False)
    report = seglog.spark.convert_topics(session, src, dst, topics=["orders"], verify="full", aborted="drop")
    assert_type(report, seglog.spark.TopicsReport)
    use(report.rows, report.failed, report.total, report.is_whole, report.is_final, report.is_dry_run, report.tasks)
    use(report.removed, report.source, report.target, report.to, report.to_json(), report.to_dataframe(session))
    finalized = seglog.spark.finalize_topics(dst)
    assert_type(finalized, seglog.spark.Finalized)
    use(finalized.partitions, finalized.failed, finalized.was_final)
    assert_type(seglog.spark.rollback_topics(dst), list[str])
    for fetched in seglog.spark.fetch_topics("s3://lake/kafka", dst, progress=lambda name, done: use(name, done)):
        assert_type(fetched, seglog.spark.Fetched)
        use(fetched.partition, fetched.version, fetched.files + fetched.size_bytes, fetched.is_new)
    for ledger in seglog.spark.convert_compacted_ledgers(session, ["topic"], "batched", max_concurrent=3):
        assert_type(ledger, seglog.spark.ConvertedLedger)
        use(ledger.path, ledger.status, ledger.messages, ledger.sha256, ledger.bytes_in, ledger.bytes_out)
        use(ledger.error, ledger.what)
    commit = seglog.spark.unfinished_commit(dst)
    if commit is not None:
        assert_type(commit, seglog.spark.UnfinishedCommit)
        use(commit.partitions, commit.batch, commit.stream, commit.epoch, commit.overwrites, commit.drops)
    use(seglog.spark.complete_commit(dst), seglog.spark.drop_commit(dst))
    use(seglog.spark.read_paths(iter(())), seglog.spark.ROW_SCHEMA)


# --- seglog.errors, seglog.metrics, seglog.testing ----------------------------------------


def errors(path: Path) -> None:
    try:
        seglog.open(path)
    except (seglog.errors.LogLockedError, seglog.errors.CorruptRecordError, OSError) as error:
        use(str(error))
    except seglog.SeglogError as error:
        assert_type(error.what, str)
        assert_type(error.file, str | None)
        assert_type(error.position, int | None)
        assert_type(error.offset, int | None)
        assert_type(error.hint, str)
        assert_type(error.code, str)
        assert_type(error.exit_status, int)
        assert_type(error.where, str)
        raise seglog.errors.StorageError("what", file=path, hint="hint") from error


def metrics(source: seglog.metrics.Source) -> None:
    exposition = seglog.metrics.Exposition()
    exposition.add(source, topic="orders")
    assert_type(exposition.text(), str)
    use([metric.name for metric, _ in exposition.families()], [sample.value for sample in source.samples()])
    use(source.metrics, exposition.collect(), seglog.metrics.PROCESS.text(), seglog.__version__)
    exposition.remove(source)


@pytest.fixture
def server(seglog_kafka: seglog.LocalServer, seglog_topic: str) -> str:
    return f"{seglog_kafka.bootstrap_servers}/{seglog_topic}"


seglog_kafka_arguments = seglog.testing.seglog_kafka_arguments
