"""Pages that show what the code makes. SEGLOG_UPDATE_DOCS=1 writes them again."""
import os


def check_part(doc, begin, made, end):
    """`made` stands between the lines `begin` and `end` of the page `doc`."""
    before, found, rest = doc.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    assert found, f"{doc.name} has no line {begin!r}"
    assert found_end, f"{doc.name} has no line {end!r} behind {begin!r}"
    check_page(doc, before + begin + made + end + after)


def check_page(doc, made):
    page = doc.read_text()
    if os.environ.get("SEGLOG_UPDATE_DOCS"):
        doc.write_text(made)
    assert page == made, "run the test once with SEGLOG_UPDATE_DOCS=1"
