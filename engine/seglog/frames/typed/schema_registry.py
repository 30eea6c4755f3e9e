"""A client of a schema registry's HTTP interface: as much of it as reading needs, over connections that are kept.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""
import base64
import json
import os
import ssl
import threading
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from seglog.errors import InvalidArgumentError, SchemaNotFoundError, StorageError
from seglog.frames.typed.schema_source import (
    DEFAULT_CONTEXT,
    SchemaSource,
    StoredSchema,
    schema_of_json,
)

_TIMEOUT_S = 30.0
_ANSWER_BYTES_MAX = 64 << 20
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_NOT_FOUND = 404


class SchemaRegistry(SchemaSource):
    """A registry at `url`, with basic authentication (also as user:password@ in the URL) and TLS.

    `ca_file`: certificates to trust instead of the system's. `certificate`, `key`: files, to show who we are. `token`:
    for bearer authentication. Answers are kept: a schema never changes. Raises InvalidArgumentError.
    """

    def __init__(
        self, url: str, *, username: str | None = None, password: str | None = None, token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None, certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None, timeout: float = _TIMEOUT_S,
    ) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidArgumentError(f"not the URL of a schema registry: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidArgumentError(
                f"not the URL of a schema registry: {url}", hint="such as https://registry.example.com:8081"
            )
        username = unquote(parts.username) if username is None and parts.username is not None else username
        password = unquote(parts.password) if password is None and parts.password is not None else password
        if username is not None and token is not None:
            raise InvalidArgumentError("give either a username or a token")
        self._parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        self._login = None if username is None else f"{username}:{password or ''}"
        self._token = token
        self._tls = (ca_file, certificate, key)
        self._timeout = timeout
        self._answers: dict[str, Any] = {}
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"      # never the credentials

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        return self._parts.geturl()

    def by_id(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> StoredSchema:
        there = "" if context == DEFAULT_CONTEXT else f"?subject={quote(f':{context}:', safe='')}"
        path = f"/schemas/ids/{schema_id}{there}"
        return _schema(self._get(path, f"no schema with the id {schema_id}", keep=True), schema_id, self.url + path)

    def versions(self, subject: str) -> list[StoredSchema]:
        path = f"/subjects/{quote(subject, safe='')}/versions"
        try:
            numbers = self._get(path, f"no subject {subject}")
        except SchemaNotFoundError:
            return []
        if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
            raise _odd(self.url, f"versions of {subject}")
        return [self.version(subject, number) for number in sorted(numbers)]

    def latest(self, subject: str) -> StoredSchema | None:
        """The last version; None if there is none."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        try:
            return _schema(self._get(path, f"no subject {subject}"), None, self.url + path)
        except SchemaNotFoundError:
            return None

    def version(self, subject: str, version: int) -> StoredSchema:
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
        return _schema(self._get(path, f"no version {version} of {subject}", keep=True), None, self.url + path)

    # --- over HTTP ------------------------------------------------------------------------------

    def _get(self, path: str, lacking: str, *, keep: bool = False) -> Any:
        if path in self._answers:
            return self._answers[path]
        status, raw = self._ask(self._parts.path.rstrip("/") + path)
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = None
        if status == _NOT_FOUND:
            raise SchemaNotFoundError(f"the registry has {lacking}", file=self.url)
        if status in (401, 403):
            raise StorageError(
                f"the registry refuses access (HTTP {status})", file=self.url,
                hint="give SchemaRegistry(url, username=..., password=...) or a token that may read",
            )
        if status != 200:
            told = body.get("message") if isinstance(body, dict) else None
            raise StorageError(f"the registry answers HTTP {status}: {told or 'nothing'}", file=self.url)
        if body is None:
            raise _odd(self.url, "JSON")
        if keep:
            self._answers[path] = body
        return body

    def _ask(self, path: str) -> tuple[int, bytes]:
        """Status and body. A connection that the registry has closed meanwhile is opened again once."""
        for is_last in (False, True):
            kept: _Kept | None = getattr(self._local, "connection", None)
            is_kept = kept is not None
            if kept is None:
                kept = self._local.connection = _Kept(self._connection(self._parts))
            connection = kept.connection
            try:
                connection.request("GET", path, headers=self._headers())
                answer = connection.getresponse()
                raw = answer.read(_ANSWER_BYTES_MAX + 1)
                if len(raw) > _ANSWER_BYTES_MAX:
                    raise StorageError(f"the registry answers with more than {_ANSWER_BYTES_MAX} bytes", file=self.url)
                return answer.status, raw
            except (OSError, HTTPException) as error:
                connection.close()
                self._local.connection = None
                if is_last or not is_kept:
                    raise StorageError(
                        f"cannot reach the schema registry: {error or type(error).__name__}", file=self.url,
                        hint="check the URL, and whether the registry runs",
                    ) from error
        raise AssertionError("unreachable")

    def _connection(self, parts: SplitResult) -> HTTPConnection:
        assert parts.hostname is not None
        if parts.scheme == "http":
            return HTTPConnection(parts.hostname, parts.port, timeout=self._timeout)
        ca_file, certificate, key = self._tls
        try:
            context = ssl.create_default_context(cafile=ca_file)
            if certificate is not None:
                context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"cannot use the certificates of the schema registry: {error}") from error
        return HTTPSConnection(parts.hostname, parts.port, timeout=self._timeout, context=context)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT}
        if self._login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(self._login.encode()).decode()}"
        elif self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


class _Kept:
    """A thread's connection: closed when the thread or the registry is gone, since nobody closes a scan."""

    def __init__(self, connection: HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


def _schema(body: Any, schema_id: int | None, url: str) -> StoredSchema:
    try:
        return replace(schema_of_json(body, schema_id), file=url)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _odd(url, "a schema") from error


def _odd(url: str, what: str) -> StorageError:
    return StorageError(f"the answer is not {what}", file=url, hint="check that the URL is that of a schema registry")
