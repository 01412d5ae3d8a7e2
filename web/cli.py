"""The command line, put together: one group, and the commands in the order of the help.

What becomes of a command's exceptions is decided in :mod:`web.ending`; what each command does is
in :mod:`web.commands`.
"""

from __future__ import annotations

import click

from web.commands.clients import invoke, plugins
from web.commands.files import backup, export, show, verify
from web.commands.serve import serve
from web.commands.support import completion, doctor
from web.ending import Commands

SETTINGS = {"auto_envvar_prefix": "SESSIOND", "help_option_names": ["-h", "--help"]}

EPILOG = """\b
Examples:
  sessiond serve --session-db sessiond.sqlite3
  sessiond invoke 'What do you remember?'
  sessiond show sessiond.sqlite3 --follow
  sessiond COMMAND --help

\b
Exit codes:
    0  done, or stopped cleanly by a signal
    1  a failure, told in one line on standard error
    2  a usage error
  130  interrupted
  141  nobody reads the output any more
"""


@click.group(cls=Commands, context_settings=SETTINGS, epilog=EPILOG)
@click.version_option(
    package_name="sessiond",
    message="sessiond %(version)s",
    allow_from_autoenv=False,  # SESSIOND_VERSION is anybody's name for something else
)
def cli() -> None:
    """Run an agent's session durably: every event of it is kept in SQLite.

    Each option can also be set in the environment, as SESSIOND_<COMMAND>_<OPTION>; the command
    line wins.
    """


for _command in (serve, invoke, plugins, show, verify, export, backup, doctor, completion):
    cli.add_command(_command)
