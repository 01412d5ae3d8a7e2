"""Each command: what it prints, what it leaves, and how it fails."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from log_support import Conversation, chunk, rows_of, write_rows
from process_support import (
    PATIENCE_S,
    SESSIOND,
    TREE,
    HostProcess,
    error_line,
    sessiond,
    wait_until,
)

from actors.validation import document_fault
from web.cli import cli
from web.streams import printable

if TYPE_CHECKING:
    from collections.abc import Generator

    from click.testing import Result

    from actors.events import Event
    from actors.rows import Row

SOUND = rows_of(Conversation().every_variant())
PAGES_N = 2_500
"""More events than two pages of the reader."""


def run(*arguments: str | Path, **environment: str) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def failure_of(result: Result) -> str:
    """Return the one line of a command that failed as it must."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("sessiond: error: ")
    return line


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "session.sqlite3"
    write_rows(path, SOUND)
    return path


def damaged(path: Path, rows: list[Row], index: int) -> Path:
    """Make a database in which one row is not what its digest says."""
    rows = list(rows)
    rows[index] = rows[index]._replace(recorded_at="2001-01-01T00:00:00.000000Z")
    write_rows(path, rows, rows[0].session_id)
    return path


def many_rows(session_id: str = "default") -> list[Row]:
    return rows_of([chunk(n) for n in range(PAGES_N)], session_id)


# --- show -------------------------------------------------------------------------------------


def test_show_is_readable(database: Path) -> None:
    """Every entry of the transcript has its line, and below it, indented, what was said."""
    shown = run("show", database)
    assert shown.exit_code == 0
    document = json.loads(run("show", database, "--json").stdout)
    headings = re.findall(r"^(\d+) (\w+) ", shown.stdout, re.MULTILINE)
    expected = [(str(entry["sequence"]), entry["kind"]) for entry in document["transcript"]]
    assert headings == expected
    assert {kind for _, kind in headings} == {"user", "assistant", "tool", "failure"}
    for said in ("hello", "let me see", 'lookup({"q": 1})', '{"found":[1,null]}', "the end"):
        assert f"    {said}\n" in shown.stdout or f"    calls {said}  " in shown.stdout, said


def test_show_is_as_the_readme_has_it(tmp_path: Path) -> None:
    """Piped, it prints to the letter what the README says of the session that it tells of."""
    readme = (TREE / "README.md").read_text(encoding="utf-8")
    _, _, rest = readme.partition("$ sessiond show sessiond.sqlite3\n")
    told, _, rest = rest.partition("\n$ sessiond verify sessiond.sqlite3\n")
    database = tmp_path / "sessiond.sqlite3"
    with HostProcess(database) as host:
        assert host.post("first", "What do you remember?").status_code == 200
        assert host.post("second", "And now?").status_code == 200
        assert host.stop() == 0
    assert run("show", database).stdout == f"{told}\n"
    verified = run("verify", database).stdout.replace(str(database), database.name)
    assert rest.startswith(verified)


def test_show_cannot_be_fooled(tmp_path: Path) -> None:
    """Text from a model neither steers the terminal nor passes for an entry of its own."""
    conversation = Conversation()
    hostile = "\x1b]0;title\x07\r\n9 user turn-9\n\u202ereversed\x9b2J"
    path = tmp_path / "session.sqlite3"
    write_rows(path, rows_of([conversation.input(hostile)]))
    shown = run("show", path).stdout
    assert re.findall(r"^\d+ user", shown, re.MULTILINE) == ["1 user"]
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert "turn-1 is unfinished" in shown


def test_show_json(database: Path) -> None:
    """With --json it is one document, of the form in which HTTP answers a session."""
    shown = run("show", database, "--json")
    assert shown.exit_code == 0
    document = json.loads(shown.stdout)
    assert document_fault("session-response", document) is None
    assert document["last_sequence"] == len(document["events"]) == len(SOUND)
    assert document["digest"] == SOUND[-1].digest.hex()


@pytest.mark.parametrize("command", ["show", "export"])
def test_missing_session(database: Path, tmp_path: Path, command: str) -> None:
    """A session that is not there is a failure that lists those that are."""
    line = failure_of(run(command, database, "--session-id", "another"))
    assert "another" in line
    assert line.endswith("it holds default; name one of them with --session-id")
    write_rows(tmp_path / "empty.sqlite3", [])
    assert failure_of(run(command, tmp_path / "empty.sqlite3")).endswith("it holds none")


@pytest.mark.parametrize("command", ["show", "verify", "export", "backup"])
def test_missing_file(tmp_path: Path, command: str) -> None:
    """A file that is not there is a failure that names it, and it is not made."""
    path, copy = tmp_path / "none.sqlite3", tmp_path / "copy.sqlite3"
    line = failure_of(run(command, path, *([copy] if command == "backup" else [])))
    assert str(path) in line
    assert list(tmp_path.iterdir()) == []


def test_show_of_unsound_session(tmp_path: Path) -> None:
    """Nothing of a session that is not sound is shown as though it were."""
    path = damaged(tmp_path / "session.sqlite3", SOUND, 5)
    shown = run("show", path)
    assert shown.stdout == ""
    assert "sequence 6" in failure_of(shown)


# --- verify -----------------------------------------------------------------------------------


def test_verify_sound(database: Path) -> None:
    """A sound file gets one line, which counts what it holds."""
    write_more(database, rows_of(Conversation().turn(), "second"))
    verified = run("verify", database)
    assert verified.exit_code == 0
    (line,) = verified.stdout.splitlines()
    assert line.startswith("ok: ")
    assert f"2 sessions, {len(SOUND) + 4} events" in line
    assert verified.stderr == ""


def write_more(path: Path, rows: list[Row]) -> None:
    write_rows(path, rows, rows[0].session_id)


def test_verify_unfinished(tmp_path: Path) -> None:
    """An unfinished Turn is sound, and is mentioned."""
    path = tmp_path / "session.sqlite3"
    conversation = Conversation()
    events: list[Event] = [*conversation.turn(), conversation.input(), conversation.request()]
    write_rows(path, rows_of(events))
    verified = run("verify", path)
    assert verified.exit_code == 0
    assert verified.stdout.endswith("6 events; unfinished: turn-2 of default\n")


def test_verify_faults(database: Path) -> None:
    """Each unsound session gets its line with the place of its fault; one line says how many."""
    write_more(database, rows_of(Conversation().turn(), "another"))
    for session_id, index in (("broken.1", 0), ("broken.2", 2)):
        damaged(database, rows_of(Conversation().turn(), session_id), index)
    verified = run("verify", database)
    lines = verified.stdout.splitlines()
    assert len(lines) == 2
    for line, session_id, sequence in zip(lines, ("broken.1", "broken.2"), (1, 3), strict=True):
        assert line.startswith(f"fault: {database}: ")
        assert f"'{session_id}', sequence {sequence}: the digest" in line
    assert failure_of(verified).endswith("2 of 4 sessions unsound")


def test_verify_reads_all_pages(tmp_path: Path) -> None:
    """A fault behind the first page is found, and a sound session of many pages is counted."""
    path = tmp_path / "sound.sqlite3"
    write_rows(path, many_rows())
    assert f"1 session, {PAGES_N} events" in run("verify", path).stdout
    broken = damaged(tmp_path / "broken.sqlite3", many_rows(), PAGES_N - 1)
    assert f"sequence {PAGES_N}: " in run("verify", broken).stdout


# --- export -----------------------------------------------------------------------------------


def test_export(database: Path) -> None:
    """Every line is an envelope of the schema, with the payload as it is stored."""
    exported = run("export", database)
    assert exported.exit_code == 0
    lines = exported.stdout.splitlines()
    for line, row in zip(lines, SOUND, strict=True):
        envelope = json.loads(line)
        assert document_fault("session-event", envelope) is None
        assert line.endswith(f'"payload":{row.payload}}}')
        assert list(envelope.values())[:4] == [
            row.session_id,
            row.sequence,
            row.recorded_at,
            row.event_type,
        ]


@pytest.mark.parametrize("fault_at", [1, 1_000, 1_001, PAGES_N])
def test_export_of_unsound_session(tmp_path: Path, fault_at: int) -> None:
    """The sound prefix is exported, whichever page it ends in, and the place of the fault told."""
    path = damaged(tmp_path / "session.sqlite3", many_rows(), fault_at - 1)
    exported = run("export", path)
    sequences = [json.loads(line)["sequence"] for line in exported.stdout.splitlines()]
    assert sequences == list(range(1, fault_at))
    assert f"sequence {fault_at}: the digest does not match" in failure_of(exported)


def test_export_tells_a_fault_last(tmp_path: Path) -> None:
    """Where both streams meet, the fault is told after all that came before it."""
    path = damaged(tmp_path / "session.sqlite3", SOUND, 3)
    done = subprocess.run(
        [*SESSIOND, "export", path],
        cwd=TREE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    *exported, last = done.stdout.splitlines()
    assert [json.loads(line)["sequence"] for line in exported] == [1, 2, 3]
    assert last.startswith("sessiond: error: ")


def test_export_is_utf8_in_any_locale(tmp_path: Path) -> None:
    """Programs read it: what it writes does not depend on how the terminal is set."""
    path = tmp_path / "session.sqlite3"
    write_rows(path, rows_of([Conversation().input("größe \U0001f600")]))
    for environment in ({}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}):
        done = sessiond("export", path, environment=environment)
        assert "größe \U0001f600" in done.stdout
        assert done.returncode == 0


@contextmanager
def exporting(tmp_path: Path) -> Generator[subprocess.Popen[bytes], None, None]:
    """An export that has begun and cannot end: it writes more than a pipe holds."""
    path = tmp_path / "session.sqlite3"
    write_rows(path, many_rows())
    with subprocess.Popen(
        [*SESSIOND, "export", path], cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b'{"session_id":"default","sequence":1,')
            yield process
        finally:
            process.kill()


def test_reader_that_leaves_early(tmp_path: Path) -> None:
    """`export | head` ends without a word."""
    with exporting(tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 128 + signal.SIGPIPE


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends a command without a traceback."""
    with exporting(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert errors == b""
        assert process.returncode == 128 + signal.SIGINT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["export", "show", "verify"])
def test_full_disk(tmp_path: Path, command: str) -> None:
    """What could not be written is a failure, also when it all fits into the buffer."""
    path = tmp_path / "session.sqlite3"
    write_rows(path, many_rows() if command == "export" else SOUND)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*SESSIOND, command, path],
            cwd=TREE,
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=PATIENCE_S,
            check=False,
        )
    assert error_line(done) == "sessiond: error: standard output: No space left on device"
    assert len(done.stderr.splitlines()) == 1


def test_closed_standard_output(database: Path) -> None:
    """Without a standard output there is nowhere to export to."""
    script = f"exec {sys.executable} -m web export {database} >&-"
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        cwd=TREE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    assert "standard output is closed" in error_line(done)


BASH = shutil.which("bash") or ""
HELP = [["--help"], ["--version"], ["show", "--help"], ["completion", "bash"]]


@pytest.mark.skipif(not BASH, reason="there is no bash here")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
@pytest.mark.parametrize(
    ("output", "code", "told"),
    [
        (">/dev/full", 1, "sessiond: error: standard output: No space left on device\n"),
        (">&-", 1, "sessiond: error: standard output is closed\n"),
        ("| true", 128 + signal.SIGPIPE, ""),
    ],
)
def test_help_that_cannot_be_printed(
    arguments: list[str], output: str, code: int, told: str
) -> None:
    """The help ends as every command does where nothing can be written."""
    command = " ".join([sys.executable, "-m", "web", *arguments])
    script = f"{command} {output}"
    if output == "| true":
        # Whoever reads has gone before the command begins.
        script = f"exec 3> >(exec true); wait $!; {command} >&3"
    done = subprocess.run(
        [BASH, "-c", script],
        cwd=TREE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, told)


# --- backup -----------------------------------------------------------------------------------


def test_backup(database: Path, tmp_path: Path) -> None:
    """The copy holds the same sessions, nobody else may read it, and it was verified."""
    write_more(database, many_rows("second"))
    copy = tmp_path / "copy.sqlite3"
    done = run("backup", database, copy)
    assert done.exit_code == 0
    assert done.stdout == f"ok: {copy}: 2 sessions, {len(SOUND) + PAGES_N} events\n"
    for session_id in ("default", "second"):
        exported = [run("export", path, "--session-id", session_id) for path in (database, copy)]
        assert exported[0].stdout == exported[1].stdout != ""
    assert copy.stat().st_mode & 0o777 == 0o600
    # Verified and exported, it is still one file: to move that is to move all of it.
    assert [place.name for place in tmp_path.iterdir() if "copy" in place.name] == [copy.name]


def test_backup_refuses_an_existing_file(database: Path, tmp_path: Path) -> None:
    """A file that is there, of whatever kind, stays as it is."""
    copy = tmp_path / "copy.sqlite3"
    copy.write_bytes(b"precious")
    assert str(copy) in failure_of(run("backup", database, copy))
    assert copy.read_bytes() == b"precious"
    assert str(database) in failure_of(run("backup", database, database))
    assert run("verify", database).exit_code == 0


def test_backup_into_nowhere(database: Path, tmp_path: Path) -> None:
    """A directory that is not there is not made for a copy."""
    copy = tmp_path / "none" / "copy.sqlite3"
    assert str(copy) in failure_of(run("backup", database, copy))
    assert not copy.parent.exists()


def test_backup_of_unsound_session(tmp_path: Path) -> None:
    """A copy that does not verify is kept, since it may be the last, but is called unsound."""
    path = damaged(tmp_path / "session.sqlite3", SOUND, 3)
    copy = tmp_path / "copy.sqlite3"
    done = run("backup", path, copy)
    assert done.stdout.startswith(f"fault: {copy}: ")
    assert "sequence 4" in done.stdout
    failure_of(done)


# --- options ----------------------------------------------------------------------------------


def options() -> list[tuple[str, click.Option]]:
    assert isinstance(cli, click.Group)
    return [
        (name, option)
        for name, command in cli.commands.items()
        for option in command.params
        if isinstance(option, click.Option)
    ]


@pytest.mark.parametrize(
    ("command", "option"),
    [pytest.param(*each, id=f"{each[0]} {each[1].opts[0]}") for each in options()],
)
def test_environment_names(command: str, option: click.Option) -> None:
    """Every option is read from SESSIOND_<COMMAND>_<OPTION>, whatever its parameter's name."""
    (flag,) = option.opts
    assert option.show_envvar
    name = f"SESSIOND_{command}_{flag.removeprefix('--')}".upper().replace("-", "_")
    context = click.Context(cli.commands[command], auto_envvar_prefix=f"SESSIOND_{command.upper()}")
    runner = CliRunner(env={name: "from the environment"})
    with runner.isolation():
        assert option.resolve_envvar_value(context) == "from the environment"


def test_environment_is_used(database: Path) -> None:
    """An option set in the environment counts, and the command line wins over it."""
    write_more(database, rows_of(Conversation().turn(), "second"))
    shown = run("show", database, SESSIOND_SHOW_SESSION_ID="second", SESSIOND_SHOW_JSON="1")
    assert json.loads(shown.stdout)["session_id"] == "second"
    shown = run(
        "show", database, "--json", "--session-id", "default", SESSIOND_SHOW_SESSION_ID="second"
    )
    assert json.loads(shown.stdout)["session_id"] == "default"


def test_version(database: Path) -> None:
    """--version prints it; a variable of that name in the environment is somebody else's."""
    assert re.fullmatch(r"sessiond \d+\.\d+\.\d+\n", run("--version").stdout)
    for value in ("1", "9.9"):
        assert run("verify", database, SESSIOND_VERSION=value).stdout.startswith("ok: ")


USAGE_ERRORS: list[list[str]] = [
    [],
    ["dance"],
    ["show"],
    ["show", "x", "--session-id", "-starts-with-a-dash"],
    ["show", "x", "--session-id", "with space"],
    ["show", "x", "--session-id", "newline\n"],
    ["show", "x", "--session-id", ""],
    ["show", "x", "--follow", "--request", "turn-1/step-1"],
    ["export", "x", "--session-id", "a" * 129],
    ["verify", "x", "y"],
    ["backup", "x"],
    ["serve", "x"],
    ["serve", "--connect-timeout", "nan"],
    ["serve", "--request-timeout", "nan"],
    ["completion"],
    ["completion", "csh"],
    ["doctor", "x", "y"],
    ["serve", "--port", "65536"],
    ["serve", "--port", "-1"],
    ["serve", "--port", "http"],
    ["serve", "--max-steps", "0"],
    ["serve", "--log-format", "xml"],
    ["serve", "--log-level", "loud"],
    ["serve", "--session-id", "ünicode"],
    ["serve", "--system-prompt", "\udcff"],
    ["invoke", "--id", "a/b", "hello"],
    ["invoke", ""],
    ["invoke", "\udcff"],
    ["invoke", "two", "words"],
]


@pytest.mark.parametrize("arguments", USAGE_ERRORS, ids=ascii)
def test_usage_errors(arguments: list[str]) -> None:
    """A command line that cannot be meant exits 2 and says how it is used."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage: sessiond" in result.output or "Usage: cli" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0"),  # noqa: S104 # the point is that it is refused
        (["--host", "example.org"], "example.org"),
        (["--system-prompt", "@/none/such"], "/none/such"),
        (["--system-prompt", f"@{sys.executable}"], "UTF-8"),
    ],
)
def test_serve_refuses(arguments: list[str], told: str) -> None:
    """What a Host cannot do is one line and exit code 1, and nothing is announced."""
    done = sessiond("serve", "--port", "0", *arguments)
    assert told in error_line(done)
    assert done.stdout == ""


def test_system_prompt_from_file(tmp_path: Path) -> None:
    """@FILE gives the system prompt, and each request records it."""
    (tmp_path / "prompt.txt").write_text("Be brief, ß.\n", encoding="utf-8")
    with HostProcess(None, "--system-prompt", f"@{tmp_path / 'prompt.txt'}") as host:
        assert host.post("a", "hello").status_code == 200
        payloads = [event["payload"] for event in host.session()["events"]]
    assert [each["system_prompt"] for each in payloads if "route" in each] == ["Be brief, ß.\n"]


def test_offline_commands_load_no_web_stack(database: Path) -> None:
    """Looking at a file costs neither an event loop nor a web stack."""
    script = f"""
import sys
from web.cli import cli
for arguments in (["show"], ["show", "--json"], ["verify"], ["export"], ["doctor"]):
    cli([*arguments, {str(database)!r}], standalone_mode=False)
heavy = {{"trio", "quart", "quart_trio", "hypercorn", "httpx", "structlog", "rich"}}
heavy &= set(sys.modules)
sys.exit(f"loaded: {{heavy}}" if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=TREE,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ok: " in done.stdout


def test_printable() -> None:
    """Control characters are escaped, all others stand as they are."""
    assert printable("a\tb\nß \U0001f600") == "a\tb\nß \U0001f600"
    assert printable("\x1b[2J\r\x00\u202e\udcff") == "\\x1b[2J\\r\\x00\\u202e\\udcff"
    assert printable("one\nline", keep="") == "one\\nline"


# --- invoke -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host() -> Generator[HostProcess, None, None]:
    """A Host in process memory that the tests of `invoke` share."""
    with HostProcess(None) as started:
        yield started


def test_invoke(host: HostProcess) -> None:
    """The answer's text goes to standard output, the new id, by which it can be had again, not."""
    done = sessiond("invoke", "--url", host.url, "hello  there")
    assert done.returncode == 0
    assert done.stdout.endswith(": hello  there\n")
    (invocation_id,) = done.stderr.splitlines()
    again = sessiond("invoke", "--url", f"{host.url}/", "--id", invocation_id, "hello  there")
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, "")


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_invoke_with_piped_text(host: HostProcess, arguments: list[str]) -> None:
    """Text can be piped in; the line end that closes it is not part of it."""
    done = sessiond(
        "invoke",
        *arguments,
        input_text="first line\nsecond: ß\n",
        environment={"SESSIOND_INVOKE_URL": host.url},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": first line\nsecond: ß\n")


def test_invoke_with_nothing_piped(host: HostProcess) -> None:
    """Empty text is a usage error, and nothing is asked of the Host."""
    before = host.session()
    done = sessiond("invoke", "--url", host.url, input_text="\n")
    assert done.returncode == 2
    assert "TEXT is empty" in done.stderr
    assert host.session() == before


def test_invoke_refused(host: HostProcess) -> None:
    """A refusal is one line with its code and detail."""
    host.post("used-before", "one text")
    done = sessiond("invoke", "--url", host.url, "--id", "used-before", "another text")
    line = error_line(done)
    assert "sessiond: error: invocation_mismatch: " in line
    assert "another --id asks for a new turn" in line
    assert done.stdout == ""


def test_invoke_with_too_much(host: HostProcess) -> None:
    """Text that no body holds is refused by its size, and TEXT is named."""
    before = host.session()
    line = error_line(sessiond("invoke", "--url", host.url, input_text="x" * 1_048_576))
    assert line == (
        "sessiond: error: body_too_large: a body has 1,048,576 bytes at most; give a shorter TEXT"
    )
    assert host.session() == before


@pytest.mark.parametrize("command", [["invoke", "hello"], ["plugins"]], ids=lambda it: it[0])
def test_url_of_more_than_a_host(host: HostProcess, command: list[str]) -> None:
    """Where the URL leads to no route, or to a port that cannot be, --url is what is named."""
    line = error_line(sessiond(*command, "--url", f"{host.url}/prefix"))
    assert "there is no such route" in line
    assert "--url must name the Host alone" in line
    line = error_line(sessiond(*command, "--url", "http://127.0.0.1:99999"))
    assert "--url 'http://127.0.0.1:99999': a port is a number from 1 to 65535" in line


def test_invoke_of_a_turn_that_fails(host: HostProcess) -> None:
    """A Turn that ends without an answer is one line with the failure's code, and exit code 1."""
    with ThreadPoolExecutor() as callers, host.client() as client:
        text = "word " * 20_000
        invoking = callers.submit(
            sessiond, "invoke", "--url", host.url, "--id", "to-fail", input_text=text
        )
        path = "/api/v1/agent/invocations/to-fail"
        wait_until(lambda: client.get(path).json().get("state") == "running", host)
        assert client.delete(path).status_code == 202
        assert "sessiond: error: cancelled: " in error_line(invoking.result())


def test_invoke_interrupted(host: HostProcess) -> None:
    """Ctrl-C has the Turn cancelled and exits 130."""
    text = "word " * 20_000
    with (
        subprocess.Popen(
            [*SESSIOND, "invoke", "--url", host.url, "--id", "to-interrupt", text],
            cwd=TREE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
        host.client() as client,
    ):
        try:
            path = "/api/v1/agent/invocations/to-interrupt"
            wait_until(lambda: client.get(path).json().get("state") == "running", host)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        assert (process.returncode, output, errors) == (130, b"", b"")
        wait_until(lambda: client.get(path).json().get("state") == "cancelled", host)


def test_invoke_of_a_host_that_dies() -> None:
    """A Host that goes away leaves a line that says how the outcome can be learned."""
    with HostProcess(None) as host, ThreadPoolExecutor() as callers, host.client() as client:
        text = "word " * 20_000
        invoking = callers.submit(
            sessiond, "invoke", "--url", host.url, "--id", "orphan", input_text=text
        )
        path = "/api/v1/agent/invocations/orphan"
        wait_until(lambda: client.get(path).json().get("state") == "running", host)
        host.kill()
        assert "--id orphan" in error_line(invoking.result())


def test_invoke_without_a_host() -> None:
    """Nobody listening is one line that names the URL."""
    with HostProcess(None) as host:
        url = host.url
    done = sessiond("invoke", "--url", url, "--id", "a", "hello")
    assert f"no Host answers at {url}" in error_line(done)


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "ftp://127.0.0.1", "http://", "http://a:b", ""])
def test_invoke_with_a_wrong_url(url: str) -> None:
    """A URL that cannot be is one line, before an id is made."""
    failure_of(run("invoke", "--url", url, "hello"))


class NotAHost(http.server.BaseHTTPRequestHandler):
    """Answers any POST in a way that no Host does."""

    def do_POST(self) -> None:
        body = b"<p>welcome</p>"
        self.send_response(200 if self.path.endswith("/ok") else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # its parent's name
        """Say nothing."""


@pytest.mark.parametrize("invocation_id", ["ok", "missing"])
def test_invoke_of_something_else(invocation_id: str) -> None:
    """What answers but is no Host is told from one."""
    with http.server.HTTPServer(("127.0.0.1", 0), NotAHost) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            done = run("invoke", "--url", url, "--id", invocation_id, "hello")
        finally:
            server.shutdown()
            thread.join(PATIENCE_S)
    assert "Host" in failure_of(done)
