"""The wheel carries everything that the tree has, and the locks pin everything that it needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TREE = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((TREE / "pyproject.toml").read_text(encoding="utf-8"))
RUNTIME = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
DEVELOPMENT = [Requirement(line) for line in PROJECT["dependency-groups"]["dev"]]
LOCKS = {"requirements.lock": RUNTIME, "requirements-dev.lock": [*RUNTIME, *DEVELOPMENT]}
COMMAND_TIMEOUT_S = 60


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command to its end; return its standard output, fail with all that it said."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the tree, by the locked build backend and without a network."""
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, cwd=TREE)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment with the wheel in it, and the locked packages in reach."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=True)
    binaries = home / "bin"
    python = binaries / "python"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel, cwd=home)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home)
    # A path found in a .pth file is searched, but its own .pth files are not read:
    # what this environment has installed is in reach, the tree that it edits is not.
    reach = Path(site.strip()) / "locked-packages.pth"
    reach.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return binaries


def files_of(directory: str, pattern: str = "*") -> set[str]:
    return {
        path.relative_to(TREE).as_posix()
        for path in (TREE / directory).rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_tree_has_something_to_ship() -> None:
    """None of the directories to ship is empty: being complete would say nothing then."""
    assert files_of("schemas", "*.schema.json")
    assert files_of("actors", "*.py")
    assert files_of("web", "*.py")


@pytest.mark.parametrize("directory", ["actors", "schemas", "web"])
def test_wheel_is_complete(wheel: Path, directory: str) -> None:
    """The wheel holds every file of its directories, byte for byte, and nothing else there."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith(directory + "/")}
        assert names == files_of(directory)
        for name in names:
            assert archive.read(name) == (TREE / name).read_bytes(), name


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    """No test, benchmark or stray file of the tree lands in somebody's site-packages."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"actors", "schemas", "web"}


def test_installed_schemas(installed: Path, tmp_path: Path) -> None:
    """Installed, the package validates with its own copy of the schemas, not with the tree's."""
    script = """
import json, actors
from actors.validation import payload_fault
print(json.dumps([actors.__file__, payload_fault("step_failed", {
    "step_id": "turn-1/step-1", "code": "x", "message": "y"}), payload_fault("step_failed", {})]))
"""
    origin, accepted, refused = json.loads(
        run(installed / "python", "-c", script, cwd=tmp_path).strip()
    )
    assert Path(origin).is_relative_to(installed.parent)
    assert accepted is None
    assert refused


def test_installed_command(installed: Path, tmp_path: Path) -> None:
    """The installed command and `python -m web` are the same, and name every subcommand."""
    told = run(installed / "sessiond", "--help", cwd=tmp_path)
    for command in ("serve", "invoke", "show", "verify", "export", "backup"):
        assert re.search(rf"^  {command}\b", told, re.MULTILINE), told
    assert run(installed / "python", "-m", "web", "--help", cwd=tmp_path) == told


def pins(lock: str) -> dict[str, str]:
    """The lock as name → version, each line of it accounted for."""
    found: dict[str, str] = {}
    text = (TREE / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pin = re.fullmatch(
            r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)(?P<marker> ; [^#]*?)?"
            r"(?P<hashes>(?:\s+--hash=sha256:[0-9a-f]{64})+)\s*",
            line,
        )
        assert pin, f"{lock}: not a hashed pin: {line[:80]}"
        assert pin["name"] not in found, f"{lock}: {pin['name']} has two versions"
        found[pin["name"]] = pin["version"]
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_names_no_address(lock: str) -> None:
    """A lock names no index, no link and no local path, so that any mirror serves it."""
    text = (TREE / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"(?i)\bfile:|--(extra-)?index|--find-links|^-[if]\b| @ ", text)
    assert not re.search(r"(?m)(^|\s)/", text)


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_satisfies_pyproject(lock: str) -> None:
    """Every requirement of pyproject.toml is pinned at a version that it allows."""
    pinned = pins(lock)
    for requirement in LOCKS[lock]:
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{lock} lacks {requirement.name}"
        assert requirement.specifier.contains(version), f"{lock}: {requirement}, not {version}"


def test_locks_agree() -> None:
    """What is tested is what is shipped: the development lock repeats the runtime lock."""
    runtime, development = pins("requirements.lock"), pins("requirements-dev.lock")
    assert {name: development.get(name) for name in runtime} == runtime
