"""Errors as users of Spark read them: they say what to do in options, where the engine says it in keyword arguments of
Python, and their cause stands near the top."""
import re
from contextlib import ContextDecorator

from seglog.errors import SeglogError

_OPTIONS = [(re.compile(pattern), option) for pattern, option in (
    (r'on_corrupt="skip"', '.option("onCorrupt", "skip")'),
    (r"on_undecodable='(\w+)'", r'.option("onUndecodable", "\1")'),
    (r"\bor 'raw'", 'or "raw"'),
    (r'decode=\{"(\w+)": seglog\.Typed\("(\w+)", subject=\.\.\.\)\}',
     r""".option("decode", '{"\1": {"kind": "\2", "subject": "..."}}')"""),
    (r'schemas="([^"]+)"', r'.option("schemas", "\1")'),
    (r"\bdecode=", "the option decode"),
    (r"or seglog\.Typed\(schema=text\)", """or in the option decode an object with "schema": its text"""),
    # The hint of an error that has none of its own.
    (r"see the function's help\(\), or the command's --help", "see the page Topics as tables on Spark"),
)]


def as_options(hint: str) -> str:
    """The hint with options of the source in place of arguments."""
    for pattern, option in _OPTIONS:
        hint = pattern.sub(option, hint)
    return hint


class ToldBySpark(ContextDecorator):
    """Errors that are raised meanwhile have such hints, and no traceback: Spark shows that first, and the cause below
    it. Errors that are none of ours keep theirs.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, stack: object) -> None:
        if isinstance(error, SeglogError):
            error.hint = as_options(error.hint)
            raise error.with_traceback(None) from None
