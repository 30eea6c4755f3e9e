"""A web page, and metrics for Prometheus: `seglog serve --http 127.0.0.1:8080`.

    /               topics, their offsets and rates; groups, their offsets and lag
    /state.json     the same as JSON
    /metrics        seglog.metrics.PROCESS and the server's counters

It is read-only. Each connection gets one answer, and is then closed.
"""
import asyncio
import base64
import contextlib
import functools
import ipaddress
import json
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from http import HTTPStatus
from typing import Any, Protocol

from seglog.coordinators.timer import Paced
from seglog.endpoint.authentication import ANONYMOUS
from seglog.endpoint.security_log import SecurityLog
from seglog.endpoint.server_metrics import ServerCounters
from seglog.endpoint.topics import Topics
from seglog.endpoint.users import Users
from seglog.errors import SeglogError
from seglog.fs.refusals import storage_error
from seglog.metrics import PROCESS, Exposition

_HEAD_BYTES_MAX = 8 << 10
_REQUEST_S_MAX = 10.0
_SAMPLE_S = 1.0
_SAMPLES = 11           # so rates are averages of the last ten seconds
_STYLE = (
    "body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;width:100%;margin:.5em 0 2em}th,td{padding:.25em .6em;text-align:right;"
    "border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}th{background:#f4f4f4}"
    "p{color:#666}@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}th{background:#262626}"
    "th,td{border-color:#333}p{color:#999}}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


_ASK = 'WWW-Authenticate: Basic realm="seglog", charset="UTF-8"\r\n'
_FORBIDDEN = (HTTPStatus.FORBIDDEN, "text/plain", "this needs the operation DESCRIBE of the cluster")
_CONNECTIONS_MAX = 64
_FAILED_S = 0.1


class ShownGroup(Protocol):
    """A group, as the page shows it."""

    @property
    def group_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def members(self) -> int: ...
    @property
    def offsets(self) -> Mapping[tuple[str, int], int]: ...


class Page:
    """The HTTP server, in the server's loop. `host`, `port`: where it listens."""

    def __init__(
        self, topics: Topics, traffic: ServerCounters, groups: Callable[[], Iterable[ShownGroup]],
        name: Callable[[], str], *, users: Users | None = None, tls: ssl.SSLContext | None = None,
        names: Sequence[str] = (), security: SecurityLog | None = None,
        may_see: Callable[[str, str], bool] = lambda principal, host: True,
    ) -> None:
        """`groups` returns the current groups; `name` the address at which clients find the server. `users`: if
        None, it asks for no password. `names`: of this host, besides localhost. `may_see`: whether the page is for this
        principal, from this host."""
        self._users = users
        self._tls = tls
        self._names = frozenset(one.lower() for one in ("localhost", *names))
        self._security = security or SecurityLog()
        self._may_see = may_see
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._topics = topics
        self._traffic = traffic
        self._groups = groups
        self._name = name
        self._own = Exposition()
        self._own.add(traffic)
        self._showing = asyncio.Lock()      # one page is made at a time
        # (time, end offsets by partition, received bytes, sent bytes)
        self._samples: deque[tuple[float, dict[tuple[str, int], int], int, int]] = deque(maxlen=_SAMPLES)

    async def start(self, host: str, port: int) -> None:
        """Start listening. Raises StorageError if the address is not available."""
        try:
            self._server = await asyncio.start_server(
                self._connected, host, port, limit=_HEAD_BYTES_MAX, ssl=self._tls)
        except OSError as error:
            raise storage_error(error, "listen", f"{host}:{port}") from error
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        self._sampling = asyncio.get_running_loop().create_task(self._sample())

    async def stop(self) -> None:
        self._is_stopped = True
        self._server.close()
        tasks = [self._sampling, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sample(self) -> None:
        while True:
            paced, ends = Paced(), {}
            for name, number, log in self._topics.logs():
                await paced.pause()
                ends[name, number] = log.log_end_offset
            self._samples.append((time.monotonic(), ends, self._traffic.received_bytes, self._traffic.sent_bytes))
            await asyncio.sleep(_SAMPLE_S)

    # --- HTTP ------------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_stopped or len(self._tasks) >= _CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._answer(reader, writer))
        self._tasks.add(task)
        # This closes it, and not the task, which may be cancelled before its first step.
        task.add_done_callback(functools.partial(self._ended, writer))

    def _ended(self, writer: asyncio.StreamWriter, task: "asyncio.Task[None]") -> None:
        writer.close()
        self._tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_REQUEST_S_MAX):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                    refusal = await self._refusal(head, writer)
                    status, kind, body = refusal or await self._made(head)
                except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    status, kind, body = HTTPStatus.BAD_REQUEST, "text/plain", "not an HTTP request"
                data = body.encode()
                writer.write(
                    f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}; charset=utf-8\r\n"
                    f"Content-Length: {len(data)}\r\nContent-Security-Policy: {_POLICY}\r\n"
                    f"{_ASK if status is HTTPStatus.UNAUTHORIZED else ''}"
                    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
                    .encode())
                if not head.startswith(b"HEAD "):
                    writer.write(data)
                await writer.drain()

    async def _refusal(self, head: bytes, writer: asyncio.StreamWriter) -> tuple[HTTPStatus, str, str] | None:
        """Why the page is not shown. A page of another site whose name was made to lead here sends that name as Host;
        and a browser sends the password of this site to nobody else."""
        fields: dict[str, str] = {}
        for line in head.decode("latin-1").split("\r\n")[1:]:
            field, _, value = line.partition(":")
            fields.setdefault(field.strip().lower(), value.strip())
        if "host" in fields and not self._is_own(fields["host"]):      # every browser sends it
            return (HTTPStatus.MISDIRECTED_REQUEST, "text/plain",
                    "this is not a name of the server; use its address, localhost, or what --http or --advertise names")
        host = writer.get_extra_info("peername")[0]
        if self._users is None:
            return None if self._may_see(ANONYMOUS, host) else _FORBIDDEN
        name, password = _credentials(fields.get("authorization", ""))
        if await self._users.knows(name, password):
            return None if self._may_see(f"User:{name}", host) else _FORBIDDEN
        if name:
            self._security.login_failed(f"/{host}", name)
            await asyncio.sleep(_FAILED_S)
        return HTTPStatus.UNAUTHORIZED, "text/plain", "a user name and a password are needed"

    def _is_own(self, host: str) -> bool:
        """Whether this is an address, or a name of this host; either with a port or without."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    async def _made(self, head: bytes) -> tuple[HTTPStatus, str, str]:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return HTTPStatus.BAD_REQUEST, "text/plain", "not an HTTP/1 request"
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "only GET and HEAD are allowed"
        if path == "/":
            async with self._showing:
                return HTTPStatus.OK, "text/html", await asyncio.to_thread(_html, await self.state())
        if path == "/state.json":
            async with self._showing:
                return HTTPStatus.OK, "application/json", await asyncio.to_thread(json.dumps, await self.state())
        if path == "/metrics":
            async with self._showing:
                text = await asyncio.to_thread(PROCESS.text)
                return HTTPStatus.OK, "text/plain; version=0.0.4", text + self._own.text()
        return HTTPStatus.NOT_FOUND, "text/plain", "not found; try /, /state.json or /metrics"

    # --- contents --------------------------------------------------------------------------------

    async def state(self) -> dict[str, Any]:
        """The contents of the page, as data for JSON. There may be much of it: it lets the loop go on."""
        paced = Paced()
        seconds, before, received, sent = self._rates()
        topics: list[dict[str, Any]] = []
        for name in self._topics.names():
            partitions: list[dict[str, Any]] = []
            for number in range(self._topics.partition_count(name)):
                await paced.pause()
                try:
                    if not self._topics.is_made(name, number):
                        continue
                    # A log that is not open yet may need recovery, and the page must not wait for it.
                    log = (self._topics.open_log if self._topics.is_opening else self._topics.log)(name, number)
                    if log is None:
                        continue
                    end = log.log_end_offset
                    row: dict[str, Any] = {
                        "partition": number, "log_start_offset": log.log_start_offset, "log_end_offset": end,
                        "last_stable_offset": log.last_stable_offset, "log_bytes": log.stats().log_bytes,
                        "records_per_second": round(max(0, end - before.get((name, number), end)) / seconds, 1),
                    }
                except SeglogError as error:
                    row = {"partition": number, "error": error.what}
                partitions.append(row)
            topics.append({"topic": name, "partitions": partitions})
        ends = {
            (topic["topic"], row["partition"]): row["log_end_offset"]
            for topic in topics for row in topic["partitions"] if "error" not in row
        }
        groups: list[dict[str, Any]] = []
        for group in self._groups():
            await paced.pause()
            groups.append({
                "group": group.group_id, "state": group.state, "members": group.members,
                "offsets": [
                    {"topic": topic, "partition": number, "offset": offset,
                     "lag": None if (topic, number) not in ends else max(0, ends[topic, number] - offset)}
                    for (topic, number), offset in sorted(group.offsets.items())
                ],
            })
        return {
            "server": self._name(), "connections": self._traffic.connections,
            "received_bytes_per_second": round(received / seconds), "sent_bytes_per_second": round(sent / seconds),
            "topics": topics, "groups": groups,
        }

    def _rates(self) -> tuple[float, dict[tuple[str, int], int], int, int]:
        """(seconds of the sampled period, end offset of each partition at its start, bytes received, bytes sent)."""
        if not self._samples:
            return 1.0, {}, 0, 0
        when, ends, received, sent = self._samples[0]
        seconds = max(time.monotonic() - when, _SAMPLE_S)
        return seconds, ends, self._traffic.received_bytes - received, self._traffic.sent_bytes - sent


def _credentials(text: str) -> tuple[str, bytes]:
    """Name and password of `Authorization: Basic`; empty if they cannot be read."""
    scheme, _, encoded = text.partition(" ")
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        return (name.decode(), password) if scheme.lower() == "basic" and colon else ("", b"")
    except ValueError:
        return "", b""


def _html(state: dict[str, Any]) -> str:
    topics = [
        [f"{topic['topic']}-{row['partition']}", *(
            [row["error"]] if "error" in row else
            [row[key] for key in ("log_start_offset", "log_end_offset", "last_stable_offset", "log_bytes",
                                  "records_per_second")])]
        for topic in state["topics"] for row in topic["partitions"]
    ]
    groups = [
        [group["group"], group["state"], group["members"], f"{row['topic']}-{row['partition']}", row["offset"],
         "" if row["lag"] is None else row["lag"]]
        for group in state["groups"]
        for row in group["offsets"] or [{"topic": "", "partition": "", "offset": "", "lag": None}]
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>seglog serve</title>'
        '<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="2">'
        f"<style>{_STYLE}</style></head><body><main><h1>seglog serve</h1>"
        f"<p>{escape(state['server'])} · {state['connections']} connections · "
        f"{state['received_bytes_per_second']:,} bytes/s in · {state['sent_bytes_per_second']:,} bytes/s out</p>"
        "<h2>Topics</h2>"
        + _table("topics", ["partition", "begins", "ends", "stable to", "bytes", "records/s"], topics)
        + "<h2>Groups</h2>"
        + _table("groups", ["group", "state", "members", "partition", "offset", "lag"], groups)
        + "</main></body></html>\n"
    )


def _table(name: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else escape(str(value))
