"""A store of objects in a directory, as pyarrow.fs shows one: for tests of what a driver does, without a server.

A prefix is there as long as an object is. The real servers are in `make spark`.
"""
import contextlib
import io
import os
import secrets
from pathlib import Path

from pyarrow import fs

from seglog.stores.object_store import ObjectStore


class ObjectsOnDisk:
    """Like support.s3_server.S3Server; stands in the place of every client of S3 within this process."""

    def __init__(self, top: Path, monkeypatch):
        self.options = {"region": "nowhere"}
        self._top = top
        monkeypatch.setattr(ObjectStore, "_open", lambda store: _Client(top))

    def bucket(self, name: str) -> str:
        (self._top / name).mkdir(parents=True)
        return f"s3://{name}"

    def objects(self, url: str) -> dict[str, bytes]:
        """{key: bytes} of all objects whose keys begin with that of the URL."""
        top = self._top / url.removeprefix("s3://")
        return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def count_parts(monkeypatch) -> dict[str, int]:
    """{path: bytes that came by ranges}, from now on; `monkeypatch` ends it."""
    came: dict[str, int] = {}
    part = ObjectStore.part

    def counted(self, path, position, size_bytes):
        raw = part(self, path, position, size_bytes)
        came[path] = came.get(path, 0) + len(raw)
        return raw

    monkeypatch.setattr(ObjectStore, "part", counted)
    return came


class _Client:
    def __init__(self, top: Path):
        self._top = top
        self._fs = fs.SubTreeFileSystem(str(top), fs.LocalFileSystem())

    def __getattr__(self, name):
        return getattr(self._fs, name)

    @contextlib.contextmanager
    def open_output_stream(self, path, *, compression):
        """As on S3, the object appears whole at the end, also at the end of a block that failed."""
        content = io.BytesIO()
        try:
            yield content
        finally:
            beside = self._top.with_name(f"{self._top.name}.{secrets.token_hex(8)}")
            beside.write_bytes(content.getvalue())
            while True:
                (self._top / path).parent.mkdir(parents=True, exist_ok=True)
                # Another thread may remove the empty directory.
                with contextlib.suppress(FileNotFoundError):
                    beside.replace(self._top / path)
                    break

    def delete_file(self, path):
        self._fs.delete_file(path)
        # Another thread may be at the same.
        with contextlib.suppress(OSError):
            above = (self._top / path).parent
            while above.parent != self._top:
                os.rmdir(above)
                above = above.parent
