"""A client of a schema registry's HTTP interface: as much of it as reading needs, over connections that are kept.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""
import base64
import io
import json
import os
import socket
import ssl
import threading
import time
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
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
_TIMEOUT_S_MAX = 86_400.0
_TOLD_MAX = 200         # characters of a registry's message
# What a URL's path may have as it is; %, since it may be quoted already.
_PATH_SAFE = "/%:@!$&'()*+,;=~"
_ANSWER_BYTES_MAX = 64 << 20
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_NOT_FOUND = 404
_CHECK_URL = "check that the URL is that of a schema registry"


class SchemaRegistry(SchemaSource):
    """A registry at `url`, with basic authentication (also as user:password@ in the URL) and TLS.

    `ca_file`: certificates to trust instead of the system's. `certificate`, `key`: files, to show who we are. `token`:
    for bearer authentication. `timeout`: seconds for a connection, and for each answer. Answers are kept: a schema
    never changes. Raises InvalidArgumentError.
    """

    def __init__(
        self, url: str, *, username: str | None = None, password: str | None = None, token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None, certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None, timeout: float = _TIMEOUT_S,
    ) -> None:
        parts = _checked_url(url)
        username = unquote(parts.username) if username is None and parts.username is not None else username
        password = unquote(parts.password) if password is None and parts.password is not None else password
        _check_login(username, password, token)
        if key is not None and certificate is None:
            raise InvalidArgumentError("give the certificate of the key", hint="SchemaRegistry(url, certificate=...)")
        for name, file in (("ca_file", ca_file), ("certificate", certificate), ("key", key)):
            if not isinstance(file, str | os.PathLike | None):
                raise InvalidArgumentError(f"{name} must be a path, not {file!r}")
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout <= _TIMEOUT_S_MAX:
            raise InvalidArgumentError(f"timeout must be seconds, up to {_TIMEOUT_S_MAX:.0f}, not {timeout!r}")
        self._parts = parts._replace(
            netloc=parts.netloc.rpartition("@")[2], path=quote(parts.path, safe=_PATH_SAFE), query="", fragment="",
        )
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
        if status == _NOT_FOUND and isinstance(body, dict):
            raise SchemaNotFoundError(f"the registry has {lacking}", file=self.url)
        if status == _NOT_FOUND:
            raise StorageError(
                "the registry answers HTTP 404, and not as a registry does", file=self.url, hint=_CHECK_URL,
            )
        if status in (401, 403):
            raise StorageError(
                f"the registry refuses access (HTTP {status})", file=self.url,
                hint="give SchemaRegistry(url, username=..., password=...) or a token that may read",
            )
        if status != 200:
            told = body.get("message") if isinstance(body, dict) else None
            raise StorageError(
                f"the registry answers HTTP {status}: {_printable(told) or 'nothing'}", file=self.url,
                hint=_todo(status),
            )
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
                if connection.sock is not None:     # the last answer took of its time
                    connection.sock.settimeout(self._timeout)
                connection.request("GET", path, headers=self._headers())
                answer = connection.getresponse()
                raw = answer.read(_ANSWER_BYTES_MAX + 1)
                if len(raw) > _ANSWER_BYTES_MAX:
                    what = f"the registry answers with more than {_ANSWER_BYTES_MAX} bytes"
                    raise StorageError(what, file=self.url, hint=_CHECK_URL)
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
        made = (
            HTTPConnection(parts.hostname, parts.port, timeout=self._timeout) if parts.scheme == "http" else
            HTTPSConnection(parts.hostname, parts.port, timeout=self._timeout, context=self._context())
        )
        made.response_class = _Answer
        return made

    def _context(self) -> ssl.SSLContext:
        ca_file, certificate, key = self._tls
        try:
            context = ssl.create_default_context(cafile=ca_file)
            if certificate is not None:
                context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"cannot use the certificates of the schema registry: {error}") from error
        return context

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT}
        if self._login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(self._login.encode()).decode()}"
        elif self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


class _Answer(HTTPResponse):
    """An answer that has the timeout of its socket in all: a peer that sends a byte now and then would hold a scan for
    hours."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Timely(sock))


class _Timely(io.RawIOBase):
    """Reads a socket until the time is over that it has for one call."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._ends_s = time.monotonic() + (sock.gettimeout() or _TIMEOUT_S)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


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
    return StorageError(f"the answer is not {what}", file=url, hint=_CHECK_URL)


def _todo(status: int) -> str:
    if 300 <= status < 400:
        return "give the URL to which it redirects"
    return "run again once the registry answers" if status >= 500 or status in (408, 429) else _CHECK_URL


def _printable(told: object) -> str:
    """A message of the registry: short, and with nothing that moves a terminal's cursor."""
    text = told[:_TOLD_MAX] if isinstance(told, str) else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _checked_url(url: str) -> SplitResult:
    hint = "such as https://registry.example.com:8081"
    if not isinstance(url, str):
        raise InvalidArgumentError(f"not the URL of a schema registry: {url!r}", hint=hint)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError as error:     # UnicodeError is one
        raise InvalidArgumentError(f"not the URL of a schema registry: {error}", hint=hint) from error
    if parts.scheme not in ("http", "https") or not host or not host.isprintable() or " " in host:
        raise InvalidArgumentError(f"not the URL of a schema registry: {url}", hint=hint)
    return parts


def _check_login(username: str | None, password: str | None, token: str | None) -> None:
    """Messages have the names, never the values."""
    if username is not None and token is not None:
        raise InvalidArgumentError("give either a username or a token")
    if password is not None and username is None:
        raise InvalidArgumentError("give the username of the password", hint="SchemaRegistry(url, username=...)")
    for name, value in (("username", username), ("password", password), ("token", token)):
        if value is None:
            continue
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{name} must be text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"{name} has a character that UTF-8 cannot hold") from None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise InvalidArgumentError("token must be printable ASCII", hint="read it without the end of its line")
