"""``fyrehose dead``: list, show, replay or delete dead letters of a running server.

Dead letters are records of ordinary streams: those of listeners (see :mod:`fyrehose.subscriptions.letters`), and those
of shared subscriptions.  A shared subscription to these streams records which dead letters were replayed or deleted.
Replaying a letter settles its record and publishes the message in one commit of the server.  A settled record stays in
its stream until retention deletes it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import attrs
import click

from fyrehose.cli.client.remote import RemoteServer, asks
from fyrehose.cli.client.streams import ListByDefault
from fyrehose.cli.client.values import FORMAT
from fyrehose.cli.console import moment, table, terminal, write_json
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.options import counted
from fyrehose.records import MAX_NAME
from fyrehose.subscriptions.letters import PREFIX, SOURCE

#: The largest number of dead letters that one command handles, beginning with the oldest of each stream.
MOST = 1_000
#: Length of this command's leases, in seconds: if this command is killed, other commands get the dead letters after
#: that time.
LEASE_S = 5
#: The name under which the command leases letters.
CONSUMER = "fyrehose dead"
#: The source of the dead letters of shared subscriptions.
_SHARED = "server-subscriptions"

_of_a_server = asks("http")
_streams = click.option(
    "--stream",
    "pattern",
    default=f"{PREFIX}*",
    show_default=True,
    help="Stream of dead letters, or pattern.",
)
_COLUMNS = ("letter", "time", "why", "bytes", "belongs in", "from")
_LETTERS = click.argument("letters", nargs=-1, metavar="STREAM/SEQ...")
_ALL = click.option("--all", "everything", is_flag=True, help=f"All of them, at most {MOST:,} a time.")


@attrs.frozen
class Letter:
    """A dead letter, which this command has leased.

    :ivar record: the record, as in the server's answer
    """

    record: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the name of the letter in commands: ``STREAM/SEQ``."""
        return f"{self.record['stream']}/{self.record['seq']}"

    @property
    def item(self) -> list[Any]:
        """Return the record's stream, seq and token, as a request that settles it needs them."""
        return [self.record["stream"], self.record["seq"], self.record["token"]]

    @property
    def payload(self) -> bytes:
        """Return the payload of the message; a dead letter has only the beginning of a large message."""
        if "payload" in self.record:
            return str(self.record["payload"]).encode()
        return b64decode(self.record["payload_base64"])

    @property
    def about(self) -> tuple[str, int, str]:
        """Return why the message is a dead letter, its size in bytes, and its original stream ("": the server did not
        write this record).
        """
        if self.record.get("source") == _SHARED:
            return f"failed as record {self.record['producer_seq']}", len(self.payload), str(self.record["producer"])
        if self.record.get("source") != SOURCE:
            return "not a dead letter", len(self.payload), ""
        why, size, stream = str(self.record["topic"]).split(" ", 2)
        return why, int(size), stream

    def message(self) -> dict[str, Any]:
        """Return the message as an object of a publish request, for the stream to which it was sent.

        :raises FyrehoseError: the letter does not have the whole message, or does not name its original stream, or may
            name only a part of it, because a topic has at most MAX_NAME bytes
        """
        _, size, stream = self.about
        if size > len(self.payload):
            raise FyrehoseError(
                f"letter {self.name} has only {len(self.payload)} of the {size} bytes of its message, so it cannot be "
                "published again; delete it"
            )
        if not stream:
            raise FyrehoseError(f"record {self.name} is not a dead letter, because a peer has published it; delete it")
        if self.record.get("source") == SOURCE and len(str(self.record["topic"]).encode()) > MAX_NAME - 4:
            raise FyrehoseError(
                f"letter {self.name} may have only the beginning of the name of its stream, {stream[:20]!r}..., so it "
                "cannot be published again; publish what `fyrehose dead show` writes yourself, and delete it"
            )
        kept: dict[str, Any] = {
            name: self.record[name] for name in ("payload", "payload_base64", "content_type") if name in self.record
        }
        return {"stream": stream, **kept}


@attrs.define(eq=False)
class Desk:
    """A context in which the dead letters of the streams that match a pattern are leased for one command."""

    server: RemoteServer
    pattern: str
    letters: list[Letter] = attrs.field(factory=list)

    @property
    def subscription(self) -> str:
        """Return the name of the shared subscription that records which letters were replayed or deleted."""
        return f"dead-letters-{sha256(self.pattern.encode(errors='surrogateescape')).hexdigest()[:16]}"

    def __enter__(self) -> Desk:
        options = {"match": self.pattern, "lease": LEASE_S, "limit": 0, "window": MOST, "most": MOST}
        self.server.create_shared(self.subscription, options)
        while len(self.letters) < MOST:
            # After a restart of the server, leased letters come back only when their leases end.
            wait = 0 if self.letters else LEASE_S + 1
            wanted = {"consumer": CONSUMER, "most": MOST - len(self.letters), "wait": wait}
            found = self.server.act(self.subscription, "lease", wanted)["records"]
            if not found:
                break
            self.letters += map(Letter, found)
        self.letters.sort(key=lambda letter: (letter.record["stream"], letter.record["seq"]))
        return self

    def __exit__(self, *failure: object) -> None:
        """Return the leases of letters that were not handled, so that the next command gets these letters at once."""
        if self.letters:
            items = [[*letter.item, {"delay": 0}] for letter in self.letters]
            self.server.act(self.subscription, "settle", {"untried": items})

    def chosen(self, names: Sequence[str], everything: bool) -> list[Letter]:
        """Return the letters with these *names*, or all letters if there are no names.

        :raises FyrehoseError: there is no such letter
        """
        if everything:
            return list(self.letters)
        known = {letter.name: letter for letter in self.letters}
        for name in names:
            if name not in known:
                raise FyrehoseError(f"there is no dead letter {name!r} in {self.pattern}; see `fyrehose dead list`")
        return [known[name] for name in dict.fromkeys(names)]

    def end(self, letter: Letter, *messages: dict[str, Any]) -> None:
        """Settle *letter*, so that it is not listed again, and publish *messages*, in one commit.

        :raises FyrehoseError: the server refuses; nothing was done
        """
        answer = self.server.act(
            self.subscription, "settle", {"done": [letter.item], **({"publish": list(messages)} if messages else {})}
        )
        self.letters.remove(letter)
        for refused in answer["refused"]:
            raise FyrehoseError(f"letter {letter.name} was left as it is: {refused['why']}; try again")


@click.group(cls=ListByDefault, short_help="List, replay or delete dead letters.")
def dead() -> None:
    """List, show, replay or delete messages that were refused or that no worker could handle.

    Without a command, `list` is used: see `fyrehose dead list --help`.

    \b
        fyrehose dead
        fyrehose dead replay dead.figg/1
        fyrehose dead --stream orders.dead
    """


@dead.command("list")
@_of_a_server
@FORMAT
@_streams
def list_letters(server: RemoteServer, form: str, pattern: str) -> None:
    """List the dead letters, the oldest of each stream first.

    The access policy must allow `subscribe` and `consume`. json: one object a line.

    \b
        fyrehose dead
        fyrehose dead list --stream orders.dead --format json
    """
    with Desk(server, pattern) as desk:
        found = list(desk.letters)
    if form == "json":
        write_json(*({"letter": letter.name, **_object(letter)} for letter in found))
        return
    if not found:
        click.echo(f"fyrehose: there are no dead letters in {pattern}", err=True)
        return
    terminal().print(table(_COLUMNS, map(_row, found), right=("bytes",), whole=("letter", "time", "why")))


def _object(letter: Letter) -> dict[str, Any]:
    """Return *letter* as a JSON object: its reason, the size and original stream of its message, and its record."""
    return {**dict(zip(("why", "size", "belongs"), letter.about, strict=True)), **letter.record}


def _row(letter: Letter) -> tuple[str, ...]:
    why, size, stream = letter.about
    sender = "" if letter.record.get("source") == _SHARED else str(letter.record.get("producer", ""))
    return letter.name, moment(letter.record["time"])[:19], why, f"{size:,}", stream, sender


@dead.command()
@_of_a_server
@_streams
@click.argument("letter", metavar="STREAM/SEQ")
def show(server: RemoteServer, pattern: str, letter: str) -> None:
    """Write one dead letter as a JSON object, with its message.

    \b
        fyrehose dead show dead.figg/1
    """
    with Desk(server, pattern) as desk:
        (found,) = desk.chosen([letter], everything=False)
    write_json(_object(found), indent=2)


@dead.command()
@_of_a_server
@_streams
@_ALL
@_LETTERS
def replay(server: RemoteServer, pattern: str, everything: bool, letters: tuple[str, ...]) -> None:
    """Publish messages to their streams again, and remove their dead letters in the same commit.

    The command stops at the first message that is refused. Remove the reason first, such as a limit
    of the stream, because a message that is refused again stays a dead letter.

    \b
        fyrehose dead replay dead.figg/1
        fyrehose dead replay --all
    """
    _end(server, pattern, letters, everything, again=True)


@dead.command()
@_of_a_server
@_streams
@_ALL
@_LETTERS
def delete(server: RemoteServer, pattern: str, everything: bool, letters: tuple[str, ...]) -> None:
    """Remove dead letters without publishing their messages.

    \b
        fyrehose dead delete dead.figg/1
    """
    _end(server, pattern, letters, everything, again=False)


def _end(server: RemoteServer, pattern: str, names: Sequence[str], everything: bool, again: bool) -> None:
    if bool(names) is everything:
        raise ConfigError("pass the letters to handle as STREAM/SEQ, or pass --all")
    done = 0
    try:
        with Desk(server, pattern) as desk:
            for letter in desk.chosen(names, everything):
                desk.end(letter, *([letter.message()] if again else []))
                done += 1
    finally:
        click.echo(f"{counted(done, 'letter')} {'replayed' if again else 'deleted'}")
