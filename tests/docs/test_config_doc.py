"""docs/config.md shows the fields of the configurations. SEGLOG_UPDATE_DOCS=1 writes its tables again."""
from pathlib import Path

import pytest

from seglog.config import LogConfig
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.endpoint import broker_keys
from seglog.endpoint.settings import ServerConfig
from seglog.ledger.config import ManagedLedgerConfig
from seglog.upkeep.cleaner_config import CleanerConfig
from support.pages import check_part

DOC = Path(__file__).parents[2] / "docs/config.md"
# The file that the fields stand in, what its table ends with, and defaults that say little as Python has them.
TABLES = [
    (LogConfig, "config.py", "end", {"seglog.time.index.minute.enabled": "unset", "message.format.version": "unset"}),
    (CleanerConfig, "upkeep/cleaner_config.py", "end of cleaning", {}),
    (ServerConfig, "endpoint/settings.py", "end of servers", {}),
    (CoordinatorConfig, "coordinators/coordinator_config.py", "end of coordinators", {}),
    (ManagedLedgerConfig, "ledger/config.py", "end of managed ledgers", {"brokerEntryMetadataInterceptors": "none"}),
    (DelayedDeliveryConfig, "delayed/config.py", "end of delayed messages", {}),
]


SIZES = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
SPANS = [("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("s", 1000)]


def in_words(value, unit):
    """A number of bytes or ms as one says it, or None if that is no whole number of a larger unit."""
    for name, size in {"bytes": SIZES, "ms": SPANS}.get(unit, ()):
        if value >= size and value % size == 0:
            return f"{value // size} {name[:-1] if value == size and name != 's' and unit == 'ms' else name}"
    return None


def shown(value, unit):
    if isinstance(value, bool):
        return str(value).lower()
    if value == 2**63 - 1:
        return "no limit"
    if isinstance(value, int) and (words := in_words(value, unit)):
        return f"{words} ({value})"
    return str(value)


def limits_of(key):
    limits = key.limits.replace("-1 or 0 to 9223372036854775807", "-1 or more")
    limits = limits.replace(" to 9223372036854775807", " or more")
    return f"{limits} {key.unit}" if key.unit in {"bytes", "ms"} else limits


def table(config, said):
    """Three columns, so that a screen shows a whole line: what is looked for less often stands below in small print."""
    lines = ["| key | default | what it says |", "|---|---|---|"]
    values = dict(config().items())
    for key in config.keys.values():
        default = said.get(key.name) or shown(values[key.name], key.unit)
        small = f"{limits_of(key)} · {key.source}"
        lines.append(f"| `{key.name}` | {default} | {key.meaning}<br><small>{small}</small> |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("config", "file", "end", "said"), TABLES,
    ids=["log", "cleaner", "server", "coordinators", "managed ledger", "delayed"],
)
def test_the_page_holds_the_table_of_the_code(config, file, end, said):
    begin = f"<!-- made from engine/seglog/{file} by tests/docs/test_config_doc.py -->\n"
    check_part(DOC, begin, table(config, said), f"<!-- {end} -->\n")


def test_the_page_holds_the_names_that_a_broker_has_for_settings():
    lines = ["| in `server.properties` | here |", "|---|---|"]
    lines += [f"| {theirs} | {ours} |" for theirs, ours in broker_keys.table()]
    begin = "<!-- made from engine/seglog/endpoint/broker_keys.py by tests/docs/test_config_doc.py -->\n"
    check_part(DOC, begin, "\n".join(lines) + "\n", "<!-- end of a broker's names -->\n")


def test_another_page_says_what_each_of_seglogs_own_keys_is_for():
    pages = "".join(page.read_text() for page in DOC.parent.rglob("*.md") if page != DOC)
    own = {key.name for config, *_ in TABLES for key in config.keys.values() if key.name.startswith("seglog.")}
    assert len(own) > 30
    assert {name for name in own if f"`{name}" not in pages and f'"{name}"' not in pages} == set()
