"""The command ``fyrehose``, whose commands the other modules of this package define."""

from __future__ import annotations

import click

from fyrehose import __version__
from fyrehose.cli import candidates
from fyrehose.cli.completion import completion
from fyrehose.cli.program import Commands, Program

_SAME = ("bench", "forward", "help", "protocols", "reload", "token")
_CLIENT = ("dead", "publish", "streams", "subscriptions", "tail", "work")
#: The commands that each module of this package defines.
COMMANDS = {
    **{name: name for name in _SAME},
    **{f"client.{name}": name for name in _CLIENT},
    "client.stats": "stats top",
    "cluster.commands": "cluster",
    "doctor.command": "doctor",
    "journal.commands": "journal",
}


class MainProgram(Program):
    """The command ``fyrehose``; its help fits on a screen, because it lists commands, not options."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, indented as those of the commands."""
        with formatter.indentation(), formatter.indentation():
            super().format_help_text(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write only the commands, because the usage line names the options."""
        self.format_commands(ctx, formatter)


@click.group(
    cls=MainProgram,
    commands=Commands("fyrehose.cli", COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="[--version] [-h|--help]",
)
@click.version_option(__version__, message="fyrehose %(version)s")
def main() -> None:
    """\b
    fyrehose publish --stream notes "first message"
    """


# Twisted parses the arguments, so that twistd and this command have the same options.
@main.command(
    cls=candidates.Served,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    short_help="Run the server.",
)
@click.argument(
    "arguments", metavar="[OPTIONS]", nargs=-1, type=click.UNPROCESSED, shell_complete=candidates.serve_values
)
def serve(arguments: tuple[str, ...]) -> None:
    """Run the server; `fyrehose serve --help` lists its options.

    \b
        fyrehose serve --data-dir data
    """
    from fyrehose.cli.serve import serve as run_server

    run_server(arguments)


# Import this command now, because its module also tells click how each shell completes words.
main.add_command(completion)
