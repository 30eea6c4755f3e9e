"""Third-party libraries for tables, imported when they are needed."""
from importlib import import_module
from typing import Any

from seglog.errors import MissingLibraryError
from seglog.late_import import late

# What to install for each, as arguments of pip.
_INSTALL = {
    "pyarrow": "'seglog[arrow]'", "numpy": "'seglog[arrow]' numpy", "pandas": "'seglog[arrow]' pandas",
    "polars": "polars", "google": "protobuf",
    "deltalake": "'seglog[delta]'", "pyiceberg": "'seglog[iceberg]'",
}


def library(name: str) -> Any:
    """The module, such as pyarrow or pyarrow.dataset. Raises MissingLibraryError, which says how to install it."""
    try:
        late(name)
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        install = f"pip install {_INSTALL[package]}"
        raise MissingLibraryError(f"this needs {package}, which is not installed: {install}", hint=install) from error
