"""The structure: who imports whom, and who may touch the file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import actors

ROOT = Path(actors.__file__).parent.parent
# The order stands in the package's docstring, lowest first, one module a line.
ORDER = [line.split()[0] for line in (actors.__doc__ or "").splitlines()[2:] if line.strip()]
WEB_ORDER = [
    *("interpreter", "streams", "progress", "versions", "logs"),
    *(
        "problems",
        "guard",
        "page",
        "runtime",
        "openapi",
        "session_body",
        "api",
        "app",
        "server",
        "host",
    ),
    *("offline", "requests", "client", "advice", "show", "follow", "surroundings", "doctor"),
    *("manual", "ending", "parameters", "commands", "cli", "__main__"),
]
# What synchronous code must not know, and what the offline commands must not pay for.
ASYNC_LIBRARIES = {"trio", "hypercorn", "quart", "quart_trio"}


def modules(package: str) -> list[Path]:
    """Return a package's source files, itself left out."""
    return [
        path for path in (ROOT / package).rglob("*.py") if path != ROOT / package / "__init__.py"
    ]


def imports(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            is_package = (ROOT / module.replace(".", "/")).is_dir()
            names |= {f"{module}.{alias.name}" for alias in node.names} if is_package else {module}
    return names


def layer(name: str) -> str:
    """Return a module's name within its package: a subpackage is one layer."""
    return name.split(".")[1] if "." in name else ""


def name_of(path: Path) -> str:
    """Return a source file's module name."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize(("package", "order"), [("actors", ORDER), ("web", WEB_ORDER)])
def test_every_module_has_its_place(package: str, order: list[str]) -> None:
    """The order names each module once, and only modules there are."""
    assert sorted(order) == sorted({layer(name_of(path)) for path in modules(package)})


@pytest.mark.parametrize(("package", "order"), [("actors", ORDER), ("web", WEB_ORDER)])
def test_imports_point_down(package: str, order: list[str]) -> None:
    """A module imports only from those before it in the order."""
    for path in modules(package):
        own = layer(name_of(path))
        for imported in imports(path):
            if imported.split(".")[0] == package and layer(imported) != own:
                assert order.index(layer(imported)) < order.index(own), f"{path}: {imported}"


def test_actors_never_imports_web() -> None:
    """The domain knows nothing of the Host around it."""
    for path in modules("actors"):
        assert not {name for name in imports(path) if name.split(".")[0] == "web"}, path


def test_the_store_and_the_values_know_no_event_loop() -> None:
    """What stands before the tasks in the order is synchronous."""
    for name in ORDER[: ORDER.index("tasks")]:
        found = {imported.split(".")[0] for imported in imports(ROOT / "actors" / f"{name}.py")}
        assert not found & ASYNC_LIBRARIES, name


def test_the_file_is_known_to_few() -> None:
    """Rows come from the file through the log and the offline commands alone."""
    allowed = {"actors.session_log", "actors.store", "web.offline", "web.follow", "web.doctor"}
    known = {"actors.companions", "actors.reader", "actors.layout", "actors.rows"}
    allowed |= {"web.versions", "web.commands.files"}  # of SQLite itself; opens what these read
    for path in (*modules("actors"), *modules("web")):
        if {"actors.store", "actors.companions", "actors.reader", "sqlite3"} & imports(path):
            assert name_of(path) in allowed | known


def test_only_the_writer_commits() -> None:
    """There is one caller of ``Store.commit``."""
    callers = [
        name_of(path)
        for path in (*modules("actors"), *modules("web"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "commit" and "store" in ast.dump(node)
    ]
    assert set(callers) == {"actors.writer"}
