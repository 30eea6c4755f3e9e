"""Commands run in this process, and the answers that golden cases hold for them."""
import gzip
import json
from pathlib import Path

from click.testing import CliRunner, Result

from seglog.tools.cli import cli


def seglog(*arguments, status: int | None = 0) -> Result:
    """`seglog ARGUMENTS`, which must end with `status`, or with any if it is None."""
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert status is None or result.exit_code == status, (arguments, result.exit_code, result.output)
    return result


def seglog_json(*arguments, status: int | None = 0) -> list[dict]:
    """The JSON lines of `seglog ARGUMENTS --json`."""
    return [json.loads(line) for line in seglog(*arguments, "--json", status=status).stdout.splitlines()]


def partition_of(case: Path) -> Path:
    return case / f"{case.name}-0"


def golden_lines(case: Path, name: str) -> list[dict]:
    """What Kafka's own decoder said: `expected` of the records, `batches` of the batches."""
    with gzip.open(case / f"{name}.jsonl.gz", "rt") as f:
        return [json.loads(line) for line in f]
