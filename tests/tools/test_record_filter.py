"""`seglog dump --key --grep --header` shows the records that the plain way of looking would keep."""
import json
import re

import pytest
from click.testing import CliRunner

import seglog
from seglog.tools.cli import cli


@pytest.fixture
def orders(tmp_path):
    with seglog.open(tmp_path / "orders-0", fsync="never", config={"segment.bytes": 2000}) as log:
        for n in range(60):
            log.append(
                b"value %d" % n if n % 7 else None, key=b"k%d" % (n % 5) if n % 11 else None,
                headers=[("src", b"web" if n % 2 else b"app")] + ([("trace", None)] if n % 3 == 0 else []),
            )
    return tmp_path / "orders-0"


def offsets(*words):
    result = CliRunner().invoke(cli, ["dump", *map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line)["offset"] for line in result.stdout.splitlines()]


def expected(path, keep):
    with seglog.open_partition(path) as partition:
        return [record.offset for record in partition.read() if keep(record)]


CASES = [
    (("--key", "k3"), lambda r: r.key == b"k3"),
    (("--key", "k3", "--key", "k1"), lambda r: r.key in (b"k3", b"k1")),
    (("--grep", "^value [12]"), lambda r: r.value is not None and re.search(b"^value [12]", r.value)),
    (("--grep", ""), lambda r: r.value is not None),
    (("--header", "trace"), lambda r: any(name == "trace" for name, _ in r.headers)),
    (("--header", "src=web"), lambda r: ("src", b"web") in r.headers),
    (("--header", "src=web", "--header", "trace", "--key", "k4"),
     lambda r: ("src", b"web") in r.headers and any(n == "trace" for n, _ in r.headers) and r.key == b"k4"),
]


@pytest.mark.parametrize(("words", "keep"), CASES)
def test_the_records_are_those_that_match(orders, words, keep):
    wanted = expected(orders, keep)
    assert wanted
    assert offsets(orders, *words) == wanted
    assert offsets(orders, *words, "--limit", 2) == wanted[:2]
    assert offsets(orders, *words, "--tail", 2) == wanted[-2:]


def test_offsets_and_what_is_in_a_record_must_both_hold(orders):
    wanted = expected(orders, lambda r: r.key == b"k3" and 20 <= r.offset < 40)
    assert offsets(orders, "--key", "k3", "--from-offset", 20, "--to-offset", 40) == wanted


@pytest.mark.parametrize("words", [
    ("--grep", "("), ("--key", "k", "--batches"), ("--grep", "", "--batches"), ("--grep", "a", "--format", "csv"),
])
def test_what_cannot_be_meant_is_a_slip_in_usage(orders, words):
    assert CliRunner().invoke(cli, ["dump", str(orders), *words]).exit_code == 2
