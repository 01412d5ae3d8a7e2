"""The pages against the code, both ways: what they name exists, and what exists is named."""

from __future__ import annotations

import ast
import json
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
import httpx
import pytest
from docs_support import PAGES, ROOT, Page, page
from log_support import rows_of, write_rows
from openapi_support import codes_of, operations
from process_support import ANNOUNCED, PATIENCE_S

from actors.codec import decode_event
from benchmarks.run import FAMILIES
from benchmarks.run import main as bench
from web.cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Starts what a page shows as a program, but on a port of the system's choice.
EXAMPLE = """
import sys
import attrs, trio

run = trio.run
trio.run = lambda main, config: run(main, attrs.evolve(config, port=0))
exec(compile(sys.argv[1], "README.md", "exec"), {"__name__": "__main__"})
"""


# --- the pages by themselves ----------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    """Whoever comes first has it read in a few minutes."""
    assert page("README.md").text.count("\n") < 150


@pytest.mark.parametrize("a_page", PAGES, ids=lambda a_page: a_page.name)
def test_links_lead_somewhere(a_page: Page) -> None:
    """Each link within the project leads to a file, and to a heading where it names one."""
    for link in a_page.links:
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        target, _, fragment = link.partition("#")
        path = a_page.path.parent / target if target else a_page.path
        assert path.exists(), link
        if fragment:
            assert fragment in page(path.resolve().relative_to(ROOT).as_posix()).anchors, link


def test_every_page_is_linked() -> None:
    """From the README a reader comes to every page."""
    seen: set[str] = set()
    ahead = ["README.md"]
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        for link in page(name).links:
            path = (ROOT / name).parent.joinpath(link.partition("#")[0]).resolve()
            if path.suffix == ".md" and path.is_file():
                ahead.append(path.relative_to(ROOT).as_posix())
    assert seen == {each.name for each in PAGES}


@pytest.mark.parametrize("a_page", PAGES, ids=lambda a_page: a_page.name)
def test_files_that_are_named_exist(a_page: Page) -> None:
    """A path of the tree that stands in a page is a file or a folder, or a pattern of some."""
    folders = "actors|web|schemas|tests|benchmarks|docs|samples|events|common"
    for span in a_page.spans:
        if re.fullmatch(rf"({folders})/[\w./*<>-]*", span) and "{" not in span:
            pattern = re.sub(r"<\w+>", "*", span).rstrip("/")
            assert any([*ROOT.glob(pattern), *a_page.path.parent.glob(pattern)]), span


def test_tests_that_are_named_exist() -> None:
    """The tests that hold the promises are there, file by file and name by name."""
    guarantees = page("docs/guarantees.md")
    named = re.findall(r"(?:tests/)?(test_\w+)(\.py|…)?", "\n".join(guarantees.spans))
    assert len(named) > 20
    functions = {
        name
        for path in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    for name, ending in named:
        if ending == ".py":
            assert (ROOT / "tests" / f"{name}.py").is_file(), name
        elif ending == "…":
            assert any(function.startswith(name) for function in functions), name
        else:
            assert name in functions, name


# --- commands and recipes -------------------------------------------------------------------------


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return a command's options by their long names."""
    return {
        parameter.opts[0]: parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
    }


def test_every_command_has_its_place() -> None:
    """README and commands.md name the commands there are, in the order of `sessiond --help`."""
    listed = re.findall(r"`sessiond (\w+)", "\n".join(row[0] for row in readme_commands()))
    headings = re.findall(r"^## (\w+)$", page("docs/commands.md").text, re.MULTILINE)
    assert listed == headings == list(cli.commands)


def readme_commands() -> Iterator[list[str]]:
    """Yield the rows of the README's table of commands."""
    return page("README.md").section("Commands").rows()


@pytest.mark.parametrize("name", cli.commands)
def test_options(name: str) -> None:
    """A command's section has a row for each option, with its default, in the order of --help."""
    command = cli.commands[name]
    options = options_of(command)
    rows = list(page("docs/commands.md").section(name).rows())
    assert [row[0].strip("`").split()[0] for row in rows] == list(options)
    for row, option in zip(rows, options.values(), strict=True):
        assert len(row[0].strip("`").split()) == (1 if option.is_flag else 2)
        default = option.to_info_dict()["default"]
        if isinstance(default, str | int | float) and default not in {"", False}:
            assert row[1] == f"`{default}`", row
        else:
            assert "`" not in row[1], row
        if isinstance(option.type, click.Choice):
            assert {f"`{choice}`" for choice in option.type.choices} <= set(
                re.findall(r"`[^`]+`", row[1] + row[2])
            )


@pytest.mark.parametrize("name", cli.commands)
def test_variables(name: str) -> None:
    """Each option is set by the variable that the rule in commands.md makes of its name."""
    group = click.Context(cli, info_name="sessiond", auto_envvar_prefix="SESSIOND")
    context = click.Context(cli.commands[name], parent=group, info_name=name)
    for long_name, option in options_of(cli.commands[name]).items():
        spelt = f"SESSIOND_{name}_{long_name.removeprefix('--')}".upper().replace("-", "_")
        assert spelt in {option.envvar, f"{context.auto_envvar_prefix}_{option.name}".upper()}


def test_options_that_are_named_exist() -> None:
    """What looks like an option or a variable of ours anywhere in the pages is one."""
    known = {"--help", "--version", *options_of(bench)}
    for command in cli.commands.values():
        known |= set(options_of(command))
    # Those of other programs that the pages call.
    others = {"--upgrade", "--metadata", "--require-hashes", "--src-lang", "--lang", "--src"}
    for a_page in PAGES:
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", a_page.code):
            assert option in known | others, (a_page.name, option)
        for variable in re.findall(r"SESSIOND_[A-Z_]+(?![A-Z_<])", a_page.code):
            name, _, option = variable.removeprefix("SESSIOND_").lower().partition("_")
            assert f"--{option.replace('_', '-')}" in options_of(cli.commands[name]), variable


def test_commands_that_are_named_exist() -> None:
    """What follows `sessiond` in code is a command."""
    for a_page in PAGES:
        for word in re.findall(r"(?:^|[\s`/])sessiond ([a-z]\w*)\b", a_page.code):
            assert word in {*cli.commands, "listening"}, (a_page.name, word)


def test_exit_codes() -> None:
    """The codes of commands.md are those that the commands' --help names."""
    told = {int(row[0]) for row in page("docs/commands.md").rows() if row[0].isdigit()}
    helps = [
        command.get_help(click.Context(command, info_name=name))
        for name, command in cli.commands.items()
    ]
    assert told == {
        int(code)
        for text in helps
        for code in re.findall(r"^ +(\d+)  ", text.partition("Exit codes:")[2], re.MULTILINE)
    }


def test_recipes() -> None:
    """The pages name the recipes that `just` lists, every one of them, and no other."""
    justfile = (ROOT / "Justfile").read_text(encoding="utf-8")
    listed = {
        name
        for private, name in re.findall(
            r"^(\[private\]\n)?(?:\[[\w-]+\]\n)*@?([a-z]\w*)(?: \*[A-Z]+)?:(?!=)",
            justfile,
            re.MULTILINE,
        )
        if not private
    }
    assert {"run", "test", "check"} <= listed
    named = {name for each in PAGES for name in re.findall(r"\bjust ([a-z]+)", each.code)}
    assert named == listed


def test_benchmark_options() -> None:
    """The benchmarks' page has a row for each of their options, and names their families."""
    told = page("benchmarks/README.md")
    spans = re.findall(r"--[a-z-]+", "\n".join(told.first_spans()))
    assert sorted(spans) == sorted(options_of(bench))
    assert set(FAMILIES) <= set(told.spans)


# --- HTTP -----------------------------------------------------------------------------------------


def test_routes() -> None:
    """http.md lists the routes and methods of the OpenAPI document, which is held to the code."""
    listed = {
        (method, path)
        for span in page("docs/http.md").first_spans()
        for method, path in re.findall(r"^([A-Z]+) (/\S*)$", span)
    }
    described = {
        (operation.method, operation.path)
        for operation in operations()
        if operation.method not in {"HEAD", "OPTIONS"}
    }
    assert listed == described


def test_problem_codes() -> None:
    """http.md and the OpenAPI document name the same codes, with the same statuses."""
    listed: dict[str, set[int]] = {}
    for row in page("docs/http.md").rows():
        codes = re.findall(r"`([a-z_]+)`", " ".join(row[:2]))
        statuses = re.findall(r"\b[45]\d\d\b", " ".join(row[:2]))
        if len(row) == 3 and len(statuses) == 1:
            for code in codes:
                listed.setdefault(code, set()).add(int(statuses[0]))
    described = {"method_not_allowed": {405}}  # told of no operation: none is asked for that way
    for operation in operations():
        for status, response in operation.responses.items():
            for code in codes_of(response):
                described.setdefault(code, set()).add(status)
    assert listed == described


def test_tool_error_codes() -> None:
    """http.md names each code with which a tool call is answered."""
    made: set[str] = set()
    for name in ("agent", "tools", "turns"):
        for node in ast.walk(ast.parse((ROOT / f"actors/{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "ErrorInfo":
                made |= {str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    assert "unknown_tool" in made
    assert made <= set(page("docs/http.md").spans)


# --- storage --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's session, with tools, a failure and answers, in a database."""
    path = tmp_path_factory.mktemp("docs") / "sessiond.sqlite3"
    lines = (ROOT / "docs/demo/session.jsonl").read_text(encoding="utf-8").splitlines()
    envelopes: list[dict[str, Any]] = [json.loads(line) for line in lines]
    write_rows(
        path,
        rows_of(decode_event(each["type"], json.dumps(each["payload"])) for each in envelopes),
    )
    return path


def test_columns(database: Path) -> None:
    """storage.md has a row for each column of the table, and its definition has the same."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        columns = connection.execute("SELECT name, type FROM pragma_table_info('session_events')")
        found: list[tuple[str, str]] = columns.fetchall()
    storage = page("docs/storage.md")
    listed = [row[0].strip("`") for row in storage.rows()]
    assert listed[: len(found)] == [name for name, _ in found]
    definition = storage.blocks("sql")[0]
    assert re.findall(r"(\w+) (TEXT|INTEGER|BLOB)", definition) == found


def queries() -> list[str]:
    """Return the SQL of storage.md: of its blocks, its shell commands and Datasette's metadata."""
    storage = page("docs/storage.md")
    found = [query for block in storage.blocks("sql")[1:] for query in block.split(";")]
    for block in storage.blocks("sh"):
        found += re.findall(r'"(SELECT [^"]+)"', block)
    for block in storage.blocks("json"):
        metadata: dict[str, Any] = json.loads(block)
        for known in metadata["databases"].values():
            found += [query["sql"] for query in known["queries"].values()]
    return [query.strip() for query in found if query.strip()]


@pytest.mark.parametrize("query", queries())
def test_queries(query: str, database: Path) -> None:
    """Each query of storage.md runs, and finds something in a session that has what it asks for."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(query).fetchall()
    assert rows
    assert all(value is not None for row in rows for value in row)


# --- refused starts -------------------------------------------------------------------------------


def templates(*names: str) -> list[str]:
    """Return the texts of modules' code, with "…" where a value is put in."""
    found: list[str] = []
    for name in names:
        for path in ROOT.glob(name):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                text = _template(node)
                if text is not None:
                    found.append(text)
    return found


def _template(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        return "".join(str(part) for part in parts)
    return None


def says(fragment: str, text: str) -> bool:
    """Tell whether a line holds a fragment of which "…" and N stand for any values."""
    parts = re.split(r"…|\bN\b", fragment)
    return re.search(".+".join(map(re.escape, parts)), text) is not None


def refusals() -> list[str]:
    """Return what operations.md quotes of the lines of refused starts."""
    section = page("docs/operations.md").section("When a start is refused")
    return [fragment for fragment in section.first_spans() if fragment]


def test_quoted_refusals_exist() -> None:
    """Each line that operations.md quotes is one that the code can print."""
    texts = templates("actors/*.py", "web/**/*.py")
    for fragment in refusals():
        assert any(says(fragment, text) for text in texts), fragment


def test_every_refusal_is_quoted() -> None:
    """Each reason to refuse a file at the start stands in operations.md."""
    reasons: list[str] = []
    for name in ("layout", "owner_lock", "reader", "store"):
        for node in ast.walk(ast.parse((ROOT / f"actors/{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "StoreError":
                # A fault of a backup's destination is no refused start, nor are these.
                if ast.unparse(node.args[-1]) == "destination":
                    continue
                text = _template(node.args[0])
                assert text is not None, ast.unparse(node)
                reasons.append(text)
    others = {
        "there is no database",  # the offline commands make none
        "there is nothing in the database yet",
        "the database file was moved, deleted or replaced",  # while it is written or closed
        "the database could not be checkpointed: …",
    }
    assert others <= set(reasons)
    quoted = refusals()
    for reason in set(reasons) - others:
        assert any(says(fragment, reason) for fragment in quoted), reason


# --- examples -------------------------------------------------------------------------------------


def test_the_library_example_runs(tmp_path: Path) -> None:
    """The README's program serves a session, and its model is offered the tool."""
    (program,) = page("README.md").blocks("python")
    with subprocess.Popen(
        [sys.executable, "-c", EXAMPLE, program],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().removeprefix(ANNOUNCED)
            with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
                asked = client.post("/api/v1/agent/invocations/first", json={"input": "roll"})
                assert asked.status_code == 200, asked.text
                events = client.get("/api/v1/sessions/default").json()["events"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    (request,) = [each for each in events if each["type"] == "model_request_recorded"]
    assert "roll" in {tool["name"] for tool in request["payload"]["tools"]}
    assert (tmp_path / "sessiond.sqlite3").is_file()


def test_json_examples_are_json() -> None:
    """What a page shows as JSON can be parsed."""
    blocks = [block for each in PAGES for block in each.blocks("json")]
    assert blocks
    for block in blocks:
        json.loads(block)
