"""A URL where a directory is needed: it is refused, where a directory `s3:` was made and filled on this machine."""
import pytest

import seglog
import seglog.pulsar
from seglog.errors import InvalidArgumentError
from support.command import seglog as command

DOORS = {
    "open": seglog.open,
    "open_dir": lambda url: seglog.open_dir(url).close(),
    "Queue": seglog.Queue,
    "ManagedLedger": seglog.pulsar.ManagedLedger,
    "Ledger": lambda url: seglog.pulsar.Ledger.create(url, 0),
    "serve": lambda url: seglog.serve(url, topics={"orders": 1}).__enter__(),
    "snapshot": lambda url: _filled(lambda log: log.snapshot(url)),
}


def _filled(work):
    with seglog.open("logs/orders-0") as log:
        log.append(b"x")
        work(log)


@pytest.mark.parametrize("url", ["s3://bucket/logs/orders-0", "hdfs://name:9870/orders-0", "file:///tmp/orders-0"])
@pytest.mark.parametrize("door", DOORS)
def test_nothing_is_made_for_a_url(tmp_path, monkeypatch, door, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="not a URL"):
        DOORS[door](url)
    assert [path.name for path in tmp_path.iterdir() if path.name != "logs"] == []


def test_commands_that_write_refuse_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _filled(seglog.Log.flush)
    url = "s3://bucket/logs/orders-0"
    for arguments in (("queue", "create", url), ("mirror", "logs/orders-0", url), ("convert", "logs/orders-0", url)):
        done = command(*arguments, status=2)
        assert "not a URL" in done.output, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
