"""Named tuples whose classes are made in a fifth of the time: opening the first log of a process makes some forty.

typing.NamedTuple compiles a constructor for each class. Classes with equally many fields have the same constructor, but
for the names of its arguments: here it is compiled once for each number of fields, and a copy gets the names. Type
checkers take it for typing's, and refuse what that refuses.
"""
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 14):        # the annotations of a class are made at their first use there
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter  # what collections.namedtuple reads a field by
    from functools import cache
    from types import FunctionType

    _tuple_new = tuple.__new__

    class _Values(tuple):
        """What all named tuples have in common."""

        __slots__ = ()

        @classmethod
        def _make(cls, values):
            made = _tuple_new(cls, values)
            if len(made) != (count := len(cls._fields)):
                raise TypeError(f"Expected {count} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changed):
            made = self._make(map(changed.pop, self._fields, self))
            if changed:
                raise TypeError(f"Got unexpected field names: {list(changed)!r}")
            return made

        __replace__ = _replace

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            return f"{type(self).__name__}({', '.join(map('{}={!r}'.format, self._fields, self))})"

        def __getnewargs__(self):
            return tuple(self)

    @cache
    def _constructor(count):
        """`lambda _cls, a0, a1: _tuple_new(_cls, (a0, a1,))`, for two fields."""
        arguments = "".join(f"a{n}, " for n in range(count))
        return eval(f"lambda _cls, {arguments}: _tuple_new(_cls, ({arguments}))", {"_tuple_new": _tuple_new})

    class _Definition(type):
        """Makes an ordinary class of a class statement: `isinstance` takes longer for one with a type of its own."""

        def __new__(cls, name, bases, body):
            fields = tuple(body["__annotations__"])
            defaults = {field: body[field] for field in fields if field in body}
            if tuple(defaults) != fields[len(fields) - len(defaults):]:
                raise TypeError(f"a field of {name} without a default follows one with a default")
            body.update({field: _tuplegetter(n, f"Alias for field number {n}") for n, field in enumerate(fields)})
            shared = _constructor(len(fields))
            code = shared.__code__.replace(
                co_name="__new__", co_qualname=f"{body['__qualname__']}.__new__", co_varnames=("_cls", *fields))
            new = body["__new__"] = FunctionType(code, shared.__globals__, "__new__", tuple(defaults.values()))
            new.__annotations__ = body["__annotations__"]
            return type(name, (_Values, *bases[1:]), {
                "__doc__": f"{name}({', '.join(fields)})", "__slots__": (), "__match_args__": fields,
                "_fields": fields, "_field_defaults": defaults, **body})

    NamedTuple = type.__new__(_Definition, "NamedTuple", (), {})
