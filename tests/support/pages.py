"""Pages that show what the code makes, which SEGLOG_UPDATE_DOCS=1 writes again; and pages whose Python is run."""
import os
import re

_EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:```output\n(?P<output>.*?)```\n)?", re.DOTALL)


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


def check_examples(doc, made_by, examples):
    """The examples of `doc` are what the functions in `examples`, {name: function}, make, in this order. `made_by`: the
    file with the functions."""
    pattern = re.compile(
        rf"<!-- example (?P<name>[\w-]+), made by {re.escape(made_by)} -->\n.*?<!-- end -->\n", re.DOTALL)
    text = doc.read_text()

    def made(found):
        name = found["name"]
        return f"<!-- example {name}, made by {made_by} -->\n{examples[name]()}<!-- end -->\n"

    check_page(doc, pattern.sub(made, text))
    names = [found["name"] for found in pattern.finditer(text)]
    assert names == list(examples), f"{doc.name} has the examples {names}"


def examples_of(page, *, printing=False):
    """(code, what it prints) of each example. `printing`: of those alone that have an output below them."""
    found = [(match["code"], match["output"]) for match in _EXAMPLE.finditer(page.read_text())]
    return [(code, output or "") for code, output in found if output is not None or not printing]


def run_examples(page, capsys, *, printing=False, names=None):
    """Run the examples one after the other, each prints what stands below it: how many, and the names that they made.

    They write files: the caller has gone to a directory for them. `names`: what a reader of the page has imported.
    """
    names = dict(names or {})
    examples = examples_of(page, printing=printing)
    for code, output in examples:
        exec(compile(code, page.name, "exec"), names)
        assert capsys.readouterr().out == output, code
    return len(examples), names
