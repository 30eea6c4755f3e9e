"""Pages in a browser without a window, what axe-core finds on them, and marks for the tests that need either."""
import importlib.util
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

PATIENCE_S = 600
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_AXE = importlib.util.find_spec("axe_core_python")
# Defines `answer`, which sends its argument to a port of this machine.
_ANSWER = (
    "<script>function answer(told) {"
    "fetch('http://127.0.0.1:%d/', {method: 'POST', mode: 'no-cors', body: JSON.stringify(told)}) }"
    "window.onerror = told => answer({error: told});"
    "window.onunhandledrejection = event => answer({error: String(event.reason)})</script>"
)
_ASK_AXE = (
    "axe.run().then(r => answer({passes: r.passes.length, violations: r.violations.map("
    "v => [v.impact, v.id, v.nodes[0].html])}))"
)

needs_chromium = pytest.mark.skipif(
    _CHROMIUM is None, reason="no Chromium on this machine: the page is not looked at in a browser")
needs_axe = pytest.mark.skipif(
    _CHROMIUM is None or _AXE is None, reason="needs Chromium and axe-core (axe-core-python)")


def in_browser(url, profile):
    """The page's elements when it is loaded, and what the browser says about it."""
    done = subprocess.run(
        [*_command(profile), "--enable-logging=stderr", "--dump-dom", url],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout, done.stderr


class _Listener(HTTPServer):
    """A server for the answer of a page."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.told = queue.SimpleQueue()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.told.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def answer_of(page, directory, *scripts, options=()):
    """What one of the scripts, which are added to the page's text, passes to `answer`. `directory`: for files.

    The page sends the answer when it has it: --dump-dom with a time for scripts dumps a page whose scripts are not
    done, if the machine takes that time away.
    """
    with _Listener() as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        added = "".join(f"<script>{script}</script>" for script in scripts)
        asked = directory / "asked.html"
        asked.write_text(page.replace("</body>", f"{_ANSWER % listener.server_port}{added}</body>"))
        with running([*_command(directory / "profile"), *options, asked.as_uri()]):
            try:
                return json.loads(listener.told.get(timeout=PATIENCE_S))
            finally:
                listener.shutdown()


@contextmanager
def running(command):
    """A program and all that it starts, which are killed at the end; also if we are killed before."""
    # The shell reads until we close the pipe, or are gone; 0 is its process group.
    guard = subprocess.Popen(
        ["sh", "-c", '"$@" & read _; kill -9 0', "sh", *command],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
        guard.stdin.close()


def _command(profile):
    assert _CHROMIUM is not None
    return [_CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]


def by_axe(page, directory, scheme):
    """What axe-core says of the page: how many `passes`, and the `violations`. `scheme`: "light" or "dark"."""
    assert _AXE is not None
    if scheme == "dark":
        assert "(prefers-color-scheme:dark)" in page
        page = page.replace("(prefers-color-scheme:dark)", "all")
    axe = (Path(_AXE.submodule_search_locations[0]) / "axe.min.js").read_text()
    return answer_of(page, directory, axe, _ASK_AXE)
