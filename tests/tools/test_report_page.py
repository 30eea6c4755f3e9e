"""`seglog report`: the page says what `stats`, `ls` and `verify` say, needs nothing beside itself, and stays small."""
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

import seglog
from seglog.clock import ManualClock
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.worker import InlineWorker
from seglog.pulsar import ManagedLedger
from seglog.reading.partition import Partition
from seglog.tools import report
from seglog.tools.cli import cli
from seglog.tools.ls import Totals
from seglog.tools.picture import time_histogram
from seglog.tools.picture.page import ReportPage
from seglog.tools.picture.partition import _segments
from seglog.tools.picture.svg import bytes_scale
from seglog.tools.picture.time_limits import TimeLimits
from seglog.tools.picture.timeline import DOTS_MAX, Dots, SegmentSpan, Timeline
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.verification.findings import Report
from support.browser import answer_of, by_axe, in_browser, needs_axe, needs_chromium
from support.internal_topics import KRAFT_VERSIONS, kraft
from support.topics import delayed

T = 1_700_000_000_000


def run(*words):
    result = CliRunner().invoke(cli, [*map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def json_of(*words):
    return [json.loads(line) for line in CliRunner().invoke(cli, [*map(str, words), "--json"]).stdout.splitlines()]


class Facts(HTMLParser):
    """`facts`: what stands in the elements with a data-fact; `anchors` and `links` of the page."""

    def __init__(self):
        super().__init__()
        self.facts, self.anchors, self.links, self._name = {}, set(), set(), None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self._name = attrs.get("data-fact")
        self.anchors |= {attrs["id"]} if "id" in attrs else set()
        self.links |= {attrs["href"]} if "href" in attrs else set()

    def handle_data(self, data):
        if self._name:
            self.facts[self._name] = int(data.replace(",", ""))
            self._name = None


def read(text):
    page = Facts()
    page.feed(text)
    return page


@pytest.fixture
def mixed(golden_kafka, tmp_path):
    return shutil.copytree(golden_kafka / "cases/mixed-formats-k391/mixed-formats-k391-0", tmp_path / "logs/orders-0")


def test_the_page_of_a_partition_has_the_numbers_of_stats(mixed, tmp_path):
    run("report", mixed, "-o", tmp_path / "page.html")
    page, stats = read((tmp_path / "page.html").read_text()), json_of("stats", mixed)[0]
    for name in ("segments", "bytes", "batches", "records", "first_offset", "log_end_offset", "damaged_batches"):
        assert page.facts[name] == stats[name], name
    assert page.facts["late"] == stats["timestamps"]["late"]
    assert page.facts["future"] == stats["timestamps"]["future"]


def test_the_page_of_a_log_dir_has_the_numbers_of_ls(mixed, tmp_path):
    run("report", mixed.parent, "-o", tmp_path / "page.html")
    page, summary = read((tmp_path / "page.html").read_text()), json_of("ls", mixed.parent)[-1]
    assert page.facts == {name: summary[name] for name in page.facts}
    assert len(page.facts) == 8


def test_a_page_needs_nothing_beside_itself_and_all_its_links_lead_somewhere(mixed, tmp_path):
    for path in (mixed, mixed.parent):
        run("report", path, "-o", tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text()
        assert "<script" not in text
        assert not re.findall(r'(?:src|href)="(?!#)[^"]*"|url\(|@import', text)
        page = read(text)
        assert page.links
        assert {link[1:] for link in page.links} <= page.anchors


def test_a_finding_leads_to_its_batch(mixed, tmp_path):
    log = mixed / "00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    finding = next(line for line in json_of("verify", mixed) if line["type"] == "finding" and "position" in line)
    run("report", mixed, "-o", tmp_path / "page.html")
    at = f"{log.name}:{finding['position']}"
    page = read((tmp_path / "page.html").read_text())
    assert f"#{at}" in page.links
    assert at in page.anchors


def test_damage_anywhere_is_drawn(tmp_path):
    """A wrapper of v0 or v1 whose records are damaged does not even tell its first offset."""
    partition = shutil.copytree(tools_sample(), tmp_path / "logs/orders-0")
    log = partition / "00000000000000000000.log"
    whole = log.read_bytes()
    for position in (*range(16, len(whole), len(whole) // 12), len(whole) // 2):
        raw = bytearray(whole)
        raw[position] ^= 1
        log.write_bytes(raw)
        run("report", partition, "-o", tmp_path / "page.html")
        found = any(line["type"] == "finding" for line in json_of("verify", partition))
        assert ("Nothing: clean" in (tmp_path / "page.html").read_text()) != found, position
    text = (tmp_path / "page.html").read_text()     # of the last one, in the wrapper behind offset 42
    assert "<title>damage at offset 43</title>" in text
    assert '<td class="left error">damaged</td>' in text
    run("report", partition.parent, "-o", tmp_path / "page.html")


def test_what_cannot_be_read_is_a_row_of_its_log_dir(mixed, tmp_path):
    shutil.copytree(mixed, mixed.with_name("orders-1"))
    hurt = mixed.with_name("orders-1") / "00000000000000000000.log"
    hurt.unlink()
    hurt.mkdir()
    run("report", mixed.parent, "-o", tmp_path / "page.html")
    assert "orders-1" in (tmp_path / "page.html").read_text()


def tables_of(text):
    """The rows of the page's tables by caption, as text."""
    found = {}
    for table in re.findall(r"<table>.*?</table>", text, re.S):
        rows = (re.findall(r"<td[^>]*>(?:<a[^>]*>)?(.*?)(?:</a>)?</td>", row) for row in table.split("<tr")[1:])
        found[re.search("<caption>(.*?)</caption>", table)[1]] = [row for row in rows if row]
    return found


@pytest.mark.parametrize("version", KRAFT_VERSIONS)
def test_the_page_of_a_log_dir_has_the_groups_of_groups_and_the_settings_of_topics(version, tmp_path):
    run("report", kraft(version), "-o", tmp_path / "page.html")
    tables = tables_of((tmp_path / "page.html").read_text())
    expected = {
        (line["group"], f"{line['topic']}-{line['partition']}"): [
            f"{line[name]:,}" for name in ("offset", "log_end_offset", "lag")]
        for line in json_of("groups", kraft(version)) if line["type"] == "committed_offset"
    }
    assert len(expected) > 4
    rows = tables["Committed offsets"]
    assert {(row[0], row[2]): row[3:6] for row in rows} == expected
    lags = [int(row[5].replace(",", "")) for row in rows]
    assert lags == sorted(lags, reverse=True)
    topics = {line["topic"]: line for line in json_of("topics", kraft(version)) if line["type"] == "topic"}
    given = {"topic": "", "broker": " (this broker)", "brokers": " (all brokers)"}
    for name, partitions, here, *settings in tables["Topics"]:
        told = (topics.get(name) or {}).get("settings") or {}
        assert (partitions, here) == (("unknown", "1") if name not in topics else (
            f"{topics[name]['partitions']}", f"{topics[name]['here']}"))
        shown = {key: f"{one['value']}{given[one['source']]}" for key, one in told.items()}
        first = [shown.pop(key, "unknown") for key in ("cleanup.policy", "retention.ms", "retention.bytes")]
        assert settings == [*first, ", ".join(f"{key}={value}" for key, value in shown.items())]
    assert {row[0] for row in tables["Topics"]} == topics.keys() | {"__cluster_metadata"}


def test_the_page_of_a_partition_has_its_settings_and_the_lag_of_its_groups(tmp_path):
    run("report", kraft("4.4.0") / "orders-1", "-o", tmp_path / "page.html")
    tables = tables_of((tmp_path / "page.html").read_text())
    told = json_of("topics", kraft("4.4.0"), "--topic", "orders")[0]["settings"]
    given = {"topic": "the topic", "broker": "this broker", "brokers": "all brokers"}
    assert tables["Settings"] == [
        *([key, one["value"], given[one["source"]]] for key, one in told.items()),
        ["retention.bytes", "unknown", "server.properties, or else Kafka&#39;s default"],
    ]
    assert {(row[0], row[2]): row[5] for row in tables["Committed offsets"]} == {
        (line["group"], "orders-1"): f"{line['lag']}" for line in json_of("groups", kraft("4.4.0"))
        if line["type"] == "committed_offset" and line["partition"] == 1
    }


def test_without_a_metadata_log_settings_are_unknown_and_beside_no_broker_nothing_is_said(mixed, tmp_path):
    for path in (mixed, mixed.parent):
        run("report", path, "-o", tmp_path / "page.html")
        assert "ettings are unknown" not in (tmp_path / "page.html").read_text()
    (mixed.parent / "meta.properties").write_text("version=0\nbroker.id=1\n")
    for path in (mixed, mixed.parent):
        run("report", path, "-o", tmp_path / "page.html")
        assert "ettings are unknown" in (tmp_path / "page.html").read_text()
    assert tables_of((tmp_path / "page.html").read_text())["Topics"] == [
        ["orders", "unknown", "1", "unknown", "unknown", "unknown", ""]]


def test_a_broken_metadata_log_or_offsets_topic_is_told_on_the_page(tmp_path):
    data = shutil.copytree(kraft("4.4.0"), tmp_path / "data")
    for log in data.glob("__c*-0/*.log"):
        raw = bytearray(log.read_bytes())
        raw[len(raw) // 2] ^= 1
        log.write_bytes(raw)
    for checkpoint in data.glob("__cluster_metadata-0/*.checkpoint"):
        checkpoint.unlink()
    for path in (data, data / "orders-0"):
        run("report", path, "-o", tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text()
        assert "The cluster&#39;s metadata cannot be read: " in text
        assert "Some groups are unknown: " in text


@pytest.mark.parametrize(("span_ms", "bar"), [
    (700, "10 ms"), (14_000, "200 ms"), (60_000, "1000 ms"), (400_000, "5.0 s"), (20 * 60_000, "15.0 s"),
    (86_400_000, "15 min"), (700 * 86_400_000, "8 d 0 h"),
])
def test_bars_fit_the_span_of_the_data(tmp_path, span_ms, bar):
    with seglog.open(tmp_path / "orders-0", clock=ManualClock(T + span_ms), fsync="never") as log:
        for n in range(200):
            log.append(b"value", timestamp=T + n * span_ms // 199)
    run("report", tmp_path / "orders-0", "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert f"Each bar is {bar.replace('1000 ms', '1.0 s')}," in text
    drawing = next(svg for svg in re.findall("<svg.*?</svg>", text, re.S) if ">Bytes by time</title>" in svg)
    assert 24 <= drawing.count("<rect") <= 121


def test_a_histogram_of_more_times_than_it_keeps_has_the_same_bars(monkeypatch):
    monkeypatch.setattr(time_histogram, "STEPS_MAX", 500)
    few, every = time_histogram.TimeHistogram(), Counter()
    for n in range(5_000):
        ms = T + n * 7_919 % 1_000_003
        few.add(ms, n)
        every[ms] += n
    width_ms, bars = few.bars(TimeLimits.of(every), 120)
    assert few.step_ms > 1
    assert len(few.counts()) <= 500
    assert len(bars) <= 120
    assert dict(bars) == {
        begin: sum(amount for ms, amount in every.items() if begin <= ms < begin + width_ms) for begin, _ in bars}


def test_markers_count_alike_in_every_number_of_the_page(tmp_path):
    with seglog.open(tmp_path / "orders-0", clock=ManualClock(T)) as log, log.producer(7) as producer:
        producer.begin()
        for n in range(3):
            producer.append(b"value", timestamp=T - 1000 + n)
        producer.commit()
    run("report", tmp_path / "orders-0", "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    tables = tables_of(text)
    assert read(text).facts["records"] == 4
    assert "<dt>of these, markers</dt><dd>1</dd>" in text
    assert [row[2] for row in tables["Formats and codecs"]] == ["4"]
    assert [row[2:4] for row in tables["Producers"]] == [["4", "4"]]
    largest = re.search("<dt>largest timestamp</dt><dd>(.*?)</dd>", text)[1]
    assert largest == tables["Segments"][0][7]


@pytest.fixture
def delayed_topic(tmp_path):
    """Ten delayed messages in buckets, by the hour, of five ledgers; one cursor."""
    clock = ManualClock(T)
    config = {"managedLedgerMaxEntriesPerLedger": 2, "defaultRetentionTimeInMinutes": -1}
    buckets = DelayedDeliveryConfig(ledger_step=0, min_index_count=2)
    with ManagedLedger(tmp_path / "topics/orders", config=config, clock=clock) as topic:
        topic.add_entries(delayed(n, T + 3_600_000 * (n // 2)) for n in range(1, 11))
        with DelayedDelivery(topic, buckets, clock=clock, new_worker=InlineWorker) as delivery:
            delivery.dispatcher(topic.open_cursor("billing", "earliest")).read()
    return tmp_path / "topics/orders"


def test_the_page_of_a_managed_ledger_has_the_numbers_of_ledger_ls_and_delayed_ls(delayed_topic, tmp_path):
    run("report", delayed_topic, "-o", tmp_path / "page.html", "--now", T + 3_600_000)
    text = (tmp_path / "page.html").read_text()
    page, summary = read(text), json_of("ledger", "ls", delayed_topic)[-1]
    buckets = json_of("delayed", "buckets", delayed_topic)
    assert page.facts == {
        **{name: summary[name] for name in ("ledgers", "entries", "size_bytes", "cursors")},
        "delayed_messages": sum(bucket["messages"] for bucket in buckets), "buckets": len(buckets),
    }
    assert page.facts["delayed_messages"] > 2
    due = [line["deliver_at"] for line in json_of("delayed", "dump", delayed_topic)]
    assert f"Pending: {len(due)} messages; due {sum(at <= T + 3_600_000 for at in due)} now" in text
    bars = [int(n) for n in re.findall(r"Z: ([0-9,]+) messages?<", text)]
    assert sum(bars) == len(due)
    assert len(bars) == len(set(due))


def a_queue(path, clock):
    """Jobs in every state, in two priorities and a batch, of which one was finished, one copied out."""
    jobs = seglog.Queue(path, clock=clock, max_attempts=2, retry_delay=50, retry_jitter=0)
    jobs.put_many([b"a", b"b", b"c", b"d"])
    jobs.put(b"later", delay=3600)
    jobs.put(b"urgent", priority=5)
    clock.advance(60_000)
    for _ in range(3):
        jobs.put(b"new")
    urgent, first, second = jobs.get_many(3, timeout=0)
    first.ack()
    urgent.nack()
    second.nack(0, reason="the first <time>")
    jobs.get(timeout=0).nack(0, reason="no such <user>")
    jobs.get(timeout=0)
    return jobs


def test_the_page_of_a_queue_has_the_numbers_of_its_stats_while_a_program_has_it(tmp_path):
    clock = ManualClock(T)
    with a_queue(tmp_path / "jobs", clock) as jobs:
        run("report", tmp_path / "jobs", "-o", tmp_path / "page.html", "--now", clock.now_ms())
        text, stats = (tmp_path / "page.html").read_text(), jobs.stats()
        facts, tables = read(text).facts, tables_of(text)
        expected = {"ready": stats.ready, "delayed": stats.delayed, "waiting": stats.waiting, "taken": stats.in_flight,
                    "dead": stats.dead}
        assert {name: facts[name] for name in expected} == expected
        assert min(expected.values()) == 1
        assert {row[0]: row[1:6] for row in tables["Jobs"]} == {
            "queue": [str(stats.ready), "1", "0", "1", "1"], "5/queue": ["0", "0", "1", "0", "0"],
        }
        [dead] = jobs.dead
        assert dead.reason == "no such <user>"
        assert [row[1:] for row in tables["Dead jobs"]] == [
            [dead.id, "2", report.moment(clock.now_ms()), "no such &lt;user&gt;"]
        ]
        assert ["2", "1"] not in tables["Attempts of jobs that are not finished"]
        bars = [int(n) for n in re.findall(r"Z: ([0-9,]+) jobs?<", text)]
        assert sum(bars) == sum(expected.values())


def test_the_page_of_a_topic_tells_the_subscriptions_apart(tmp_path):
    with (
        seglog.Topic(tmp_path / "orders") as topic, topic.subscribe("slow", start="earliest"),
        topic.subscribe("quick", start="earliest") as quick,
    ):
        for _ in range(3):
            topic.publish(b"order")
        quick.get(timeout=5).ack()
        quick.get(timeout=5)
        run("report", tmp_path / "orders", "-o", tmp_path / "page.html")
    rows = {row[0]: row[1:6] for row in tables_of((tmp_path / "page.html").read_text())["Jobs"]}
    assert rows == {"slow": ["3", "0", "0", "0", "0"], "quick": ["1", "0", "0", "1", "0"]}


def test_damage_is_told_on_the_page_of_a_queue(tmp_path):
    with seglog.Queue(tmp_path / "jobs") as jobs:
        for number in range(3):
            jobs.put(b"job %d" % number)
        jobs.get(timeout=5)
        [log] = (tmp_path / "jobs").glob("ledger-0/*.log")
    raw = bytearray(log.read_bytes())
    raw[raw.index(b"job 1")] ^= 1
    log.write_bytes(raw)
    run("report", tmp_path / "jobs", "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "1 entry that cannot be read" in text
    assert [read(text).facts[name] for name in ("ready", "taken")] == [1, 1]


def test_a_damaged_snapshot_is_told_on_the_page(delayed_topic, tmp_path):
    bucket = json_of("delayed", "buckets", delayed_topic)[0]
    for file in delayed_topic.rglob(f"ledger-{bucket['snapshot']}/*"):
        if file.suffix == ".log":
            raw = bytearray(file.read_bytes())
            for position in range(40, len(raw), 40):    # in every entry: whole ones are read past a damaged one
                raw[position] ^= 1
            file.write_bytes(raw)
    run("report", delayed_topic, "-o", tmp_path / "page.html")
    assert "cannot be read" in (tmp_path / "page.html").read_text()


def test_the_page_of_a_converted_partition_shows_before_and_after(mixed, tmp_path):
    (tmp_path / "new").mkdir()
    run("convert", mixed, tmp_path / "new/orders-0")
    proof = json.loads((tmp_path / "new/orders-0/seglog-conversion.json").read_text())
    records = sum(segment["source"]["records"] for segment in proof["segments"])
    run("report", tmp_path / "new/orders-0", "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert f"{records} records of {report.count_of(len(proof['segments']), 'segment')}, the same on both sides" in text
    assert text.count(">same</td>") == len(proof["segments"])
    before, after = (sum(line["bytes"] for line in json_of("ls", path) if line["type"] == "segment")
                     for path in (mixed, tmp_path / "new/orders-0"))
    assert f"{report.size(before)} became {report.size(after)}." in text
    shutil.rmtree(mixed)
    run("report", tmp_path / "new/orders-0", "-o", tmp_path / "page.html")
    assert "no longer exists" in (tmp_path / "page.html").read_text()
    run("report", tools_sample(), "-o", tmp_path / "page.html")
    assert "Before and after" not in (tmp_path / "page.html").read_text()


def tools_sample():
    return Path(__file__).parents[2] / "tools/sample/orders-0"


def test_ten_thousand_segments_are_a_page_of_less_than_a_megabyte(mixed):
    timeline = Timeline(now_ms=0)
    for n in range(10_000):
        totals = Totals(bytes=1 << 30, batches=1000, bytes_v2=1 << 30, first_timestamp=n * 60_000,
                        max_timestamp=(n + 1) * 60_000)
        timeline.segments.append(SegmentSpan(f"{n * 1000:020}.log", n * 1000, (n + 1) * 1000, totals))
    with Partition(mixed) as partition:
        section = _segments(partition, timeline, Report(str(mixed), "crc"))
    text = ReportPage("orders-0", str(mixed), "now", [], [section]).html()
    assert len(text.encode()) < 1 << 20
    assert "9,700 more are only in the drawing." in text


@pytest.mark.parametrize("count", [0, 1, DOTS_MAX, DOTS_MAX + 1, 2 * DOTS_MAX + 1, 28_501, 10 * DOTS_MAX])
def test_dots_are_spread_over_all_batches_not_the_first_ones(count):
    dots = Dots()
    for n in range(count):
        dots.add(n, T + n)
    assert dots.count == count
    offsets = [offset for offset, _ in dots.points]
    stride = 1
    while count > stride * DOTS_MAX:
        stride *= 2
    assert offsets == list(range(0, count, stride))
    assert all(ms == T + offset for offset, ms in dots.points)


@pytest.mark.parametrize(("high", "labels"), [
    (0, ["0 B", "1 B"]), (1_200, ["0 B", "256 B", "512 B", "768 B", "1.0 KiB"]),
    (5_000, ["0 B", "1.0 KiB", "2.0 KiB", "3.0 KiB", "4.0 KiB"]),
    (2_190_697_019, ["0 B", "512.0 MiB", "1.0 GiB", "1.5 GiB", "2.0 GiB"]),
])
def test_ticks_of_bytes_are_round_numbers_of_the_unit_shown(high, labels):
    scale = bytes_scale(high, 0, 100, report.size)
    assert [scale.show(tick) for tick in scale.ticks] == labels


def test_a_partition_without_timestamps_has_no_bar_and_the_page_says_so(golden_kafka, mixed, tmp_path):
    run("report", mixed.parent, "-o", tmp_path / "page.html")
    assert "No bar for" not in (tmp_path / "page.html").read_text()
    shutil.copytree(golden_kafka / "cases/v0-none-ct-k282/v0-none-ct-k282-0", mixed.with_name("old-0"))
    run("report", mixed.parent, "-o", tmp_path / "page.html")
    assert "No bar for 1 partition: no batch there has a timestamp." in (tmp_path / "page.html").read_text()


def test_a_log_of_messages_with_tags_is_told_as_such(tmp_path):
    with seglog.open(tmp_path / "tags-0", config={"seglog.message.dialect": "tagged"}, fsync="never") as log:
        for n in range(5):
            log.append(b"value", timestamp=T + 1000 * n)
    for path in (tmp_path / "tags-0", tmp_path):
        run("report", path, "-o", tmp_path.with_name("page.html"))
        text = tmp_path.with_name("page.html").read_text()
        assert "messages with tags" in text
        assert "format v2" not in text
        assert "v-1" not in text
        assert "no .index" not in text
        assert read(text).links <= {f"#{anchor}" for anchor in read(text).anchors}
    log = tmp_path / "tags-0/00000000000000000000.tlog"
    raw = bytearray(log.read_bytes())
    raw[-1] ^= 1
    log.write_bytes(raw)
    run("report", tmp_path / "tags-0", "-o", tmp_path.with_name("page.html"))
    assert any(link.startswith(f"#{log.name}:") for link in read(tmp_path.with_name("page.html").read_text()).links)


def test_a_drawing_stands_alone(mixed, tmp_path):
    run("report", mixed, "-o", tmp_path / "drawing.svg")
    drawing = ET.parse(tmp_path / "drawing.svg").getroot()
    assert drawing.find("{http://www.w3.org/2000/svg}title").text == "Segments by offset and time"
    run("report", mixed, "--kind", "png", "-o", tmp_path / "drawing")
    assert (tmp_path / "drawing").read_bytes().startswith(b"\x89PNG")


def test_a_hostile_name_is_text_on_the_page(mixed, tmp_path):
    hostile = mixed.rename(mixed.with_name("a&<b>'\"-0"))
    for path in (hostile, hostile.parent):
        run("report", path, "-o", tmp_path / "page.html")
        assert "<b>" not in (tmp_path / "page.html").read_text()


def test_a_page_is_not_put_into_the_directory_that_it_shows(mixed):
    result = CliRunner().invoke(cli, ["report", str(mixed), "-o", str(mixed / "page.html")])
    assert result.exit_code == 2
    assert "which is never changed" in result.stderr


def test_a_page_needs_only_what_a_plain_installation_has(mixed, tmp_path):
    """Libraries of extras are as if they were not installed."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    plain, *extras = (
        {re.split(r"[><=; \[]", entry)[0].replace("-", "_") for entry in entries}
        for entries in (project["dependencies"], *project["optional-dependencies"].values())
    )
    missing = sorted(set().union(*extras) - plain)
    assert {"resvg_py", "pyarrow"} <= set(missing)
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); from seglog.tools.cli import main; main()"
    run_so = [sys.executable, "-c", code, "report"]
    for path in (mixed, mixed.parent):
        subprocess.run([*run_so, path, "-o", tmp_path / "page.html"], check=True, timeout=120)
        assert read((tmp_path / "page.html").read_text()).facts["segments"]
    assert "jinja2" in plain
    done = subprocess.run(
        [*run_so, mixed, "-o", tmp_path / "page.png"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 6
    assert "seglog[report]" in done.stderr


@pytest.mark.long
@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_kind_of_page(mixed, delayed_topic, tmp_path, scheme):
    (tmp_path / "new").mkdir()
    run("convert", mixed, tmp_path / "new/orders-0")
    for path in (mixed, mixed.parent, delayed_topic, tmp_path / "new/orders-0") if scheme == "light" else (mixed,):
        run("report", path, "-o", tmp_path / "page.html")
        found = by_axe((tmp_path / "page.html").read_text(), tmp_path, scheme)
        assert found["passes"] > 10
        assert not found["violations"]


@needs_chromium
def test_a_browser_shows_the_page_without_an_error(mixed, tmp_path):
    run("report", mixed, "-o", tmp_path / "page.html")
    shown, said = in_browser((tmp_path / "page.html").as_uri(), tmp_path / "profile")
    assert read(shown).facts == read((tmp_path / "page.html").read_text()).facts
    assert "CONSOLE" not in said


@needs_chromium
def test_the_text_of_drawings_is_readable_on_a_phone(mixed, tmp_path):
    """They scroll instead of shrinking."""
    run("report", mixed, "-o", tmp_path / "page.html")
    ask = (
        "answer([...document.querySelectorAll('section svg text')].map("
        "e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a))"
    )
    sizes = answer_of((tmp_path / "page.html").read_text(), tmp_path, ask, options=["--window-size=500,2000"])
    assert len(sizes) > 20
    assert min(sizes) > 9.5


@needs_chromium
@pytest.mark.parametrize(("media", "pixels"), [("screen", 1280), ("print", 718)])       # 718: A4 within its margins
def test_tables_are_not_cut_on_a_screen_and_on_paper(mixed, tmp_path, media, pixels):
    (mixed / "00000000000000000000.index").unlink()      # so that every column has something
    run("report", mixed, "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    if media == "print":
        text = text.replace("@media print", "@media all")
    ask = "answer([...document.querySelectorAll('.wide')].map(e => [e.scrollWidth, e.clientWidth]))"
    tables = answer_of(text, tmp_path, ask, options=[f"--window-size={pixels},2000"])
    assert len(tables) >= 2
    assert [needed for needed, got in tables if needed > got] == []


def test_names_that_are_not_utf_8_or_command_a_terminal_are_escaped(golden_kafka, tmp_path):
    logs = tmp_path / os.fsdecode(b"l\xe9gs")
    logs.mkdir()
    whole = golden_kafka / "cases/mixed-formats-k282/mixed-formats-k282-0"
    shutil.copytree(whole, logs / os.fsdecode(b"caf\xe9-0"))
    shutil.copytree(whole, logs / "a\x1b[31m\n-0")
    for kind in ("html", "svg", "png"):
        run("report", logs, "-o", tmp_path / f"report.{kind}")
    page = (tmp_path / "report.html").read_text()
    assert "caf\\udce9-0" in page
    assert "a\\x1b[31m\\n-0" in page
    assert "l\\udce9gs" in page
    assert not {letter for letter in page if letter != "\n" and not letter.isprintable()}
    assert "caf\\udce9-0" in "".join(ET.parse(tmp_path / "report.svg").getroot().itertext())
    run("report", logs / os.fsdecode(b"caf\xe9-0"), "-o", tmp_path / "partition.html")
    assert "caf\\udce9-0" in (tmp_path / "partition.html").read_text()


def test_a_managed_ledger_whose_name_is_not_utf_8_is_drawn(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9")
    ManagedLedger(path).close()
    run("report", path, "-o", tmp_path / "report.html")
    assert "caf\\udce9" in (tmp_path / "report.html").read_text()
