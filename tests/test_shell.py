"""The commands on a terminal: what is coloured there, what moves, and what is explained."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from attrs import evolve
from click.testing import CliRunner
from log_support import Conversation, chunk, rows_of, write_rows
from process_support import error_line, public_directory, sessiond, sessiond_each
from shell_support import on_terminal

from web.advice import as_typed
from web.cli import cli
from web.progress import MANY_N, REDRAWN_AFTER_S, SHOWN_AFTER_S, Bar
from web.streams import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[0-9;]*m")
HOSTILE = "[bold red]not markup[/] :smile: \x1b]0;title\x07\n9 user turn-9\ttab \u202eback"
SHOWN = r"[bold red]not markup[/] :smile: \x1b]0;title\x07"


def run(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "session.sqlite3"
    write_rows(path, rows_of(Conversation().every_variant()))
    return path


# --- show on a terminal -------------------------------------------------------------------------


def test_show_on_a_terminal_says_the_same(database: Path) -> None:
    """Coloured it says what it says in a pipe, line for line where nothing has to be wrapped."""
    seen = on_terminal("show", database, columns=200)
    assert COLOUR.search(seen.screen)
    assert seen.text == sessiond("show", database).stdout
    assert seen.code == 0


def test_colours_can_be_refused(database: Path) -> None:
    """NO_COLOR leaves no colour, a terminal that can do nothing gets no sequence at all."""
    assert not COLOUR.search(on_terminal("show", database, NO_COLOR="1").screen)
    assert "\x1b" not in on_terminal("show", database, TERM="dumb").screen


def test_text_is_no_markup(tmp_path: Path) -> None:
    """What was said is shown as text: no markup, no emoji, nothing that steers the terminal.

    Wrapped, each of its lines is indented, so that it cannot pass for an entry.
    """
    path = tmp_path / "session.sqlite3"
    write_rows(path, rows_of([Conversation().input(f"{HOSTILE} {'word ' * 40}{'x' * 100}")]))
    seen = on_terminal("show", path, columns=40)
    lines = seen.text.splitlines()
    assert SHOWN in " ".join(line.strip() for line in lines)
    assert "\\u202eback" in seen.text
    assert "\x1b]" not in seen.screen
    assert "\x07" not in seen.screen
    assert [line for line in lines if line and not line.startswith("    ")] == [
        "1 user turn-1",
        "turn-1 is unfinished",
    ]
    assert max(map(len, lines)) <= 40


def test_headings_are_one_line(tmp_path: Path) -> None:
    """Not even an id that a provider chose can make a line of its own."""
    conversation = Conversation()
    events = [conversation.input(), conversation.request(), conversation.answer("", calls_n=1)]
    events[2] = evolve(events[2], finish_reason="stop)\n9 user turn-9")
    path = tmp_path / "session.sqlite3"
    write_rows(path, rows_of(events))
    assert r"3 assistant turn-1/step-1 (stop)\n9 user turn-9)" in run("show", path).stdout
    assert r"(stop)\n9 user turn-9)" in on_terminal("show", path).text


# --- progress -----------------------------------------------------------------------------------


@pytest.fixture
def long_session(tmp_path: Path) -> Path:
    path = tmp_path / "long.sqlite3"
    write_rows(path, rows_of([chunk(n) for n in range(2_500)]))
    return path


COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "show": ("loading", ()),
    "verify": ("verifying", ()),
    "export": ("exporting", ()),
    "backup": ("copying", ("copy.sqlite3",)),
    "doctor": ("verifying", ()),
}
EAGER = """
import actors.reader, web.progress
actors.reader._BACKUP_PAGES = 1
web.progress.SHOWN_AFTER_S = 0
from web.__main__ import main
main()
"""
"""The command, with a progress bar for whatever takes more than one piece."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bar_for_long_work(command: str, long_session: Path) -> None:
    """On a terminal long work shows a bar on standard error, and takes it away again.

    Standard output is what it is without one.
    """
    what, more = COMMANDS[command]
    names = [long_session.with_name(name) for name in more]
    program = [sys.executable, "-c", EAGER]
    seen = on_terminal(command, long_session, *names, piped=True, program=program)
    assert f"sessiond: {what}" in seen.text
    assert seen.screen.endswith("\x1b[2K"), "the line is cleared"
    assert "\x1b[?25l" not in seen.screen, "the cursor stays, should it be killed"
    assert seen.code == 0
    for name in names:
        name.unlink()
    plain = run(command, long_session, *names)
    assert plain.stderr == ""
    if command != "doctor":  # which tells what it finds beside the file
        assert seen.output == plain.stdout


def test_no_bar_for_short_work(database: Path) -> None:
    """What ends soon shows nothing, though it is on a terminal."""
    program = [sys.executable, "-c", EAGER.replace("SHOWN_AFTER_S = 0", "SHOWN_AFTER_S = 3600")]
    assert on_terminal("verify", database, piped=True, program=program).screen == ""


HELD_CHECK = """
import threading
import actors.reader, web.progress
web.progress.SHOWN_AFTER_S = 0
drawn = threading.Event()
write_error, check = web.progress.write_error, actors.reader._check_integrity
def write(text):
    write_error(text)
    if "checking" in text:
        drawn.set()
def held(*arguments):
    if web.progress.os.environ["TERM"] != "dumb":
        assert drawn.wait(60)
    check(*arguments)
web.progress.write_error, actors.reader._check_integrity = write, held
from web.__main__ import main
main()
"""
"""The command, whose integrity check takes until a line says that it goes on."""


@pytest.mark.parametrize("command", ["show", "verify", "export", "backup", "serve"])
def test_a_line_while_the_file_is_checked(command: str, database: Path, tmp_path: Path) -> None:
    """On a terminal a line counts the seconds of SQLite's own check, and is then taken away."""
    program = [sys.executable, "-c", HELD_CHECK]
    arguments = {
        "backup": ["backup", database, tmp_path / "copy.sqlite3"],
        # A session that is new in the file has no event to load, and so no bar.
        "serve": ["serve", "--port", "65535", "--session-id", "new", "--session-db", database],
    }.get(command, [command, database])
    if command == "serve":
        program[-1] = STOPPED_AT_ONCE.replace("from web.__main__", "HELD\nfrom web.__main__")
        program[-1] = program[-1].replace("HELD", HELD_CHECK.partition("from web.__main__")[0])
        arguments[2] = "0"
    seen = on_terminal(*arguments, piped=True, program=program)
    assert seen.code == 0, seen.text
    assert re.search(r"\r\x1b\[2Ksessiond: [a-z]+: checking the file, \d+ s\r", seen.screen)
    assert "\r\x1b[2K" in seen.screen.rpartition("checking")[2], "it is taken away"


def test_no_line_where_none_can_be_redrawn(database: Path) -> None:
    """A terminal that can do nothing is left alone while the file is checked."""
    program = [sys.executable, "-c", HELD_CHECK]
    seen = on_terminal("verify", database, piped=True, program=program, TERM="dumb")
    assert (seen.screen, seen.code) == ("", 0)


def test_an_export_to_a_terminal_has_no_bar(long_session: Path) -> None:
    """Where the lines themselves run over the terminal a bar would stand between them."""
    program = [sys.executable, "-c", EAGER.replace("SHOWN_AFTER_S = 0", "SHOWN_AFTER_S = 3600")]
    seen = on_terminal("export", long_session, program=program)
    assert seen.screen == run("export", long_session).stdout


def test_a_bar_while_a_host_loads(long_session: Path) -> None:
    """A start shows how far it is, and the first line of the log comes after it, by itself."""
    program = [sys.executable, "-c", STOPPED_AT_ONCE]
    seen = on_terminal(
        "serve", "--port", "0", "--session-db", long_session, piped=True, program=program
    )
    assert seen.code == 0, seen.text
    assert "sessiond: loading" in seen.text
    assert re.search(r"\x1b\[2K.*session opened", seen.screen), seen.screen
    assert seen.output.startswith("sessiond listening on http://127.0.0.1:")


STOPPED_AT_ONCE = """
import os, signal
import web.progress
from actors.kernel.fibers import Plugin
web.progress.SHOWN_AFTER_S = 0
import web.server
listening = web.server.url_of
def url_of(listener):
    os.kill(os.getpid(), signal.SIGTERM)
    return listening(listener)
web.server.url_of = url_of
from web.__main__ import main
main()
"""
"""The command, asked to stop as soon as it listens."""


def test_a_bar_waits_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn once it is due, or at once for much to do; redrawn seldom; gone when all is."""
    drawn: list[str] = []
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("web.streams.write_error", drawn.append)
    now = 0.0
    bar = Bar("working", "things", lambda: now)
    bar.update(1, MANY_N - 1)
    now = SHOWN_AFTER_S - 0.01
    bar.update(2, MANY_N - 1)
    assert not drawn
    now = SHOWN_AFTER_S
    bar.update(3, MANY_N - 1)
    assert "3/9999" in "".join(drawn)
    now += REDRAWN_AFTER_S / 2
    bar.update(4, MANY_N - 1)
    assert "4/9999" not in "".join(drawn)
    bar.update(MANY_N - 1, MANY_N - 1)
    assert "".join(drawn).endswith("\x1b[2K")
    drawn.clear()
    now += 10
    bar.update(5, MANY_N - 1)
    bar.close()
    assert not drawn

    many = Bar("working", "things", lambda: now)
    many.update(1, MANY_N)
    assert "1/10000" in "".join(drawn)
    many.close()


def test_a_terminal_that_goes_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that cannot be written is lost, and what it was for goes on."""
    outside, inside = os.openpty()
    os.close(outside)
    with os.fdopen(inside, "w") as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        with pytest.raises(OSError, match="error"):
            os.write(gone.fileno(), b"x")
        bar = Bar("working", "things", lambda: 0.0)
        bar.update(1, MANY_N)
        bar.close()


# --- verify -------------------------------------------------------------------------------------


def test_advice_can_be_followed(tmp_path: Path) -> None:
    """Each fault has one line, which says what it means and names a command that works."""
    path = tmp_path / "a file.sqlite3"
    rows = rows_of(Conversation().every_variant())
    write_rows(path, [*rows[:5], rows[5]._replace(digest=b"\0" * 32), *rows[6:]])
    write_rows(path, rows_of(Conversation().turn(), "sound"), "sound")
    verified = run("verify", path)
    (line,) = verified.stdout.splitlines()
    assert f"fault: {path}: session 'default', sequence 6: the digest does not match" in line
    assert "; a row was changed, by another program or by the disk; go back to a backup" in line
    (command,) = re.findall("`(sessiond export .*)`", line)
    exported = run(*shlex.split(command)[1:])
    assert len(exported.stdout.splitlines()) == 5
    assert verified.stderr == f"sessiond: error: {path}: 1 of 2 sessions unsound\n"


def test_advice_on_a_terminal(tmp_path: Path) -> None:
    """There the fault, what it means and what to do have a line each."""
    path = tmp_path / "session.sqlite3"
    rows = rows_of(Conversation().turn())
    write_rows(path, [rows[0]._replace(digest=b"\0" * 32)])
    seen = on_terminal("verify", path)
    fault, meaning, advice, error = seen.text.splitlines()
    assert fault.startswith("fault: ")
    assert meaning == "    a row was changed, by another program or by the disk"
    assert advice == "    go back to a backup of the file"
    assert error.startswith("sessiond: error: ")


def test_advice_on_whole_files(tmp_path: Path) -> None:
    """A file that cannot be verified at all is one line, with what to do where that is known."""
    text, none = tmp_path / "text", tmp_path / "none"
    text.write_text("no database\n" * 20)
    assert run("verify", text).stderr.endswith(
        ": is not a SQLite file; name another PATH, or go back to a backup\n"
    )
    assert "; name another PATH; a Host makes the file" in run("verify", none).stderr
    assert run("verify", tmp_path).stderr.endswith(": is a directory; name a file in it as PATH\n")


def cut_short(path: Path) -> str:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return "`sqlite3 {} .recover` save what it can; `sessiond verify` tells whether"


def changed(path: Path) -> str:
    rows = rows_of(Conversation().turn())
    path.unlink()
    write_rows(path, [rows[0], rows[1]._replace(digest=b"\0" * 32)])
    return "; `sessiond verify {}` says what that means and what to do"


def another_program(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE more (x)")
    return "; go back to a backup: another program has altered the file"


@pytest.mark.parametrize("damage", [cut_short, changed, another_program])
def test_whoever_refuses_says_what_to_do(damage: Callable[[Path], str], tmp_path: Path) -> None:
    """Each command's one line on a file that it refuses says what to do, with the path quoted."""
    path = tmp_path / "a file.sqlite3"
    write_rows(path, rows_of([chunk(n) for n in range(500)]))
    advice = damage(path).format(shlex.quote(str(path)))
    commands: list[list[str | Path]] = [["show", path], ["show", path, "--follow"]]
    commands += [["export", path], ["serve", "--port", "0", "--session-db", path]]
    if damage is not changed:
        commands += [["verify", path], ["backup", path, tmp_path / "copy.sqlite3"]]
    for done in sessiond_each(commands):
        assert advice in error_line(done), done
        assert error_line(done).startswith(f"sessiond: error: {path}: ")


def test_what_to_do_names_the_place(tmp_path: Path) -> None:
    """What to do names PATH, DEST, or the option with its variable, whichever named the file."""
    database, taken = tmp_path / "session.sqlite3", tmp_path / "taken"
    write_rows(database, rows_of(Conversation().turn()))
    taken.write_text("precious\n" * 20)
    new_file = "DEST must be a new file, in a directory that this user can write"
    cases: dict[tuple[str | Path, ...], str] = {
        ("backup", database, taken): f"{taken}: cannot be made: File exists; {new_file}",
        ("backup", database, database): f"{database}: cannot be made: File exists; {new_file}",
        ("backup", database, tmp_path): f"{tmp_path}: cannot be made: File exists; {new_file}",
        ("backup", database, tmp_path / "no" / "c"): f"No such file or directory; {new_file}",
        ("backup", taken, tmp_path / "c"): f"{taken}: is not a SQLite file; name another PATH",
        ("backup", tmp_path, tmp_path / "c"): "is a directory; name a file in it as PATH",
        ("serve", "--session-db", tmp_path): "; name a file in it as --session-db",
        ("serve", "--session-db", taken): "is not a SQLite file; name another --session-db",
        ("serve", "--session-db", taken / "x"): "; name another --session-db",
        ("show", database, "--session-id", "no"): "default; name one of them with --session-id",
        ("show", database, "--request", "turn-9/step-1"): "; name another one with --request",
    }
    for done, told in zip(sessiond_each(list(cases)), cases.values(), strict=True):
        assert done.stdout == ""
        assert told in error_line(done)
    done = sessiond("serve", environment={"SESSIOND_SERVE_SESSION_DB": str(tmp_path)})
    assert "name a file in it as --session-db (from SESSIOND_SERVE_SESSION_DB)" in error_line(done)


def test_without_leave() -> None:
    """What may not be read or written is told with the place, and what to let whom do."""
    with public_directory() as directory:
        database, shut = directory / "session.sqlite3", directory / "shut"
        write_rows(database, rows_of(Conversation().turn()))
        shut.mkdir(mode=0o555)
        database.chmod(0o644)
        hidden = directory / "hidden.sqlite3"
        hidden.write_bytes(database.read_bytes())
        hidden.chmod(0)
        commands: list[list[str | Path]] = [["show", hidden], ["verify", hidden]]
        commands += [["backup", database, shut / "copy"]]
        commands += [["serve", "--port", "0", "--session-db", shut / "new.sqlite3"]]
        runs = sessiond_each(commands, as_nobody=True)
        shut.chmod(0o755)
    told = [
        "hidden.sqlite3: cannot be read: Permission denied; let this user reach it",
        "name another PATH",
        "copy: cannot be made: Permission denied; DEST must be a new file, in a directory that",
        "cannot write the lock file: Permission denied; let this user write its directory",
    ]
    for done, words in zip(runs, told, strict=True):
        assert words in error_line(done)


@pytest.mark.parametrize(
    "name",
    ["a file", "it's", "-dash", "two\nlines", b"\xff\\x41'".decode("utf-8", "surrogateescape")],
)
def test_a_command_that_is_told_can_be_typed(name: str) -> None:
    """Whatever a file is called, a shell takes what is told for that file, and it is one line."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    told = as_typed(name)
    assert told == printable(told, keep="")
    asked = f"printf %s {told}"
    done = subprocess.run([bash, "-c", asked], capture_output=True, check=True)
    assert done.stdout == os.fsencode(f"./{name}" if name.startswith("-") else name)
