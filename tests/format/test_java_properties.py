"""Properties are read as java.util.Properties.load reads them: what is expected here, Java 17 gave."""
import pytest

from seglog.format.java_properties import parse_properties

TEXT = r"""# comment
! another = one
   # spaced comment \
plain=value
spaced  =   value with  spaces
colon:value
blank value
only.key
empty=
  indented = yes
continued = one,\
            two,\
   three
twice=1
twice=2
key\ with\ spaces=v
key\:colon\=equals=x\:y\=z
tab\tkey=a\tb\nc\rd\fe
unicode=\u00e9\u20AC
odd\z=\q
slashes=c:\\dir\\
two.slashes=a\\\\
comment.inside=a # b
continued.comment=a\
# not a comment
blank.continuation=a\

next=b
= no key
equals.twice==x
colon.equals=:x
spaces.equals = = x
end=last\

"""
READ = {
    "": "no key", "blank": "value", "blank.continuation": "a", "colon": "value", "colon.equals": ":x",
    "comment.inside": "a # b", "continued": "one,two,three", "continued.comment": "a# not a comment", "empty": "",
    "equals.twice": "=x", "indented": "yes", "key with spaces": "v", "key:colon=equals": "x:y=z", "next": "b",
    "oddz": "q", "only.key": "", "plain": "value", "slashes": "c:\\dir\\", "spaced": "value with  spaces",
    "spaces.equals": "= x", "tab\tkey": "a\tb\nc\rd\fe", "twice": "2", "two.slashes": "a\\\\",
    "unicode": "\u00e9\u20ac", "end": "last",
}


def test_a_file_with_everything_that_the_format_has():
    assert parse_properties(TEXT) == READ


@pytest.mark.parametrize(("text", "read"), [
    ("", {}), ("a", {"a": ""}), ("\\", {"": ""}), ("\\\n", {"": ""}), ("\\\n#u\na", {"a": ""}),
    ("cr=one\rcrlf=two\r\nlf=three\n\fform=feed\neof=\\",
     {"cr": "one", "crlf": "two", "lf": "three", "form": "feed", "eof": ""}),
    ("spaced  =   with  spaces  ", {"spaced": "with  spaces  "}),
    ("joined=\\\r\n  one", {"joined": "one"}),
])
def test_line_ends_and_the_end_of_the_file(text, read):
    assert parse_properties(text) == read


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "\\u=1", "a=\\u 123"])
def test_an_incomplete_escape_is_refused(text):
    with pytest.raises(ValueError, match="four hexadecimal digits"):
        parse_properties(text)
