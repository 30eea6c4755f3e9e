"""The lower limits that are written in C: built for a run, since nothing else needs them."""
import importlib.util
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("append_floor.pyx")


@cache
def floors() -> Any:
    """The module append_floor. Building it takes a few seconds."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory(prefix="seglog-floor-") as made:
        modules = cythonize(
            [Extension("append_floor", [str(SOURCE)], extra_compile_args=["-O3"])], build_dir=made, quiet=True
        )
        build = build_ext(Distribution({"ext_modules": modules}))
        build.build_lib = build.build_temp = made
        build.ensure_finalized()
        build.run()
        spec = importlib.util.spec_from_file_location("append_floor", build.get_ext_fullpath("append_floor"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)     # it stays mapped without its file
    return module
