"""`seglog ledger`: managed ledgers, single ledgers and plain files of entries, looked at and put right."""
import json
import shutil
import struct

import pytest

from seglog.clock import ManualClock
from seglog.format.checked_json import format_json
from seglog.ledger.entry import Entry
from seglog.ledger.managed.manifest import FILE_NAME
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.segment.segment import Segment
from support.command import seglog, seglog_json
from support.entries import DAMAGED, golden_entries
from support.golden import unpack
from support.topics import batch, message, numbers

CONFIG = {"managedLedgerMaxEntriesPerLedger": 3, "brokerEntryMetadataInterceptors": "timestamp,index"}
LOG = "00000000000000000000.log"


@pytest.fixture
def topic(tmp_path):
    """Five entries of two messages, in ledgers 0 and 1; one cursor."""
    path, clock = tmp_path / "orders", ManualClock(1_700_000_000_000)
    with ManagedLedger(path, config=CONFIG, clock=clock) as topic:
        for n in range(5):
            topic.add_entry(batch(n, 2, 1_600_000_000_000 + n))
            clock.advance(100)
        topic.open_cursor("billing", "earliest").mark_delete(Position(0, 1))
    return path


@pytest.fixture
def dead(topic):
    """The same, with a ledger whose writer died; three entries more."""
    live = ManagedLedger(topic, config=CONFIG)
    live.add_entries(message(n) for n in range(3))
    copy = shutil.copytree(topic, topic.parent / "dead" / "orders")
    live.close()
    return copy


def tree(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_the_golden_entries_are_dumped_as_pulsar_reads_them():
    lines = seglog_json("ledger", "dump", unpack("pulsar") / "entries.bin")
    says = [{name: value for name, value in line.items() if name != "case"} for _, line in golden_entries()]
    assert lines == says


def test_the_entries_of_a_managed_ledger_have_the_same_fields(topic):
    lines = seglog_json("ledger", "dump", topic)
    assert [(line["ledger_id"], line["entry_id"]) for line in lines] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    for n, line in enumerate(lines):
        assert line["metadata"]["sequence_id"] == n
        assert line["broker_entry_metadata"] == {"broker_timestamp": 1_700_000_000_000 + 100 * n, "index": 2 * n + 1}
        assert len(line["messages"]) == 2
    one = seglog_json("ledger", "dump", topic / "ledger-1")
    assert one == lines[3:]
    assert seglog_json("ledger", "dump", topic, "--from-position", "0:2", "--limit", 2) == lines[2:4]
    assert seglog_json("ledger", "dump", topic / "ledger-0", "--from-position", "1") == lines[1:3]
    assert "index 3" in seglog("ledger", "dump", topic, "--limit", 2).stdout
    seglog("ledger", "dump", topic, "--from-position", "x", status=2)


def test_an_entry_that_does_not_parse_is_told_and_passed_over(tmp_path):
    path = tmp_path / "entries.bin"
    entries = [message(0), message(1)[:15], message(2)]
    path.write_bytes(b"".join(struct.pack(">I", len(entry)) + entry for entry in entries))
    lines = seglog_json("ledger", "dump", path, status=1)
    assert [line.get("type", line.get("i")) for line in lines] == [0, "damaged", 2]
    assert "damaged" in seglog("ledger", "dump", path).stdout
    assert [line["i"] for line in seglog_json("ledger", "dump", path, "--from-position", 2)] == [2]
    found, summary = seglog_json("ledger", "verify", path, status=1)
    assert (found["code"], found["offset"], summary["entries"]) == ("entry_corrupt", 1, 3)
    path.write_bytes(path.read_bytes()[:-1])
    seglog("ledger", "verify", path, status=1)
    path.write_bytes(b"no entries here")
    seglog("ledger", "dump", path, status=4)
    seglog("ledger", "dump", tmp_path, status=4)
    seglog("ledger", "verify", tmp_path, status=4)


@pytest.mark.parametrize("words", [["ls"], ["verify"], ["recover"], ["seek", "--index", 0]], ids=lambda words: words[0])
def test_json_lines_begin_with_type_and_schema(topic, words):
    for line in seglog_json("ledger", *words, topic):
        assert [*line][:2] == ["type", "schema"]


def test_ls_shows_ledgers_and_cursors(topic):
    first, second, cursor, summary = seglog_json("ledger", "ls", topic)
    assert (first["ledger_id"], first["entries"], second["entries"]) == (0, 3, 2)
    assert first["size_bytes"] == (topic / "ledger-0" / LOG).stat().st_size
    assert (cursor["name"], cursor["mark_delete"], cursor["backlog"]) == ("billing", [0, 1], 3)
    assert (summary["entries"], summary["ledgers"], summary["last_index"]) == (5, 2, 9)
    text = seglog("ledger", "ls", topic).stdout
    assert "billing" in text
    assert "0:1" in text
    assert seglog_json("ledger", "ls", topic / "ledger-1")[0]["entries"] == 2
    assert "287 entries" in seglog("ledger", "ls", unpack("pulsar") / "entries.bin").stdout


def test_a_topic_that_is_written_is_looked_at_and_not_touched(dead):
    before = tree(dead)
    assert [line.get("sealed_ms") for line in seglog_json("ledger", "ls", dead)][:3][-1] is None
    assert "open" in seglog("ledger", "ls", dead).stdout
    assert len(seglog_json("ledger", "dump", dead)) == 8
    finding, summary = seglog_json("ledger", "verify", dead)
    assert (finding["code"], finding["severity"], summary["ok"]) == ("ledger_open", "note", True)
    seglog("ledger", "seek", dead, "--index", 3)
    seglog("ledger", "recover", dead, status=1)
    assert tree(dead) == before


def test_seek_finds_by_the_brokers_time_by_publish_time_and_by_index(topic):
    def found(*options):
        line, = seglog_json("ledger", "seek", topic, *options)
        return line["position"]

    assert found("--time", 1_700_000_000_101) == [0, 2]
    assert found("--time", "2030-01-01") is None
    assert found("--time", 1_600_000_000_003, "--publish-time") == [1, 0]
    assert found("--index", 5) == [0, 2]
    assert found("--index", 10) is None
    assert "0:2" in seglog("ledger", "seek", topic, "--index", 4).stdout
    assert "nothing there" in seglog("ledger", "seek", topic, "--index", 40).stdout
    seglog("ledger", "seek", topic, status=2)
    seglog("ledger", "seek", topic, "--index", 4, "--time", 5, status=2)
    seglog("ledger", "seek", topic.parent, "--index", 4, status=4)


@pytest.mark.parametrize("command", ["ls", "verify", "recover"])
def test_a_path_that_does_not_exist_is_said_to_be_missing(tmp_path, command):
    assert "no such file or directory" in seglog("ledger", command, tmp_path / "none", status=3).stderr


def test_a_sound_topic_is_clean(topic):
    summary, = seglog_json("ledger", "verify", topic)
    assert summary == {
        "type": "summary", "schema": 1, "path": str(topic), "ok": True, "ledgers": 2, "entries": 5, "messages": 10,
        "size_bytes": sum((topic / f"ledger-{n}" / LOG).stat().st_size for n in (0, 1)), "cursors": 1, "findings": 0,
    }
    assert "clean" in seglog("ledger", "verify", topic).stdout
    assert seglog_json("ledger", "verify", topic / "ledger-0")[0]["entries"] == 3


def test_the_two_damaged_golden_entries_are_found_and_what_their_order_breaks():
    lines = seglog_json("ledger", "verify", unpack("pulsar") / "entries.bin", status=1)
    cases = [says["case"] for _, says in golden_entries()]
    damaged = {cases[line["offset"]] for line in lines if line.get("code") == "entry_corrupt"}
    assert damaged == DAMAGED


def flip(path, position=None):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 if position is None else position] ^= 1
    path.write_bytes(raw)


def resign(path, **changes):
    body = json.loads(path.read_text()) | changes
    name, version = body.pop("format"), body.pop("version")
    body.pop("crc32c")
    path.write_bytes(format_json(name, version, **body))


DAMAGES = {
    "manifest_corrupt": lambda path: flip(path / FILE_NAME),
    "manifest_corrupt of a ledger that is gone": lambda path: shutil.rmtree(path / "ledger-0"),
    "manifest_corrupt and gone": lambda path: (path / FILE_NAME).unlink(),
    "ledger_corrupt": lambda path: flip(path / "ledger-0/ledger.json"),
    "ledger_corrupt of another": lambda path: resign(path / "ledger-0/ledger.json", ledger_id=5),
    "ledger_differs": lambda path: resign(path / "ledger-0/ledger.json", created_ms=5, end=None),
    "ledger_length": lambda path: (path / "ledger-1" / LOG).write_bytes((path / "ledger-1" / LOG).read_bytes()[:-1]),
    "ledger_damaged": lambda path: flip(path / "ledger-0" / LOG),
    "cursor_corrupt": lambda path: flip(next((path / "cursors").iterdir())),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_names_what_is_wrong(topic, damage):
    DAMAGES[damage](topic)
    lines = seglog_json("ledger", "verify", topic, status=1)
    assert damage.split()[0] in [line.get("code") for line in lines]
    assert damage.split()[0] in seglog("ledger", "verify", topic, status=1).stdout


def test_verify_names_strays_tails_gaps_and_times_that_go_back(dead, tmp_path):
    (dead / "ledger-9").mkdir()
    log = dead / "ledger-2" / LOG
    log.write_bytes(log.read_bytes() + bytes(70))
    codes = [line.get("code") for line in seglog_json("ledger", "verify", dead, status=1)]
    assert codes == ["ledger_stray", "ledger_open", "ledger_tail", None]
    path = tmp_path / "entries.bin"
    entries = [bytes(Entry(message(n)).with_broker_metadata(t, i).raw()) for n, t, i in ((0, 5, 0), (1, 4, 2))]
    path.write_bytes(b"".join(struct.pack(">I", len(entry)) + entry for entry in entries))
    codes = [line.get("code") for line in seglog_json("ledger", "verify", path, status=1)]
    assert codes == ["entry_index", "entry_time", None]


def test_recover_seals_what_a_dead_writer_left(dead):
    summary, = seglog_json("ledger", "recover", dead, status=1)
    assert (summary["dry_run"], summary["sealed"], summary["makes_manifest"]) == (True, [2], False)
    text = seglog("ledger", "recover", dead, status=1).stdout
    assert "would be sealed" in text
    assert text.splitlines()[-1].endswith(f"To do it: seglog ledger recover {dead} --apply")
    seglog("ledger", "recover", dead, "--apply")
    assert "nothing to do" in seglog("ledger", "recover", dead).stdout
    assert seglog_json("ledger", "verify", dead)[0]["ok"]


@pytest.mark.parametrize("cut_bytes", [1, 150])
def test_recover_seals_again_what_a_sealed_ledger_has_left(topic, cut_bytes):
    """It was sealed with more than it has: nothing of it could be read, and there was nothing to do."""
    first = min(topic.glob("ledger-*"))
    log = next(first.glob("*.log"))
    log.write_bytes(log.read_bytes()[:-cut_bytes])
    summary = seglog_json("ledger", "recover", topic, status=1)[-1]
    assert (summary["resealed"], summary["sealed"], summary["lost"]) == ([0], [], 1)
    assert "sealed again" in seglog("ledger", "recover", topic, "--apply", status=1).stdout
    assert "nothing to do" in seglog("ledger", "recover", topic).stdout
    with ManagedLedger(topic, config=CONFIG) as opened:
        found = numbers(opened)
        assert found == sorted(found)
        assert 0 < len(found) < 5
        assert found[-1] == 4
        assert numbers([opened.read(Position(0, 0))]) == [0]
    codes = {line.get("code") for line in seglog_json("ledger", "verify", topic, status=1)}
    assert codes == {"entry_index", None}       # the messages that are gone had numbers


def test_recover_seals_again_a_sealed_ledger_whose_last_entries_are_gone_as_a_whole(topic):
    log = next(min(topic.glob("ledger-*")).glob("*.log"))
    batches = list(Segment(log).batches())
    assert len(batches) > 1
    log.write_bytes(log.read_bytes()[: batches[-1].position])
    lost, summary = seglog_json("ledger", "recover", topic, "--apply", status=1)
    assert (lost["position"], lost["first_entry_id"], summary["dry_run"]) == (
        batches[-1].position, batches[-1].base_offset, False)
    with ManagedLedger(topic, config=CONFIG) as opened:
        assert opened.entry_count == 5 - batches[-1].count


def test_recover_makes_a_manifest_from_the_ledgers(topic):
    for break_it in (DAMAGES["manifest_corrupt"], DAMAGES["manifest_corrupt and gone"]):
        break_it(topic)
        assert seglog_json("ledger", "recover", topic, status=1)[0]["makes_manifest"]
        assert "rebuilt from 2 ledgers" in seglog("ledger", "recover", topic, "--apply").stdout
        with ManagedLedger(topic, config=CONFIG) as opened:
            assert numbers(opened) == list(range(5))
            assert opened.last_index == 9
            assert opened.cursors["billing"].backlog == 3


def test_no_id_is_given_out_again_by_a_manifest_made_anew(topic):
    with ManagedLedger(topic, config=CONFIG) as opened:
        opened.add_entries(message(n) for n in range(4))
        opened.cursors["billing"].clear_backlog()
        last = opened.last_position
    shutil.rmtree(topic / f"ledger-{last.ledger_id}")
    seglog("ledger", "recover", topic, "--apply")
    with ManagedLedger(topic) as opened:
        assert opened.add_entry(message(0)) > last


@pytest.mark.parametrize("place", ["delayed/billing/ledger-9", "relocated/billing/ledger-9", "compacted/ledger-9.new"])
def test_no_id_of_a_ledger_beside_the_topics_own_is_given_out_again(topic, place):
    (topic / place).mkdir(parents=True)
    (topic / FILE_NAME).unlink()
    seglog("ledger", "recover", topic, "--apply")
    with ManagedLedger(topic) as opened:
        assert opened.new_ledger_id() > 9


def test_a_bad_middle_is_cut_only_where_that_is_said(dead):
    live = ManagedLedger(dead.parent / "more", config=CONFIG)
    for n in range(2):
        live.add_entry(message(n))
    shutil.copytree(dead.parent / "more", dead.parent / "less")
    live.close()
    log = dead.parent / "less/ledger-0" / LOG
    raw = bytearray(log.read_bytes())
    raw[70] ^= 1
    log.write_bytes(raw)
    less = dead.parent / "less"
    lost, summary = seglog_json("ledger", "recover", less, status=1)
    assert (lost["position"], lost["first_entry_id"], summary["bad_middles"]) == (0, 0, 1)
    seglog("ledger", "recover", less, "--apply", status=2)
    assert log.read_bytes() == raw
    assert "truncated at byte 0" in seglog("ledger", "recover", less, "--apply", "--truncate", status=1).stdout
    with ManagedLedger(less) as opened:
        assert opened.entry_count == 0


def test_recover_takes_managed_ledgers_only(tmp_path, topic):
    seglog("ledger", "recover", tmp_path, status=4)
    seglog("ledger", "recover", topic / "manifest", status=4)
    with ManagedLedger(topic):
        seglog("ledger", "recover", topic, "--apply", status=5)
