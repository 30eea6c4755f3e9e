"""The public names of a module: listed once, in its stub, imported at their first use.

The stubs are `__init__.pyi`, `pulsar.pyi` and `spark/__init__.pyi`.

A line of the stub such as `from seglog.log.log import Log as Log` is what type checkers read, and where the name is
found at run time. So importing the module costs next to nothing.
"""
import _thread
import sys

TYPE_CHECKING = False       # not typing.TYPE_CHECKING: importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable


def lazy_names(module: str, stub: str) -> "tuple[Callable[[str], object], Callable[[], list[str]]]":
    """`__getattr__` and `__dir__` of a module: the names that its stub lists, and `__all__`."""
    listed: dict[str, str] = {}

    def places() -> dict[str, str]:
        if not listed:
            listed.update(_listed(stub))
        return listed

    def get(name: str) -> object:
        if name == "__all__":
            return list(places())
        if name.startswith("_") or name not in places():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _load("seglog.late_import")
        from seglog.late_import import late

        place = places()[name]
        is_module = place == "seglog"
        if is_module:
            place = f"seglog.{name}"
        late(place)
        if is_module:
            return sys.modules[place]
        found: object = getattr(sys.modules[place], name)
        setattr(sys.modules[module], name, found)
        return found

    return get, lambda: sorted({*vars(sys.modules[module]), *places()})


def _load(name: str) -> None:
    """What `late` does, for the module that has `late`: import it in a thread that receives no exceptions. So it takes
    nothing from another module, not even importlib's."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return
    errors: list[BaseException | None] = []

    def load(done: "_thread.LockType") -> None:
        try:
            __import__(name)
            errors.append(None)
        except BaseException as error:
            errors.append(error)
        done.release()

    while not errors:
        done = _thread.allocate_lock()
        done.acquire()
        try:
            _thread.start_new_thread(load, (done,))
        except RuntimeError:        # at the end of the interpreter, or at a limit of the system
            load(done)
        # Not for ever: until Python 3.11 an exception that is sent to this thread just now may end that one before its
        # first line.
        done.acquire(timeout=0.2)
    if errors[0] is not None:
        raise errors[0]


def _listed(stub: str) -> dict[str, str]:
    """{name: the module that it is imported from}, of the lines `from MODULE import NAME as NAME`."""
    with open(stub, encoding="utf-8") as lines:
        words = [line.split() for line in lines if line.startswith("from ")]
    return {line[3]: line[1] for line in words if line[4:] == ["as", line[3]]}
