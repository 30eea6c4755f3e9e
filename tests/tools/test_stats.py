"""`seglog stats` counts what the real decoder listed, and guesses the writer right."""
import json
from collections import Counter

import pytest

import seglog as engine
from seglog.clock import ManualClock
from seglog.log.log import Log
from seglog.segment.segment import Segment
from seglog.tools import survey
from seglog.upkeep.cleaner import clean
from support.command import golden_lines, partition_of, seglog, seglog_json
from support.golden import golden_cases


def stats(*arguments, status=0):
    """The JSON lines by type."""
    by_type = {}
    for line in seglog_json("stats", *arguments, status=status):
        assert line["schema"] == 1
        by_type.setdefault(line["type"], []).append(line)
    return by_type


def version(text):
    return tuple(map(int, text.split(".")))


def test_counts_equal_the_real_decoders_in_every_case():
    for case in golden_cases():
        records, batches = golden_lines(case, "expected"), golden_lines(case, "batches")
        got = stats(partition_of(case))
        line, = got["stats"]
        assert (line["records"], line["batches"]) == (len(records), len(batches)), case.name
        by_format = Counter((r["magic"], r["codec"]) for r in records)
        assert {(c["magic"], c["codec"]): c["records"] for c in got.get("codec", ()) if c["records"]} == by_format
        assert sum(s["batches"] for s in got.get("batch_sizes", ())) == len(batches)
        kinds = Counter(r.get("control_type") for r in records)
        transactions = line["transactions"]
        assert (transactions["committed"], transactions["aborted"]) == (kinds["COMMIT"], kinds["ABORT"])
        assert {p["producer_id"] for p in got.get("producer", ())} == {
            b["producer_id"] for b in batches if b["producer_id"] >= 0
        }


def test_disorder_equals_the_obvious_loop_in_every_case():
    now = 1_700_000_200_000
    for case in golden_cases():
        largest, late, latest, future = -1, 0, 0, 0
        data = golden_lines(case, "expected")       # markers too
        for r in data:
            if 0 <= r["timestamp"] < largest:
                late, latest = late + 1, max(latest, largest - r["timestamp"])
            largest = max(largest, r["timestamp"])
            future += r["timestamp"] > now
        times = stats(partition_of(case), "--now", now)["stats"][0]["timestamps"]
        assert (times["records"], times["late"], times["latest_by_ms"], times["future"], times["largest"]) == (
            len(data), late, latest, future, largest
        ), case.name
        assert times["without"] == sum(r["timestamp"] < 0 for r in data)


def test_the_writer_lies_within_the_bounds_in_every_case():
    _narrowed = 0
    for case in golden_cases():
        real = version(json.loads((case / "case.json").read_text())["writer"].removeprefix("kafka "))
        writer = stats(partition_of(case))["stats"][0]["writer"]
        assert writer["since"] is None or version(writer["since"]) <= real, (case.name, writer)
        assert writer["until"] is None or real <= version(writer["until"]), (case.name, writer)
        _narrowed += writer["until"] is not None
    assert _narrowed >= 10       # 2.8.2 gives itself away where it indexed an append of several batches


def test_the_writer_of_a_log_without_newer_files_is_old(golden_kafka, tmp_path):
    case = golden_kafka / "cases/v0-none-ct-k282"
    copy = tmp_path / "orders-0"
    copy.mkdir()
    log = sorted(partition_of(case).glob("*.log"))[0]
    (copy / log.name).write_bytes(log.read_bytes())
    (copy / log.with_suffix(".index").name).write_bytes(b"")
    writer = stats(copy)["stats"][0]["writer"]
    assert writer["until"] == "0.10.0"
    assert writer["text"] == "0.10.0 or earlier"


def test_open_transactions_are_named(golden_kafka):
    case = golden_kafka / "cases/txn-v2-k391"
    records = golden_lines(case, "expected")
    open_since = {}
    for r in records:
        if r["control"]:
            open_since.pop(r["producer_id"], None)
        elif r["transactional"]:
            open_since.setdefault(r["producer_id"], r["batch_base_offset"])
    got = stats(partition_of(case))["stats"][0]["transactions"]["open"]
    assert {t["producer_id"]: t["first_offset"] for t in got} == open_since


@pytest.mark.parametrize("name", ["v1-snappy-ct-k391", "v2-lz4-ct-k411", "big-v2-gzip-k391"])
def test_ratios_weigh_what_lies_against_what_it_opens_to(golden_kafka, name):
    for codec in stats(partition_of(golden_kafka / "cases" / name))["codec"]:
        assert codec["stored_bytes"] < codec["batch_bytes"]
        if name.startswith("big"):
            assert codec["uncompressed_bytes"] > codec["stored_bytes"]


def test_text_has_its_sections(golden_kafka):
    text = seglog("stats", partition_of(golden_kafka / "cases/txn-v2-k391")).stdout
    for heading in ("written by", "formats and codecs", "batch sizes", "timestamps", "indexes",
                    "transactions and producers"):
        assert f"\n{heading}" in text


def test_damage_is_told_and_is_status_1(golden_kafka):
    damaged = sorted((golden_kafka / "corrupt").glob("*--flip-earlier-seg*"))[0]
    path, = (d for d in damaged.iterdir() if d.is_dir() and d.name.endswith("-0"))
    assert stats(path, status=1)["stats"][0]["damaged_batches"] == 1
    assert "damaged: " in seglog("stats", path, status=1).stdout


def test_timestamps_name_the_record_that_holds_segments_and_when_they_go(golden_kafka):
    """The golden log with a timestamp ten days ahead in its fourth segment: it, and those behind, wait for it."""
    directory = golden_kafka / "pairs/retention/dirs/future/future-0"
    now, week = 1_700_010_421_699, 7 * 86_400_000
    rows = seglog_json(
        "stats", directory, "--timestamps", "--config", f"retention.ms={week}", "--now", str(now)
    )
    largest = [1700000369199, 1700000381099, 1700000394399, 1700864000000, 1700000418199, 1700000421699]
    assert [row["time"] for row in rows] == largest
    assert [row["future"] for row in rows] == [False, False, False, True, False, False]
    assert [row["waits_for"] for row in rows] == [0, 16, 33, 52, 52, 52]
    assert [row["goes"] for row in rows] == [t + week + 1 for t in (*largest[:3], *[largest[3]] * 3)]
    with engine.open_partition(directory) as partition:
        assert partition[rows[3]["offset"]].timestamp == largest[3]
    text = seglog("stats", directory, "--timestamps", "--now", str(now)).stdout
    assert "in the future" in text
    assert "never" in text


def test_compaction_names_duplicates_tombstones_and_why_it_is_not_cleaned(golden_kafka):
    """Against a walk over the records by segment, in all golden directories of the cleaner, before and after it."""
    horizons, states = 0, set()
    directories = sorted((golden_kafka / "pairs/compact").glob("*/*/*-0"))
    for directory in directories[::3]:
        with engine.open_partition(directory) as partition:
            committed = {r.offset for r in partition.read(isolation="read_committed")}
            last = {r.key: r.offset for r in partition.read(isolation="read_committed") if r.key is not None}
            expected = []
            for segment in partition.segments:
                tombstones, counts = [], Counter()
                for batch in segment.batches():
                    for r in () if batch.is_control else batch:
                        is_open = r.offset >= partition.last_stable_offset
                        if not is_open and r.offset not in committed:
                            counts["aborted"] += 1
                        elif r.key is None:
                            counts["keyless"] += 1
                        elif r.offset < last.get(r.key, -1):
                            counts["duplicates"] += 1
                        elif r.value is None:
                            tombstones.append(batch.delete_horizon_ms)
                        counts["records"] += 1
                marked = [h for h in tombstones if h is not None]
                expected.append((
                    segment.base_offset, *(counts[name] for name in ("records", "duplicates", "keyless", "aborted")),
                    len(tombstones), len(tombstones) - len(marked), min(marked, default=None),
                    max(marked, default=None),
                ))
        got = stats(directory, "--compaction", "--config", "cleanup.policy=compact")
        names = ("base_offset", "records", "duplicates", "keyless", "aborted", "tombstones", "without_horizon",
                 "first_horizon", "last_horizon")
        assert [tuple(one[name] for name in names) for one in got["compaction_segment"]] == expected, directory
        horizons += sum(one[-1] is not None for one in expected)
        states |= {one["state"] for one in got["compaction_segment"]}
    assert horizons > 0
    assert {"dirty", "active"} <= states


def test_compaction_says_where_it_stands_and_what_holds_it(tmp_path):
    directory = tmp_path / "orders-0"
    now = 1_700_000_000_000
    config = {"segment.bytes": 300, "cleanup.policy": "compact"}
    with Log(directory, config=config, fsync="never", clock=ManualClock(now)) as log:
        for n in range(40):
            log.append(b"v" * 20, key=b"%d" % (n % 4), timestamp=now)
        log.roll()
        log.append(None, key=b"0", timestamp=now)
        bases = [segment.base_offset for segment in log.segments]
    told = stats(directory, "--compaction", "--now", now)["compaction"][0]
    assert (told["first_dirty_offset"], told["first_uncleanable_offset"]) == (0, bases[-1])
    assert (told["dirty_ratio"], told["clean_bytes"], told["why_not"]) == (1.0, 0, None)
    assert "due for cleaning" in seglog("stats", directory, "--compaction", "--now", now).stdout
    got = stats(directory, "--compaction", "--now", now, "--config", "min.compaction.lag.ms=1000")
    assert {one["state"] for one in got["compaction_segment"]} == {"held", "active"}
    assert "younger than min.compaction.lag.ms" in got["compaction"][0]["why_not"]
    with Log(directory, config=config, fsync="never", clock=ManualClock(now)) as log:
        clean(log)
    got = stats(directory, "--compaction", "--now", now)
    assert [one["state"] for one in got["compaction_segment"]] == ["clean"] * (
        len(got["compaction_segment"]) - 1) + ["active"]
    # The key of the tombstone in the active segment has an older record still.
    assert sum(one["duplicates"] for one in got["compaction_segment"]) == 1
    assert got["compaction_segment"][-1]["tombstones"] == 1
    assert "the active segment begins at" in got["compaction"][0]["why_not"]
    text = seglog("stats", directory, "--compaction", "--config", "cleanup.policy=delete", "--now", now).stdout
    assert "not due for cleaning: cleanup.policy is delete" in text
    assert "1 not marked yet" in text


def test_one_of_two_narrow_answers_at_a_time():
    seglog("stats", ".", "--compaction", "--timestamps", status=2)


@pytest.mark.parametrize("respected", [False, True])
def test_it_shows_which_named_reader_loses_what(tmp_path, respected):
    path = tmp_path / "read-0"
    with engine.open(path, config={"segment.bytes": 500}) as log:
        for n in range(12):
            log.append(b"v" * 100, timestamp=1_700_000_000_000 + n)
        base, after = log.segments[0].base_offset, log.segments[1].base_offset
        with log.cursor("mailer") as mailer, log.cursor("done") as done, log.cursor("idle"):
            mailer.commit(1)
            done.commit(12)
    how = ["--timestamps", "--config", "retention.ms=1000", "--config", f"seglog.retention.respect.cursors={respected}"]
    (one,) = [line for line in seglog_json("stats", path, *how) if line["type"] == "lagging_reader"]
    assert (one["reader"], one["offset"], one["base_offset"], one["unread"]) == ("mailer", 1, base, after - 1)
    assert one["goes"] == (None if respected else 1_700_000_000_000 + after - 1 + 1001)
    text = seglog("stats", path, *how).stdout
    assert ("1 offset of the segment at 0 still to" if respected else "loses 1 offset of the segment at 0 now") in text


def test_a_segment_that_is_removed_while_it_is_read_is_counted(tmp_path, monkeypatch):
    """Red, beside a writer: it was looked at, then removed, then opened."""
    with engine.open(tmp_path / "orders-0") as log:
        log.append(b"1")
        log.roll()
        log.append(b"2")

    class Removed(Segment):
        def tables(self, *arguments, **options):
            self.path.unlink(missing_ok=True)
            yield from super().tables(*arguments, **options)

    monkeypatch.setattr(survey, "Segment", Removed)
    assert stats(tmp_path / "orders-0")["stats"][0]["records"] == 2
