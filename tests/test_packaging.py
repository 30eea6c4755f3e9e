"""What pyproject.toml says twice agrees, and what it must not say is not there."""
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import seglog._kernels.window

TOP = Path(__file__).parent.parent
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())


def names(requirements):
    return {requirement.split(";")[0].split(">")[0].split("<")[0].strip() for requirement in requirements}


def test_the_environment_builds_with_what_an_isolated_build_gets():
    assert PROJECT["dependency-groups"]["build"] == PROJECT["build-system"]["requires"]


def test_heavy_libraries_are_extras():
    assert not names(PROJECT["project"]["dependencies"]) & {"numpy", "pandas", "pyarrow", "pyspark"}


def test_witnesses_stay_in_the_tests():
    extras = dict(PROJECT["project"]["optional-dependencies"])
    assert names(extras.pop("witness")) == {"crc32c"}       # which operators may call, too: `verify --witness`
    required = names(PROJECT["project"]["dependencies"]).union(*(names(extra) for extra in extras.values()))
    assert not required & {"aiokafka", "kafka-python", "crc32c", "hypothesis", "pytest"}


def imported_at_once(path):
    """What a file imports while it is imported itself: whole names, and what a `from` takes may be modules, too."""
    statement = re.compile(r"^(?:from (\S+) import (\([^)]*\)|.*)|import (\S+))", re.MULTILINE)
    for source, taken, whole in statement.findall(path.read_text()):
        yield source or whole
        yield from (f"{source}.{name}" for name in re.findall(r"\w+", taken))


def test_only_tests_of_spark_need_pyspark_to_be_collected():
    """`make dev` and `make test TESTS=...` run all others in an environment that has none."""
    files = {path: set(imported_at_once(path)) for path in (TOP / "tests").rglob("*.py")}
    support = {path.stem: path for path in files if TOP / "tests/support" in path.parents}

    def needs_it(path, seen):
        named = {name.split(".")[1] for name in files[path] if name.startswith("support.")} & support.keys()
        return "pyspark" in {name.split(".")[0] for name in files[path]} or any(
            needs_it(support[name], seen | {name}) for name in named - seen
        )

    others = [path for path in files if not {TOP / "tests/spark", TOP / "tests/support"} & set(path.parents)]
    assert len(others) > 300
    assert [str(path.relative_to(TOP)) for path in others if needs_it(path, set())] == []


def test_the_version_has_its_changes():
    version = re.search(r'"(.*)"', (TOP / "engine/seglog/_version.py").read_text())[1]
    assert re.search(rf"^## {re.escape(version)} ", (TOP / "CHANGES.md").read_text(), re.MULTILINE)


def test_tests_run_without_xdist_as_those_of_an_installed_wheel_do():
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--collect-only"]
    command = [sys.executable, "-m", "pytest", *options, __file__]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_oracle_looks_wherever_tests_have_its_mark():
    marked = [path for path in (TOP / "tests").rglob("test_*.py") if "pytest.mark.oracle" in path.read_text()]
    named = re.search(r"^ORACLE := (.+)$", (TOP / "Makefile").read_text(), re.MULTILINE)[1].split()
    marked.remove(Path(__file__))
    assert len(marked) > 30
    assert [path for path in marked if not any(path.is_relative_to(TOP / place) for place in named)] == []


def test_no_kernel_claims_to_do_without_the_gil():
    for source in [TOP / "setup.py", *(TOP / "cext").rglob("*.pyx")]:
        assert "freethreading_compatible" not in source.read_text(), source


def test_a_python_whose_gil_is_forced_off_is_refused():
    code = (
        "import sys\n"
        "flags = sys.flags\n"
        "class Forced:\n"
        "    gil = 0\n"
        "    def __getattr__(self, name): return getattr(flags, name)\n"
        "sys.flags = Forced()\n"
        "import seglog; seglog.open"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: seglog needs the GIL: unset PYTHON_GIL" in done.stderr


# --- the kernels of a build ------------------------------------------------------------------------


@pytest.fixture
def setup(monkeypatch):
    """setup.py as a module: it builds only as a program."""
    monkeypatch.syspath_prepend(str(TOP))
    return importlib.import_module("setup")


def test_a_module_that_was_not_written_to_its_end_is_not_whole(setup, tmp_path):
    whole = Path(seglog._kernels.window.__file__)
    assert setup.is_whole(whole)
    part = tmp_path / "window.so"
    assert not setup.is_whole(part)
    for size in (0, 40, 64, 4_096, whole.stat().st_size - 1):
        part.write_bytes(whole.read_bytes()[:size])
        assert not setup.is_whole(part), size


def test_builds_of_one_tree_wait_for_each_other(setup, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(TOP)!r}]; import setup\nwith setup.alone(): pass"]
    with setup.alone():
        waiting = subprocess.Popen(other, stderr=subprocess.PIPE, text=True)
        assert "waiting for another build" in waiting.stderr.readline()
        assert waiting.poll() is None
    _, told = waiting.communicate(timeout=60)
    assert (waiting.returncode, told) == (0, "")


@pytest.fixture
def package(tmp_path):
    """A copy of the package by links, in which a kernel may be spoilt."""
    copy = tmp_path / "seglog"
    shutil.copytree(TOP / "engine/seglog", copy, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "tools").symlink_to(TOP / "tools")
    return copy


def run_in(package, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | {"PYTHONPATH": str(package.parent)}, capture_output=True,
        text=True, check=False, timeout=60)


@pytest.mark.parametrize("kernel", ["window", "mapping", "columns"])
def test_an_empty_kernel_is_named_with_its_cause(package, kernel):
    module, = (package / "_kernels").glob(f"{kernel}.*.so")
    module.unlink()
    module.write_bytes(b"")
    done = run_in(package, "-m", "seglog.tools", "doctor")
    assert done.returncode == 1
    assert "file too short" in done.stdout
    assert "force-reinstall" in done.stdout
    done = run_in(package, "-c", f"import seglog._kernels.{kernel}")
    assert "file too short" in done.stderr
    assert "are not built" not in done.stderr


def test_kernels_that_were_never_built_are_called_that(package):
    for module in (package / "_kernels").glob("*.so"):
        module.unlink()
    done = run_in(package, "-c", "import seglog; seglog.open")
    assert "kernels are not built. In a checkout run: make build" in done.stderr


def test_workflows_run_no_action_that_others_can_change():
    # A tag or a branch is whatever its owner, or who has taken the account, says today.
    uses = [
        (path.name, line.strip())
        for path in sorted((TOP / ".github/workflows").glob("*.yml"))
        for line in path.read_text().splitlines() if "uses:" in line and "uses: ./" not in line
    ]
    assert len(uses) > 10
    pinned = re.compile(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} +# v\d+\.\d+\.\d+$")
    assert [use for use in uses if not pinned.search(use[1])] == []
    assert "package-ecosystem: github-actions" in (TOP / ".github/dependabot.yml").read_text()


def requirements_of(group):
    """The requirements of a group and of those that it includes; `build` needs those of seglog itself, too."""
    named = PROJECT["dependency-groups"][group]
    included = [entry["include-group"] for entry in named if isinstance(entry, dict)]
    own = [Requirement(entry) for entry in named if isinstance(entry, str)]
    own += [Requirement(entry) for entry in PROJECT["project"]["dependencies"] if group == "build"]
    return [*own, *(requirement for name in included for requirement in requirements_of(name))]


def test_the_lock_has_what_make_installs():
    """`make lock` writes it anew: what stands here in pyproject.toml alone would not be installed."""
    text = (TOP / ".ci/lock.txt").read_text()
    entry = r"^# (.+)\n(\S+?)==(\S+).*((?:\n {4}--hash=sha256:[0-9a-f]{64}(?: \\)?)+)$"
    entries = re.findall(entry, text, re.MULTILINE)
    assert len(entries) == text.count("==") - text.count(" == '") > 100
    versions = {
        (group, canonicalize_name(name)): version for groups, name, version, _ in entries for group in groups.split()
    }
    rule = re.search(r"^(.+): .*\n\t\$\(LOCKED\) \$\(notdir", (TOP / "Makefile").read_text(), re.MULTILINE)
    installed = re.findall(r"\.make/(\w+)", rule[1])
    assert {"unit", "test", "lint", "dist", "docs"} <= set(installed)
    for group in ("pip", "build", "spark", "java", *installed):
        for requirement in requirements_of(group):
            version = versions.get((group, canonicalize_name(requirement.name)))
            assert version is not None, f"make lock: {group} needs {requirement}"
            assert requirement.specifier.contains(version), f"make lock: {group} needs {requirement}, not {version}"
