"""Files of java.util.Properties, such as `server.properties` and `meta.properties` of a broker."""

_SPACE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX_DIGITS = "0123456789abcdefABCDEF"


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values, as java.util.Properties.load reads them: the last value of a key counts. Raises ValueError
    for an escape that is not complete."""
    found = {}
    for line in _logical_lines(text):
        at = end = _end_of_key(line)
        while at < len(line) and line[at] in _SPACE:
            at += 1
        if at < len(line) and line[at] in "=:":
            at += 1
            while at < len(line) and line[at] in _SPACE:
                at += 1
        found[_unescaped(line[:end])] = _unescaped(line[at:])
    return found


def _logical_lines(text: str) -> list[str]:
    """The lines without comments and blank ones, each joined with those that continue it."""
    lines: list[str] = []
    is_continued = False
    # Without the line end of the last one: behind it is no other line.
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n"):
        line = natural.lstrip(_SPACE)
        if not is_continued or not lines[-1]:       # what continues nothing yet begins again
            if not line or line[0] in "#!":
                is_continued = False
                continue
            if not is_continued:
                lines.append("")
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        lines[-1] += line[:-1] if is_continued else line
    # A lone backslash as the last line is an empty key.
    return [line for line in lines[:-1] if line] + [line for line in lines[-1:] if line or is_continued]


def _end_of_key(line: str) -> int:
    at = 0
    while at < len(line) and line[at] not in "=:" + _SPACE:
        at += 2 if line[at] == "\\" else 1
    return min(at, len(line))


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    parts, at = [], 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter != "\\" or at == len(text):
            parts.append(letter if letter != "\\" else "")
            continue
        letter = text[at]
        at += 1
        if letter == "u":
            digits = text[at : at + 4]
            if len(digits) < 4 or any(digit not in _HEX_DIGITS for digit in digits):
                raise ValueError(f"\\u{digits} is not a character: four hexadecimal digits must follow")
            parts.append(chr(int(digits, 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(letter, letter))
    return "".join(parts)
