"""`seglog explain` and `seglog config` know every code and every key, and say so without the docs."""
import json
import re

import pytest
from click.testing import CliRunner

from seglog import errors
from seglog.config import LogConfig
from seglog.tools import report
from seglog.tools.cli import EPILOG, cli
from seglog.verification.findings import KINDS


def run(*words):
    return CliRunner().invoke(cli, [*words])


def lines_of(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_every_error_finding_and_exit_status_is_explained():
    told = {(line["what"], line["code"]): line for line in lines_of("explain")}
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.SeglogError)]
    for each in classes[1:]:
        line = told["error", each.code]
        assert line["exit_status"] == each.exit_status
        assert line["fix"] == report.as_options(each.hint)
    assert {code for what, code in told if what == "finding"} == set(KINDS)
    assert {code for what, code in told if what == "exit status"} == set(re.findall(r"\d+", EPILOG))
    assert all(line["meaning"] for line in told.values())


def test_a_code_is_taken_as_it_stands_in_an_error_message():
    for spelling in ("corrupt_record", "[corrupt_record]", "corrupt-record", "CORRUPT_RECORD"):
        assert [line["code"] for line in lines_of("explain", spelling)] == ["corrupt_record"]


def test_a_slip_in_a_code_is_guessed():
    result = run("explain", "corupt_record")
    assert result.exit_code == 2
    assert "did you mean corrupt_record" in result.stderr


def test_every_key_of_a_log_is_told_with_its_default():
    told = {line["name"]: line for line in lines_of("config") if line["subject"] == "log"}
    assert {key.name for key in LogConfig.keys.values()} == set(told)
    for attribute, key in LogConfig.keys.items():
        assert told[key.name]["default"] == LogConfig.defaults[attribute]
        assert told[key.name]["meaning"] == key.meaning


def test_a_part_of_a_name_lists_what_holds_it():
    names = {line["name"] for line in lines_of("config", "retention")}
    assert {"retention.ms", "retention.bytes", "delete.retention.ms", "seglog.retention.total.bytes"} <= names
    assert "segment.bytes" not in names


@pytest.mark.parametrize(
    ("key", "words"),
    [("retentoin.ms", "did you mean retention.ms"), ("min.insync.replicas", "does not use"), ("zzz", "no such key")],
)
def test_a_key_that_is_none_is_refused(key, words):
    result = run("config", key)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_lines_fit_a_terminal():
    for words in (("explain", *KINDS), ("config", *(key.name for key in LogConfig.keys.values()))):
        result = run(*words)
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= 80
