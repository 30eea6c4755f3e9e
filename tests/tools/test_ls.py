"""`seglog ls`: sums over headers, of every golden partition, against the real decoder's batches."""
import shutil

import pytest

from support.command import golden_lines, partition_of, seglog, seglog_json
from support.golden import golden_cases


@pytest.fixture
def log_dir(golden_kafka, tmp_path):
    """A log dir of three partitions, one of them on its way out."""
    for name, copy in (
        ("mixed-formats-k282", "orders-0"), ("v2-lz4-ct-k391", "orders-10"), ("v0-none-ct-k391", "orders-2"),
        ("v2-none-ct-k411", f"gone-0.{'a' * 32}-delete"),
    ):
        shutil.copytree(golden_kafka / "cases" / name / f"{name}-0", tmp_path / copy)
    (tmp_path / "meta.properties").write_text("version=0\n")
    (tmp_path / "lost+found").mkdir()
    return tmp_path


def test_sums_equal_the_real_decoders_batches_in_every_case():
    for case in golden_cases():
        if case.name.startswith("crash-"):
            continue
        batches = golden_lines(case, "batches")
        *segments, partition, summary = seglog_json("ls", partition_of(case))
        for line in (partition, summary):
            assert line["batches"] == len(batches), case.name
            for magic in range(3):
                assert line[f"bytes_v{magic}"] == sum(b["size"] for b in batches if b["magic"] == magic), case.name
            assert line["max_timestamp"] == max((b["max_timestamp"] for b in batches), default=-1)
            assert line["tail_bytes"] == line["damaged_bytes"] == 0
        assert partition["segments"] == len(segments)
        if batches:
            assert partition["log_end_offset"] == batches[-1]["last_offset"] + 1
        for segment in segments:
            assert segment["bytes"] == sum(b["size"] for b in batches if b["segment"] == segment["segment"])


def test_a_log_dir_has_a_line_a_partition_in_the_order_of_topic_and_number(log_dir):
    *partitions, summary = seglog_json("ls", log_dir)
    assert [p["partition"] for p in partitions] == [f"gone-0.{'a' * 32}-delete", "orders-0", "orders-2", "orders-10"]
    assert {(line["type"], line["schema"]) for line in partitions} == {("partition", 1)}
    assert summary["type"] == "summary"
    assert summary["partitions"] == 4
    for name in ("segments", "bytes", "batches", "bytes_v0", "bytes_v1", "bytes_v2"):
        assert summary[name] == sum(p[name] for p in partitions)


def test_text_has_a_row_a_partition_and_a_total(log_dir):
    head, *rows, rule, total = seglog("ls", log_dir).stdout.splitlines()
    assert head.split()[:3] == ["partition", "records", "bytes"]
    assert [row.split()[0] for row in rows] == [f"gone-0.{'a' * 32}-delete", "orders-0", "orders-2", "orders-10"]
    assert set(rule) == {"-"}
    assert total.startswith("total")
    assert "damaged" not in head


def test_a_partition_has_a_row_a_segment(log_dir):
    head, *rows, _, total = seglog("ls", log_dir / "orders-0").stdout.splitlines()
    assert head.startswith("segment")
    assert [row.split()[0] for row in rows] == ["00000000000000000000.log", "00000000000000000099.log"]
    assert total.startswith("orders-0")


def test_one_file_has_one_row(log_dir):
    _, row = seglog("ls", log_dir / "orders-0/00000000000000000099.log").stdout.splitlines()
    assert row.split()[:4] == ["00000000000000000099.log", "2", "166", "B"]


def test_damage_is_shown_and_is_status_1(log_dir):
    log = log_dir / "orders-0/00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[317 + 8:317 + 12] = b"\xff" * 4        # the second batch's size
    log.write_bytes(data)
    result = seglog("ls", log_dir / "orders-0", status=1)
    assert "damaged" in result.stdout.splitlines()[0]
    assert "seglog verify" in result.stderr
    line = seglog_json("ls", log, status=1)[0]
    assert line["damaged_bytes"] > 0


def test_an_unfinished_write_is_a_tail_and_no_damage(log_dir):
    log = log_dir / "orders-0/00000000000000000099.log"
    with log.open("ab") as f:
        f.write(bytes(100))
    result = seglog("ls", log_dir / "orders-0")
    assert "tail" in result.stdout.splitlines()[0]
    assert seglog_json("ls", log)[0]["tail_bytes"] == 100


def test_ls_asks_for_no_codec_and_no_right_to_write(log_dir):
    log_dir.chmod(0o500)
    seglog("ls", log_dir)


def test_the_note_names_the_partitions_that_are_damaged(log_dir):
    """Red: it named the first."""
    log = log_dir / "orders-10" / f"{0:020}.log"
    raw = bytearray(log.read_bytes())
    raw[16] = 9     # the magic
    log.write_bytes(raw)
    result = seglog("ls", log_dir, status=1)
    assert f"are not batches: run `seglog verify {log_dir / 'orders-10'}`" in result.stderr


def test_partitions_of_one_name_are_told_apart_by_their_paths(log_dir, tmp_path_factory):
    """Red: two rows `orders-0`."""
    above = tmp_path_factory.mktemp("disks")
    for name in ("one", "two"):
        shutil.copytree(log_dir / "orders-0", above / name / "orders-0")
        shutil.copy(log_dir / "meta.properties", above / name)
    shutil.copytree(log_dir / "orders-10", above / "two/orders-10")
    paths = [str(above / "one/orders-0"), str(above / "two/orders-0")]
    rows = seglog("ls", above).stdout.splitlines()[1:4]
    assert [row.split()[0] for row in rows] == [*paths, "orders-10"]
    for command in ("verify", "stats"):
        heads = [line.split("   ")[0] for line in seglog(command, above).stdout.splitlines()]
        assert [*paths, "orders-10"] == [head for head in heads if head in (*paths, "orders-10")], command
