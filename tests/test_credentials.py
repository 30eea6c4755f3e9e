"""Credentials in a URL are never repeated: messages end in logs, tickets and CI output."""
import pytest

from seglog.errors import SeglogError, without_credentials
from support.command import seglog as command

SECRET = "SEC/RET+x="
URL = f"s3://AKIAKEY:{SECRET}@bucket/logs/orders-0"


@pytest.mark.parametrize(("text", "shown"), [
    (URL, "s3://***@bucket/logs/orders-0"),
    (f"cannot open {URL}, nor {URL}", "cannot open s3://***@bucket/logs/orders-0, nor s3://***@bucket/logs/orders-0"),
    ("s3://bucket/logs@home", "s3://bucket/logs@home"),
    ("webhdfs://name.example:9870/logs@home", "webhdfs://name.example:9870/logs@home"),
    ("webhdfs://alice:pass@name.example:9870/x", "webhdfs://***@name.example:9870/x"),
    ("a@b: c", "a@b: c"),
])
def test_what_is_left_of_a_url(text, shown):
    assert without_credentials(text) == shown
    error = SeglogError(text, file=text, hint=text)
    assert (error.what, error.file, error.hint) == (shown, shown, shown)
    assert SECRET not in f"{error} {error.args} {error!r}"


@pytest.mark.parametrize("arguments", [
    ("verify", URL), ("dump", URL), ("convert", URL, "--target", URL), ("spark", "fetch", URL, "here"),
], ids=" ".join)
def test_no_command_repeats_them(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    done = command(*arguments, status=None)
    assert SECRET not in done.output
    assert done.exit_code
