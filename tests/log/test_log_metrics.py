"""`log.stats()` without a walk, and `seglog.metrics.PROCESS`: every open log."""
import asyncio
import contextlib
import gc
import logging
import os
import shutil
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

import seglog
import seglog.aio
from seglog.log.log_metrics import METRICS
from seglog.metrics import PROCESS
from seglog.reading.open_readers import FOLLOW_CALLS
from support.loops import in_both_loops, run_in
from support.waiting import wait_for

attaches = pytest.mark.skipif(sys.platform != "linux", reason="processes attach on Linux only")


def sizes(path):
    logs = [file.stat().st_size for file in path.iterdir() if file.suffix == ".log"]
    indexes = [file.stat().st_size for file in path.iterdir() if file.name.endswith(("index", ".timeranges"))]
    return sum(logs), sum(indexes)


def shown(log=None):
    """{name: value} of one log, or of the process."""
    found = {}
    for family in text_string_to_metric_families(PROCESS.text()):
        for sample in family.samples:
            if sample.labels == ({} if log is None else {
                "path": str(log.path), "topic": log.topic, "partition": str(log.partition)
            }):
                found[sample.name] = sample.value
    return found


def test_stats_do_not_walk_a_directory_that_did_not_change(in_memory, monkeypatch):
    path = in_memory / "orders-0"
    with seglog.open(path, config={"segment.bytes": 200}, fsync="never") as log:
        for _ in range(30):
            log.append(b"v" * 100)
        log.configure({"segment.bytes": 20_000})
        log.roll()
        os.utime(path, ns=(0, 0))       # long ago
        first = log.stats()
        assert first.segments > 10
        walks = []
        scandir = os.scandir
        monkeypatch.setattr(os, "scandir", lambda *a: walks.append(a) or scandir(*a))
        log.append(b"v")
        log.flush()
        stats = log.stats()
        assert walks == []
        assert stats.log_bytes == sizes(path)[0] > first.log_bytes
        log.roll()
        log.append(b"v")
        log.flush()
        walks.clear()
        stats = log.stats()
        assert len(walks) == 1      # (What Path.glob does to find sizes is its own matter.)
        assert stats.log_bytes == sizes(path)[0]
        log.delete_records(10)
        assert log.stats().segments == len(list(path.glob("*.log")))
        assert log.stats().log_bytes == sizes(path)[0]


def test_every_open_log_is_shown_with_its_labels_and_read_back(in_memory):
    before = shown()
    with (
        seglog.open(in_memory / "orders-0") as log, seglog.open(in_memory / "bills-1") as other, log.cursor("mailer"),
    ):
        following = log.follow()
        for _ in range(3):
            log.append(b"v")
        found = shown(log)
        assert {"seglog_log_start_offset", "seglog_log_index_bytes", "seglog_log_failed"} <= set(found)
        assert (found["seglog_log_end_offset"], found["seglog_log_durable_offset"]) == (3, 3)
        assert found["seglog_log_syncs_total"] == log.stats().syncs > 0
        assert found["seglog_log_bytes"] == log.stats().log_bytes
        assert shown(other)["seglog_log_end_offset"] == 0
        now = shown()
        assert now["seglog_logs_open"] == before.get("seglog_logs_open", 0) + 2
        assert now["seglog_logs_opened_total"] == before["seglog_logs_opened_total"] + 2
        names = {metric.name for metric in METRICS}
        assert {*found, *now} <= names
        kinds = {family.name: family.type for family in text_string_to_metric_families(PROCESS.text())}
        for metric in METRICS:
            if metric.name == "seglog_log_attached":        # tests/attach: no process shares these
                continue
            assert kinds[metric.name.removesuffix("_total")] == metric.kind or kinds[metric.name] == metric.kind
        del following
    assert shown(log) == {}


def test_appends_their_bytes_and_who_listens_are_counted_over_rolls_and_cuts(in_memory):
    with seglog.open(in_memory / "orders-0", config={"segment.bytes": 300}, fsync="never") as log:
        sizes_before = log.stats().log_bytes
        for _ in range(10):
            log.append(b"v" * 100)
        log.flush()
        found = shown(log)
        assert found["seglog_log_appends_total"] == 10
        assert found["seglog_log_appended_bytes_total"] == log.stats().log_bytes - sizes_before > 1000
        before = found["seglog_log_appended_bytes_total"]
        log.truncate_to(1)
        assert shown(log)["seglog_log_appended_bytes_total"] == before        # a counter goes up only
        log.append_many([(None, b"v"), (None, b"v")])
        log.flush()
        assert shown(log)["seglog_log_appends_total"] == 11
        assert shown(log)["seglog_log_appended_bytes_total"] > before
        assert shown(log)["seglog_log_listeners"] == 0
        listening = log.on_published(lambda end: None)
        assert shown(log)["seglog_log_listeners"] == 1
        listening.cancel()
        assert shown(log)["seglog_log_listeners"] == 0
    with seglog.open(in_memory / "orders-0") as log:
        assert (log.stats().appends, log.stats().appended_bytes) == (0, 0)


def test_followers_are_counted_also_those_that_nobody_closed(in_memory):
    seglog.open(in_memory / "orders-0").close()
    before = shown()
    first, second = seglog.follow(in_memory / "orders-0"), seglog.follow(in_memory / "orders-0")
    now = shown()
    assert now["seglog_followers_open"] == before["seglog_followers_open"] + 2
    assert now["seglog_followers_opened_total"] == before["seglog_followers_opened_total"] + 2
    first.close()
    del second
    gc.collect()
    assert shown()["seglog_followers_open"] == before["seglog_followers_open"]


@pytest.mark.parametrize("torn", [False, True])
def test_a_recovery_says_what_it_did_also_where_nothing_was_lost(in_memory, caplog, torn):
    caplog.set_level(logging.INFO, "seglog")
    with seglog.open(in_memory / "orders-0") as log:
        log.append_many([(b"k", b"v")] * 3)
        assert caplog.text == ""        # a new log is no recovery
        killed = shutil.copytree(in_memory / "orders-0", in_memory / "killed" / "orders-0")
    if torn:
        with (killed / f"{0:020d}.log").open("ab") as file:
            file.write(b"torn")
    before = shown()
    with seglog.open(killed) as log:
        assert len(log.recovery.lost) == torn
    assert f"{killed} was not closed cleanly: recovered offsets 0 to 3 in 1 segments" in caplog.text
    assert ("lost 1 ranges" if torn else "nothing was lost") in caplog.text
    after = shown()
    assert after["seglog_logs_recovered_total"] == before["seglog_logs_recovered_total"] + 1
    assert after["seglog_logs_lost_ranges_total"] == before["seglog_logs_lost_ranges_total"] + torn
    caplog.clear()
    with seglog.open(killed):
        pass
    assert "not closed cleanly" not in caplog.text


def labelled(metric, **labels):
    """The samples of a metric that have these labels: [(all labels, value)]."""
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(PROCESS.text()) for sample in family.samples
        if sample.name == metric and labels.items() <= sample.labels.items()
    ]


def test_how_far_behind_each_follow_is(in_memory):
    with seglog.open(in_memory / "orders-0", fsync="never") as log, seglog.follow(log.path) as follower:
        path = str(log.path)
        for _ in range(10):
            log.append(b"v")        # a batch each
            log.flush()
        wait_for(lambda: follower.log_end_offset == 10)
        assert labelled("seglog_follow_lag", path=path) == []
        slow, quick = follower.follow("start"), log.follow("end")
        assert labelled("seglog_follow_calls", path=path) == [({"path": path}, 2)]
        assert labelled("seglog_follow_lag", path=path) == [({"path": path}, 10)]
        for _ in range(10):
            next(slow)
        log.append(b"v")
        log.flush()
        assert next(quick).offset == 10
        # What was read at once counts when more is asked for.
        wait_for(lambda: labelled("seglog_follow_lag", path=path)[0][1] == 11)
        assert next(slow).offset == 10
        assert labelled("seglog_follow_lag", path=path)[0][1] == 1
        del slow
        gc.collect()
        assert labelled("seglog_follow_calls", path=path) == [({"path": path}, 1)]
    assert labelled("seglog_follow_lag", path=path) == []


@pytest.mark.parametrize("kind", ["the log itself", "a follower", pytest.param("an attached log", marks=attaches)])
def test_a_follow_that_has_ended_counts_no_more_while_its_iterator_is_kept(in_memory, kind):
    attach = kind == "an attached log"
    with (
        seglog.open(in_memory / "orders-0", attach=attach) as log, seglog.follow(log.path) as follower,
        (seglog.open(log.path, attach=True) if attach else contextlib.nullcontext(log)) as other,
    ):
        reader = follower if kind == "a follower" else other
        log.append(b"v")
        wait_for(lambda: reader.log_end_offset == 1)
        idle, dropped, unused = reader.follow(timeout=0.01), reader.follow("start"), reader.follow("start")
        assert labelled("seglog_follow_calls", path=str(log.path))[0][1] == 3
        with pytest.raises(TimeoutError):
            next(idle)
        assert list(idle) == []
        next(dropped)
        del dropped, unused
        gc.collect()
        assert labelled("seglog_follow_calls", path=str(log.path)) == []
        late = reader.follow()
        reader.close()      # before the first record is requested
        assert list(late) == []
        assert all(call.log.path != log.path for call in FOLLOW_CALLS.now())


@in_both_loops
@pytest.mark.parametrize("is_own", [True, False], ids=["the log itself", "a follower"])
@pytest.mark.parametrize("start", ["start", "end", "-1h"])
def test_a_follow_of_an_event_loop_counts_no_more_once_it_has_ended(in_memory, new_loop, is_own, start):
    path = in_memory / "orders-0"

    def calls():
        return sum(count for _, count in labelled("seglog_follow_calls", path=str(path)))

    async def main():
        async with asyncio.timeout(20), seglog.aio.open(path) as log, seglog.aio.follow(path) as follower:
            await log.append(b"v")
            while follower.log_end_offset < 1:
                await asyncio.sleep(0.001)
            reader = log if is_own else follower
            closed, idle, awaited = reader.follow(start), reader.follow(start, timeout=0.02), reader.follow(start)
            waiting = asyncio.ensure_future(_last_of(awaited))
            if start != "end":
                await anext(closed)
            await closed.aclose()
            with pytest.raises(TimeoutError):
                await _last_of(idle)
            while calls() != 1:         # where it begins, is found by a thread
                await asyncio.sleep(0.001)
            await awaited.aclose()
            await waiting
            # A thread still looks where this one begins.
            late = reader.follow("-1h")
            finding = asyncio.ensure_future(anext(late, None))
            await asyncio.sleep(0)
            await late.aclose()
            await finding
            assert calls() == 0
            left = reader.follow(start)
        assert await anext(left, None) is None
        assert all(call.log.path != path for call in FOLLOW_CALLS.now())
        return closed, idle, awaited, late, left

    run_in(new_loop, main())


async def _last_of(records):
    async for _ in records:
        pass


def test_a_call_of_a_log_that_was_closed_does_not_hide_those_of_the_log_that_was_opened_again(in_memory):
    path = in_memory / "orders-0"
    with seglog.open(path) as log:
        log.append(b"v")
        left = log.follow("start")
    with seglog.open(path) as log:
        again = log.follow("start")
        assert labelled("seglog_follow_calls", path=str(path)) == [({"path": str(path)}, 1)]
        assert labelled("seglog_follow_lag", path=str(path)) == [({"path": str(path)}, 1)]
    del left, again


def test_how_far_behind_each_named_reader_is(in_memory):
    with seglog.open(in_memory / "orders-0", fsync="never") as log:
        labels = {"path": str(log.path), "name": "mailer"}
        log.append_many([(None, b"v")] * 10)
        with log.cursor("mailer", shared=True) as cursor, log.cursor("mailer", shared=True) as again:
            assert labelled("seglog_cursor_lag", **labels) == [(labels, 10)]
            cursor.commit(4)
            assert labelled("seglog_cursor_lag", **labels) == [(labels, 6)]
            again.commit(7)
            assert labelled("seglog_cursor_position", **labels) == [(labels, 7)]
        assert labelled("seglog_cursor_lag", **labels) == []
        log.append(b"v")
        with log.cursor("mailer") as cursor:
            assert labelled("seglog_cursor_lag", **labels) == [(labels, 4)]
            log.close()
            assert labelled("seglog_cursor_lag", **labels) == []
