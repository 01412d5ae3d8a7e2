"""The commands that ask a running Host: ``invoke`` and ``plugins``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from web.ending import EXIT_FAILURE, EXIT_INTERRUPTED, Command, called_in, tell_failure
from web.manual import epilog
from web.parameters import URL, as_identifier, as_text, option
from web.streams import output_is_terminal, printable, write

if TYPE_CHECKING:
    from web.client import HostClient, Outcome


@click.command(
    cls=Command,
    epilog=epilog(
        """
        sessiond invoke 'What do you remember?'
        sessiond invoke --id report-1 - < question.txt
        sessiond invoke --url http://127.0.0.1:9000 hello
        """,
        (1, "the turn failed, or no Host answers; one line says why"),
        (130, "interrupted: the turn is being cancelled"),
    ),
)
@URL
@option(
    "--id",
    "invocation_id",
    metavar="ID",
    envvar="SESSIOND_INVOKE_ID",
    callback=as_identifier,
    help="The invocation's id, to ask again without running anything twice.  [default: a new one]",
)
@click.argument("text", metavar="[TEXT|-]", callback=as_text, required=False)
@click.pass_context
def invoke(ctx: click.Context, url: str, invocation_id: str | None, text: str | None) -> None:
    """Ask a running Host for a turn and print the answer.

    Without TEXT, or with -, the text is read from standard input. A new invocation's id is
    printed on standard error: asked again with it, the Host answers what is on record. Ctrl-C
    cancels the turn.
    """
    said = _said(text)
    from web.client import HostClient

    with HostClient(url, called_in(ctx, "url")) as client:
        if invocation_id is None:
            import uuid

            invocation_id = str(uuid.uuid4())
            click.echo(invocation_id, err=True)
        try:
            outcome = client.invoke(invocation_id, said)
        except KeyboardInterrupt:
            _cancel(client, invocation_id)
            ctx.exit(EXIT_INTERRUPTED)
    ctx.exit(_tell_outcome(outcome))


@click.command(
    cls=Command,
    short_help="Print the plugins of a running Host, and where each stands.",
    epilog=epilog(
        """
        sessiond plugins
        sessiond plugins --url http://127.0.0.1:9000 | grep -v ACTIVE
        """,
        (1, "no Host answers"),
    ),
)
@URL
@click.pass_context
def plugins(ctx: click.Context, url: str) -> None:
    """Print the plugins of a running Host: where each stands, and why it does not run."""
    from web.client import HostClient
    from web.runtime import plugin_table

    with HostClient(url, called_in(ctx, "url")) as client:
        answer = client.plugins()
    if not isinstance(answer, list):
        ctx.exit(_tell_outcome(answer))
    write(printable(line, keep="\n") for line in plugin_table(answer))


def _said(text: str | None) -> str:
    """Return what is to be said; standard input's last line end is not part of it."""
    if text is None or text == "-":
        if sys.stdin is None or (text is None and sys.stdin.isatty()):
            raise click.UsageError("TEXT is missing: give it, or pipe it in")
        try:
            text = sys.stdin.buffer.read().decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise click.UsageError("standard input is not UTF-8 text") from error
    if not text:
        raise click.UsageError("TEXT is empty")
    return text


def _tell_outcome(outcome: Outcome) -> int:
    from web.client import Answered, Refused

    match outcome:
        case Answered(text):
            write([printable(text) if output_is_terminal() else text, "\n"])
            return 0
        case Refused(code, detail):
            tell_failure(f"{code}: {detail}")
        case unanswered:
            tell_failure(unanswered.reason)
    return EXIT_FAILURE


def _cancel(client: HostClient, invocation_id: str) -> None:
    from web.client import Refused

    match client.cancel(invocation_id):
        case None:
            pass
        case Refused(code, detail):
            tell_failure(f"not cancelled: {code}: {detail}")
        case unanswered:
            tell_failure(f"not cancelled: {unanswered.reason}")
