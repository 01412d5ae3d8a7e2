"""The commands on a terminal: what is coloured there, what moves, and what is explained."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

import pytest
from attrs import evolve
from click.testing import CliRunner
from log_support import Conversation, chunk, rows_of, write_rows
from process_support import sessiond
from shell_support import on_terminal

from web.cli import cli
from web.progress import MANY_N, REDRAWN_AFTER_S, SHOWN_AFTER_S, Bar

if TYPE_CHECKING:
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
    assert on_terminal("verify", database, piped=True).screen == ""


def test_an_export_to_a_terminal_has_no_bar(long_session: Path) -> None:
    """Where the lines themselves run over the terminal a bar would stand between them."""
    seen = on_terminal("export", long_session, program=[sys.executable, "-c", EAGER])
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
    assert run("verify", tmp_path).stderr.endswith(": is a directory; name the file in it\n")
