"""`seglog ledger compact` and `convert`: what they print, what they change, and what a dry run does not."""
import pytest

from seglog.errors import NotALogError, ProofMismatchError
from seglog.ledger.compacted import compacted_ledger
from seglog.ledger.position import EARLIEST
from seglog.pulsar import ManagedLedger
from seglog.upkeep import compacted_conversion
from seglog.upkeep.compacted_conversion import FORMS, digest_of
from seglog.upkeep.ledger_recover import plan_recovery
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.command import seglog, seglog_json
from support.keyed_topic import encrypted_batch, keyed, keyed_batch, read_all

CODECS = range(5)


@pytest.fixture
def topic(tmp_path):
    path = tmp_path / "orders"
    with ManagedLedger(path, config={"brokerEntryMetadataInterceptors": "timestamp,index"}, fsync="never") as topic:
        for n, codec in enumerate(CODECS):
            topic.add_entry(keyed_batch(n, [(f"a{n}", b"1"), ("all", b"%d" % n), (f"c{n}", b"3"), ("d", None)], codec))
        topic.add_entries([encrypted_batch(7, 3), keyed(8, "b", b"1")])
    return path


def tree(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_dry_run_says_what_compact_does_and_changes_nothing(topic):
    before = tree(topic)
    (planned,) = seglog_json("ledger", "compact", topic, "--dry-run", status=1)
    assert tree(topic) == before
    assert "dry run" in seglog("ledger", "compact", topic, "--dry-run", status=1).output
    (done,) = seglog_json("ledger", "compact", "--apply", topic)
    assert planned | {"dry_run": False, "apply": None, "ledger_id": done["ledger_id"]} == done
    assert (done["messages_in"], done["messages_out"], done["entries_out"]) == (24, 15, 7)
    assert done["horizon"] == [0, 6]
    assert done["last"][:3] == [0, 6, -1]
    (again,) = seglog_json("ledger", "compact", "--apply", topic)
    assert again["rounds"] == 0
    assert "nothing to compact after 0:6" in seglog("ledger", "compact", topic, "--dry-run").output
    with ManagedLedger(topic) as opened:
        assert len(read_all(opened)) == 13


def test_settings_are_pulsars_keys(topic):
    result = seglog("ledger", "compact", "--apply", topic, "--config", "seglog.compaction.payload=neither", status=2)
    assert "placeholders or retained-only" in result.output + result.stderr
    seglog("ledger", "compact", "--apply", topic, "--config", "seglog.compaction.payload=retained-only")
    with ManagedLedger(topic) as opened:
        assert PulsarTopicCompactionService(opened).compacted_ledger.properties.form.payload == "retained-only"


def test_a_compacted_ledger_goes_through_all_forms_and_comes_back_the_same(topic):
    seglog("ledger", "compact", "--apply", topic)
    with ManagedLedger(topic) as opened:
        service = PulsarTopicCompactionService(opened)
        begin = [bytes(entry.data) for entry in service.compacted_ledger]
        messages, last = read_all(opened, service), service.get_last_message_position()
    digests = set()
    for form in ("old", "retained-only", "old", "new", "retained-only", "new"):
        before = tree(topic)
        (told,) = seglog_json("ledger", "convert", topic, "--form", form, "--dry-run", status=None)
        assert tree(topic) == before
        (done,) = seglog_json("ledger", "convert", "--apply", topic, "--form", form)
        assert (done["was"], done["to"], done["sha256"]) == (told["was"], form, told["sha256"])
        digests.add(done["sha256"])
        with ManagedLedger(topic) as opened:
            service = PulsarTopicCompactionService(opened)
            assert service.compacted_ledger.properties.form == FORMS[form]
            assert read_all(opened, service) == messages
            assert service.get_last_message_position() == last
            service.compacted_ledger._last = None
            assert service.get_last_message_position() == last
            after = [bytes(entry.data) for entry in service.compacted_ledger]
        assert (after == begin) == (form == "new")
    assert len(digests) == 1
    assert "became" not in seglog("ledger", "convert", "--apply", topic, "--form", "new").output


def test_a_proof_that_fails_leaves_all_as_it_was(topic, monkeypatch):
    seglog("ledger", "compact", "--apply", topic)
    real = compacted_conversion.rewritten_batch
    monkeypatch.setattr(
        compacted_conversion, "rewritten_batch",
        lambda entry, batch, live, form: real(entry, batch, live[:-1] if len(live) > 2 else live, form),
    )
    with ManagedLedger(topic) as opened:
        service = PulsarTopicCompactionService(opened)
        before = digest_of(service.read_compacted_entries(EARLIEST, 100))
        with pytest.raises(ProofMismatchError):
            service.convert(FORMS["old"])
        assert digest_of(service.read_compacted_entries(EARLIEST, 100)) == before
        assert len(list((topic / "compacted").iterdir())) == 1


def test_what_was_never_compacted_is_not_converted(topic):
    result = seglog("ledger", "convert", "--apply", topic, "--form", "old", status=2)
    assert "never compacted" in result.output + result.stderr


def test_the_compacted_ledger_in_use_is_no_stray_where_the_path_is_relative(topic, monkeypatch):
    seglog("ledger", "compact", "--apply", topic)
    monkeypatch.chdir(topic.parent)
    assert seglog("ledger", "verify", topic.name).output.endswith("clean\n")


@pytest.mark.parametrize("setting", ["seglog.compaction.payload=retained-only", "seglog.compaction.key.ttl.ms=1"])
def test_a_dry_run_tells_also_what_a_changed_option_rewrites(topic, setting):
    seglog("ledger", "compact", "--apply", topic)
    (planned,) = seglog_json("ledger", "compact", topic, "--dry-run", "--config", setting, status=1)
    (done,) = seglog_json("ledger", "compact", "--apply", topic, "--config", setting)
    assert planned["rounds"] == 1
    assert planned | {"dry_run": False, "apply": None, "ledger_id": done["ledger_id"]} == done


def test_an_empty_topic_and_what_is_no_topic_are_told(tmp_path):
    ManagedLedger(tmp_path / "empty").close()
    (tmp_path / "none").mkdir()
    for option in ("--apply", "--dry-run"):
        said = seglog("ledger", "compact", option, tmp_path / "empty").output
        assert said.startswith("empty: the topic has no entries\n")
        refused = seglog("ledger", "compact", option, tmp_path / "none", status=4)
        assert "pass a topic's directory" in refused.output + refused.stderr


def test_a_compacted_ledger_of_a_newer_version_is_refused_by_its_version(topic, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(compacted_ledger, "VERSION", "2")
        seglog("ledger", "compact", "--apply", topic)
    for command in (("compact", "--apply"), ("compact", "--dry-run"), ("verify",)):
        refused = seglog("ledger", command[0], topic, *command[1:], status=4)
        assert "version 2 of a compacted ledger, expected 1" in refused.output + refused.stderr


def test_what_compaction_left_is_looked_at_by_itself_and_is_no_topic(topic):
    seglog("ledger", "compact", "--apply", topic)
    home = topic / "compacted"
    (ledger,) = home.iterdir()
    (summary,) = seglog_json("ledger", "verify", ledger)
    assert (summary["ok"], summary["entries"]) == (True, 7)
    assert [line["entry_id"] for line in seglog_json("ledger", "dump", ledger)] == list(range(7))
    assert [line["entry_id"] for line in seglog_json("ledger", "dump", ledger, "--from-position", "0:5")] == [5, 6]
    before = tree(topic)
    for command in ("verify", "dump", "ls", "recover"):
        result = seglog("ledger", command, home, status=4)
        assert "manifest_corrupt" not in result.output + result.stderr
    with pytest.raises(NotALogError, match="the compacted ledgers"):
        plan_recovery(home)
    assert tree(topic) == before
    log = ledger / "00000000000000000000.log"
    log.write_bytes(bytes([log.read_bytes()[0]]) + bytes(len(log.read_bytes()) - 1))
    assert "compacted_damaged" in seglog("ledger", "verify", ledger, status=1).output
