"""Credentials in a URL are never repeated: messages end in logs, tickets and CI output."""
import itertools
import logging
import traceback
from urllib.parse import quote

import pytest

import seglog
from seglog.errors import SeglogError, without_credentials
from seglog.spark import fetch_topics, finalize_topics, rollback_topics
from support.command import seglog as command

SECRET = "SEC/RET+x="
URL = f"s3://AKIAKEY:{SECRET}@bucket/logs/orders-0"


@pytest.mark.parametrize(("text", "shown"), [
    (URL, "s3://***@bucket/logs/orders-0"),
    (f"cannot open {URL}, nor {URL}", "cannot open s3://***@bucket/logs/orders-0, nor s3://***@bucket/logs/orders-0"),
    ("s3://bucket/logs@home", "s3://bucket/logs@home"),
    ("webhdfs://name.example:9870/logs@home", "webhdfs://name.example:9870/logs@home"),
    ("webhdfs://alice:pass@name.example:9870/x", "webhdfs://***@name.example:9870/x"),
    (f"s3://:{SECRET}@bucket", "s3://***@bucket"),
    ("a@b: c", "a@b: c"),
])
def test_what_is_left_of_a_url(text, shown):
    assert without_credentials(text) == shown
    error = SeglogError(text, file=text, hint=text)
    assert (error.what, error.file, error.hint) == (shown, shown, shown)
    assert SECRET not in f"{error} {error.args} {error!r}"


@pytest.mark.parametrize("arguments", [
    ("verify", URL), ("dump", URL), ("dump", f"{URL}#latest/orders-0"), ("ls", f"{URL}#latest"),
    ("convert", URL, "--target", URL), ("spark", "fetch", URL, "here"),
], ids=" ".join)
def test_no_command_repeats_them(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    done = command(*arguments, status=None)
    assert SECRET not in done.output
    assert done.exit_code


SCHEMES = ["s3", "s3a", "s3n", "S3", "gs", "gcs", "abfs", "hdfs", "webhdfs", "swebhdfs", "http"]
PLACES = ["bucket/logs/orders-0", "bucket", "", "127.0.0.1:1/logs/orders-0", "bucket/a?b#c/orders-0"]
OF_PATHS = {
    "open": lambda url: seglog.open(url).close(),
    "open_dir": lambda url: seglog.open_dir(url).close(),
    "follow": lambda url: seglog.follow(url).close(),
    "verify": seglog.verify,
    "open_partition": lambda url: seglog.open_partition(url).close(),
    "convert": lambda url: seglog.convert(url, "there"),
    "recover": lambda url: seglog.recover(url, mode="truncate"),
    "erase": lambda url: seglog.erase(url, [b"key"], "backups"),
    "Queue": lambda url: seglog.Queue(url).close(),
}
OF_URLS = {
    "scan": lambda url: list(seglog.scan(url)),
    "write_table": lambda url: seglog.write_table("none", url),
    "rollback_topics": rollback_topics,
    "finalize_topics": finalize_topics,
    "fetch_topics": lambda url: fetch_topics(url, "there"),
}


@pytest.mark.parametrize("door", [*OF_PATHS, *OF_URLS])
def test_no_door_repeats_a_part_of_them_nor_gives_them_to_a_store(tmp_path, monkeypatch, caplog, door):
    """A slash in the secret ends the host of a URL: pyarrow's message had the rest, as a key in the bucket."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    for scheme, place, user, secret in itertools.product(
        SCHEMES, PLACES, ("AKIAKEY", ""), (SECRET, quote(SECRET, safe=""))
    ):
        url = f"{scheme}://{user}:{secret}@{place}"
        shown = ""
        try:
            (OF_PATHS | OF_URLS)[door](url)
        except Exception as error:
            shown = "".join(traceback.format_exception(error))
        shown += caplog.text
        for part in ("SEC", "RET", "%2F"):
            assert part not in shown, url
