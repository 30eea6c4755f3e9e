"""Each worker rewrites the assertions of a part of the files, and begins with long tests; one of them has all tests of
the Spark session."""
from types import SimpleNamespace

import pytest
from _pytest.assertion import rewrite

from support.rewriting import named_files, rewrite_share
from support.shares import in_shares


def made(kind, n):
    marks = {"long": object()} if kind == "long" else {}
    return SimpleNamespace(
        name=f"{kind} {n}", kind=kind, fixturenames=["spark"] if kind == "session" else ["tmp_path"],
        get_closest_marker=marks.get,
    )


def collected(*, short, long=7, session=9):
    """In the order of their files: long ones and those of the session among the others."""
    items = [made("short", n) for n in range(short)]
    for n in range(long):
        items.insert(n * 40 + 13, made("long", n))
    for n in range(session):
        items.insert(short // 2 + n, made("session", n))
    return items


def parts(items, workers):
    """As xdist deals them out: each worker gets an equal share of what is left."""
    left, dealt = list(items), []
    for following in range(workers, 0, -1):
        size = len(left) // following
        dealt.append(left[:size])
        del left[:size]
    return dealt


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_each_worker_begins_with_its_long_tests_and_the_last_has_the_session(workers):
    items = collected(short=1003)
    shares = in_shares(items, workers)
    assert sorted(i.name for i in shares) == sorted(i.name for i in items)
    *first, last = parts(shares, workers)
    assert [i.kind for i in last[:9]] == ["session"] * 9
    assert not any(i.kind == "session" for part in first for i in part)
    heads = first or [last[9:]]
    for part in heads:
        count = sum(i.kind == "long" for i in part)
        assert [i.kind for i in part[:count]] == ["long"] * count
        assert abs(count - 7 / len(heads)) < 1
    assert [i.name for i in shares if i.kind == "short"] == [i.name for i in items if i.kind == "short"]


def test_a_few_tests_stay_as_they_are():
    items = collected(short=150)
    assert in_shares(items, 2) == items


def test_each_worker_rewrites_its_part_of_the_files_as_pytest_would(pytestconfig, tmp_path, monkeypatch):
    for name, lines in (("test_a.py", 3), ("test_b.py", 1), ("test_c.py", 2), ("not_a_test.py", 9)):
        (tmp_path / name).write_text("def test():\n" + "    assert 1 == 1\n" * lines)
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden/test_d.py").write_text("of another program")
    monkeypatch.setattr(pytestconfig, "args", [str(tmp_path)])
    files = named_files(pytestconfig)
    assert [file.name for file in files] == ["test_a.py", "test_c.py", "test_b.py"]

    def cached():
        found = {}
        for file in files:
            kept = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
            if (code := rewrite._read_pyc(file, kept)) is not None:
                found[file.name] = code
        return found

    rewrite_share(pytestconfig, files, 1, 2)
    assert cached().keys() == {"test_c.py"}
    rewrite_share(pytestconfig, files, 0, 2)
    for file in files:
        assert cached()[file.name] == rewrite._rewrite_test(file, pytestconfig)[1]
    (tmp_path / "test_e.py").write_text("no Python")
    rewrite_share(pytestconfig, [tmp_path / "test_e.py", tmp_path / "test_f.py"], 0, 1)      # and one that is gone
