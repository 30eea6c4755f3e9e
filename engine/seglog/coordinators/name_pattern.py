"""Regular expressions that clients send to find topics (KIP-848) and transactional ids (KIP-1152), in RE2's syntax.

Kafka matches them by RE2/J, whose time is linear in the name's length. Python's own `re` may take for ever over one
that a client chose, so without the package google-re2 they are refused.
"""
from collections.abc import Callable

from seglog.late_import import late

# What a compiled expression may take, which bounds its time for each name as well. Kafka has no such limit.
_COMPILED_BYTES_MAX = 1 << 16
_CHARACTERS_MAX = 1000


class InvalidPatternError(Exception):
    """Why it is refused, for the client."""


def name_pattern(text: str) -> Callable[[str], bool]:
    """A function that says whether the whole of a name matches. Raises InvalidPatternError."""
    if len(text) > _CHARACTERS_MAX:
        raise InvalidPatternError(f"the regular expression has more than {_CHARACTERS_MAX} characters")
    try:
        late("re2")
        import re2
    except ImportError:
        raise InvalidPatternError(
            "this server matches no regular expressions: it lacks the package google-re2 (seglog[regex])") from None
    options = re2.Options()
    options.max_mem = _COMPILED_BYTES_MAX
    options.log_errors = False
    try:
        compiled = re2.compile(text, options=options)
    except (re2.error, UnicodeEncodeError) as error:
        raise InvalidPatternError(f"`{text}` is not a valid regular expression: {error}") from None
    return lambda name: compiled.fullmatch(name) is not None
