"""Pages in a browser without a window, what axe-core finds on them, and marks for the tests that need either."""
import html
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_AXE = importlib.util.find_spec("axe_core_python")
# Defines `answer`, whose argument `answer_of` returns.
_ANSWER = (
    "<script>function answer(told) { const p = document.createElement('pre'); p.id = 'answer';"
    "p.textContent = JSON.stringify(told); document.body.append(p) }</script>"
)
_ASK_AXE = (
    "axe.run().then(r => answer({passes: r.passes.length, violations: r.violations.map("
    "v => [v.impact, v.id, v.nodes[0].html])}))"
)

needs_chromium = pytest.mark.skipif(
    _CHROMIUM is None, reason="no Chromium on this machine: the page is not looked at in a browser")
needs_axe = pytest.mark.skipif(
    _CHROMIUM is None or _AXE is None, reason="needs Chromium and axe-core (axe-core-python)")


def in_browser(url, profile, *options):
    """The page's elements when it is loaded, and what the browser says about it."""
    assert _CHROMIUM is not None
    done = subprocess.run(
        [_CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
         f"--user-data-dir={profile}", *options, url],
        capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def answer_of(page, directory, *scripts, options=()):
    """What one of the scripts, which are added to the page's text, passes to `answer`. `directory`: for files."""
    added = "".join(f"<script>{script}</script>" for script in scripts)
    (directory / "asked.html").write_text(page.replace("</body>", f"{_ANSWER}{added}</body>"))
    told, _ = in_browser((directory / "asked.html").as_uri(), directory / "profile", *options)
    return json.loads(html.unescape(re.search(r'<pre id="answer">(.*?)</pre>', told, re.DOTALL)[1]))


def by_axe(page, directory, scheme):
    """What axe-core says of the page: how many `passes`, and the `violations`. `scheme`: "light" or "dark"."""
    assert _AXE is not None
    if scheme == "dark":
        assert "(prefers-color-scheme:dark)" in page
        page = page.replace("(prefers-color-scheme:dark)", "all")
    axe = (Path(_AXE.submodule_search_locations[0]) / "axe.min.js").read_text()
    return answer_of(page, directory, axe, _ASK_AXE, options=["--virtual-time-budget=20000"])
