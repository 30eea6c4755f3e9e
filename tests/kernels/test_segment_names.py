"""Names of a directory's files: the kernel sorts them as the plain rule does, whatever they are."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.segment_names import sorted_names
from seglog.format import names

SUFFIXES = (".log", ".index", ".timeindex", ".snapshot")


def plainly(listed, suffixes):
    found, others = [set() for _ in suffixes], []
    for name in listed:
        parsed = names.parse_file_name(name) if name[20:] in suffixes else None
        if parsed is None:
            others.append(name)
        else:
            found[suffixes.index(name[20:])].add(parsed.offset)
    return found, others


DIGITS = st.one_of(
    st.integers(0, 2**63 + 10).map("{:020d}".format), st.integers(0, 10**20 - 1).map("{:020d}".format),
    st.text("0123456789٣/:x", min_size=18, max_size=21),
)
NAMES = st.one_of(
    st.text(),
    st.builds("{}{}".format, DIGITS, st.sampled_from((*SUFFIXES, "", ".lo", ".logs", ".log.deleted", ".lög"))),
)


@given(st.lists(NAMES, max_size=20))
def test_names_are_sorted_as_by_the_plain_rule(listed):
    assert sorted_names(listed, SUFFIXES) == plainly(listed, SUFFIXES)


@pytest.mark.parametrize(("digits", "offset"), [
    ("0" * 20, 0), (f"{2**63 - 1:020d}", 2**63 - 1), (f"{2**63:020d}", None), ("9" * 20, None), ("0" * 19 + ":", None),
    ("0" * 19 + "/", None), ("-" + "0" * 19, None),
])
def test_an_offset_is_twenty_digits_and_no_more_than_there_may_be(digits, offset):
    name = digits + ".log"
    assert sorted_names([name], (".log",)) == (([{offset}], []) if offset is not None else ([set()], [name]))


def test_odd_names_are_others():
    odd = ["", "0", "0" * 20, ".log", "\udcff.log", "0" * 20 + ".l", "0" * 21 + ".log"]
    assert sorted_names(odd, SUFFIXES) == ([set()] * 4, odd)
    assert sorted_names(["0" * 20 + ".log"], ()) == ([], ["0" * 20 + ".log"])


def test_what_is_no_suffix_is_refused():
    for suffixes in ((".lög",), (7,), (".x",) * 17):
        with pytest.raises(ValueError, match="suffix"):
            sorted_names([], suffixes)
