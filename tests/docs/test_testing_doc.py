"""docs/testing.md: its files are tests that pass, in a pytest of their own with nothing but what the page tells."""
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/testing.md").read_text()


def test_the_files_of_the_page_pass(tmp_path):
    files = re.findall(r"```python\n# (\S+\.py)\n(.*?)```\n", PAGE, re.DOTALL)
    assert len(files) == 7
    for name, code in files:
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
