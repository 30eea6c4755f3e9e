"""Errors of the engine say what to do in keyword arguments of Python; users of Spark write options."""
import re
from collections.abc import Iterator
from contextlib import contextmanager

from seglog.errors import SeglogError

_OPTIONS = [(re.compile(pattern), option) for pattern, option in (
    (r'on_corrupt="skip"', '.option("onCorrupt", "skip")'),
    (r"on_undecodable='(\w+)'", r'.option("onUndecodable", "\1")'),
    (r"\bor 'raw'", 'or "raw"'),
    (r'decode=\{"(\w+)": seglog\.Typed\("(\w+)", subject=\.\.\.\)\}',
     r""".option("decode", '{"\1": {"kind": "\2", "subject": "..."}}')"""),
    (r'schemas="([^"]+)"', r'.option("schemas", "\1")'),
    (r"\bdecode=", "the option decode"),
)]


def as_options(hint: str) -> str:
    """The hint with options of the source in place of arguments."""
    for pattern, option in _OPTIONS:
        hint = pattern.sub(option, hint)
    return hint


@contextmanager
def hints_name_options() -> Iterator[None]:
    """Errors that are raised meanwhile have such hints."""
    try:
        yield
    except SeglogError as error:
        error.hint = as_options(error.hint)
        raise
