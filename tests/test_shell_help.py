"""The help, the completion and the errors of the command line, and what each of them names."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from log_support import Conversation, rows_of, write_rows
from process_support import PATIENCE_S, TREE, error_line, sessiond, sessiond_each

from web.cli import cli

if TYPE_CHECKING:
    from click.testing import Result

NAMES = sorted(cli.commands)
BASH = shutil.which("bash") or ""
with_bash = pytest.mark.skipif(not BASH, reason="there is no bash here")


def run(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_help_is_a_manual(name: str) -> None:
    """Each command's help has its synopsis, its examples, and what its exit codes mean."""
    told = run(name, "--help")
    assert told.exit_code == 0
    assert run(name, "-h").stdout == told.stdout
    assert told.stdout.startswith(f"Usage: cli {name}")
    assert "\n  Examples:\n" in told.stdout
    assert re.search(r"\n  Exit codes:\n +0  ", told.stdout)
    assert max(map(len, told.stdout.splitlines())) <= 80
    for option in cli.commands[name].params:
        if isinstance(option, click.Option):
            flag = option.opts[0].removeprefix("--").upper().replace("-", "_")
            unwrapped = " ".join(told.stdout.split())
            assert f"env var: SESSIOND_{name.upper()}_{flag}" in unwrapped


def examples() -> list[str]:
    told = [run(name, "--help").stdout for name in NAMES] + [run("--help").stdout]
    blocks = [text.partition("Examples:\n")[2].partition("\n\n")[0] for text in told]
    return [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("example", examples())
def test_examples_can_be_typed(example: str) -> None:
    """An example names commands and options that there are, and is what a shell can read."""
    assert subprocess.run(["/bin/sh", "-n", "-c", example], check=False).returncode == 0
    words = shlex.split(
        example.partition("$(sessiond")[2].partition(")")[0] or example, comments=True
    )
    if "sessiond" in words:
        words = words[words.index("sessiond") + 1 :]
    end = next((at for at, word in enumerate(words) if word in {"|", ">", "<", "||"}), None)
    name, *rest = words[:end]
    if name == "COMMAND":
        return
    options = {each for param in cli.commands[name].params for each in param.opts}
    assert {word for word in rest if re.match("--?[a-z]", word)} <= options


def test_help_of_the_whole() -> None:
    """The commands stand in the order in which one needs them, each with a line."""
    told = run("--help").stdout
    assert re.findall(r"^  ([a-z]+)  ", told, re.MULTILINE) == list(cli.commands)
    assert next(iter(cli.commands)) == "serve"
    assert "..." not in told.partition("\n")[2]


# --- completion ---------------------------------------------------------------------------------

ASKING = """
eval "$(sessiond completion bash)"
compopt() { printf 'compopt %s %s\\n' "$@"; }
ask() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _sessiond_completion sessiond
  echo "${COMPREPLY[@]}"
}
"""


def completed(*questions: tuple[str | Path, ...]) -> list[str]:
    """Return what bash would offer for the last word of each question, a line each."""
    asked = [shlex.join(["ask", "sessiond", *map(str, words)]) for words in questions]
    done = subprocess.run(
        [BASH, "--norc", "-c", ASKING + "\n".join(asked)],
        cwd=TREE,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@with_bash
def test_completion_in_bash(tmp_path: Path) -> None:
    """It offers commands, options, choices and files; and of a database the ids in it.

    Nothing is left beside the database by that. Where there is none to read there is nothing to
    offer, and no word about it.
    """
    database, broken = tmp_path / "session.sqlite3", tmp_path / "broken"
    write_rows(database, rows_of(Conversation().turn()))
    write_rows(database, rows_of(Conversation().turn(), "second"), "second")
    broken.write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)
    before = sorted(tmp_path.iterdir())
    offered = {
        ("s",): "serve show",
        ("show", "--f"): "--follow",
        ("serve", "--log-format", ""): "console json",
        ("show", database, "--session-id", ""): "default second",
        ("serve", "--session-db", database, "--session-id", "s"): "second",
        ("export", broken, "--session-id", ""): "",
        ("export", tmp_path, "--session-id", ""): "",
        ("export", "--session-id", ""): "",
    }
    assert completed(*offered, ("show", "sess")) == [*offered.values(), "compopt -o default", ""]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    """Each shell's script is click's own for this command, and names its variable."""
    script = run("completion", shell).stdout
    assert f"_SESSIOND_COMPLETE={shell}_complete" in script
    assert "sessiond" in script
    if shell == "bash" and BASH:
        assert subprocess.run([BASH, "-n", "-c", script], check=False).returncode == 0


# --- errors -------------------------------------------------------------------------------------


def test_errors_name_what_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an option got wrong is told with the option, and a variable with its name."""
    monkeypatch.setenv("BLANK", " \n")
    monkeypatch.setenv("TWO_LINES", "one\ntwo")
    monkeypatch.delenv("NOT_SET", raising=False)
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"\xff")
    model = ("--model-url", "http://127.0.0.1:1/v1", "--model", "m")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = {
            ("--port", port): f"port {port}: Address already in use; another --port",
            ("--host", "192.0.2.1"): "--host 192.0.2.1: not a loopback address",
            ("--model-replay", "/none"): "--model-replay /none: cannot be read: No such file",
            ("--model-url", "ftp://x", "--model", "m"): "--model-url: the model URL must begin",
            ("--model-url", "http://x", "--model", ""): "--model: the model's name must not be",
            (*model, "--model-key-env", "NOT_SET"): "--model-key-env NOT_SET: no such variable",
            (*model, "--model-key-env", "BLANK"): "--model-key-env BLANK: the variable is blank",
            (*model, "--model-key-env", "TWO_LINES"): "--model-key-env TWO_LINES: the key of the",
            ("--system-prompt", f"@{tmp_path}"): f"--system-prompt @{tmp_path}: cannot be read",
            ("--system-prompt", f"@{prompt}"): f"--system-prompt @{prompt}: is not UTF-8 text",
            ("--session-db", str(tmp_path)): f"{tmp_path}: is a directory",
        }
        runs = sessiond_each([("serve", "--port", "0", *options) for options in cases])
    for told, done in zip(cases.values(), runs, strict=True):
        assert told in error_line(done)


WRONG = {
    "serve --port": {
        "http": "'http' is not a whole number from 0 to 65535",
        "65536": "'65536' is not a whole number from 0 to 65535",
        "-1": "'-1' is not a whole number from 0 to 65535",
        "1.5": "'1.5' is not a whole number from 0 to 65535",
    },
    "serve --max-steps": {
        "0": "'0' is not a whole number of 1 or more",
        "many": "'many' is not a whole number of 1 or more",
    },
    "serve --connect-timeout": {
        "soon": "'soon' is not a number of seconds, more than 0",
        "0": "'0' is not a number of seconds, more than 0",
    },
    "serve --request-timeout": {"nan": "'nan' is not a number of seconds, more than 0"},
    "serve --session-id": {"a b": "'a b' is not an id"},
    "serve --log-format": {"xml": "'xml' is not one of 'console', 'json'"},
    "serve --log-level": {"loud": "'loud' is not one of 'debug', 'info', 'warning', 'error'"},
    "serve --host": {"example.org": "example.org: not an IP address, nor localhost"},
    "serve --system-prompt": {
        "@": "'@' names no file",
        "@/none": "@/none: cannot be read: No such file or directory",
    },
    "serve --model-replay": {
        "/none": "/none: cannot be read: No such file or directory",
        "/": "/: cannot be read: Is a directory",
        sys.executable: f"{sys.executable}, line 1: ",
    },
    "serve --model": {"m": " needs --model-url"},
    "serve --model-url": {"http://x": " needs --model"},
    "serve --model-key-env": {"V": " needs --model-url"},
    "invoke x --url": {
        "nowhere": "'nowhere': is not an http URL",
        "http://127.0.0.1:1": " names another",
    },
    "invoke x --id": {"a/b": "'a/b' is not an id"},
    "plugins --url": {"nowhere": "'nowhere': is not an http URL"},
    "show p --session-id": {"a b": "'a b' is not an id"},
    "show p --request": {"turn-1": "'turn-1' is not a step's id"},
    "show p --json": {"maybe": "'maybe' is not a valid boolean"},
    "show p --follow": {"maybe": "'maybe' is not a valid boolean"},
    "export p --session-id": {"a b": "'a b' is not an id"},
    "doctor --json": {"maybe": "'maybe' is not a valid boolean"},
}
"""What each option is given that is none of its values, and what is said of it."""
EMPTY = [
    *("serve --session-db", "serve --session-id", "serve --host", "serve --model-url"),
    *("serve --model-key-env", "serve --model-replay", "serve --port", "serve --max-steps"),
    *("serve --connect-timeout", "serve --log-level", "invoke x --id", "show p --request"),
]


def test_every_option_is_tried() -> None:
    """No option is left out above, but the one that takes any path: see test_shell.py."""
    options = {
        f"{name} {param.opts[0]}"
        for name, command in cli.commands.items()
        for param in command.params
        if isinstance(param, click.Option)
    }
    tried = {" ".join(re.sub(" [xp] ", " ", each).split()) for each in WRONG}
    assert tried == options - {"serve --session-db"}


@pytest.mark.parametrize("from_environment", [False, True])
@pytest.mark.parametrize(
    ("command", "value", "told"),
    [(command, *case) for command, cases in WRONG.items() for case in cases.items()],
)
def test_what_is_wrong_names_its_option(
    command: str, value: str, told: str, *, from_environment: bool
) -> None:
    """A wrong value is told with its option and what is right; from a variable, with that too."""
    *arguments, option = command.split()
    is_flag = option in {"--json", "--follow"}
    variable = f"SESSIOND_{arguments[0]}_{option[2:]}".upper().replace("-", "_")
    if is_flag and not from_environment:
        return
    environment = {variable: value} if from_environment else {}
    words = arguments if from_environment else [*arguments, option, value]
    if option in {"--host", "--model-replay"}:  # a Host looks at those: it is begun
        run_apart = sessiond(*words, environment=environment)
        code, told_all = run_apart.returncode, run_apart.stderr
    else:
        done = CliRunner().invoke(cli, words, env=environment)
        code, told_all = done.exit_code, done.stderr
    assert code in {1, 2}
    error = told_all.splitlines()[-1]
    assert told in error
    assert re.search(rf"{option}\b", error)
    assert (f"{option} (from {variable})" in error.replace("'", "")) == from_environment


@pytest.mark.parametrize("command", EMPTY)
def test_nothing_is_no_value(command: str) -> None:
    """An empty value is refused with the option's name; an empty variable is as good as none."""
    *arguments, option = command.split()
    done = CliRunner().invoke(cli, [*arguments, option, ""])
    assert done.exit_code == 2
    assert option in done.stderr.splitlines()[-1]
    variable = f"SESSIOND_{arguments[0]}_{option[2:]}".upper().replace("-", "_")
    param = next(each for each in cli.commands[arguments[0]].params if option in each.opts)
    context = click.Context(
        cli.commands[arguments[0]], auto_envvar_prefix=f"SESSIOND_{arguments[0].upper()}"
    )
    with CliRunner(env={variable: ""}).isolation():
        assert param.value_from_envvar(context) is None


@pytest.mark.parametrize("command", ["show", "verify", "export", "backup", "doctor"])
def test_an_empty_path_is_no_path(command: str, tmp_path: Path) -> None:
    """It does not stand for the working directory; the error names the argument."""
    for arguments in (
        (["", tmp_path / "x"], [tmp_path / "x", ""]) if command == "backup" else ([""],)
    ):
        done = run(command, *arguments)
        assert done.exit_code == 2
        name = "DEST" if arguments[-1] == "" and command == "backup" else "PATH"
        assert re.search(rf"'\[?{name}\]?': is empty: it must name a file", done.stderr)


def test_no_host_names_the_option() -> None:
    """Where no Host answers, or none could, the option that says where is named."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for command in (["invoke", "hello"], ["plugins"]):
        told = run(*command, "--url", url)
        assert told.exit_code == 1
        assert f"no Host answers at {url}" in told.stderr
        assert "--url names another" in told.stderr
        assert "--url 'nowhere': is not an http URL" in run(*command, "--url", "nowhere").stderr
