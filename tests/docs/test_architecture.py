"""docs/architecture.md: its picture shows the packages of its table. SEGLOG_UPDATE_DOCS=1 draws it anew."""
import re
from html import escape
from pathlib import Path

from support.pages import check_page

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = DOCS / "assets/packages.svg"
ROW = re.compile(r"^\| (?P<layer>\d+) \| (?P<names>.*?) \| (?P<holds>.*) \|$", re.MULTILINE)

WIDTH, LEFT, GAP, HEIGHT, STEP = 1000, 40, 10, 46, 58
# What a package is for in three words, for those whose name does not say it.
HINTS = {
    "fs": "changes to the disk", "threads": "gate, sync, workers", "format": "codecs, names",
    "wire": "Kafka's protocol", "delayed": "delayed messages", "segment": "one .log, its indexes",
    "stores": "disks, HDFS, S3", "state": "checkpoints", "ledger": "Pulsar's ledgers",
    "reading": "partitions, cursors", "loading": "recovery", "topic": "dispatchers, leases", "log": "the writer",
    "conversion": "v0, v1, v2", "verification": "finds damage", "frames": "Arrow, polars, DuckDB",
    "upkeep": "retention, compaction", "coordinators": "groups, transactions", "loop": "what loops share",
    "archive": "makes backups", "backups": "backup stores",
    "queue": "jobs", "attach": "several processes", "spark": "whole topics",
    "endpoint": "seglog serve", "aio": "asyncio", "kombu": "celery's broker",
    "pulsar": "the second face", "__init__": "the first face", "testing": "pytest fixtures", "tools": "commands",
    "_kernels": "Cython and C", "opening": "seglog.open", "polars": "scan_topic",
}


def layers():
    """[[name of a package]], from the top."""
    found = {}
    for row in ROW.finditer((DOCS / "architecture.md").read_text()):
        names = [name.rstrip("/") for name in re.findall(r"`([\w/]+)`", row["names"])]
        found.setdefault(int(row["layer"]), []).extend(name for name in names if name != "cext")
    return [found[layer] for layer in sorted(found, reverse=True)]


def text(x, y, size, colour, words, weight="400"):
    return (
        f'  <text x="{x:.1f}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="middle" '
        f'fill="{colour}">{escape(words)}</text>'
    )


def picture():
    rows = layers()
    height = STEP * len(rows) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">',
        "  <title>The packages of seglog, layer by layer: each imports only from layers below its own</title>",
        f'  <rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="#fbfcfc" stroke="#cfd8dc"/>',
    ]
    for n, names in enumerate(rows):
        y = 14 + n * STEP
        lines.append(text(24, y + 28, 14, "#78909c", str(len(rows) - n)))
        width = (WIDTH - LEFT - 14 - GAP * (len(names) - 1)) / len(names)
        shade = "#14505c" if n < 6 else "#2b6d7a" if n < 10 else "#4a7c86"
        for k, name in enumerate(names):
            x = LEFT + 4 + k * (width + GAP)
            hint = HINTS.get(name)
            lines.append(f'  <rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}" rx="5" fill="{shade}"/>')
            lines.append(text(x + width / 2, y + (20 if hint else 28), 14, "#fff", name, "600"))
            if hint:
                lines.append(text(x + width / 2, y + 37, 12, "#dceaed", hint))
    return "\n".join([*lines, "</svg>"]) + "\n"


def test_the_picture_shows_the_packages_of_the_table():
    check_page(PICTURE, picture())


def test_every_word_under_a_package_belongs_to_one():
    assert set(HINTS) <= {name for names in layers() for name in names}
