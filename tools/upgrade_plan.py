"""`seglog convert --plan`: how much of a log dir is in old formats, what goes by itself, what a conversion costs."""
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from seglog.conversion.upgrade_plan import PartitionUpgrade, TopicPolicy, plan_upgrade, policies
from seglog.errors import SeglogError

from . import report
from .options import ConfigType
from .topic_config import RETENTION, TopicConfig

# What a plan depends on.
_POLICY_KEYS = ("cleanup.policy", "retention.ms", "retention.bytes")


class TopicConfigType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """`GLOB:key=value`: a setting of the topics that match."""

    name = "glob:key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str, str]:
        if isinstance(value, tuple):
            return value
        glob, colon, setting = str(value).partition(":")
        if not colon or not glob:
            self.fail(f"{value!r} is not glob:key=value, such as 'orders-*:retention.ms=-1'", param, ctx)
        return (glob, *ConfigType().convert(setting, param, ctx))


def show_plan(
    log_dir: Path, topics: Sequence[str], settings: Sequence[tuple[str, str]],
    of_topics: Sequence[tuple[str, str, str]], *, no_progress: bool, as_json: bool,
) -> int:
    """Only reads, takes no lock, and works beside a running broker. Returns the exit status: 7 if a partition cannot be
    read; it is reported on stderr, and as a JSON line."""
    policies(dict(settings), of_topics)     # raises at once
    cluster = TopicConfig((), RETENTION)
    told: dict[str, dict[str, str]] = {}

    def policy_of(topic: str) -> TopicPolicy:
        told[topic] = {key: one for key, one in cluster.of_topic(log_dir, topic).items() if key in _POLICY_KEYS}
        return policies({**told[topic], **dict(settings)}, of_topics)(topic)

    rows, unread = [], 0

    def tell(path: Path, error: SeglogError) -> None:
        nonlocal unread
        progress.wipe()
        if not os.path.lexists(path):
            report.note(f"{path.name} was removed while the log dir was being read")
            return
        unread += 1
        report.show_error(error, click.get_current_context().command_path, as_json=as_json)

    with report.Progress(f"reading {log_dir.name}", enabled=not no_progress) as progress:
        for row in plan_upgrade(log_dir, policy_of, topics=topics, progress=lambda _: progress, unread=tell):
            rows.append(row)
            if as_json:
                report.print_json(
                    "upgrade_partition", **asdict(row), old_bytes=row.old_bytes, told=sorted(told.get(row.topic, ())),
                )
    if as_json:
        _print_summary(rows)
    else:
        print("\n".join(_text(log_dir, rows, time.time_ns() // 1_000_000)))
    if topics_told := sum(map(bool, told.values())):
        report.note(f"settings of {report.count_of(topics_told, 'topic')} are from the cluster's metadata")
    return report.PARTIAL if unread else 0


_SUMS = {"retention": "gone_bytes", "compaction": "compacted_bytes", "stays": "stays_bytes"}


def _print_summary(rows: Sequence[PartitionUpgrade]) -> None:
    old = [row for row in rows if row.old_bytes]
    report.print_json(
        "summary", partitions=len(rows), with_old_formats=len(old), old_bytes=sum(row.old_bytes for row in rows),
        **{
            name: sum(row.old_bytes for row in old if row.verdict == verdict)
            for verdict, name in _SUMS.items()
        },
        convert_bytes=sum(sum(row.bytes_of) for row in old), forecast_bytes=sum(row.forecast_bytes or 0 for row in old),
        convert_seconds=sum(row.convert_seconds or 0 for row in old),
    )


# --- text --------------------------------------------------------------------------------


def _text(log_dir: Path, rows: Sequence[PartitionUpgrade], now_ms: int) -> Iterable[str]:
    old = [row for row in rows if row.old_bytes]
    if not old:
        yield f"{report.count_of(len(rows), 'partition')}, all in v2: nothing to migrate"
        return
    lines = [
        [
            row.partition, f"{row.old_segments} of {row.segments}", _formats(row), _by_itself(row, now_ms),
            _cost(row.forecast_bytes, row.forecast_is_exact, sum(row.bytes_of)), _seconds(row.convert_seconds),
        ]
        for row in old
    ]
    forecast = sum(row.forecast_bytes or 0 for row in old)
    before = sum(sum(row.bytes_of) for row in old)
    seconds = sum(row.convert_seconds or 0 for row in old)
    exact = all(row.forecast_is_exact for row in old)
    lines.append([
        f"{len(old)} of {len(rows)}", str(sum(row.old_segments for row in old)),
        f"{report.size(sum(row.old_bytes for row in old))} old", "", _cost(forecast, exact, before), _seconds(seconds),
    ])
    head = ("partition", "old segments", "formats", "by itself", "converted", "one core")
    yield report.table(head, lines, left=(0, 2, 3), total=True)
    for row in old:
        if row.damaged:
            yield f"{report.paint('warning:', 'yellow')} {row.partition} is damaged: seglog verify says where"
    yield from _remarks(old)
    yield from _steps(log_dir, old, forecast)


def _formats(row: PartitionUpgrade) -> str:
    return ", ".join(f"v{magic} {report.size(n)}" for magic, n in enumerate(row.bytes_of) if n)


def _by_itself(row: PartitionUpgrade, now_ms: int) -> str:
    if row.verdict == "compaction":
        return f"Kafka 4 compacts it ({report.ratio(row.dirty_ratio or 0, 1)} dirty)"
    if row.verdict == "stays":
        return "stays"
    ways = []
    if row.gone_ms is not None:
        ways.append("gone, retention is due" if row.gone_ms <= now_ms else f"gone {report.moment(row.gone_ms)[:10]}")
    if row.gone_after_bytes is not None:
        ways.append(f"gone after {report.size(row.gone_after_bytes)} more")
    return ", or ".join(ways)


def _cost(forecast_bytes: int | None, is_exact: bool, before: int) -> str:
    if forecast_bytes is None:
        return "-"
    return f"{report.size(before)} → {'' if is_exact else 'about '}{report.size(forecast_bytes)}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return report.duration(1000 * seconds) if seconds >= 1 else "below 1 s"


def _remarks(old: Sequence[PartitionUpgrade]) -> Iterable[str]:
    kinds = {row.verdict for row in old}
    yield ""
    yield "Kafka 4.1 still reads v0 and v1. v0 has no timestamps. It rewrites both only when it compacts."
    if "retention" in kinds:
        yield "retention: from --config and --topic-config, else 7 days. v0 has no timestamps: the file's time counts."
    if "compaction" in kinds:
        yield (
            "compaction: the cleaner of 4.0 and newer writes v2, once a log is dirty enough"
            " (min.cleanable.dirty.ratio); never its active segment."
        )
        if any(row.active_old_bytes for row in old if row.verdict == "compaction"):
            yield "  An active segment in an old format stays until the log rolls, which needs new records."


def _steps(log_dir: Path, old: Sequence[PartitionUpgrade], forecast: int) -> Iterable[str]:
    staying = [row for row in old if row.verdict != "retention"] or list(old)
    topics = sorted({row.topic for row in staying})
    chosen = " ".join(f"--topic {report.printable(topic)}" for topic in topics[:5])
    more = f" (and {len(topics) - 5} more)" if len(topics) > 5 else ""
    place = report.printable(str(log_dir))
    yield ""
    yield "A rolling migration, one broker after the other (docs/migrating.md):"
    yield "  1. make sure that no partition is under-replicated, then stop the broker cleanly"
    yield f"  2. seglog convert {place} --in-place --backup {place}.before --apply {chosen}{more}"
    yield f"     the backups stay until you remove them: they need up to {report.size(forecast)} more on that disk"
    yield "  3. start the broker, and wait until its replicas are in sync; then the next broker"
    yield f"  4. when all brokers are done and consumers work: rm -r {place}.before, on each"
    yield "Meanwhile replicas may differ in format: their batches end at the same offsets, except after --repack."
