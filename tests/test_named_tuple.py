"""seglog.named_tuple does what typing.NamedTuple does."""
import copy
import inspect
import pickle
import typing

import pytest

from seglog import named_tuple


class Ours(named_tuple.NamedTuple):
    """Three fields."""

    first: int
    second: "str | None" = None
    third: tuple[int, ...] = ()

    @property
    def both(self):
        return f"{self.first}{self.second}"

    @classmethod
    def of(cls, first):
        return cls(first, "made")

    def __str__(self):
        return "as text"


class Theirs(typing.NamedTuple):
    """Three fields."""

    first: int
    second: "str | None" = None
    third: tuple[int, ...] = ()

    @property
    def both(self):
        return f"{self.first}{self.second}"

    @classmethod
    def of(cls, first):
        return cls(first, "made")

    def __str__(self):
        return "as text"


BOTH = pytest.mark.parametrize("use", [
    lambda kind: kind(1),
    lambda kind: kind(1, "two", (3,)),
    lambda kind: kind(third=(3,), first=1),
    lambda kind: kind(1)._replace(second="other"),
    lambda kind: kind._make([1, 2, 3]),
    lambda kind: kind.of(7),
    lambda kind: copy.deepcopy(kind(1, "two")),
    lambda kind: pickle.loads(pickle.dumps(kind(1, "two"))),
    lambda kind: (*kind(1, "two"),),
    lambda kind: kind(1, "two")._asdict(),
    lambda kind: (kind(1).both, str(kind(1)), kind(1).third, kind(1)[0], len(kind(1)), kind(1) < kind(2)),
    lambda kind: (hash(kind(1)), kind(1) == (1, None, ()), isinstance(kind(1), tuple), type(kind) is type),
    lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__, kind.__doc__, kind.__module__),
    lambda kind: (kind.first.__doc__, [str(p).partition(":")[0] for p in inspect.signature(kind).parameters.values()]),
    lambda kind: (typing.get_type_hints(kind), typing.get_type_hints(kind.__new__)),
    lambda kind: (kind.__new__.__code__.co_code, kind.__new__.__code__.co_varnames),     # as quick, too
    lambda kind: kind(),
    lambda kind: kind(1, 2, 3, 4),
    lambda kind: kind(1, fourth=4),
    lambda kind: kind._make([1]),
    lambda kind: setattr(kind(1), "first", 2),
    lambda kind: setattr(kind(1), "fourth", 2),
    lambda kind: kind(1).__dict__,
])


def outcome(use, kind):
    """What comes of it, as text without the name of the class."""
    try:
        found = repr(use(kind))
    except (TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
    return found.replace(kind.__name__, "Kind")


@BOTH
def test_a_named_tuple_is_as_that_of_typing(use):
    assert outcome(use, Ours) == outcome(use, Theirs)


def test_a_replaced_field_must_be_one():
    with pytest.raises(TypeError, match="fourth"):      # typing's: a ValueError before Python 3.13
        Ours(1)._replace(fourth=4)


def test_a_class_that_follows_from_one_is_an_ordinary_one():
    class More(Ours):
        def doubled(self):
            return 2 * self.first

    assert More(2).doubled() == 4
    assert repr(More(2)) == "More(first=2, second=None, third=())"
    assert type(More(2)._replace(first=3)) is More


def test_without_a_docstring_it_tells_its_fields():
    class Pair(named_tuple.NamedTuple):
        left: int
        right: int = 0

    assert Pair.__doc__ == "Pair(left, right)"


def test_it_may_be_generic():
    Value = typing.TypeVar("Value")

    class Pair(named_tuple.NamedTuple, typing.Generic[Value]):
        left: Value
        right: Value

    assert Pair[int](1, right=2) == (1, 2)
    assert Pair.__parameters__ == (Value,)      # type: ignore[attr-defined]


def test_it_is_matched_by_its_fields():
    match Ours(1, "two"):
        case Ours(first, second):
            assert (first, second) == (1, "two")


def test_a_field_without_a_default_follows_none_with_one():
    with pytest.raises(TypeError, match="default"):
        class _Wrong(named_tuple.NamedTuple):
            first: int = 1
            second: int         # type: ignore[misc]
