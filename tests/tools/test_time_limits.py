"""One time in 2099 or 1970 must not squash the time axis of a drawing: the axis leaves it out, a sentence names it."""
import re

import pytest
from click.testing import CliRunner

import seglog
from seglog.clock import ManualClock
from seglog.tools.cli import cli
from seglog.tools.picture.time_limits import TimeLimits

T = 1_780_000_000_000
MINUTE, DAY = 60_000, 86_400_000
IN_2099, IN_1970 = 4_090_000_000_000, 5_000_000


def limits(*times, without_a_count=()):
    counted = dict.fromkeys(without_a_count, 0)
    for ms in times:
        counted[ms] = counted.get(ms, 0) + 1
    found = TimeLimits.of(counted)
    assert (found.earliest_ms, found.latest_ms) == (min(counted), max(counted))
    return found.first_ms, found.last_ms, found.outside


def hour(count=50):
    return [T + n * MINUTE for n in range(count)]


@pytest.mark.parametrize(("far", "outside"), [
    ([IN_2099], 1), ([IN_1970], 1), ([IN_2099, IN_1970], 2), ([IN_2099 + 5], 1),
])
def test_times_far_from_all_others_are_left_out(far, outside):
    assert limits(*hour(), *far) == (T, T + 49 * MINUTE, outside)


def test_a_hundredth_may_be_left_out_and_not_more():
    many = hour(1000)
    assert limits(*many, *[IN_2099 + n for n in range(10)]) == (T, T + 999 * MINUTE, 10)
    assert limits(*many, *[IN_2099 + n for n in range(20)]) == (T, IN_2099 + 19, 0)


@pytest.mark.parametrize("times", [
    [T], [T, IN_2099], [T, T + MINUTE, IN_2099],                # too few to tell which is wrong
    [*hour(), T + 29 * DAY],                                    # a pause
    [T + n * DAY for n in range(400)] + [T + 3000 * DAY],       # far, but less than ten times what the others span
    [T + n * n * DAY for n in range(100)],
    [IN_1970 + n * (IN_2099 - IN_1970) // 50 for n in range(50)],
])
def test_all_other_times_are_shown(times):
    assert limits(*times) == (min(times), max(times), 0)


def test_the_largest_pause_that_is_shown():
    """Ten times what the others span, and at least 30 days."""
    days = [T + n * DAY for n in range(100)]
    assert limits(*days, days[-1] + 990 * DAY)[1] == days[-1] + 990 * DAY
    assert limits(*days, days[-1] + 990 * DAY + 1) == (T, days[-1], 1)
    assert limits(*hour(), T + 49 * MINUTE + 30 * DAY)[1] == T + 49 * MINUTE + 30 * DAY
    assert limits(*hour(), T + 49 * MINUTE + 30 * DAY + 1)[2] == 1


def test_a_partition_of_another_year_is_left_out_whole():
    """Both ends of it, of 28 partitions; of three, nobody can tell which is wrong."""
    for there, shown in (27, False), (1, True):
        ends = {T: there, T + 14_000: there, IN_1970: 1, IN_1970 + 14_000: 1}
        found = TimeLimits.of(ends, together=2)
        assert (found.first_ms == IN_1970) == shown
        assert (found.outside == 2) != shown
    assert TimeLimits.of({T: 28, T + 14_000: 28, IN_1970: 1, IN_1970 + 1: 1}).outside == 0


def test_times_without_a_count_are_shown_if_they_are_near():
    assert limits(*hour(), without_a_count=[T - DAY, IN_1970]) == (T - DAY, T + 49 * MINUTE, 0)
    assert limits(without_a_count=[T, T + DAY]) == (T, T + DAY, 0)


@pytest.mark.parametrize(("times", "words"), [
    (hour(), ""),
    ([*hour(), IN_2099], "after 2026-05-28 21:15:40.000Z, up to 2099-08-09 23:06:40.000Z (1 batch)."),
    ([*hour(), IN_1970], "before 2026-05-28 20:26:40.000Z, from 1970-01-01 01:23:20.000Z on (1 batch)."),
])
def test_what_is_left_out_is_said(times, words):
    said = TimeLimits.of(dict.fromkeys(times, 1)).words("batch", "batches")
    assert said == (words and f"The time axis leaves out what is far from all the rest: times {words}")


# --- where axes are drawn ----------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path):
    """A log dir with a partition of three hours in which the clock was wrong once, and one where it never was."""
    config = {"segment.bytes": 4096, "message.timestamp.after.max.ms": 2**62}
    with seglog.open(tmp_path / "logs/orders-0", config=config, clock=ManualClock(T + 180 * MINUTE)) as log:
        for n in range(180):
            log.append(b"v" * 100, timestamp=IN_2099 if n == 90 else T + n * MINUTE)
    with seglog.open(tmp_path / "logs/orders-1", clock=ManualClock(T + 180 * MINUTE)) as log:
        for n in range(180):
            log.append(b"v" * 100, timestamp=T + n * MINUTE)
    return tmp_path / "logs"


def page_of(path, target):
    result = CliRunner().invoke(cli, ["report", str(path), "-o", str(target)])
    assert result.exit_code == 0, result.output
    return target.read_text()


def drawn(page, title):
    """The drawing with this title: (labels of its axes, left edges and widths of its rectangles)."""
    svg = next(svg for svg in re.findall("<svg.*?</svg>", page, re.S) if f">{title}</title>" in svg)
    rectangles = re.findall(r'<rect class="\w+" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    return re.findall(r'<text[^>]*>([^<]*)</text>', svg), [(float(x), float(width)) for x, width in rectangles]


@pytest.mark.parametrize("title", ["Segments by offset and time", "Bytes by time"])
def test_a_page_shows_the_hours_and_names_the_wrong_time(logs, tmp_path, title):
    page = page_of(logs / "orders-0", tmp_path / "page.html")
    labels, rectangles = drawn(page, title)
    assert [label for label in labels if ":" in label] == ["05-28 21:00", "05-28 22:00", "05-28 23:00"]
    assert max(x for x, _ in rectangles) - min(x for x, _ in rectangles) > 600
    assert all(x >= 84 and x + width <= 950 for x, width in rectangles)
    assert page.count("up to 2099-08-09 23:06:40.000Z (1 batch).") == 2
    assert "2099-08-09 23:06:40.000Z" in page.split("<table")[1]


def test_a_page_without_a_wrong_time_leaves_out_nothing(logs, tmp_path):
    assert "leaves out" not in page_of(logs / "orders-1", tmp_path / "page.html")


def test_the_page_of_a_log_dir_shows_the_hours_of_its_partitions(logs, tmp_path):
    page = page_of(logs, tmp_path / "page.html")
    labels, rectangles = drawn(page, "Partitions over time")
    assert any(label.startswith("05-28 22") for label in labels)
    assert all(width > 700 for _, width in rectangles)
    assert "up to 2099-08-09 23:06:40.000Z (1 end of a partition). Such bars end at its edge." in page


def test_stats_draws_the_hours(logs, monkeypatch):
    from seglog.reading.partition import Partition
    from seglog.tools.stats import _drawn

    with Partition(logs / "orders-0") as partition:
        _, blocks, ends, out = _drawn(partition, T)
    assert len(set(blocks.strip())) > 1
    assert ends == "  2026-05-28 20:25:00.000Z … 2026-05-28 23:30:00.000Z"
    assert out.endswith("(1 batch).")
