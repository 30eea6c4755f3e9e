"""Log dirs in a remote store: put there as a person would, by copying, and looked at past the code under test."""
from pathlib import Path

from seglog.fs.files import OsFileSystem
from seglog.stores.open_store import open_store


def put_log_dir(log_dir: Path, url: str, options) -> str:
    """Copy a log dir with all that is in it to `url`, and return that."""
    store, top = open_store(url, options, OsFileSystem())
    for path in sorted(log_dir.rglob("*")):
        place = f"{top}/{path.relative_to(log_dir)}"
        if path.is_file():
            store.upload(path, place)
        else:
            store.make_directory(place)
    return url


def bytes_of(log_dir: Path) -> dict[str, bytes]:
    """{partition/file: bytes} but for the proof, in which paths stand."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(log_dir.glob("*/*")) if path.suffix != ".json" and not path.name.startswith(".seglog")
    }
