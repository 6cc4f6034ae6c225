"""The command line, from words to what they ask for.  What it does is in the modules beside this one."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from fyrehose import __version__, plugins
from fyrehose.cli.completion import completion
from fyrehose.cli.journal import journal
from fyrehose.cli.streams import streams
from fyrehose.cli.values import Duration
from fyrehose.cli.watching import stats, top
from fyrehose.errors import FyrehoseError
from fyrehose.records import LAST_SEQ

F = TypeVar("F", bound=Callable[..., Any])


class Group(click.Group):
    """Turns our errors, and what the system refuses, into one line and a status."""

    def main(self, *args: Any, **extra: Any) -> Any:
        _occupy_standard_descriptors()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal need not know every letter of a name
        try:
            return super().main(*args, **extra)
        except OSError as error:
            _forget_output()
            place = f"{error.filename}: " if error.filename else ""
            click.echo(f"fyrehose: {place}{error.strerror or error}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FyrehoseError as error:
            click.echo(f"fyrehose: {error}", err=True)
            ctx.exit(error.exit_status)


def _occupy_standard_descriptors() -> None:
    """What is closed of the three is opened as what can only refuse: else a socket would have its number, and be
    written to."""
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)


def _forget_output() -> None:
    """What could not be written is not tried again when the process ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Place(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """``HOST:PORT``, ``[V6]:PORT``, or a host alone."""

    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int | None]:
        if isinstance(value, tuple):
            return value
        text = str(value)
        host, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
        if colon and not (port.isdecimal() and 0 < int(port) < 65536):
            self.fail(f"{text!r} should be HOST:PORT, such as 127.0.0.1:8119", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port) if colon else None


class Since(click.ParamType):  # type: ignore[type-arg]
    """The number to begin behind; None for what comes from now on."""

    name = "latest|start|seq"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        if value == "latest":
            return None
        if value == "start":
            return 0
        number = str(value)
        if not (number.isascii() and number.isdecimal() and len(number) <= 15 and int(number) <= LAST_SEQ):
            self.fail(f"{value!r} should be latest, start, or a number to begin with, up to {LAST_SEQ}", param, ctx)
        return max(int(number) - 1, 0)


def _protocol(command: F) -> F:
    option = click.option(
        "--protocol",
        default="figg",
        show_default=True,
        metavar="NAME",
        help="One that has a client; see `fyrehose protocols`.",
    )
    return option(command)


def _tls(command: F) -> F:
    option = click.option("--tls", metavar="CA[,CERT[,KEY]]", help="Speak TLS; PEM files: the authority, ours.")
    return option(command)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="fyrehose %(version)s")
def main() -> None:
    """Publish to a Fyrehose server, follow its streams, look into its journal.

    The server itself is started by `twistd -n fyrehose` (see `twistd fyrehose --help`).

    \b
        fyrehose publish --stream notes "first message"
    """


@main.command()
@_protocol
@click.option("--to", "place", type=Place(), default="127.0.0.1", help="The server.  [default: 127.0.0.1]")
@_tls
@click.option("--stream", metavar="NAME", help="Where to (a Figg topic is a stream; the backbone has one only).")
@click.option("--file", "files", multiple=True, metavar="PATH", help="Publish its lines; - is standard input.")
@click.option("--whole", is_flag=True, help="Each file is one message; arguments are files, too.")
@click.option("--window", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Messages under way.")
@click.option("--transaction", type=click.IntRange(1), metavar="N", help="Commit every N messages together (relink).")
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="How long to wait for the server.")
@click.argument("messages", nargs=-1)
def publish(
    protocol: str,
    place: tuple[str, int | None],
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

    The exit status is 0 if the server has acknowledged everything: then it is on its disk.

    \b
        fyrehose publish --stream notes "first message" "second message"
        journalctl -f | fyrehose publish --protocol backbone
        fyrehose publish --protocol relink --stream s --transaction 50 --file f
    """
    from fyrehose.cli import publishing, running, sources
    from fyrehose.cli.places import server

    if whole:
        source = sources.whole_files([*files, *messages])
    elif messages and files:
        raise click.UsageError("either MESSAGES or --file; with --whole the arguments are files, too")
    elif messages:
        source = sources.arguments(messages)
    else:
        if not files and sys.stdin is not None and sys.stdin.isatty():
            click.echo("fyrehose: each line is a message; Ctrl-D ends it", err=True)
        source = sources.lines_of(files or ("-",))
    at = server(protocol, place, tls)
    status = running.run(
        lambda reactor: publishing.publish(
            reactor, at.publisher(reactor, stream, window, transaction), source, timeout, at.contacts
        )
    )
    sys.exit(status)


@main.command()
@_protocol
@click.option("--from", "place", type=Place(), default="127.0.0.1", help="The server.  [default: 127.0.0.1]")
@_tls
@click.option("--stream", metavar="NAME", help="What to follow (the backbone has one only).")
@click.option("--since", type=Since(), default="latest", show_default=True, help="Where to begin.")
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--idle", type=Duration(), help="End when nothing has come for so long.")
@click.option("--format", "form", type=click.Choice(["text", "json", "raw"]), default="text", show_default=True)
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="How long to wait for the server.")
def tail(
    protocol: str,
    place: tuple[str, int | None],
    tls: str | None,
    stream: str | None,
    since: int | None,
    count: int | None,
    idle: float | None,
    form: str,
    timeout: float,
) -> None:
    """Write the messages of a stream to standard output, as they come.

    text: each message and a line feed, escaped on a terminal.  json: an object a line; a message that is not UTF-8 is
    in "payload_base64".  raw: the messages alone.  Status 1: some of what was asked for did not come.

    \b
        fyrehose tail --stream log
        fyrehose tail --stream log --since start --idle 1s | wc -l
        fyrehose tail --protocol backbone --format json | jq .seq
    """
    from fyrehose.cli import formats, running, tailing
    from fyrehose.cli.places import server

    at = server(protocol, place, tls)
    status = running.run(
        lambda reactor: tailing.tail(
            reactor,
            lambda take, lost: at.tailer(reactor, stream, since, take, lost),
            formats.for_terminal(form) if os.isatty(1) else formats.FORMATS[form],
            count,
            idle,
            timeout,
            at.contacts,
            since,
        )
    )
    sys.exit(status)


@main.command("protocols")
@click.argument("names", nargs=-1)
def show_protocols(names: tuple[str, ...]) -> None:
    """List the protocols, where they listen, and their options.

    \b
        fyrehose protocols
        fyrehose protocols figg
    """
    from fyrehose.cli import listing

    listing.show(list(names) or plugins.names(), details=bool(names))


main.add_command(journal)
main.add_command(completion)
for _command in (streams, stats, top):
    main.add_command(_command)
