"""Names that no reader of foreign names may make a path of. Every such reader is fed all of them."""

# What is wrong whatever the name is to be: no component of a path, or no text that a file system takes.
NO_COMPONENT = (
    "", ".", "..", "/", "../PWN", "../../../PWN", "/etc/PWN", "a/b", "orders-0/../../PWN", "orders-0/", "/orders-0",
    "PWN\0", "\0", "../\0", "\ud800", "x" * 256, "\N{EURO SIGN}" * 86,
)
# What is one component, and not the name of a partition directory, or of a file in one.
NO_PARTITION = (
    *NO_COMPONENT, "orders", "orders-", "-0", "orders-x", "orders-00", "orders-2147483648", "or ders-0", "..-0\n-0",
    "orders\n-0", "\x1b[2Jorders-0", "b\N{LATIN SMALL LETTER O WITH DIAERESIS}se-0", f"{'t' * 250}-0",
    "orders-0.0123456789abcdef0123456789abcdef-delete", "~orders-0", "orders\\-0",
)
NO_FILE = (*NO_COMPONENT, "a b", "a\nb", "\x1b[2J", "a\\b", "a:b", "~a", "\N{CYRILLIC SMALL LETTER A}.log")
# What is no text at all.
NO_TEXT = (None, 7, 1.5, True, [], ["orders-0"], {})
