"""The compiled half of seglog. Sources: cext/. Contract: the .pyi files here."""
import sys

# Locks of some kernels count on the GIL, so none declares that it can do without: a free-threaded Python (3.13t, 3.14t)
# switches the GIL on when the first one is imported, and warns. Only PYTHON_GIL=0 or -X gil=0 would keep it off.
if getattr(sys.flags, "gil", None) == 0:
    raise ImportError("seglog needs the GIL: unset PYTHON_GIL, or leave out -X gil=0")

try:
    import seglog._kernels.window as window  # noqa: F401  (whether it loads)
except ModuleNotFoundError as e:
    if e.name != "seglog._kernels.window":
        raise
    raise ImportError("seglog's kernels are not built. In a checkout run: make build (or pip install -e .)") from e
except ImportError as e:
    # The loader's words have the file and the cause: it is too short, of another Python, of another machine.
    raise ImportError(
        f"seglog's kernels cannot be loaded: {e}. Install seglog again (pip install --force-reinstall seglog); in a "
        "checkout remove build/ and run: make build"
    ) from e
