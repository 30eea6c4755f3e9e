"""docs/config.md shows the fields of the configurations. SEGLOG_UPDATE_DOCS=1 writes its tables again."""
from pathlib import Path

import pytest

from seglog.config import LogConfig, keys
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.delayed.config import DelayedDeliveryConfig
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


def shown(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def table(config, in_words):
    lines = ["| key | unit | default | limits | what it says | source |", "|---|---|---|---|---|---|"]
    defaults = {name: shown(value) for name, value in config().items()} | in_words
    lines += [
        f"| `{key.name}` | {key.unit} | {defaults[key.name]} | {key.limits} | {key.meaning} | {key.source} |"
        for _, key in keys(config)
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("config", "file", "end", "in_words"), TABLES,
    ids=["log", "cleaner", "server", "coordinators", "managed ledger", "delayed"],
)
def test_the_page_holds_the_table_of_the_code(config, file, end, in_words):
    begin = f"<!-- made from engine/seglog/{file} by tests/docs/test_config_doc.py -->\n"
    check_part(DOC, begin, table(config, in_words), f"<!-- {end} -->\n")
