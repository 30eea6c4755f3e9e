"""`seglog queue`: jobs of a seglog.Queue from a shell."""
import base64
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

import seglog
from seglog.clock import ManualClock
from seglog.format.payload_compression import PayloadCodec
from seglog.pulsar import ManagedLedger, MessageMetadata, build_entry
from seglog.tools import terminal
from seglog.tools.cli import cli
from support.command import seglog as run
from support.command import seglog_json
from support.told_process import Other
from support.waiting import line_of

HOSTILE = b"\x1b[2Jclear\x07\xff\n"


@pytest.fixture
def path(tmp_path):
    """A dead job, one that is due, one for the year 2100, and an urgent one."""
    path = tmp_path / "jobs"
    with seglog.Queue(path, max_attempts=1, clock=ManualClock(1_700_000_000_000)) as jobs:
        jobs.put(b"to nobody", key=b"u0")
        jobs.get(timeout=0).nack(reason="no address\x1b[2J")
        jobs.put(b"welcome", key=b"u1", properties={"kind": "mail"})
        jobs.put(b"remind", at=datetime(2100, 1, 1, tzinfo=UTC))
        jobs.put(b"urgent", priority=5)
    return path


def counts(path):
    (found,) = seglog_json("queue", "stats", path)
    return [found[name] for name in ("ready", "delayed", "waiting", "dead", "backlog")]


def values(lines):
    return [base64.b64decode(line["value"]) for line in lines if line["type"] == "job"]


def test_put_creates_a_queue_and_prints_ids(tmp_path):
    path = tmp_path / "new"
    assert run("queue", "put", path, "a").stdout == "0:0\n"
    *put, summary = seglog_json("queue", "put", path, "b", "c", "--key", "k", "--property", "kind=mail=x",
                                "--priority", "-3")
    assert [line["id"] for line in put] == ["-3/0:0:0", "-3/0:0:1"]
    assert (summary["type"], summary["jobs"]) == ("summary", 2)
    with seglog.Queue(path, create=False) as jobs:
        assert [(job.value, job.key, job.properties) for job in jobs.get_many(9, timeout=0)] == [
            (b"a", None, {}), (b"b", "k", {"kind": "mail=x"}), (b"c", "k", {"kind": "mail=x"}),
        ]


def test_put_with_unique_for_puts_one_job_of_a_key(tmp_path):
    words = ["queue", "put", tmp_path / "q", "--key", "k", "--unique-for", "1h"]
    assert run(*words, "a", "--dry-run", status=1).stdout == "1 job to put: nothing was changed\n"
    first = run(*words, "a").stdout
    assert first == "0:0\n"
    assert run(*words, "b", "--dry-run").stdout == "0 jobs to put: nothing was changed\n"
    assert run(*words, "b").stdout == first
    assert counts(tmp_path / "q") == [1, 0, 0, 0, 1]
    for wrong in (["a", "b"], ["--lines"]):
        assert "--unique-for is for one job, with a --key" in run(*words, *wrong, status=2).stderr
    assert "with a --key" in run("queue", "put", tmp_path / "q", "a", "--unique-for", "5", status=2).stderr


@pytest.mark.parametrize(("words", "given", "wanted"), [
    ([], HOSTILE, [HOSTILE]), ([], b"", [b""]), (["--lines"], b"", []),
    (["--lines"], b"".join(b"%d\n" % n for n in range(250)) + b"\xff", [*(b"%d" % n for n in range(250)), b"\xff"]),
    (["v\udcff", "--key", "k\udcff"], b"", [b"v\xff"]),
])
def test_put_takes_bytes_as_they_are(tmp_path, words, given, wanted):
    done = CliRunner().invoke(cli, ["queue", "put", str(tmp_path / "q"), *words], input=given)
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == len(wanted)
    with seglog.Queue(tmp_path / "q", create=False) as jobs:
        assert [job.value for job in jobs.get_many(1000, timeout=0)] == wanted


@pytest.mark.parametrize("words", [[], ["--lines"]], ids=str)
def test_put_reads_no_endless_value(tmp_path, words):
    command = [sys.executable, "-m", "seglog.tools", "queue", "put", str(tmp_path / "q"), *words]
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(command, stdin=endless, capture_output=True, text=True, timeout=60, check=False)
    assert "[record_too_large]" in done.stderr
    assert done.stdout == ""
    assert counts(tmp_path / "q") == [0, 0, 0, 0, 0]


def test_put_without_standard_input(path):
    command = f"exec {sys.executable} -m seglog.tools queue put {path} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr


def test_put_for_later(tmp_path):
    run("queue", "put", tmp_path / "q", "a", "--delay", "3600")
    run("queue", "put", tmp_path / "q", "b", "--at", "2100-01-01")
    assert counts(tmp_path / "q") == [0, 2, 0, 0, 2]
    assert seglog_json("queue", "peek", tmp_path / "q")[1]["due_at_ms"] == 4_102_444_800_000


def test_take_prints_and_acknowledges_what_is_due(path):
    first, second = seglog_json("queue", "take", path, "--count", 9)
    assert values([first, second]) == [b"urgent", b"welcome"]
    assert (second["id"], second["attempt"], second["properties"]) == ("0:1", 1, {"kind": "mail"})
    assert base64.b64decode(second["key"]) == b"u1"
    assert counts(path) == [0, 1, 0, 1, 1]
    assert run("queue", "take", path, status=1).stdout == ""


def test_take_gives_a_shell_the_bytes(path):
    with seglog.Queue(path) as jobs:
        jobs.put(HOSTILE, priority=9)
    assert run("queue", "take", path, "--raw").stdout_bytes == HOSTILE + b"\n"


def test_take_gives_up_no_job_of_a_program(path):
    for _ in range(12):
        with seglog.Queue(path, max_attempts=None) as jobs:
            jobs.get(timeout=0)
    assert values(seglog_json("queue", "take", path)) == [b"urgent"]


def test_take_acknowledges_nothing_that_it_could_not_print(path):
    command = [sys.executable, "-m", "seglog.tools", "queue", "take", str(path), "--count", "2"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert counts(path) == [2, 1, 0, 1, 3]


def test_take_refuses_a_job_that_cannot_be_read_and_goes_on(path):
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=PayloadCodec.LZ4,
                               uncompressed_size=100)
    with ManagedLedger(path, create=False) as ledger:
        ledger.add_entry(build_entry(metadata, b"garbage"))
    with seglog.Queue(path) as jobs:
        jobs.put(b"behind")
    done = run("queue", "take", path, "--count", 9, status=7)
    assert "[corrupt_record]" in done.stderr
    assert "behind" in done.stdout
    assert counts(path) == [0, 1, 1, 1, 2]
    assert "[corrupt_record]" in run("queue", "peek", path, status=7).stderr


def test_peek_takes_nothing(path):
    assert values(seglog_json("queue", "peek", path)) == [b"urgent", b"welcome", b"remind"]
    assert values(seglog_json("queue", "peek", path, "--limit", 1)) == [b"urgent"]
    assert run("queue", "peek", path, "--limit", 0).stdout == ""
    assert run("queue", "peek", path, "--raw").stdout == "urgent\nwelcome\nremind\n"
    (dead,) = seglog_json("queue", "peek", path, "--dead")
    assert (dead["attempt"], dead["reason"]) == (1, "no address\x1b[2J")
    assert counts(path) == [2, 1, 0, 1, 3]


def test_requeue_puts_back_all_dead_or_some(path):
    done = run("queue", "requeue", path, "7:7", "\x1b[2J", status=1)
    assert done.stdout == "7:7  not dead\n\\x1b[2J  not dead\n0 dead jobs put back\n"
    assert seglog_json("queue", "requeue", path, "--dry-run", status=1)[0]["jobs"] == 1
    assert counts(path)[3] == 1
    assert run("queue", "requeue", path, "0:0", "0:0").stdout == "1 dead job put back\n"
    assert counts(path) == [3, 1, 0, 0, 4]
    assert run("queue", "requeue", path).stdout == "0 dead jobs put back\n"
    first, again, _ = seglog_json("queue", "take", path, "--count", 9)
    assert values([first, again]) == [b"urgent", b"to nobody"]
    assert again["attempt"] == 1


def test_purge_removes_the_living_or_the_dead(path):
    run("queue", "put", path, "a", "b", "c")        # three jobs in one entry
    assert run("queue", "purge", path, "--dry-run", status=1).stdout == "6 jobs to remove: nothing was changed\n"
    assert run("queue", "purge", path).stdout == "6 jobs removed\n"
    assert counts(path) == [0, 0, 0, 1, 0]
    assert seglog_json("queue", "purge", path, "--dead")[0]["jobs"] == 1
    assert counts(path) == [0, 0, 0, 0, 0]


def test_ls_lists_queues_and_stats_counts(path):
    *queues, summary = seglog_json("queue", "ls", path, path.parent)
    assert [queue["path"] for queue in queues] == [str(path)] * 2
    assert [queues[0][name] for name in ("ready", "delayed", "waiting", "dead", "backlog")] == [2, 1, 0, 1, 3]
    assert queues[0]["oldest_age_s"] > 1e6
    assert (summary["ok"], summary["queues"]) == (True, 2)
    head, line = run("queue", "ls", path).stdout.splitlines()
    assert head.split() == ["queue", "ready", "delayed", "waiting", "in", "flight", "dead", "oldest", "paused"]
    assert line.split()[1:6] == ["2", "1", "0", "0", "1"]
    assert [line.split()[-2:] for line in run("queue", "stats", path).stdout.splitlines()[:6]] == [
        ["ready", "2"], ["delayed", "1"], ["waiting", "0"], ["flight", "0"], ["dead", "1"], ["backlog", "3"],
    ]


def test_no_dry_run_takes_or_puts(path):
    assert run("queue", "put", path, "a", "b", "--dry-run", status=1).stdout == "2 jobs to put: nothing was changed\n"
    assert run("queue", "take", path, "--dry-run", status=1).stdout == "2 jobs ready: nothing was changed\n"
    assert counts(path) == [2, 1, 0, 1, 3]
    run("queue", "put", path.parent / "new", "a", "--dry-run", status=1)
    assert not (path.parent / "new").exists()


def test_hostile_bytes_do_not_command_the_terminal(path, monkeypatch):
    with seglog.Queue(path) as jobs:
        jobs.put(HOSTILE, key=HOSTILE, priority=9)
        jobs.put(b"x" * 500, priority=8)
    monkeypatch.setattr(terminal, "width", lambda: 80)
    for words in (["peek"], ["peek", "--dead"], ["take", "--count", "2"]):
        shown = run("queue", words[0], path, *words[1:]).stdout
        assert "\x1b" not in shown
        assert "\\x1b[2J" in shown
        # What is gone after it is shown is not cut.
        assert any(len(line) > 80 for line in shown.splitlines()) == (words[0] == "take")


# --- refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [
    ["put", "a", "--priority", "101"], ["put", "a", "--priority", "x"], ["put", "a", "--delay", "-1"],
    ["put", "a", "--delay", "nan"], ["put", "a", "--delay", "1", "--at", "2100-01-01"], ["put", "a", "--at", "soon"],
    ["put", "a", "--at", "9999999999999999"], ["put", "a", "--at", "-5"], ["put", "a", "--property", "x"],
    ["put", "a", "--property", "x=\udcff"], ["put", "a", "--lines"], ["take", "--count", "0"],
    ["take", "--timeout", "-1"], ["take", "--raw", "--json"], ["peek", "--limit", "-1"], ["peek", "--raw", "--json"],
], ids=str)
def test_wrong_values_are_wrong_uses(path, words):
    done = run("queue", words[0], path, *words[1:], status=2)
    assert "  try: " in done.stderr
    if words[0] == "put":       # and create nothing
        run("queue", "put", path.parent / "new", *words[1:], status=2)
        assert not (path.parent / "new").exists()
    assert counts(path) == [2, 1, 0, 1, 3]


@pytest.mark.parametrize("name", ["ls", "put", "take", "peek", "stats", "requeue", "purge"])
@pytest.mark.parametrize("kind", ["orders-0", "topic"])
def test_what_is_no_queue_is_left_alone(tmp_path, name, kind):
    path = tmp_path / kind
    if kind == "topic":
        with ManagedLedger(path) as ledger:
            ledger.add_entry(build_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x"))
    else:
        seglog.open(path).close()
    before = {each: each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}
    done = run("queue", name, path, status=4)
    assert "[not_a_log]" in done.stderr
    assert {each: each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()} == before
    (tmp_path / "empty").mkdir()
    if name != "put":
        run("queue", name, tmp_path / "empty", status=4)
        assert not any((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(
    "words",
    [["ls"], ["put", "a"], ["take"], ["peek"], ["stats"], ["requeue"], ["purge"], ["pause"], ["resume"]], ids=str,
)
def test_a_queue_that_a_process_has_open_is_locked(path, words):
    with seglog.Queue(path) as jobs:
        done = run("queue", words[0], path, *words[1:], "--json", status=5)
        assert "[locked]" in done.stderr
        assert json.loads(done.stdout)["code"] == "locked"
        assert jobs.stats().ready == 2


def test_commands_act_through_the_program_that_shares_a_queue(path):
    with seglog.Queue(path, attach=True) as jobs:
        held = jobs.get(timeout=0)
        assert held.value == b"urgent"
        (found,) = seglog_json("queue", "stats", path)
        assert [found[name] for name in ("ready", "delayed", "in_flight", "dead", "backlog")] == [1, 1, 1, 1, 3]
        assert run("queue", "ls", path).stdout.splitlines()[1].split()[1:6] == ["1", "1", "0", "1", "1"]
        run("queue", "put", path, "a", "b", "--priority", "7")
        assert run("queue", "put", path, "k", "--key", "k", "--unique-for", "600").stdout
        words = ["queue", "put", path, "k", "--unique-for", "600", "--dry-run"]
        assert run(*words, "--key", "k").stdout == "0 jobs to put: nothing was changed\n"
        assert run(*words, "--key", "l", status=1).stdout == "1 job to put: nothing was changed\n"
        assert run("queue", "take", path, "--raw", "--count", "2").stdout == "a\nb\n"
        assert b"welcome" in values(seglog_json("queue", "peek", path))
        assert values(seglog_json("queue", "peek", path, "--dead")) == [b"to nobody"]
        assert run("queue", "requeue", path).stdout == "1 dead job put back\n"
        assert run("queue", "pause", path).stdout == "paused\n"
        assert jobs.is_paused
        assert run("queue", "resume", path).stdout == "resumed\n"
        assert run("queue", "create", path).stdout == "it is a queue already\n"
        assert run("queue", "purge", path).stdout == "5 jobs removed\n"
        assert jobs.is_owner
        assert jobs.stats().backlog == 0


def test_commands_open_a_queue_whose_processes_were_all_killed(path):
    with Other(path) as owner:
        owner.does("jobs.get(timeout=0).value")
        owner.kill()
    assert (path / "queue.sock").exists()
    assert run("queue", "take", path, "--raw").stdout == "urgent\n"
    assert not (path / "queue.sock").exists()


def test_ls_goes_on_past_a_locked_queue(path):
    other = path.parent / "other"
    with seglog.Queue(other):
        done = run("queue", "ls", path.parent, status=7)
    assert "[locked]" in done.stderr
    assert str(path) in done.stdout
    assert str(other) not in done.stdout


def test_create_makes_an_empty_queue_and_leaves_one_that_is_there(tmp_path):
    path = tmp_path / "new"
    assert run("queue", "create", path, "--dry-run", status=1).stdout == "it would be created: nothing was changed\n"
    assert not path.exists()
    assert run("queue", "create", path).stdout == "created\n"
    run("queue", "put", path, "a")
    assert run("queue", "create", path).stdout == "it is a queue already\n"
    assert seglog_json("queue", "create", path)[0]["created"] is False
    assert counts(path) == [1, 0, 0, 0, 1]


def test_a_paused_queue_gives_no_job_until_it_is_resumed(path):
    assert run("queue", "pause", path, "--dry-run", status=1).stdout == "it would be paused: nothing was changed\n"
    assert run("queue", "resume", path).stdout == "it was not paused\n"
    assert run("queue", "pause", path).stdout == "paused\n"
    assert run("queue", "pause", path).stdout == "it was paused already\n"
    done = run("queue", "take", path, status=1)
    assert (done.stdout, done.stderr) == ("", "paused: no job is taken until `seglog queue resume`\n")
    dry = run("queue", "take", path, "--dry-run")
    assert dry.stdout == "2 jobs ready: nothing was changed\npaused: no job is taken until `seglog queue resume`\n"
    assert run("queue", "stats", path).stdout.endswith("paused: no job is taken until `seglog queue resume`\n")
    assert seglog_json("queue", "stats", path)[0]["paused"] is True
    assert run("queue", "ls", path).stdout.splitlines()[1].split()[-1] == "yes"
    assert seglog_json("queue", "resume", path)[0]["was_paused"] is True
    assert run("queue", "take", path, "--raw").stdout == "urgent\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_owns_a_queue_for_programs_that_attach_until_it_is_told_to_end(tmp_path, number):
    path = tmp_path / "jobs"
    server = subprocess.Popen(
        [sys.executable, "-m", "seglog.tools", "queue", "serve", str(path), "--max-attempts", "1", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    try:
        told = json.loads(line_of(server))
        assert (told["type"], told["path"], told["created"]) == ("serving", str(path), True)
        with seglog.Queue(path, attach=True) as jobs:
            assert "attached" in repr(jobs)
            jobs.put(b"x")
            job = jobs.get(timeout=60)
            job.nack()
            assert [one.value for one in jobs.dead] == [b"x"]
            assert "start `seglog queue serve` before" in run("queue", "serve", path, status=5).stderr
            server.send_signal(number)
            out, told = server.communicate(timeout=60)
            assert (out, told.strip()) == ("", f"{path}: job 0:0 is dead after attempt 1: refused, without a reason")
            assert server.returncode == 0
            jobs.put(b"y")
            assert jobs.get(timeout=60).value == b"y"
    finally:
        server.kill()
        server.communicate()


def test_serve_puts_dead_jobs_into_another_queue(tmp_path):
    path, failed = tmp_path / "jobs", tmp_path / "failed"
    server = subprocess.Popen(
        [sys.executable, "-m", "seglog.tools", "queue", "serve", str(path), "--max-attempts", "1",
         "--dead-letters", str(failed)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    try:
        line_of(server)
        with seglog.Queue(path, attach=True) as jobs, seglog.Queue(failed, attach=True) as letters:
            id_ = jobs.put(b"x")
            jobs.get(timeout=60).nack(reason="no address")
            letter = letters.get(timeout=60)
            assert (letter.value, letter.properties["ORIGIN_MESSAGE_ID"]) == (b"x", id_)
            letter.ack()
            assert len(jobs.dead) == 0
        server.send_signal(signal.SIGTERM)
        out, told = server.communicate(timeout=60)
        assert (out, told.strip()) == ("", f"{path}: job 0:0 is dead after attempt 1: no address")
    finally:
        server.kill()
        server.communicate()


def test_serve_refuses_what_is_no_queue(tmp_path):
    (tmp_path / "file").touch()
    assert "another queue" in run("queue", "serve", "jobs", "--dead-letters", "./jobs", status=2).stderr
    assert "not a queue" in run("queue", "serve", tmp_path / "jobs", "--dead-letters", tmp_path, status=4).stderr
    assert "not a queue" in run("queue", "serve", tmp_path, status=4).stderr


# --- topics --------------------------------------------------------------------------------------


@pytest.fixture
def topic_path(tmp_path):
    """Of three messages one is dead for `billing`, and one delayed; `mail` has finished the first, `idle` none."""
    path = tmp_path / "orders"
    with seglog.Topic(path, clock=ManualClock(1_700_000_000_000)) as topic:
        topic.subscribe("idle").close()
        billing, mail = topic.subscribe("billing", max_attempts=1), topic.subscribe("mail")
        topic.publish_many([("u0", b"to nobody"), ("u1", b"welcome")])
        topic.publish(b"remind", at=datetime(2100, 1, 1, tzinfo=UTC))
        billing.get(0).nack(reason="no address\x1b[2J")
        mail.get(0).ack()
    return path


def test_a_topic_is_told_as_one_and_counted_by_subscription(topic_path, path):
    lines = run("queue", "stats", topic_path).stdout.splitlines()
    assert lines[0] == "a topic with 3 subscriptions"
    assert lines[1].split()[:9] == [
        "subscription", "ready", "delayed", "waiting", "in", "flight", "dead", "backlog", "oldest"]
    assert [line.split()[:7] for line in lines[2:] if line[0] != "-"] == [
        ["billing", "1", "1", "0", "0", "1", "2"], ["idle", "2", "1", "0", "0", "0", "3"],
        ["mail", "1", "1", "0", "0", "0", "2"],
    ]
    found = seglog_json("queue", "stats", topic_path)
    assert [(one["type"], one["subscription"], one["backlog"], one["dead"]) for one in found] == [
        ("subscription", "billing", 2, 1), ("subscription", "idle", 3, 0), ("subscription", "mail", 2, 0)]
    listed = run("queue", "ls", topic_path.parent).stdout
    assert [line.split()[:3] for line in listed.splitlines() if "orders" in line] == [
        [str(topic_path), name, ready] for name, ready in (("billing", "1"), ("idle", "2"), ("mail", "1"))]
    assert str(path) in listed
    *_, summary = seglog_json("queue", "ls", topic_path.parent)
    assert (summary["queues"], summary["unread"]) == (2, 0)
    with seglog.Topic(topic_path.parent / "empty"):
        pass
    assert "(none)" in run("queue", "ls", topic_path.parent).stdout
    assert run("queue", "stats", topic_path.parent / "empty").stdout == "a topic with 0 subscriptions\n"


def test_dead_messages_of_a_subscription_are_shown_and_put_back(topic_path):
    of_billing = [topic_path, "--subscription", "billing"]
    assert values(seglog_json("queue", "peek", *of_billing)) == [b"welcome", b"remind"]
    [dead] = seglog_json("queue", "peek", *of_billing, "--dead")
    assert (dead["id"], dead["reason"]) == ("0:0:0", "no address\x1b[2J")
    assert run("queue", "requeue", *of_billing, "--dry-run", status=1).stdout.startswith("1 dead job to put back")
    assert run("queue", "requeue", *of_billing).stdout == "1 dead job put back\n"
    assert [one["dead"] for one in seglog_json("queue", "stats", topic_path)] == [0, 0, 0]
    for words in (["peek"], ["requeue"], ["peek", "--subscription", "strange"]):
        told = run("queue", words[0], topic_path, *words[1:], status=2).stderr
        assert "DIR is a topic: pass --subscription, one of those it has: billing, idle, mail" in told
    assert [one["subscription"] for one in seglog_json("queue", "stats", topic_path)] == ["billing", "idle", "mail"]


@pytest.mark.parametrize("words", [
    ["put", "x"], ["take"], ["purge"], ["pause"], ["resume"], ["create"], ["serve"],
], ids=lambda words: words[0])
def test_commands_that_are_for_queues_refuse_a_topic(topic_path, words):
    told = run("queue", words[0], topic_path, *words[1:], status=4).stderr
    assert "not a queue, but a topic" in told
    assert "seglog queue stats" in told


def test_a_topic_that_a_program_has_is_locked_and_subscriptions_are_for_topics(topic_path, path):
    with seglog.Topic(topic_path):
        assert "has a topic open" in run("queue", "stats", topic_path, status=5).stderr
    assert "--subscription is for a topic" in run("queue", "peek", path, "--subscription", "s", status=2).stderr
