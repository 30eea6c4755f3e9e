"""The id of the cluster that a server of a log dir is, for clients. docs/formats/cluster_id.md

A broker has its id in `meta.properties`, and a server of its log dir keeps it. Any other log dir gets one when it is
first served, in `.seglog.cluster_id`: not in `meta.properties`, since a broker would take the log dir for formatted.
"""
import base64
import contextlib
import uuid
from pathlib import Path
from typing import Any

from seglog.errors import CorruptSettingsError, SeglogError
from seglog.format import names
from seglog.format.checked_json import format_json, parse_json
from seglog.format.java_properties import parse_properties
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.logger import Logger

FILE_NAME = ".seglog.cluster_id"
FORMAT = "seglog-cluster-id"
VERSION = 1

_SIZE_MAX = 100     # a broker's own has 22 characters, but operators may choose one
_LOG = Logger(__name__)


def cluster_id(fs: FileSystem, log_dir: Path) -> str:
    """The id of this log dir, made and stored if it has none. If the file cannot be read or written, that is logged,
    and the id is for this run only: the logs can be served without it."""
    found = _of_broker(log_dir)
    if found is not None:
        return found
    path = log_dir / FILE_NAME
    made = new_cluster_id()
    try:
        with contextlib.suppress(FileNotFoundError):
            return parse_json(read_file(path), FORMAT, VERSION, path, _cluster_id, CorruptSettingsError)
        write_atomically(fs, path, format_json(FORMAT, VERSION, cluster_id=made))
    except SeglogError as error:
        _LOG.warning("clients will see another cluster id after the next start: %s", error)
    return made


def new_cluster_id() -> str:
    """22 characters, as Kafka's Uuid.randomUuid: none begins with a dash, which a shell would take for an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not made.startswith("-"):
            return made


def _of_broker(log_dir: Path) -> str | None:
    try:
        raw = read_file(log_dir / names.META_PROPERTIES)
        found = parse_properties(raw.decode("latin-1")).get("cluster.id", "")
    except (FileNotFoundError, SeglogError, ValueError):
        return None     # seglog needs nothing else from this file
    return found if _is_id(found) else None


def _cluster_id(body: dict[str, Any]) -> str:
    found = body["cluster_id"]
    if not isinstance(found, str) or not _is_id(found):
        raise ValueError(f"no cluster can have the id {found!r:.60}")
    return found


def _is_id(text: str) -> bool:
    return 0 < len(text) <= _SIZE_MAX and text.isascii() and text.isprintable()
