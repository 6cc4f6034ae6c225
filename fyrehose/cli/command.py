"""The command ``fyrehose``: its options and arguments.

The other modules of this package do the work of each command.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from fyrehose import __version__
from fyrehose.cli import candidates
from fyrehose.cli.program import Commands, Program
from fyrehose.cli.values import ADDRESSES, DURATION, PARTS, SINCE, WholeNumber, asks

if TYPE_CHECKING:
    from fyrehose.cli.remote import RemoteServer

#: The commands that other modules define.
COMMANDS = {
    "bench": "bench",
    "cluster": "cluster",
    "completion": "completion",
    "dead": "dead",
    "doctor": "doctor",
    "eventbus": "eventbus",
    "journal": "journal",
    "protocols": "protocols",
    "reload": "reload",
    "stats": "stats top",
    "streams": "streams",
    "subscriptions": "subscriptions",
    "token": "token",
}

#: Help of the addresses of `publish` and `tail`.
_ADDRESS = "Server, or all of a cluster's."


_PROTOCOL = click.option(
    "--protocol",
    default="figg",
    show_default=True,
    metavar="NAME",
    help="Protocol to use; see `fyrehose protocols`.",
    shell_complete=candidates.clients,
)
_TLS = click.option("--tls", metavar="CA[,CERT[,KEY]]", help="Use TLS with these PEM files.", type=click.Path())


class MainProgram(Program):
    """The command ``fyrehose``; its help fits on a screen, because it lists commands, not options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write only the commands: the line with the usage names the options."""
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
    Publish to a Fyrehose server, read its streams, and inspect its journal:
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


@main.command(short_help="Publish messages, or the lines of files.")
@_PROTOCOL
@click.option("--to", "addresses", type=ADDRESSES, default="127.0.0.1", help=f"{_ADDRESS}  [default: 127.0.0.1]")
@_TLS
@click.option(
    "--stream", metavar="NAME", help="Stream to publish to (not with backbone).", shell_complete=candidates.streams
)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="Publish the lines of PATH; - is standard input.",
    type=click.Path(),
)
@click.option("--whole", is_flag=True, help="Publish each file, or argument, as one message.")
@click.option(
    "--window",
    type=WholeNumber(1, 100_000),
    default=1000,
    show_default=True,
    help="Most unacknowledged messages.",
)
@click.option("--transaction", type=WholeNumber(1), metavar="N", help="Commit every N messages together (relink).")
@click.option("--timeout", type=DURATION, default="10s", show_default=True, help="How long to wait for the server.")
@click.argument("messages", nargs=-1)
def publish(
    protocol: str,
    addresses: tuple[tuple[str, int | None], ...],
    tls: str | None,
    stream: str | None,
    files: tuple[str, ...],
    whole: bool,
    window: int,
    transaction: int | None,
    timeout: float,
    messages: tuple[str, ...],
) -> None:
    """Publish MESSAGES, the lines of files, or the lines of standard input.

    The exit status is 0 if the server acknowledged every message, which means that they are on its disk.

    \b
        fyrehose publish --stream notes "first message" "second message"
        journalctl -f | fyrehose publish --protocol backbone
        fyrehose publish --protocol relink --stream s --transaction 50 --file f
    """
    from fyrehose.cli import running, sources
    from fyrehose.cli.publish import publish as publish_all
    from fyrehose.cli.servers import server

    if whole:
        source = sources.whole_files([*files, *messages])
    elif messages and files:
        raise click.UsageError("pass either MESSAGES or --file; with --whole, arguments are files")
    elif messages:
        source = sources.arguments(messages)
    else:
        if not files and sys.stdin is not None and sys.stdin.isatty():
            click.echo("fyrehose: reading messages from standard input, one a line; Ctrl-D to finish", err=True)
        source = sources.lines_of(files or ("-",))
    at = server(protocol, addresses[0], tls, addresses[1:])
    status = running.run(
        lambda reactor: publish_all(
            reactor, at.publisher(reactor, stream, window, transaction), stream, source, timeout, at.history
        )
    )
    sys.exit(status)


@main.command(short_help="Follow a stream, or read it from its start.")
@click.option(
    "--protocol",
    metavar="NAME",
    help="[default: http where it listens, else figg]",
    shell_complete=candidates.clients,
)
@click.option("--from", "addresses", type=ADDRESSES, default="127.0.0.1", help=f"{_ADDRESS}  [default: 127.0.0.1]")
@_TLS
@click.option(
    "--stream",
    metavar="NAME",
    help="Stream to read (not with backbone), or pattern.",
    shell_complete=candidates.streams,
)
@click.option("--since", type=SINCE, default="latest", show_default=True, help="First record.")
@click.option(
    "--subscription", metavar="NAME", help="Named subscription to continue.", shell_complete=candidates.subscriptions
)
@click.option("--takeover", is_flag=True, help="Displace another consumer of it.")
@click.option("--count", type=WholeNumber(1), help="Stop after this many messages.")
@click.option("--idle", type=DURATION, help="Stop when no message arrives for this long.")
@click.option("--format", "form", type=click.Choice(["text", "json", "raw"]), default="text", show_default=True)
@click.option("--parts", type=PARTS, help="Events over 16 MiB: as one message?")
@click.option("--timeout", type=DURATION, default="10s", show_default=True, help="How long to wait for the server.")
@click.argument("extra", nargs=-1, metavar="")
def tail(
    protocol: str | None,
    addresses: tuple[tuple[str, int | None], ...],
    tls: str | None,
    stream: str | None,
    since: int | None,
    subscription: str | None,
    takeover: bool,
    count: int | None,
    idle: float | None,
    form: str,
    parts: str | None,
    timeout: float,
    extra: tuple[str, ...],
) -> None:
    """Write the messages of a stream to standard output as they arrive.

    text: one message a line.  json: one object a line with what the protocol carries.  raw: no separators.  Patterns
    need http; named subscriptions http or relink.  Exit status 1: messages are missing.

    \b
        fyrehose tail --stream 'logs.*'
    """
    from fyrehose.cli import formats, running
    from fyrehose.cli.servers import protocol_to_tail, server
    from fyrehose.cli.tail import NamedTail, Tailing
    from fyrehose.journal.parts import Joiner

    if extra:
        raise click.UsageError(f"unexpected argument {extra[0]!r}; name the stream with --stream {extra[0]}")
    if takeover and subscription is None:
        raise click.UsageError("--takeover needs --subscription NAME")
    named = None if subscription is None else NamedTail(subscription, takeover)
    at = server(protocol or protocol_to_tail(addresses[0]), addresses[0], tls, addresses[1:])
    status = running.run(
        lambda reactor: Tailing(
            reactor,
            at.tailer(reactor, stream, subscription is not None),
            stream,
            formats.chosen(form, os.isatty(1), many=stream is not None and "*" in stream),
            count,
            idle,
            timeout,
            at.history,
            since,
            named,
            Joiner() if (parts or ("keep" if form == "json" else "join")) == "join" else None,
        ).run()
    )
    sys.exit(status)


@main.command("work", short_help="Run a command for each record of a stream.")
@asks("http")
@click.option("--stream", required=True, metavar="NAME", help="Stream, or pattern.", shell_complete=candidates.streams)
@click.option(
    "--subscription",
    required=True,
    metavar="NAME",
    help="Shared subscription; created if there is none.",
    shell_complete=candidates.subscriptions,
)
@click.option("--jobs", type=WholeNumber(1, 100), default=1, show_default=True, help="Processes at once.")
@click.option("--idle", type=DURATION, help="Stop when no record comes for this long.")
@click.argument("program", nargs=-1, required=True, metavar="-- COMMAND")
def work(
    server: RemoteServer,
    stream: str,
    subscription: str,
    jobs: int,
    idle: float | None,
    program: tuple[str, ...],
) -> None:
    """Run COMMAND for each record, with the payload as its standard input.

    Exit status 0 settles the record, 75 returns it without counting a failure, any other is a failure: the record comes
    again later, and is a dead letter after the last failure. The environment has FYREHOSE_STREAM, _SEQ and _FAILURES,
    and _TOPIC and _PRODUCER if the record has them.

    \b
        fyrehose work --stream orders --subscription billing -- ./handle
        fyrehose work --stream images --subscription thumbs --jobs 4 -- ./resize
    """
    from fyrehose.cli import running
    from fyrehose.cli.work import client
    from fyrehose.cli.work import work as run_work

    async def run(reactor: Any) -> int:
        at = client(reactor, server)
        return await run_work(reactor, [at.share(stream, subscription, idle=idle) for _ in range(jobs)], program)

    sys.exit(running.run(run))
